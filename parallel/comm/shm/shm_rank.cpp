#include "lockstep/parallel/comm/shm/shm_rank.h"

#include <numeric>

#include "lockstep/runtime/strings.h"

namespace lockstep::detail {
namespace {

std::vector<int> everybody(const Board& board) {
  std::vector<int> ranks(static_cast<std::size_t>(board.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

SharedMember::SharedMember(std::shared_ptr<SharedGroup> group, int rank, SharedMemoryCommunicator& owner)
    : group_(std::move(group)),
      rank_(rank),
      stream_lane_(board(), board().stream_region(), everybody(board()), rank),
      host_lane_(board(), board().host_region(), everybody(board()), rank),
      owner_(&owner) {
  for (int other = 0; other < board().ranks(); ++other) {
    to_.emplace_back(board(), board().pair_region(rank, other), std::vector<int>{rank, other}, 0);
    from_.emplace_back(board(), board().pair_region(other, rank), std::vector<int>{other, rank}, 1);
  }
}

SharedMember::~SharedMember() {
  if (board().in_own_process()) board().set_presence(rank_, Board::Presence::left);
}

Lane& SharedMember::lane(const Collective& collective) {
  const auto peer = static_cast<std::size_t>(collective.peer);
  if (collective.kind == Collective::Kind::send) return to_[peer];
  if (collective.kind == Collective::Kind::recv) return from_[peer];
  return stream_lane_;
}

void SharedMember::announce(const Collective& collective, const Stream* stream) {
  using Kind = Collective::Kind;
  if (collective.kind != Kind::send && collective.kind != Kind::recv) count_call(collective);
  if (!group_->share_devices() || !stream || stream->synchronous()) return;
  try {
    lane(collective).meet_hosts(collective);
  } catch (const CommError& error) {
    tell_owner(error);
    throw;
  }
}

void SharedMember::count_call(const Collective& collective) {
  using Kind = Collective::Kind;
  std::atomic<std::uint64_t>& called = board().host_region().seats[rank_].called;  // only this thread writes it
  const std::uint64_t before = called.load(std::memory_order_relaxed);
  called.store(collective.kind == Kind::exchange
                   ? (before & ~std::uint64_t{0xffffffff}) | (collective.sequence & 0xffffffff)
                   : (before & 0xffffffff) | collective.sequence << 32,
               std::memory_order_seq_cst);
  board().ring();
}

void SharedMember::perform(const Collective& collective) {
  try {
    lane(collective).perform(collective);
  } catch (const CommError& error) {
    tell_owner(error);
    throw;
  }
}

void SharedMember::skip(const Collective& collective) noexcept try {
  const std::string text = cat("rank ", rank_, " could not begin ", to_string(fingerprint(collective)),
                               ": work before it on its stream failed");
  const std::optional<Board::Failure> before = board().failure();
  // Its own communicator first, which tells the others: what they do then may ask it.
  tell_owner(CommError(before ? before->rank : rank_, to_string(collective.kind), before ? before->text : text));
  board().fail(rank_, text);  // where there is no owner any more
} catch (...) {               // no memory for the text: the others end at their deadlines
}

void SharedMember::tell_owner(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (owner_) owner_->break_with(error);
}

void SharedMember::disown() {
  const std::lock_guard lock(mutex_);
  owner_ = nullptr;
}

}  // namespace lockstep::detail
