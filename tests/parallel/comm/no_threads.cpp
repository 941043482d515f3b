#include "parallel/comm/no_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <cerrno>

namespace {
constinit thread_local int may_start = -1;  // -1: as many as it likes
}

conformance::NoThreads::NoThreads(int more) { may_start = more; }
conformance::NoThreads::~NoThreads() { may_start = -1; }

// In the place of the system's, also for the standard library.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*body)(void*), void* argument) noexcept {
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  if (may_start == 0) return EAGAIN;
  if (may_start > 0) --may_start;
  return real(thread, attributes, body, argument);
}
