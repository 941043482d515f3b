#include "lockstep/runtime/stream/work_scope.h"

#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/trace/trace_environment.h"

namespace lockstep::trace {
namespace {

// In the order of the stream. On a device that is lost nothing runs any more: the span does not begin, or end.
void tell(const Stream& stream, Token token, void (*what)(Token)) noexcept try {
  stream.enqueue([=] { what(token); });
} catch (...) {
}

}  // namespace

WorkScope::WorkScope(const Stream& stream, const Work& work)
    : stream_(stream.body()), before_(detail::exchange_work(work)) {
  if (!active() || lockstep::detail::current_capture) return;  // a span would begin and end at each replay
  const bool by_tasks = stream.backend().traced_by_tasks();
  if (stream.synchronous() || by_tasks) token_ = enqueued(stream.handle(), stream.device(), work);
  if (token_ != 0) {
    if (by_tasks)
      tell(stream, token_, began);
    else
      began(token_);
  }
  token_ = detail::push_work_range(work.name, token_);
}

WorkScope::~WorkScope() {
  if (const Token span = detail::without_range(token_); span != 0 && stream_.backend().traced_by_tasks()) {
    tell(stream_, span, ended);
    token_ ^= span;
  }
  ended(token_);
  detail::exchange_work(before_);
}

}  // namespace lockstep::trace
