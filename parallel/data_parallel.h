// DataParallel: a module that computes each batch on several devices at once.
//
//   auto net = DataParallel(Net{}, {.devices = accelerators()});
//   Tensor loss = cross_entropy(net(images), labels.to(net.output_device()));
//   loss.backward();   // the gradients of all replicas are added into the parameters
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel_options.h"
#include "lockstep/parallel/data_parallel_stats.h"
#include "lockstep/parallel/data_parallel_support.h"
#include "lockstep/parallel/parallel_apply.h"
#include "lockstep/parallel/replicas/prepared_replica.h"
#include "lockstep/parallel/replicas/replica_graphs.h"
#include "lockstep/parallel/replicate.h"
#include "lockstep/parallel/scatter_beside.h"
#include "lockstep/parallel/scatter_gather.h"
#include "lockstep/parallel/signature.h"
#include "lockstep/parallel/sums_gradients.h"

namespace lockstep {

namespace detail {
struct FunctionForm {};  // chooses the constructor that does not warn
}  // namespace detail

// `Signature` is that of M::forward; where it is overloaded or a template, say it: DataParallel<Net, Tensor(Tensor)>.
template <class M, class Signature = detail::SignatureOf<M>>
class DataParallel;

// A call scatters its arguments, brings the replicas up to date (nothing is copied that has not changed), runs each on
// the thread of its device and gathers the results on `output_device`; the result has the same type and rank for every
// number of devices. A batch of fewer pieces than devices uses fewer replicas; no arguments at all are one call on
// devices[0]. Gradients are summed into the parameters in replica order: the same bits for the same devices.
//
// Copies share the module's parameters. Calls may be made from several threads while gradients are off, also while
// another thread loads new elements: a call computes with the old ones or with the new ones. Training a module from two
// threads at once is an Error, so is a call from inside a replica.
//
// Each step is a virtual function. An override sees every call, whatever the number of devices (but not where there are
// none), also calls of forward_ungathered and reduce_with, which do not gather outputs.
template <class M, class R, class... Args>
class DataParallel<M, R(Args...)> : public Module<DataParallel<M, R(Args...)>> {
  static_assert(std::derived_from<M, ModuleBase>, "DataParallel wraps modules");
  static_assert(!detail::kSumsGradients<M>, "DataParallel takes a module, not one that is wrapped already");
  static_assert((detail::IsValueArgument<std::decay_t<Args>> && ...),
                "a span does not own its elements: let forward take a std::vector");

 public:
  using Inputs = std::tuple<std::decay_t<Args>...>;
  using Output = detail::Stored<R>;  // of one replica
  using Gathered = gathered_t<std::conditional_t<std::is_void_v<R>, void, std::decay_t<R>>>;

  // Moves the module to devices[0]. Throws InvalidArgument for a device that does not exist or comes twice, and where
  // the transport is not for the devices; NotSupported where it is not there.
  explicit DataParallel(M module, DataParallelOptions options = {})
      : DataParallel(detail::FunctionForm{}, std::move(module), std::move(options)) {
    detail::check_balance(options_.devices);
    detail::prepare_devices(options_.devices);
  }
  DataParallel(const DataParallel& other)
      : Module<DataParallel>(other),
        scatters_to_cpu_(other.scatters_to_cpu_),
        options_(other.options_),
        transport_(other.transport_),
        graphs_(detail::make_graphs(options_)),
        folding_(detail::make_folding(options_)),
        module_(std::make_shared<M>(*other.module_)) {}
  DataParallel& operator=(const DataParallel& other) {
    if (this == &other) return *this;
    DataParallel copy(other);
    Module<DataParallel>::operator=(copy);
    scatters_to_cpu_ = copy.scatters_to_cpu_;
    options_ = std::move(copy.options_);
    transport_ = std::move(copy.transport_);
    graphs_ = std::move(copy.graphs_);
    folding_ = std::move(copy.folding_);
    module_ = std::move(copy.module_);
    const std::lock_guard lock(mutex_);
    source_.reset();
    recorder_.reset();
    return *this;
  }

