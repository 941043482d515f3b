// What a thread carries from call to call: grad mode, default dtype, training override, autocast, random state. Plain
// data, so that the engine can hand a caller's context to its device threads.
#pragma once

#include <cstdint>

#include "lockstep/kernels/dtype.h"
#include "lockstep/runtime/api.h"

namespace lockstep {

class AutocastCache;
class GradientSink;
class ModuleBase;
class Substitution;

struct ThreadContext {
  bool grad_enabled = true;
  bool inference = false;
  DType default_dtype = DType::f32;
  std::int8_t training = -1;                     // TrainingScope: 0 evaluation, 1 training, -1 what each module says
  int module_depth = 0;                          // calls of modules in progress
  const ModuleBase* outermost_module = nullptr;  // of those calls
  const Substitution* substitution = nullptr;
  bool autocast = false;  // Autocast, with its dtype and the casts of parameters of this thread
  DType autocast_dtype = DType::f16;
  AutocastCache* autocast_cache = nullptr;
  // Random numbers: operation `random_counter` of stream `random_stream` under `random_seed`.
  std::uint64_t random_seed = 0, random_stream = 0, random_counter = 0;
  // Order of creation of graph nodes in this thread; replicas go on from their caller's number.
  std::uint64_t sequence = 0;
  // Which thread's numbers these are, for those that tell threads apart (0: nobody has asked yet). Goes with
  // `sequence`.
  std::uint32_t numbering = 0;
  // The training call this thread works for (0: none); see Parameter.
  std::uint64_t training_call = 0;
  // In a replica beside others: takes the gradients of parameters at home elsewhere.
  GradientSink* gradient_sink = nullptr;
};

LOCKSTEP_API ThreadContext& thread_context();

// Replaces the whole context until the scope ends (device threads, with their caller's context).
class ContextScope {
 public:
  explicit ContextScope(const ThreadContext& context) : saved_(thread_context()) { thread_context() = context; }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() { thread_context() = saved_; }

 private:
  ThreadContext saved_;
};

namespace detail {
// Sets one field of the thread's context until the scope ends.
template <auto Field, class T>
class FieldScope {
 public:
  explicit FieldScope(T value) : saved_(thread_context().*Field) { thread_context().*Field = value; }
  FieldScope(const FieldScope&) = delete;
  FieldScope& operator=(const FieldScope&) = delete;
  ~FieldScope() { thread_context().*Field = saved_; }

 private:
  T saved_;
};
}  // namespace detail

// Operations record what backward needs only where grad mode is on (the default).
class GradMode : public detail::FieldScope<&ThreadContext::grad_enabled, bool> {
 public:
  using FieldScope::FieldScope;
  static bool enabled() { return thread_context().grad_enabled && !thread_context().inference; }
};
class NoGrad : public GradMode {
 public:
  NoGrad() : GradMode(false) {}
};

// For code that never trains: nothing is recorded inside, whatever grad mode says there.
class InferenceMode : public detail::FieldScope<&ThreadContext::inference, bool> {
 public:
  explicit InferenceMode(bool enabled = true) : FieldScope(enabled) {}
  static bool enabled() { return thread_context().inference; }
};

// Overrides the training or evaluation mode of every module called in this thread (and in replicas it starts).
class TrainingScope : public detail::FieldScope<&ThreadContext::training, std::int8_t> {
 public:
  explicit TrainingScope(bool training) : FieldScope(training ? 1 : 0) {}
};

// The dtype of factories and new parameters that are not told one.
class DefaultDType : public detail::FieldScope<&ThreadContext::default_dtype, DType> {
 public:
  using FieldScope::FieldScope;
  static DType get() { return thread_context().default_dtype; }
};

// Restarts this thread's random numbers: same seed, same numbers. Threads start with seed 0.
LOCKSTEP_API void manual_seed(std::uint64_t seed);

}  // namespace lockstep
