// Batches of a dataset, made by worker threads ahead of the program that uses them, and moved to a device.
//
//   DataLoader loader(Pictures(folder), {.batch_size = 64, .shuffle = true, .workers = 4});
//   for (int epoch = 0; epoch < 10; ++epoch)
//     for (auto& [images, labels] : loader) train(images, labels);
//
// The batches and their order depend on the dataset, the sampler, the seed and the epoch: not on the number of workers.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/tensor/data/collate.h"
#include "lockstep/tensor/data/dataset.h"
#include "lockstep/tensor/data/pipeline.h"
#include "lockstep/tensor/data/random_engine.h"
#include "lockstep/tensor/data/sampler.h"
#include "lockstep/tensor/data/transfer.h"

namespace lockstep {

// A sample, or the collating of a batch, threw. What it threw is nested (std::rethrow_if_nested).
class LOCKSTEP_API DataError : public Error {
 public:
  DataError(std::int64_t index, std::int64_t batch, std::uint64_t epoch, const std::string& message);
  std::int64_t index;  // of the sample; -1 when it was collating
  std::int64_t batch;  // which one of the epoch
  std::uint64_t epoch;
};

struct DataLoaderOptions {
  // These four are for a loader that is not given a sampler of its own; with a sampler of indices, only shuffle is not
  // used, with one of batches, none but the seed.
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  std::uint64_t seed = 0;   // also of the random numbers that samples draw
  int workers = 0;          // threads; 0: the calling thread makes each batch when it is asked for
  int prefetch_factor = 2;  // batches that each worker may be ahead
  // Where the tensors of a batch are to be. On a device other than cpu, the device's current stream waits for the batch
  // when it is handed over; the host does not.
  Device device = Device::cpu();
  bool copy_dataset = false;               // for datasets whose get() is not thread-safe: a copy for each worker
  Milliseconds timeout = kDefaultTimeout;  // of the wait for a batch, and of a worker at the end
};

// The collate function of a loader that is not given one.
struct Collate {
  std::int64_t samples_per_device = 1;  // see collate()
  template <class T>
  auto operator()(const std::vector<T>& samples) const {
    return collate(samples, samples_per_device);
  }
};

namespace detail {
// The context of a worker: the caller's grad mode, default dtype and training scope, and random numbers of its own.
LOCKSTEP_API ThreadContext sample_context(const ThreadContext& caller, std::uint64_t seed, std::uint64_t epoch);
// Throws InvalidArgument for options that make no sense, and for indices that the dataset does not have.
LOCKSTEP_API void check_loader(const DataLoaderOptions& options);
LOCKSTEP_API void check_indices(const std::vector<std::vector<std::int64_t>>& batches, std::int64_t count);
[[noreturn]] LOCKSTEP_API void fail_sample(std::int64_t index, std::int64_t batch, std::uint64_t epoch);
}  // namespace detail

// Belongs to one thread at a time. What an iteration uses (dataset, collate function, batch order) lives as long as the
// iteration, so the loader may go away during it.
template <Dataset D, class C = Collate>
class DataLoader {
 public:
  using Sample = SampleOf<D>;
  using Batch = std::remove_cvref_t<std::invoke_result_t<const C&, const std::vector<Sample>&>>;

  // In order, or shuffled by (seed, epoch). `collate` is called from the workers, several at once.
  explicit DataLoader(D dataset, DataLoaderOptions options = {}, C collate = {})
      : DataLoader(std::move(dataset), options, std::move(collate), Private{}) {
    const auto count = static_cast<std::int64_t>(core_->dataset.size());
    if (options.shuffle)
      order_by(BatchSampler(RandomSampler(count, {.seed = options.seed}), options.batch_size, options.drop_last));
    else
      order_by(BatchSampler(SequentialSampler(count), options.batch_size, options.drop_last));
  }
  template <Sampler S>
  DataLoader(D dataset, S sampler, DataLoaderOptions options = {}, C collate = {})
      : DataLoader(std::move(dataset), options, std::move(collate), Private{}) {
    order_by(BatchSampler(std::move(sampler), options.batch_size, options.drop_last));
  }
  template <BatchesOfIndices S>
  DataLoader(D dataset, S sampler, DataLoaderOptions options = {}, C collate = {})
      : DataLoader(std::move(dataset), options, std::move(collate), Private{}) {
    order_by(std::move(sampler));
  }

  std::int64_t size() const { return core_->size(); }  // batches in an epoch
  const D& dataset() const { return core_->dataset; }
  // The epoch that the next begin() starts; after that they go on by one. The first is 0.
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  std::uint64_t epoch() const { return epoch_; }

  class Iterator;
  // Starts an epoch, with worker threads of its own and the context (grad mode and the like) of the calling thread.
  // Blocks until the first batch is there. This and Iterator::operator++ throw DataError, TimeoutError when the time
  // is up, DeviceError when a device fails, InvalidArgument for an index that the dataset does not have; the iteration
  // is over then. An iterator that goes away waits for the samples in progress, not for those to come.
  Iterator begin() { return Iterator(core_, epoch_++); }
  std::default_sentinel_t end() const { return {}; }

 private:
  struct Private {};
  struct Core {
    D dataset;
    C collate;
    DataLoaderOptions options;
    std::function<std::int64_t()> size;
    std::function<std::vector<std::vector<std::int64_t>>(std::uint64_t)> batches;
  };
  // One epoch, as the workers see it.
  struct Epoch {
    std::shared_ptr<const Core> core;
    std::uint64_t number = 0;
    ThreadContext context;
    std::vector<std::vector<std::int64_t>> batches;
    struct Place {
      std::optional<Batch> batch;
      Event sent;
    };
    std::vector<Place> places;  // of batch i: i mod window
    std::vector<std::optional<D>> copies;
    std::optional<detail::Transfer> transfer;

