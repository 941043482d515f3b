// parallel_apply: each replica computes its input on the thread of its device.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/replica_call.h"
#include "lockstep/parallel/replicate.h"
#include "lockstep/tensor/tree.h"

namespace lockstep {
namespace detail {

// What a function that returns nothing returns.
struct Nothing {};
template <class R>
using Stored = std::conditional_t<std::is_void_v<R>, Nothing, std::decay_t<R>>;

template <class T>
inline constexpr bool is_std_tuple = false;
template <class... T>
inline constexpr bool is_std_tuple<std::tuple<T...>> = true;

// A std::tuple is a list of arguments, anything else the only one.
template <class T>
auto as_tuple(const T& value) {
  if constexpr (is_std_tuple<T>)
    return value;
  else
    return std::tuple<T>(value);
}

// A std::tuple is a list of arguments, anything else the only one.
template <class F, class Input>
decltype(auto) call_with(F& function, Input& input) {
  if constexpr (is_std_tuple<Input>)
    return std::apply(function, input);
  else
    return function(input);
}

template <class F, class Input>
class TypedCall final : public ReplicaCall {
 public:
  using Output = Stored<decltype(call_with(std::declval<F&>(), std::declval<Input&>()))>;

  TypedCall(const std::vector<F>& functions, std::vector<Input> inputs, std::span<const Device> devices)
      : ReplicaCall(devices) {
    work_.reserve(functions.size());
    for (std::size_t i = 0; i < functions.size(); ++i) {
      work_.push_back({std::optional<F>(functions[i]), std::optional<Input>(std::move(inputs[i])), std::nullopt});
    }
  }

  std::vector<Output> outputs() {
    std::vector<Output> outputs;
    outputs.reserve(work_.size());
    for (Work& work : work_) outputs.push_back(std::move(*work.output));
    return outputs;
  }
  // The tasks may let go of the call later than the caller: what it holds is dropped now.
  void clear() { work_.clear(); }

 private:
  struct Work {
    std::optional<F> function;
    std::optional<Input> input;
    std::optional<Output> output;
  };
  void run(std::size_t replica) override {
    Work& work = work_[replica];
    if constexpr (std::is_void_v<decltype(call_with(*work.function, *work.input))>) {
      call_with(*work.function, *work.input);
      work.output.emplace();
    } else {
      work.output.emplace(call_with(*work.function, *work.input));
    }
  }
  void forget(std::size_t replica) noexcept override {
    Work& work = work_[replica];
    work.output.reset();
    work.input.reset();
    work.function.reset();
  }

  std::vector<Work> work_;
};

[[noreturn]] LOCKSTEP_API void fail_counts(std::size_t replicas, const char* what, std::size_t count);
[[noreturn]] LOCKSTEP_API void fail_no_device(std::size_t replica);
[[noreturn]] LOCKSTEP_API void fail_replica_device(std::size_t replica, Device expected, Device got);

// parallel_apply with an element for a function that returns nothing.
template <class F, class Input>
auto apply_all(const std::vector<F>& functions, std::vector<Input> inputs, std::span<const Device> devices,
               Milliseconds timeout) {
  using Call = TypedCall<F, Input>;
  if (functions.size() != inputs.size()) fail_counts(functions.size(), "inputs", inputs.size());
  if (functions.size() != devices.size()) fail_counts(functions.size(), "devices", devices.size());
  if (functions.empty()) return std::vector<typename Call::Output>();
  check_devices("parallel_apply", devices);
  const auto call = std::make_shared<Call>(functions, std::move(inputs), devices);
  struct Clear {
    Call& call;
    bool late = false;
    ~Clear() {
      if (!late) call.clear();
    }
  } clear{*call};
  Reading reading;
  for (const F& function : functions)
    if constexpr (requires { function.read(reading); }) function.read(reading);
  try {
    run_replicas(call, timeout);
  } catch (const TimeoutError&) {
    clear.late = true;  // somebody still uses it
    throw;
  }
  return call->outputs();
}

template <class F, class Input>
Device device_of(const F& function, const Input& input, std::size_t replica) {
  if constexpr (requires {
                  { function.device() } -> std::same_as<Device>;
                }) {
    return function.device();
  } else {
    std::optional<Device> device;
    for_each_tensor(input, [&](const Tensor& tensor) {
      if (!device) device = tensor.device();
    });
    if (!device) fail_no_device(replica);
    return *device;
  }
}

}  // namespace detail

// Calls replicas[i] (or any other callable) with inputs[i]: a std::tuple holds the arguments, anything else is the only
// one. A lone replica runs in the calling thread, without a time-out; several run on the threads of their devices, and
// the call returns when all of them have, with the outputs in order (nothing when they return nothing).
//
// Replicas know their device; other callables run on that of the first tensor in their input unless `devices` are
// given. They see the caller's context (grad mode, default dtype, autocast, training, random state, current streams);
// their random numbers depend on the caller's seed and call and on the replica's index alone.
//
// Throws InvalidArgument for counts that differ, a device that comes twice or cannot be told; ReplicaError, after all
// have returned, when some threw (nested in it is the exception of the lowest replica that did not just wait in vain
// for another one); TimeoutError when some did not return in time (they keep what they use, their devices answer
// DeviceError until they return); DeviceError at once for such a device; Error when called from inside a replica.
template <class F, class Input>
auto parallel_apply(const std::vector<F>& replicas, std::vector<Input> inputs,
                    const std::optional<std::vector<Device>>& devices = std::nullopt,
                    Milliseconds timeout = kDefaultTimeout) {
  if (replicas.size() != inputs.size()) detail::fail_counts(replicas.size(), "inputs", inputs.size());
  std::vector<Device> places;
  if (devices) {
    places = *devices;
    for (std::size_t i = 0; i < replicas.size() && i < places.size(); ++i) {
      if constexpr (requires {
                      { replicas[i].device() } -> std::same_as<Device>;
                    }) {
        if (replicas[i].device() != places[i]) detail::fail_replica_device(i, replicas[i].device(), places[i]);
      }
    }
  } else {
    places.reserve(replicas.size());
    for (std::size_t i = 0; i < replicas.size(); ++i) places.push_back(detail::device_of(replicas[i], inputs[i], i));
  }
  auto outputs = detail::apply_all(replicas, std::move(inputs), places, timeout);
  if constexpr (!std::is_same_v<decltype(outputs), std::vector<detail::Nothing>>) return outputs;
}

}  // namespace lockstep
