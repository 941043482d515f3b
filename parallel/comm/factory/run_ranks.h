// Ranks as threads of this process, for as long as a function runs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/runtime/check_function.h"

namespace lockstep {

struct RunRanksOptions {
  // Of rank r: the r-th. Empty: accelerators(), over and over.
  std::vector<Device> devices = {};
  // Of the communicators; and how long a rank may go on alone, once another has ended.
  Milliseconds timeout = kDefaultTimeout;
  // Makes the ranks' communicators; empty: make_thread_group on host devices, else what make_communicator chooses.
  std::function<std::vector<std::unique_ptr<Communicator>>(std::span<const Device>, Milliseconds)> make = {};
};

namespace detail {

// One call of run_ranks. Every thread shares it, so that a rank that is left behind finds what it uses.
class LOCKSTEP_API RankCall {
 public:
  RankCall();
  RankCall(const RankCall&) = delete;
  RankCall& operator=(const RankCall&) = delete;
  virtual ~RankCall();

 protected:
  virtual void run(int rank, Communicator& communicator) = 0;
  // Drops what the ranks that have ended hold.
  virtual void forget(int rank) noexcept = 0;

 private:
  struct State;
  friend LOCKSTEP_API void run_rank_call(const std::shared_ptr<RankCall>& call, int ranks,
                                         const RunRanksOptions& options);
  static void run_rank(const std::shared_ptr<RankCall>& call, int rank) noexcept;
  static void run_function(RankCall& call, int rank);
  std::unique_ptr<State> state_;
};

// Returns when all ranks have; throws as run_ranks does.
LOCKSTEP_API void run_rank_call(const std::shared_ptr<RankCall>& call, int ranks, const RunRanksOptions& options);

template <class F>
class TypedRankCall final : public RankCall {
 public:
  using Result = std::invoke_result_t<F&, Communicator&>;
  static constexpr bool kReturns = !std::is_void_v<Result>;
  using Stored = std::conditional_t<kReturns, std::decay_t<Result>, char>;

  TypedRankCall(F function, int ranks) : function_(std::move(function)), results_(static_cast<std::size_t>(ranks)) {}

  std::vector<Stored> results() {
    std::vector<Stored> results;
    results.reserve(results_.size());
    for (std::optional<Stored>& result : results_) results.push_back(std::move(*result));
    return results;
  }

 private:
  void run(int rank, Communicator& communicator) override {
    if constexpr (kReturns)
      results_[static_cast<std::size_t>(rank)].emplace(function_(communicator));
    else
      function_(communicator);
  }
  void forget(int rank) noexcept override { results_[static_cast<std::size_t>(rank)].reset(); }

  F function_;
  std::vector<std::optional<Stored>> results_;
};

}  // namespace detail

// Calls `function(communicator)` for `ranks` ranks, each in a thread of its own, with a stream of its own that is
// current for the communicator's device, in the caller's context (grad mode, default dtype, autocast, training; random
// numbers depend on the caller's seed and call and on the rank). Returns the results by rank, when all have returned
// and their streams are done. The function is called by all threads at the same time: what it refers to is shared.
//
// When a rank throws, the others are told (Communicator::abort), and once all have ended the first cause is thrown: a
// CommError with the rank and its message, the exception nested in it. A rank that has neither returned nor thrown
// `timeout` after another rank has: TimeoutError that names it; it keeps the function, and its part of the results,
// until it ends, but what the function refers to must live as long.
template <class F>
requires std::is_invocable_v < std::decay_t<F>
&, Communicator& > auto run_ranks(int ranks, F&& function, const RunRanksOptions& options = {}) {
  detail::check_function("run_ranks", function);
  using Call = detail::TypedRankCall<std::decay_t<F>>;
  const auto call = std::make_shared<Call>(std::forward<F>(function), ranks > 0 ? ranks : 0);
  detail::run_rank_call(call, ranks, options);
  if constexpr (Call::kReturns) return call->results();
}

}  // namespace lockstep