    Place& place(std::int64_t batch) { return places[static_cast<std::size_t>(batch) % places.size()]; }
    void produce(std::int64_t number_of_batch, int worker);
  };

  DataLoader(D dataset, const DataLoaderOptions& options, C collate, Private)
      : core_(std::make_shared<Core>(Core{std::move(dataset), std::move(collate), options, {}, {}})) {
    detail::check_loader(options);
    if constexpr (!std::copy_constructible<D>)
      LOCKSTEP_CHECK(!options.copy_dataset, "[DataLoader] expected a dataset that can be copied for copy_dataset");
  }
  template <class S>
  void order_by(S sampler) {
    auto shared = std::make_shared<const S>(std::move(sampler));
    core_->size = [shared] { return static_cast<std::int64_t>(shared->size()); };
    core_->batches = [shared](std::uint64_t epoch) { return shared->batches(epoch); };
  }

  std::shared_ptr<Core> core_;  // shared with iterations, whose workers may outlive everything else
  std::uint64_t epoch_ = 0;
};

// An input iterator; move-only. The batch it points at is the caller's to change or to move from.
template <Dataset D, class C>
class DataLoader<D, C>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Batch& operator*() const { return *iteration_->batch; }
  Batch* operator->() const { return &*iteration_->batch; }
  Iterator& operator++() {
    advance();
    return *this;
  }
  void operator++(int) { advance(); }
  friend bool operator==(const Iterator& a, std::default_sentinel_t) { return !a.iteration_; }

 private:
  friend class DataLoader;
  struct Iteration {
    std::shared_ptr<Epoch> epoch;
    std::int64_t next = 0;
    std::optional<Batch> batch;
    std::optional<detail::Pipeline> pipeline;
  };

  Iterator(std::shared_ptr<const Core> core, std::uint64_t number) : iteration_(std::make_unique<Iteration>()) {
    auto epoch = std::make_shared<Epoch>();
    const DataLoaderOptions& options = core->options;
    epoch->core = core;
    epoch->number = number;
    epoch->context = detail::sample_context(thread_context(), options.seed, number);
    epoch->batches = core->batches(number);
    detail::check_indices(epoch->batches, static_cast<std::int64_t>(core->dataset.size()));
    const std::int64_t window = std::max<std::int64_t>(1, std::int64_t{options.workers} * options.prefetch_factor);
    epoch->places.resize(static_cast<std::size_t>(window));
    epoch->copies.resize(static_cast<std::size_t>(options.copy_dataset ? options.workers : 0));
    if (!options.device.is_cpu()) epoch->transfer.emplace(options.device);
    iteration_->epoch = epoch;
    iteration_->pipeline.emplace(detail::Pipeline::Options{static_cast<std::int64_t>(epoch->batches.size()),
                                                           options.workers, window, options.timeout},
                                 [epoch](std::int64_t batch, int worker) { epoch->produce(batch, worker); });
    advance();
  }

  void advance() {
    // Whatever happens, the iteration is over unless the end of this function is reached.
    std::unique_ptr<Iteration> it = std::move(iteration_);
    it->batch.reset();
    if (it->next == static_cast<std::int64_t>(it->epoch->batches.size())) return;
    it->pipeline->await(it->next);
    typename Epoch::Place& place = it->epoch->place(it->next);
    it->batch = std::move(place.batch);
    place.batch.reset();
    const Event sent = std::move(place.sent);
    it->pipeline->release(it->next++);
    if (it->epoch->transfer) {
      std::vector<Tensor*> tensors;
      for_each_tensor(*it->batch, [&](Tensor& tensor) { tensors.push_back(&tensor); });
      it->epoch->transfer->receive(sent, tensors);
    }
    iteration_ = std::move(it);
  }

  std::unique_ptr<Iteration> iteration_;  // null at the end
};

template <Dataset D, class C>
void DataLoader<D, C>::Epoch::produce(std::int64_t number_of_batch, int worker) {
  const D* dataset = &core->dataset;
  if (!copies.empty()) {
    std::optional<D>& own = copies[static_cast<std::size_t>(worker)];
    if constexpr (std::copy_constructible<D>) {
      if (!own) own.emplace(core->dataset);
    }
    dataset = &*own;
  }
  const std::vector<std::int64_t>& indices = batches[static_cast<std::size_t>(number_of_batch)];
  std::vector<Sample> samples;
  samples.reserve(indices.size());
  for (const std::int64_t index : indices) {
    ThreadContext of_sample = context;
    of_sample.random_stream = static_cast<std::uint64_t>(index);
    const ContextScope scope(of_sample);
    try {
      samples.push_back(dataset->get(index));
    } catch (...) {
      detail::fail_sample(index, number_of_batch, number);
    }
  }
  ThreadContext of_batch = context;
  of_batch.random_stream = ~static_cast<std::uint64_t>(number_of_batch);
  const ContextScope scope(of_batch);
  Place& mine = place(number_of_batch);
  try {
    mine.batch.emplace(core->collate(std::as_const(samples)));
  } catch (...) {
    detail::fail_sample(-1, number_of_batch, number);
  }
  if (transfer) {
    std::vector<Tensor*> tensors;
    for_each_tensor(*mine.batch, [&](Tensor& tensor) { tensors.push_back(&tensor); });
    mine.sent = transfer->send(tensors);
  }
}

}  // namespace lockstep
