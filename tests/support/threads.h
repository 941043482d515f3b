// Kernels with several threads.
#pragma once

#include <string>
#include <vector>

#include "lockstep/runtime/host/compute_threads.h"
#include "support/set_threads.h"
#include "support/views.h"

namespace support {

// Runs a kernel with one thread and with several: empty when `outputs` have the same bytes, written where they should
// be, and the kernel was divided.
template <class Args>
std::string differs_with_threads(const Args& args, std::initializer_list<TestTensor*> outputs) {
  std::vector<std::vector<std::byte>> before, one;
  for (const TestTensor* out : outputs) before.push_back(out->bytes());
  for (const int threads : {1, 2, 3, 7}) {
    std::size_t i = 0;
    for (TestTensor* out : outputs) std::memcpy(out->storage(), before[i++].data(), out->storage_bytes());
    const Threads set(threads);
    const std::uint32_t calls = lockstep::detail::divided_calls();
    run(args);
    if ((lockstep::detail::divided_calls() != calls) != (threads > 1))
      return cat(Args::kName, ": divided with ", threads, " threads: ", lockstep::detail::divided_calls() - calls);
    i = 0;
    for (TestTensor* out : outputs) {
      if (threads == 7 && !out->guards_intact())
        return cat(Args::kName, ": a byte outside of output ", i, " was written");
      if (threads == 1)
        one.push_back(out->bytes());
      else if (out->bytes() != one[i])
        return cat(Args::kName, ": output ", i, " of ", threads, " threads differs from that of one");
      ++i;
    }
  }
  return {};
}

}  // namespace support