  const std::vector<Device>& devices() const { return options_.devices; }
  // Where results are.
  Device output_device() const { return target().device.value_or(module_device()); }
  std::int64_t dim() const { return options_.dim; }
  Milliseconds timeout() const { return options_.timeout; }
  const M& module() const { return *module_; }
  // Parameters that are replaced (rather than changed) through this must be so before the next call. Graphs and
  // what is folded are dropped, since whatever forward does may change; who only looks asks a const DataParallel.
  M& module() {
    if (graphs_) graphs_->forget(), graphs_->show();
    if (folding_) folding_->forget(), folding_->show();
    const std::lock_guard lock(mutex_);
    source_.reset();
    return *module_;
  }

  Gathered forward(const std::decay_t<Args>&... args) const {
    detail::Gathered<std::conditional_t<std::is_void_v<R>, void, std::decay_t<R>>>::check();
    CallStats stats;
    auto outputs = compute(Inputs(args...), stats);
    if constexpr (std::is_void_v<Gathered>) {
      finish_call(stats);
    } else {
      detail::PhaseTimer timer("gather");
      Gathered gathered = gather(std::move(outputs));
      timer.finish(stats.gather);
      finish_call(stats);
      return gathered;
    }
  }

  // The outputs of the replicas, in order, where they were computed.
  std::vector<Output> forward_ungathered(const std::decay_t<Args>&... args) const {
    CallStats stats;
    auto outputs = compute(Inputs(args...), stats);
    finish_call(stats);
    return outputs;
  }

  // The loss of the whole batch, a scalar on the output device: `loss(output, targets…)` runs in the replicas and
  // returns the mean over its piece, and the mean of those, weighted by the sizes of the pieces, is the mean over the
  // batch however unevenly it is divided. Outputs are not gathered. `inputs` and `targets` are a std::tuple each, or
  // the only one; the targets are scattered like the inputs.
  template <class Loss, class In, class Targets = std::tuple<>>
  Tensor reduce_with(Loss loss, const In& inputs, const Targets& targets = {}) const {
    const typename ModuleBase::CallScope scope(*this);
    CallStats stats;
    Tensor result = compute_loss(loss, Inputs(detail::as_tuple(inputs)), detail::as_tuple(targets), stats);
    finish_call(stats);
    return result;
  }

  // Bytes and time by phase; how many calls were graphs.
  DataParallelStats stats() const { return recorder_.read(current_source()->slots, graphs_.get()); }

  void members(Members& m) override {
    if (graphs_) graphs_->show();
    if (folding_) folding_->show();
    m("module", *module_);
  }
  const ModuleBase* wrapped_module() const override { return module_.get(); }

 protected:
  // ---- the steps, in order
  // Divides the arguments among the devices.
  virtual Pieces<Inputs> scatter(const Inputs& inputs) const {
    return scatter_pieces(inputs, options_.devices, options_.dim, options_.policy);
  }
  // A replica for each of `devices`, which are some of devices(), up to date with home.
  virtual std::vector<Replica<M>> replicate(const std::vector<Device>& devices) const {
    const auto source = current_source();
    refresh(*source, devices);
    return make_replicas(source, devices);
  }
  virtual std::vector<Output> parallel_apply(const std::vector<Replica<M>>& replicas,
                                             std::vector<Inputs> inputs) const {
    if (folding_ && folding_->folds(*module_))
      return apply(detail::with_folding(replicas, folding_), std::move(inputs));
    if (!graphs_) return apply(replicas, std::move(inputs));
    graphs_->watch(*module_);
    return apply(detail::with_graphs(replicas, graphs_), std::move(inputs));
  }
  // Puts the outputs together on the output device. Not called when there are none to gather.
  virtual Gathered gather(std::vector<Output> outputs) const {
    if constexpr (!std::is_void_v<Gathered>) {
      return detail::gather_outputs(outputs, target());
    }
  }

  // ---- for derived classes that call other methods of the module
  // `call(module)` in this thread, guarded as a call of `forward` is.
  template <class F>
  auto call_guarded(F&& call) const {
    if (options_.devices.empty()) return call(*module_);
    const auto source = current_source();
    const Guard guard(*source, options_.devices);
    return call(*module_);
  }
  // What the module is called with where there are no devices.
  template <class T>
  T without_devices(const T& value) const {
    if (!scatters_to_cpu_) return value;
    const Device cpu = Device::cpu();
    return std::move(scatter_pieces(value, {&cpu, 1}, options_.dim).values[0]);
  }
  bool scatters_to_cpu_ = false;

 private:
  using Source = detail::ReplicaSource<M>;
  template <class N, class In>
  friend auto data_parallel(const N& module, const In& inputs, DataParallelOptions options);

