#include "lockstep/parallel/comm/nccl/nccl_out_of_band.h"

#include <charconv>

#include "lockstep/parallel/comm/comm_error_message.h"

namespace lockstep::nccl {
namespace {

constexpr Milliseconds kSlice{50};  // how long nobody looks for failures
constexpr const char* kFailed = "failed";

std::uint64_t number_in(const std::string& text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

void OutOfBand::report(const CommError& failure) {
  const std::string text =
      cat(failure.rank, '\n', failure.collective, '\n', lockstep::detail::message_of_failure(failure));
  store_->compare_set(kFailed, "", text.substr(0, Store::kMaxValueBytes));
}

std::optional<CommError> OutOfBand::failure() {
  const std::optional<std::string> text = store_->try_get(kFailed);
  if (!text) return std::nullopt;
  const std::size_t first = text->find('\n'), second = text->find('\n', first + 1);
  if (second == std::string::npos) return CommError(0, "nccl", *text);
  int rank = 0;  // -1: it is nobody's fault
  std::from_chars(text->data(), text->data() + first, rank);
  return CommError(rank, text->substr(first + 1, second - first - 1), text->substr(second + 1));
}

void OutOfBand::publish(const std::string& name, const std::string& mine) { store_->set(key(name, rank_), mine); }
void OutOfBand::forget(const std::string& name, int rank) { store_->erase(key(name, rank)); }
std::optional<std::string> OutOfBand::peek(const std::string& name, int rank) {
  return store_->try_get(key(name, rank));
}

lockstep::detail::RollCall OutOfBand::roll_call() const {
  const auto gone = [store = store_, size = size_] {
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r)
      if (store->try_get(cat("left/", r))) ranks.push_back(r);
    return ranks;
  };
  return {.store = store_, .prefix = "survivors", .gone = gone};
}

// All who have not brought their value; those before `first` have.
std::string OutOfBand::missing(const std::string& name, int first) {
  std::string text;
  for (int r = first; r < size_; ++r)
    if (r == first || (r != rank_ && !peek(name, r))) text += cat(", rank ", r, " did not come");
  return text;
}

std::string OutOfBand::wait_for(const std::string& name, int rank, const char* collective, Milliseconds timeout,
                                Deadline deadline, const std::function<void()>& check_health, bool of_all) {
  for (;;) {
    const bool last = deadline.left() <= kSlice;
    try {
      return store_->get(key(name, rank), last ? deadline : Deadline::after(kSlice));
    } catch (const TimeoutError&) {
    }
    check_health();
    if (last && deadline.passed())
      throw LateError(rank, collective,
                      cat("expected every rank within ", timeout.count(), " ms",
                          of_all ? missing(name, rank) : cat(", rank ", rank, " did not come")));
    if (store_->try_get(key("left", rank)) && !store_->try_get(key(name, rank)))
      throw CommError(rank, collective, "it left before this collective: its communicator was destroyed");
  }
}

std::vector<std::string> OutOfBand::exchange(const std::string& name, const std::string& mine, const char* collective,
                                             Milliseconds timeout, const std::function<void()>& check_health,
                                             std::optional<Deadline> deadline) {
  if (!deadline) deadline = Deadline::after(timeout);
  check_health();
  publish(name, mine);
  std::vector<std::string> all;
  for (int r = 0; r < size_; ++r)
    all.push_back(r == rank_ ? mine : wait_for(name, r, collective, timeout, *deadline, check_health, true));
  return all;
}

std::int64_t OutOfBand::states_requested() {
  const std::optional<std::string> text = store_->try_get("where");
  return text ? static_cast<std::int64_t>(number_in(*text)) : 0;
}

void OutOfBand::leave(std::uint64_t last) {
  store_->set(key("left", rank_), std::to_string(last));
  store_->add("leavers", 1);
}

std::optional<int> OutOfBand::left_before(std::uint64_t number) {
  if (!store_->try_get("leavers")) return std::nullopt;
  for (int r = 0; r < size_; ++r) {
    const std::optional<std::string> last = store_->try_get(key("left", r));
    if (last && number_in(*last) < number) return r;
  }
  return std::nullopt;
}

}  // namespace lockstep::nccl
