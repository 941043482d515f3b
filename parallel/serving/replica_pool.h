// A pool of replicas that answers requests: what a server is made of.
//
//   ReplicaPool pool(net, {.devices = accelerators(), .max_batch_samples = 16, .max_delay = 300us});
//   Answer<Tensor> answer = pool.submit(image, {.timeout = 100ms});  // from any thread
//   Tensor scores = answer.get();
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/parallel_apply.h"
#include "lockstep/parallel/replicate.h"
#include "lockstep/parallel/serving/answer.h"
#include "lockstep/parallel/serving/batch.h"
#include "lockstep/parallel/serving/serving_context.h"
#include "lockstep/parallel/serving/serving_error.h"
#include "lockstep/parallel/serving/serving_pool.h"
#include "lockstep/parallel/signature.h"
#include "lockstep/runtime/check_function.h"
#include "lockstep/tensor/nn/prepare.h"

namespace lockstep {

namespace detail {

template <class R, class Inputs>
struct TypedRequest final : AnswerState<R> {
  explicit TypedRequest(Inputs in) : inputs(std::move(in)) {}
  void drop_inputs() noexcept override { inputs.reset(); }
  void call_back() noexcept override {
    if (!callback) return;
    const auto call = std::exchange(callback, nullptr);
    guard_callback([&] { call(Answer<R>(std::static_pointer_cast<AnswerState<R>>(this->shared_from_this()))); });
  }

  std::optional<Inputs> inputs;
  std::function<void(Answer<R>)> callback;
};

template <class R, class Inputs>
struct TypedResult final : ServingResult {
  std::vector<R> answers;
  void give(std::size_t i, ServingRequest& request) override {
    static_cast<TypedRequest<R, Inputs>&>(request).value.emplace(std::move(answers[i]));
  }
};

// Throws InvalidArgument for options that make no sense and for devices that do not exist.
LOCKSTEP_API void check_serving(const ReplicaPoolOptions& options);
// What kernels need is made before the first request.
LOCKSTEP_API void prepare_serving(const std::vector<Device>& devices);
// Each of `devices` once.
LOCKSTEP_API std::vector<Device> distinct(const std::vector<Device>& devices);

template <class M, class R, class Inputs>
class ReplicaModel final : public ServingModel {
 public:
  using Request = TypedRequest<R, Inputs>;
  ReplicaModel(std::shared_ptr<M> module, const ReplicaPoolOptions& options)
      : options_(options),
        module_(std::move(module)),
        source_(std::make_shared<const ReplicaSource<M>>(module_)),
        streams_(options.devices) {
    devices_ = distinct(options_.devices);
    module_->to(devices_[0]);
    source_->slots.form_slabs();
    refresh();
    for (const Device device : options_.devices) {
      const int index = static_cast<int>(replicas_.size());
      replicas_.emplace_back(Replica<M>(source_, device, index));
    }
    if (options_.prepared) prepared_.emplace(*module_);
  }

  M& module() { return *module_; }
  void refresh() {
    source_->slots.check_placement(devices_[0]);
    moved_bytes() += source_->slots.refresh(devices_, options_.timeout).bytes;
    streams_.written();
  }

  std::unique_ptr<ServingResult> compute(int replica, std::span<const std::shared_ptr<ServingRequest>> batch) override {
    auto result = std::make_unique<TypedResult<R, Inputs>>();
    const auto inputs_of = [&](std::size_t i) -> const Inputs& {
      return *static_cast<const Request&>(*batch[i]).inputs;
    };
    in_context(replica, [&](Device device) {
      BatchTensors tensors(batch, options_, device);
      Inputs joined = join_inputs<Inputs>(batch.size(), tensors, inputs_of);
      R output = call(replica, joined);
      result->answers = split_output(std::move(output), batch.size(), tensors);
    });
    return result;
  }
  void warm_up(int replica, const Inputs& example) {
    in_context(replica, [&](Device device) {
      Inputs inputs = example;
      for_each_tensor(inputs, [&](Tensor& tensor) { tensor = tensor.to(device); });
      R output = call(replica, inputs);
      for_each_tensor(output, [&](Tensor& tensor) { tensor = tensor.to(options_.output_device); });
    });
  }

