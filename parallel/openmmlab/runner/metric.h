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
#include <type_traits>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/openmmlab/named_values.h"

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

}  // namespace lockstep
