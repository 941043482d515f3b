// Preloaded, it takes away what sched_getaffinity says, as kernels do whose machine has more cores than fit.
#include <sched.h>

#include <cerrno>

extern "C" __attribute__((visibility("default"))) int sched_getaffinity(pid_t, std::size_t, cpu_set_t*) noexcept {
  errno = EINVAL;
  return -1;
}
