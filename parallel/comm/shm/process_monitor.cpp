#include "lockstep/parallel/comm/shm/process_monitor.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/service_thread.h"

namespace lockstep::detail {

ProcessMonitor::ProcessMonitor(std::shared_ptr<ControlBlock> control, std::vector<Watched> watched)
    : control_(std::move(control)), watched_(std::move(watched)), wake_(eventfd(0, EFD_CLOEXEC)), process_(getpid()) {
  if (!wake_) fail<Error>("[communicator] expected an event descriptor, got ", std::strerror(errno));
  const BlockedSignals blocked;
  thread_ = std::thread([this, wake = wake_.get()] { watch(wake); });
  pthread_setname_np(thread_.native_handle(), "lss-peers");
}

ProcessMonitor::~ProcessMonitor() {
  if (getpid() != process_) {
    thread_.detach();
    return;
  }
  const std::uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void ProcessMonitor::watch(int wake) {
  std::vector<pollfd> polled{{.fd = wake, .events = POLLIN, .revents = 0}};
  for (const auto& [descriptor, rank] : watched_)
    polled.push_back({.fd = descriptor.get(), .events = POLLIN, .revents = 0});
  for (;;) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // EINTR
    if (polled[0].revents) return;
    for (std::size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      // Nothing is ever sent: what can be read is the end. A rank that has left before stays one that left.
      control_->set_presence(watched_[i - 1].second, ControlBlock::Presence::died);
      polled[i].fd = -1;  // poll passes over it
    }
  }
}

}  // namespace lockstep::detail
