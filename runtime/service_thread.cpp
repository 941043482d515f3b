#include "lockstep/runtime/service_thread.h"

#include <pthread.h>

#include <thread>
#include <utility>

#include "lockstep/runtime/keep_loaded.h"
#include "lockstep/runtime/library_threads.h"

namespace lockstep::detail {

BlockedSignals::BlockedSignals() noexcept {
  sigset_t signals;
  sigfillset(&signals);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&signals, own);
  pthread_sigmask(SIG_BLOCK, &signals, &before_);
}
BlockedSignals::~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void start_service_thread(const std::string& name, UniqueFunction body) {
  keep_loaded();
  BlockedSignals blocked;
  std::thread thread([run = std::move(body)]() mutable {
    this_is_a_service_thread();
    run();
  });
  pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
  thread.detach();
}

}  // namespace lockstep::detail
