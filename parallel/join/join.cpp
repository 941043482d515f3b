#include "lockstep/parallel/join/join.h"

#include <algorithm>
#include <charconv>

#include "lockstep/parallel/join/join_scope.h"
#include "lockstep/runtime/stream/capture.h"

namespace lockstep {

namespace {

// What a rank says: that it has run out, that it begins a join, or the step of a joinable. Nothing else that ranks
// exchange begins like that.
constexpr std::string_view kRunOut = "join-", kBegin = "join:", kStep = "join+";

struct Announced {
  std::size_t joinable;
  std::string_view step;
};
// Nothing for what is no step of a joinable.
std::optional<Announced> parse_step(std::string_view said) {
  const std::size_t space = said.find(' ');
  if (!said.starts_with(kStep) || space == std::string_view::npos) return {};
  Announced announced{.joinable = 0, .step = said.substr(space + 1)};
  const char* const end = said.data() + space;
  const auto [at, error] = std::from_chars(said.data() + kStep.size(), end, announced.joinable);
  return error == std::errc() && at == end ? std::optional(announced) : std::nullopt;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += cat(i == 0 ? "" : ", ", ranks[i]);
  return text;
}

std::string in_words(const std::string& said) {
  if (said == kRunOut) return "has run out of inputs";
  if (said.starts_with(kBegin)) return "begins a join";
  if (const std::optional<Announced> announced = parse_step(said))
    return cat("announces '", announced->step, "' of joinable ", announced->joinable);
  return cat("says '", said, "', which is no step of a join");
}

}  // namespace

InputsExhausted::InputsExhausted(std::vector<int> which, int size)
    : Error(cat("[join] expected inputs on all ", size, " ranks, but ", list(which),
                which.size() == 1 ? " has" : " have",
                " run out, and throw_on_early_termination ends the training on all")),
      ranks(std::move(which)) {}

JoinTurn Joinable::announce(std::string_view step) {
  if (scope_ && detail::current_capture) detail::current_capture->refuse("join", "a step that the hosts agree on");
  if (scope_) return scope_->announce(index_, step);
  const int size = communicator().size();
  return {.active = size, .divisor = size, .root = 0};
}

bool Joinable::ends_early() const { return scope_ && scope_->ends_early(); }

void join(const std::vector<std::reference_wrapper<Joinable>>& joinables, const JoinOptions& options,
          const std::function<void()>& body) {
  if (!options.enable) return body();
  detail::JoinScope scope(joinables, options);
  try {
    body();
    scope.finish();
  } catch (const InputsExhausted& error) {
    // Of this join: thrown on all of its ranks. Of one inside, or one outside: on some.
    if (!scope.exhausted()) scope.abort(cat("it left its join with an exception: ", error.what()));
    throw;
  } catch (...) {
    scope.abort(cat("it left its join with an exception: ", detail::describe(std::current_exception())));
    throw;
  }
}

namespace detail {

JoinScope::JoinScope(const std::vector<std::reference_wrapper<Joinable>>& joinables, const JoinOptions& options)
    : options_(options) {
  LOCKSTEP_CHECK(!joinables.empty(), "[join] expected at least one joinable, got none");
  for (Joinable& joinable : joinables) joinables_.push_back(&joinable);
  communicator_ = &joinables_[0]->communicator();
  last_root_ = communicator_->size() - 1;
  std::string failure;
  for (std::size_t i = 0; i < joinables_.size() && failure.empty(); ++i) {
    const auto first = std::find(joinables_.begin(), joinables_.end(), joinables_[i]) - joinables_.begin();
    if (&joinables_[i]->communicator() != communicator_) {
      failure =
          cat("[join] expected joinables of one communicator, got joinable ", i, " of another one than joinable 0");
    } else if (joinables_[i]->scope_) {
      failure = cat("[join] expected joinables that are in no join, but joinable ", i, " is in one");
    } else if (static_cast<std::size_t>(first) != i) {
      failure = cat("[join] expected each joinable once, got the same as number ", first, " and ", i);
    }
  }
  begin(failure);
  for (std::size_t i = 0; i < joinables_.size(); ++i) joinables_[i]->scope_ = this, joinables_[i]->index_ = i;
}

JoinScope::~JoinScope() {
  for (Joinable* joinable : joinables_)
    if (joinable->scope_ == this) joinable->scope_ = nullptr;
}

// Throws the same on every rank, so that none is left waiting.
void JoinScope::begin(const std::string& failure) {
  const std::string mine =
      cat(kBegin, failure,
          failure.empty() ? cat(joinables_.size(), " joinables, dividing by the ",
                                options_.divide_by_initial_world_size ? "initial" : "current", " number of ranks, ",
                                options_.throw_on_early_termination ? "throwing" : "shadowing", " when one runs out")
                          : "");
  const std::vector<std::string> all = communicator_->all_gather_bytes(mine);
  LOCKSTEP_CHECK(failure.empty(), failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r] == mine) continue;
    if (!all[r].starts_with(kBegin)) {
      const std::string message =
          cat("[join] expected every rank to begin a join, but rank ", r, " ", in_words(all[r]));
      communicator_->abort(message);
      throw InvalidArgument(message);
    }
    const std::string other = all[r].substr(kBegin.size());
    throw InvalidArgument(other.starts_with("[join]")
                              ? cat("[join] rank ", r, ": ", other.substr(7))
                              : cat("[join] expected the same on every rank, got ", mine.substr(kBegin.size()),
                                    " on rank ", communicator_->rank(), ", ", other, " on rank ", r));
  }
}

std::optional<JoinScope::Step> JoinScope::exchange(const std::string& mine) {
  if (exhausted_) throw *exhausted_;
  const std::vector<std::string> all = communicator_->all_gather_bytes(mine);
  std::vector<int> active, out;
  for (int r = 0; r < communicator_->size(); ++r)
    (all[static_cast<std::size_t>(r)] == kRunOut ? out : active).push_back(r);
  if (active.empty()) return {};
  const std::string& first = all[static_cast<std::size_t>(active[0])];
  for (const int r : active) {
    const std::string& said = all[static_cast<std::size_t>(r)];
    if (said == first && parse_step(said)) continue;
    const std::string message = cat("[join] expected every rank with inputs to announce the same step, but rank ",
                                    active[0], " ", in_words(first), " and rank ", r, " ", in_words(said));
    communicator_->abort(message);
    throw Error(message);
  }
  last_root_ = active.back();
  if (!out.empty() && options_.throw_on_early_termination)
    throw exhausted_.emplace(std::move(out), communicator_->size());
  const int count = static_cast<int>(active.size());
  return Step{.turn = {.active = count,
                       .divisor = options_.divide_by_initial_world_size ? communicator_->size() : count,
                       .root = last_root_,
                       .by_active = !options_.divide_by_initial_world_size},
              .text = first};
}

JoinTurn JoinScope::announce(std::size_t joinable, std::string_view step) {
  return exchange(cat(kStep, joinable, ' ', step))->turn;
}

void JoinScope::finish() {
  while (const std::optional<Step> step = exchange(std::string(kRunOut))) {
    const Announced announced = *parse_step(step->text);
    LOCKSTEP_CHECK(announced.joinable < joinables_.size(), "[join] expected a step of one of ", joinables_.size(),
                   " joinables, got one of number ", announced.joinable);
    joinables_[announced.joinable]->shadow(announced.step, step->turn);
  }
  for (Joinable* joinable : joinables_) joinable->take_over(last_root_);
}

}  // namespace detail

}  // namespace lockstep