 private:
  R call(int replica, const Inputs& inputs) const {
    const Replica<M>& of = replicas_[static_cast<std::size_t>(replica)];
    if (!prepared_) return std::apply(of, inputs);
    return of.visit([&](const M&) { return std::apply(*prepared_, inputs); });
  }
  // On the replica's own stream, without gradients, in evaluation mode. Waits for the stream.
  template <class F>
  void in_context(int replica, F&& f) {
    const ServingContext context(streams_.next(replica), options_.output_device, kSlice);
    f(replicas_[static_cast<std::size_t>(replica)].device());
    context.finish();
  }

  static constexpr Milliseconds kSlice{60'000};  // of waits for streams

  const ReplicaPoolOptions options_;
  const std::shared_ptr<M> module_;
  const std::shared_ptr<const ReplicaSource<M>> source_;
  ServingStreams streams_;
  std::vector<Device> devices_;  // each once
  std::vector<Replica<M>> replicas_;
  std::optional<Prepared<M>> prepared_;
};

}  // namespace detail

// `Signature` is that of M::forward; where it is overloaded or a template, say it: ReplicaPool<Net, Tensor(Tensor)>.
template <class M, class Signature = detail::SignatureOf<M>>
class ReplicaPool;

// Requests wait in one bounded queue. An idle replica takes the first of them and those that can be computed together
// with it: the same tree of tensors with the same dtypes and sizes but in dimension 0, where the samples are, and but
// for what Padding says; and the same numbers, strings and lengths beside the tensors. It joins the tensors along
// dimension 0, calls the module once, in evaluation mode and without gradients, and gives each request its samples of
// the result, whose tensors must have the samples in dimension 0 too. What is not a tensor in the result, each gets.
// Requests with parts of unknown types, or with tensors of their own (a Value, a PackedSequence), are computed alone.
//
// - A request ends once: with its answer, with what computing it threw, at its deadline, or when it is cancelled. The
//   deadline is for waiting and computing together.
// - Of a batch that throws each request is computed again alone, so that a bad one fails alone.
// - A replica whose device fails (DeviceError) is taken out, one that computes for longer than hang_timeout until it
//   returns. Its requests go to other replicas, once. Both are logged as warnings.
// - An answer of one sample computed in a batch may differ in its last bits from one computed alone, as products of
//   other sizes do.
//
// Threads: one for each replica, and one. All functions may be called from any thread, submit() and cancel() also from
// callbacks and from the module; waiting for an answer in there would stop a replica, and drain() and warm_up() throw
// Error there. In a child that was forked off, all but stats() and the destructor throw Error.
template <class M, class R, class... Args>
class ReplicaPool<M, R(Args...)> {
  static_assert(std::derived_from<M, ModuleBase>, "ReplicaPool serves modules");
  static_assert(!std::is_void_v<R>, "a module that is served returns something");
  static_assert((detail::IsValueArgument<std::decay_t<Args>> && ...),
                "a span does not own its elements: let forward take a std::vector");

 public:
  using Inputs = std::tuple<std::decay_t<Args>...>;
  using Output = std::decay_t<R>;
  using Callback = std::function<void(Answer<Output>)>;

  // Shares the module's parameters, and moves them to devices[0]. Throws InvalidArgument for options that make no
  // sense, devices that do not exist, and cores or priorities that the process may not have.
  explicit ReplicaPool(M module, const ReplicaPoolOptions& options = {}) {
    tree::check_tensors_found<Inputs>();
    detail::check_serving(options);
    detail::prepare_serving(options.devices);
    model_ = std::make_shared<Model>(std::make_shared<M>(std::move(module)), options);
    pool_ = std::make_shared<detail::ServingPool>(options, model_);
    options_ = options;
    pool_->start();
  }
  ReplicaPool(const ReplicaPool&) = delete;
  ReplicaPool& operator=(const ReplicaPool&) = delete;
  // Requests that wait end in Cancelled; those that are computed are waited for, for hang_timeout at most. drain()
  // before, to have all answered.
  ~ReplicaPool() { pool_->join(); }

