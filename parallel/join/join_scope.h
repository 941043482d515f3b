// A join in progress on one rank.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/join/join.h"

namespace lockstep::detail {

// Before each step the hosts of all ranks exchange what they are about to do: what step of which joinable, or, of ranks
// that have run out, nothing. So everyone knows who is active, and what there is to shadow.
class JoinScope {
 public:
  // See join(). In a scope from here on, all or none.
  JoinScope(const std::vector<std::reference_wrapper<Joinable>>& joinables, const JoinOptions& options);
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;
  ~JoinScope();

  JoinTurn announce(std::size_t joinable, std::string_view step);
  // Shadows until nobody is active, then takes over.
  void finish();
  bool ends_early() const { return options_.throw_on_early_termination; }
  // Whether it has ended for all ranks, because one has run out.
  bool exhausted() const { return exhausted_.has_value(); }
  // The rank leaves with an exception, which the others hear of.
  void abort(const std::string& reason) { communicator_->abort(reason); }

 private:
  struct Step {
    JoinTurn turn;
    std::string text;  // of the active ranks
  };
  // Nothing when no rank is active.
  std::optional<Step> exchange(const std::string& mine);
  void begin(const std::string& failure);

  std::vector<Joinable*> joinables_;
  const JoinOptions options_;
  Communicator* communicator_ = nullptr;
  int last_root_;                               // the largest rank of the last step
  std::optional<InputsExhausted> exhausted_{};  // once it was thrown
};

}  // namespace lockstep::detail
