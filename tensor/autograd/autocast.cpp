#include "lockstep/tensor/autograd/autocast.h"

#include <map>
#include <tuple>
#include <utility>

#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/elements.h"

namespace lockstep {

// By the leaf or mirror, which is one for all handles to a slot, the dtype, whether the cast has a graph, and the
// stream that computes it: on another one it would be read too early, and be gone too early.
class AutocastCache {
 public:
  Tensor cast(const Tensor& x, DType dtype) {
    Entry& entry = entries_[{x.edge().node.get(), dtype, GradMode::enabled(), &current_stream(x.device()).body()}];
    if (detail::Elements elements(x); !entry.cast.defined() || entry.elements != elements) {
      entry.cast = x.to(dtype);
      entry.elements = std::move(elements);
    }
    return entry.cast;
  }

 private:
  struct Entry {
    detail::Elements elements;  // of which it was made
    Tensor cast;
  };
  std::map<std::tuple<const Node*, DType, bool, const detail::StreamBody*>, Entry> entries_;
};

Autocast::Autocast(DType dtype, bool enabled) {
  LOCKSTEP_CHECK(dtype == DType::f16 || dtype == DType::bf16, "[Autocast] expected f16 or bf16, got ", dtype);
  ThreadContext& context = thread_context();
  enabled_before_ = std::exchange(context.autocast, enabled);
  dtype_before_ = std::exchange(context.autocast_dtype, dtype);
  cache_before_ = context.autocast_cache;
  if (cache_before_) return;
  cache_ = std::make_unique<AutocastCache>();
  context.autocast_cache = cache_.get();
}

Autocast::~Autocast() {
  ThreadContext& context = thread_context();
  context.autocast = enabled_before_;
  context.autocast_dtype = dtype_before_;
  context.autocast_cache = cache_before_;
}

namespace detail {

AutocastThread::AutocastThread() {
  ThreadContext& context = thread_context();
  context.autocast_cache = nullptr;  // the other thread's
  if (!context.autocast) return;
  cache_ = std::make_unique<AutocastCache>();
  context.autocast_cache = cache_.get();
}

AutocastThread::~AutocastThread() { thread_context().autocast_cache = nullptr; }

Tensor narrowed(const Tensor& x) {
  const ThreadContext& context = thread_context();
  if (!narrows_one(context, x)) return x;
  const Node* node = x.edge().node.get();
  const bool parameter = node && node->kind() != Node::Kind::operation;
  if (parameter && context.autocast_cache) return context.autocast_cache->cast(x, context.autocast_dtype);
  return x.to(context.autocast_dtype);
}

}  // namespace detail
}  // namespace lockstep
