#include "lockstep/runtime/cuda/host_task.h"

#include <memory>
#include <utility>

namespace lockstep::cuda {

void run_host_task(void* memory) {
  const std::unique_ptr<HostTask> host_task(static_cast<HostTask*>(memory));
  const HostTask& t = *host_task;
  // As on a stream whose work failed: nothing more until whoever enqueued it knows.
  if (const auto failure = failure_of(t.depends_on, t.sequence, t.caller)) return failure->affects(t.caller);
  trace::began(t.token);
  try {
    host_task->task();
  } catch (...) {
    auto failure = std::make_shared<detail::Failure>(std::current_exception(), t.device.device);
    failure->affects(t.caller);
    t.device.fail(t.sequence, std::move(failure));
  }
  trace::ended(host_task->token);
}

}  // namespace lockstep::cuda