  DataParallel(detail::FunctionForm, M module, DataParallelOptions options)
      : options_((detail::check_options(options), std::move(options))),
        transport_(detail::make_transport(options_)),
        graphs_(detail::make_graphs(options_)),
        folding_(detail::make_folding(options_)),
        module_(std::make_shared<M>(std::move(module))) {
    if (!options_.devices.empty()) module_->to(options_.devices[0]);
    current_source();
  }

  // The module's slots, found at construction and after the module was handed out for changes.
  std::shared_ptr<const Source> current_source() const {
    const std::lock_guard lock(mutex_);
    if (!source_) {
      source_ = std::make_shared<const Source>(module_);
      in_slabs_ = false;
    }
    // Before the parameters are used by several threads, because it gives them other memory.
    if (!in_slabs_ && options_.devices.size() > 1) in_slabs_ = source_->slots.form_slabs();
    return source_;
  }
  // Without devices, and unless one was named, outputs stay where the module computes them.
  detail::GatherTarget target() const {
    if (options_.output_device || options_.devices.empty()) return {options_.output_device, options_.dim};
    return {options_.devices[0], options_.dim};
  }
  Device module_device() const {
    const auto source = current_source();
    const auto& parameters = source->slots.parameters();
    return parameters.empty() ? Device::cpu() : parameters[0].device();
  }

  static std::vector<Replica<M>> make_replicas(const std::shared_ptr<const Source>& source,
                                               const std::vector<Device>& devices) {
    std::vector<Replica<M>> replicas;
    replicas.reserve(devices.size());
    for (const Device device : devices) replicas.emplace_back(source, device, static_cast<int>(replicas.size()));
    return replicas;
  }
  void refresh(const Source& source, const std::vector<Device>& devices) const {
    const Device home = options_.devices[0];
    if (devices.size() == 1 && devices[0] == home) return;
    TransferStats moved;
    if (devices[0] == home) {
      moved = source.slots.refresh(devices, options_.timeout, transport_);
    } else {  // home has no piece, but the others are filled from it
      std::vector<Device> with_home{home};
      with_home.insert(with_home.end(), devices.begin(), devices.end());
      moved = source.slots.refresh(with_home, options_.timeout, transport_);
    }
    detail::moved_bytes() += moved.bytes;
  }
  template <class F, class In>
  auto apply(const std::vector<F>& replicas, std::vector<In> inputs) const {
    std::vector<Device> devices;
    devices.reserve(replicas.size());
    for (const F& replica : replicas) devices.push_back(replica.device());
    return detail::apply_all(replicas, std::move(inputs), devices, options_.timeout);
  }

  std::decay_t<R> call_here(const Inputs& inputs) const {
    const M& module = *module_;
    if (!folding_ || !folding_->folds(module)) return std::apply(module, inputs);
    return std::apply([&](const auto&... each) { return detail::call_folded(folding_->folding(), module, each...); },
                      inputs);
  }

  // What a call claims and checks before it moves anything.
  class Guard {
   public:
    Guard(const Source& source, const std::vector<Device>& devices) {
      detail::check_not_in_replica("DataParallel");
      source.slots.check_placement(devices[0]);
      if (devices.size() > 1) detail::check_answering(devices);
      source.slots.read(reading_);
      if (GradMode::enabled() && detail::any_requires_grad(source.slots)) claim_.emplace(source.slots);
    }

   private:
    Reading reading_;  // of home, from before the refresh until all replicas have returned
    std::optional<ModuleSlots::TrainingClaim> claim_;
  };

  Pieces<Inputs> pieces_of(const Inputs& inputs, detail::Departures& departures) const {
    if constexpr (sizeof...(Args) == 0) return {{inputs}, {options_.devices[0]}};
    if (options_.devices.size() == 1) return scatter(inputs);  // nothing that could go on meanwhile
    const detail::Departures::Scope scope(departures);
    return scatter(inputs);
  }

  std::vector<Output> compute(const Inputs& inputs, CallStats& stats) const {
    std::vector<Output> outputs;
    if (options_.devices.empty()) {
      detail::PhaseTimer timer("forward");
      if constexpr (std::is_void_v<R>) {
        call_here(without_devices(inputs));
        outputs.emplace_back();
      } else {
        outputs.push_back(call_here(without_devices(inputs)));
      }
      timer.finish(stats.apply);
      return outputs;
    }
    return run_steps<false>(inputs, std::tuple<>(), stats, [](auto made, const auto&...) { return made; });
  }

