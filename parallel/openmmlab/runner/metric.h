// BaseMetric: an evaluator that keeps a result for each sample, so that ranks which share a data set get the metrics of
// the whole set. After mmengine's class.
//
//   struct Accuracy : BaseMetric<std::uint8_t> {
//     void process(const Batch& batch, const std::vector<Tensor>& predictions) {
//       for (…) results.push_back(right);
//     }
//     NamedValues compute_metrics(const std::vector<std::uint8_t>& all) const { return {{"accuracy", …}}; }
//   };
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/openmmlab/model/named_values.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace detail {
// Which result comes where: that of every rank's first sample, of every second one, … and of these the first `samples`.
// Throws InvalidArgument for more results than such a division of the samples has.
LOCKSTEP_API std::string interleave_results(const std::vector<std::string>& of_ranks, std::size_t bytes_each,
                                            std::int64_t samples);
}  // namespace detail

// The results of all ranks in the order of the `samples` that a DistributedSampler without shuffling has dealt out,
// each once: what was dealt to two ranks to make their shares equal is left out. Blocks; every rank calls it.
// `communicator` null: `mine`.
template <class Result>
requires std::is_trivially_copyable_v<Result> std::vector<Result> collect_results(const std::vector<Result>& mine,
                                                                                  std::int64_t samples,
                                                                                  Communicator* communicator) {
  if (!communicator || communicator->size() == 1) return mine;
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Result));
  const std::string all = detail::interleave_results(communicator->all_gather_bytes(bytes), sizeof(Result), samples);
  std::vector<Result> results(all.size() / sizeof(Result));
  std::memcpy(static_cast<void*>(results.data()), all.data(), all.size());
  return results;
}

// `Result`: what is kept of a sample; plain numbers, or a struct of them.
template <class Result>
class BaseMetric {
 public:
  virtual ~BaseMetric() = default;
  // Of all samples of all ranks. Called on every rank, with the same results.
  virtual NamedValues compute_metrics(const std::vector<Result>& all) const = 0;

  // The metrics of what was processed, of `samples` samples; forgets it. Every rank calls it.
  NamedValues evaluate(std::int64_t samples, Communicator* communicator) {
    const std::vector<Result> mine = std::move(results);
    results.clear();
    return compute_metrics(collect_results(mine, samples, communicator));
  }

  std::vector<Result> results;  // process(batch, predictions) adds one for each sample
};

namespace detail {
template <class E>
concept EvaluatesShares = requires(E& evaluator, Communicator* all) {
  evaluator.evaluate(std::int64_t{}, all);
};
template <class E>
concept EvaluatesWhole = requires(E& evaluator) {
  evaluator.evaluate();
};
}  // namespace detail

// Several evaluators as one: Evaluators both(iou, accuracy); runner.train(loader, val_loader, both). The evaluators
// outlive it; their metrics have different names, or evaluate throws InvalidArgument. Either all of them evaluate the
// ranks' shares, or all rank 0's loader (runner.h).
template <class... Evaluator>
class Evaluators {
  static constexpr bool kShares = (detail::EvaluatesShares<Evaluator> && ...);
  static_assert(sizeof...(Evaluator) > 0 && (kShares || (detail::EvaluatesWhole<Evaluator> && ...)),
                "expected evaluators that all have evaluate(samples, communicator), or all evaluate()");

 public:
  explicit Evaluators(Evaluator&... evaluators) : all_(evaluators...) {}

  template <class Batch, class Predictions>
  void process(const Batch& batch, const Predictions& predictions) {
    std::apply([&](Evaluator&... each) { (each.process(batch, predictions), ...); }, all_);
  }
  NamedValues evaluate(std::int64_t samples, Communicator* communicator) requires kShares {
    return merged([&](auto& each) { return each.evaluate(samples, communicator); });
  }
  NamedValues evaluate() requires(!kShares) {
    return merged([](auto& each) { return each.evaluate(); });
  }

 private:
  template <class F>
  NamedValues merged(F&& evaluate) {
    NamedValues merged;
    const auto add = [&](const NamedValues& metrics) {
      for (const auto& [name, value] : metrics) {
        LOCKSTEP_CHECK(!merged.contains(name), "[Evaluators] expected each metric of one evaluator, got '", name,
                       "' of two");
        merged[name] = value;
      }
    };
    std::apply([&](Evaluator&... each) { (add(evaluate(each)), ...); }, all_);
    return merged;
  }

  std::tuple<Evaluator&...> all_;
};

}  // namespace lockstep
