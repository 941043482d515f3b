// Kernels with several threads.
#pragma once

#include <iterator>
#include <string>
#include <vector>

#include "lockstep/runtime/host/compute_threads.h"
#include "support/set_threads.h"
#include "support/views.h"

namespace support {

// The counts of threads that are compared with one. What sanitizers see of a piece depends on no count, and they need
// several times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kThreadCounts[] = {3};
#else
inline constexpr int kThreadCounts[] = {2, 3, 7};
#endif

// Whether the next of many problems is one to look at: all of them, but some for sanitizers, to which pieces look alike
// and who need minutes for what the sums cost in seconds.
inline bool chosen([[maybe_unused]] int& turn) {
#if defined(__SANITIZE_THREAD__)
  return turn++ % 7 == 0;
#elif defined(__SANITIZE_ADDRESS__)
  return turn++ % 3 == 0;
#else
  return true;
#endif
}

// Runs a kernel with one thread and with several: empty when `outputs` have the same bytes, written where they should
// be, and the kernel was divided.
template <class Args>
std::string differs_with_threads(const Args& args, std::initializer_list<TestTensor*> outputs) {
  std::vector<std::vector<std::byte>> before, one;
  for (const TestTensor* out : outputs) before.push_back(out->bytes());
  const auto run_with = [&](int threads) -> std::string {
    std::size_t i = 0;
    for (TestTensor* out : outputs) std::memcpy(out->storage(), before[i++].data(), out->storage_bytes());
    const Threads set(threads);
    const std::uint32_t calls = lockstep::detail::divided_calls();
    run(args);
    if ((lockstep::detail::divided_calls() != calls) != (threads > 1))
      return cat(Args::kName, ": divided with ", threads, " threads: ", lockstep::detail::divided_calls() - calls);
    i = 0;
    for (TestTensor* out : outputs) {
      if (threads == kThreadCounts[std::size(kThreadCounts) - 1] && !out->guards_intact())
        return cat(Args::kName, ": a byte outside of output ", i, " was written");
      if (threads == 1)
        one.push_back(out->bytes());
      else if (out->bytes() != one[i])
        return cat(Args::kName, ": output ", i, " of ", threads, " threads differs from that of one");
      ++i;
    }
    return {};
  };
  std::string error = run_with(1);
  for (const int threads : kThreadCounts)
    if (error.empty()) error = run_with(threads);
  return error;
}

}  // namespace support