  template <class Loss, class Targets>
  Tensor compute_loss(const Loss& loss, const Inputs& inputs, const Targets& targets, CallStats& stats) const {
    if (options_.devices.empty()) {
      auto output = call_here(without_devices(inputs));
      const Tensor whole =
          std::apply([&](const auto&... one) { return loss(output, one...); }, without_devices(targets));
      return detail::weighted_sum({whole}, {1}, target().device.value_or(whole.device()));
    }
    const auto finish = [&](std::vector<Output> outputs, std::vector<Targets> divided, const auto& sizes,
                            const std::vector<Device>& devices) {
      const auto shared_loss = std::make_shared<const Loss>(loss);
      std::vector<detail::LossOn<Loss>> losses;
      std::vector<std::tuple<Output, Targets>> arguments;
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        losses.push_back({devices[i], shared_loss});
        arguments.emplace_back(std::move(outputs[i]), std::move(divided[i]));
      }
      return detail::weighted_sum(apply(losses, std::move(arguments)), sizes, output_device());
    };
    return run_steps<true>(inputs, targets, stats, finish);
  }

  // The steps up to the outputs of the replicas, of which `finish` makes the result: with the pieces of the targets,
  // the sizes of both together where the results are `weighted`, and the devices.
  template <bool weighted, class Targets, class Finish>
  auto run_steps(const Inputs& inputs, const Targets& targets, CallStats& stats, Finish&& finish) const {
    const auto source = current_source();
    const Guard guard(*source, options_.devices);
    detail::PhaseTimer timer("scatter");
    detail::Departures departures(options_.timeout);
    Pieces<Inputs> pieces = pieces_of(inputs, departures);
    std::vector<Targets> divided;
    if constexpr (std::is_same_v<Targets, std::tuple<>>) {
      divided.resize(pieces.values.size());
    } else {
      const detail::Departures::Scope scope(departures);
      auto scattered = detail::scatter_beside(inputs, pieces, targets, options_);
      if (scattered.devices != pieces.devices) {
        detail::fail_piece_count(pieces.devices.size(), scattered.devices.size());
      }
      divided = std::move(scattered.values);
    }
    std::vector<std::int64_t> sizes;
    for (std::size_t i = 0; weighted && i < pieces.values.size(); ++i)
      sizes.push_back(detail::piece_size(std::tie(pieces.values[i], divided[i]), options_.dim));
    timer.finish(stats.scatter, "replicate");
    const std::vector<Replica<M>> replicas = replicate(pieces.devices);
    timer.finish(stats.replicate, "forward");
    auto outputs = parallel_apply(replicas, std::move(pieces.values));
    auto result = finish(std::move(outputs), std::move(divided), sizes, pieces.devices);
    departures.settle();  // not before: the first replicas compute while the last pieces are on their way
    timer.finish(stats.apply);
    return result;
  }
  void finish_call(const CallStats& stats) const { recorder_.add(stats, current_source()->slots); }

  DataParallelOptions options_;
  std::shared_ptr<ReplicaTransport> transport_;      // null: copies
  std::shared_ptr<detail::ReplicaGraphs> graphs_;    // null: none
  std::shared_ptr<detail::ReplicaFolding> folding_;  // null: not prepared
  std::shared_ptr<M> module_;
  mutable std::mutex mutex_;  // source_, in_slabs_
  mutable std::shared_ptr<const Source> source_;
  mutable bool in_slabs_ = false;
  mutable detail::StatsRecorder recorder_;
};

template <class M>
DataParallel(M) -> DataParallel<M>;
template <class M>
DataParallel(M, DataParallelOptions) -> DataParallel<M>;

// The function form: one call of `module` as a DataParallel would make it. `inputs` are a std::tuple of arguments or
// the only argument. Moves the module to devices[0]; what the slots hold is kept for the next call. What a prepared
// module folds is not: that is an InvalidArgument.
template <class N, class In>
auto data_parallel(const N& module, const In& inputs, DataParallelOptions options = {}) {
  detail::check_function_options(options);
  const DataParallel<N> net(detail::FunctionForm{}, module, std::move(options));
  return std::apply(net, detail::as_tuple(inputs));
}

}  // namespace lockstep
