// Links a user's program with the fake CUDA runtime: 8 devices in this process, and a broken rule at its end is an
// error.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "fake_cuda/checked_table.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/library_retained.h"
#include "lockstep/kernels/api.h"

namespace {

void report() {
  fake_cuda::check_end();
  const auto failures = fake_cuda::take_failures();
  for (const fake_cuda::Failure& failure : failures) std::printf("fake CUDA: %s\n", to_string(failure).c_str());
  std::fflush(stdout);
  if (!failures.empty()) _exit(5);
}

const bool configured =
    (fake_cuda::reset_from_environment({}), fake_cuda::keep_at_end(fake_cuda::library_retained),
     lockstep::kernels::detail::install_table(lockstep::DeviceType::cuda, fake_cuda::checked_table()),
     std::atexit(report), true);

}  // namespace
