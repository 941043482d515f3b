#include "lockstep/runtime/service_thread.h"

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

#include "lockstep/runtime/keep_loaded.h"
#include "lockstep/runtime/library_threads.h"

namespace lockstep::detail {
namespace {

// A thread inherits the mask of its maker.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

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