  // `inputs` are a std::tuple of arguments or the only argument. Their tensors must not be written, by the module
  // either, until the request is answered; where it ends otherwise, not at all, since a replica may still read them; on
  // devices, what the caller's current streams do now comes first. Blocks where the queue is full and when_full says
  // so. Throws Refused, TimeoutError when there was no room until the deadline, and InvalidArgument for tensors without
  // samples in dimension 0 or with different numbers of them.
  template <class In>
  Answer<Output> submit(const In& inputs, const RequestOptions& options = {}) {
    return Answer<Output>(send(Inputs(detail::as_tuple(inputs)), options, nullptr));
  }
  // `done(answer)` is called when the request has ended, with a handle that is ready: in the thread of a replica, or in
  // that which ends it. It should be short; what it throws is logged. InvalidArgument for an empty one.
  template <class In>
  void submit(const In& inputs, const RequestOptions& options, Callback done) {
    detail::check_function("ReplicaPool::submit", done);
    send(Inputs(detail::as_tuple(inputs)), options, std::move(done));
  }

  // Each replica computes each of `examples` (whole batches) once, so that no request pays for what first calls do:
  // memory, plans of products and convolutions. Blocks; throws what the first one threw.
  void warm_up(const std::vector<Inputs>& examples, Milliseconds timeout = kDefaultTimeout) {
    pool_->run_chores(
        [model = model_, examples](int replica) {
          for (const Inputs& example : examples) model->warm_up(replica, example);
        },
        Deadline::after(timeout));
  }
  void warm_up(const Inputs& example, Milliseconds timeout = kDefaultTimeout) {
    warm_up(std::vector<Inputs>{example}, timeout);
  }

  // Calls `change(module)`, which makes one load of new elements (load_model, load_state_dict, assign), and brings them
  // to all replicas. Requests go on meanwhile: each batch is computed with the old ones or with the new ones, all of
  // it. Returns when every replica has the new ones; throws what `change` throws, Error while a replica hangs, and
  // TimeoutError when one begins to hang: then some replicas may have the old ones until the next update. A load that
  // throws has changed nothing. Several loads are several steps: replicas at home compute with each as it is made. When
  // a later one throws, all replicas have what was loaded before.
  template <class F>
  void update(F&& change) {
    detail::check_function("ReplicaPool::update", change);
    const std::lock_guard lock(update_);
    pool_->check_returning();
    try {
      change(model_->module());
    } catch (...) {
      model_->refresh();
      throw;
    }
    model_->refresh();
    pool_->count_update();
  }

  // No further request is taken (submit() throws Refused). Blocks until all have ended; false at the time-out.
  bool drain(Milliseconds timeout = kDefaultTimeout) { return pool_->drain(Deadline::after(timeout)); }
  // The same without the wait; what waits for a replica ends in Cancelled.
  void close() { pool_->close(); }
  bool closed() const { return pool_->closed(); }

  ReplicaPoolStats stats() const { return pool_->stats(); }
  const ReplicaPoolOptions& options() const { return options_; }

 private:
  using Model = detail::ReplicaModel<M, Output, Inputs>;
  using Request = typename Model::Request;

  std::shared_ptr<Request> send(Inputs inputs, const RequestOptions& options, Callback done) {
    const Milliseconds timeout = options.timeout.value_or(options_.timeout);
    LOCKSTEP_CHECK(timeout.count() > 0, "[ReplicaPool] expected a timeout above 0 ms, got ", timeout.count());
    const auto request = std::make_shared<Request>(std::move(inputs));
    detail::BatchKey key(options_.padding);
    detail::describe_inputs(*request->inputs, key);
    key.finish(*request);
    request->priority = options.priority;
    request->timeout = timeout;
    request->callback = std::move(done);
    pool_->submit(request);
    return request;
  }

  std::shared_ptr<Model> model_;
  std::shared_ptr<detail::ServingPool> pool_;
  ReplicaPoolOptions options_;
  std::recursive_mutex update_;  // a change may make another one
};

template <class M>
ReplicaPool(M) -> ReplicaPool<M>;
template <class M>
ReplicaPool(M, ReplicaPoolOptions) -> ReplicaPool<M>;

}  // namespace lockstep
