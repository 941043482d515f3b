#include "lockstep/parallel/comm/shm/shm_rank.h"

#include <numeric>

#include "lockstep/parallel/comm/together.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::detail {
namespace {

using Kind = Collective::Kind;

std::vector<int> everybody(const ControlBlock& control) {
  std::vector<int> ranks(static_cast<std::size_t>(control.ranks()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

ShmRank::ShmRank(std::shared_ptr<ShmGroup> group, int rank, SharedMemoryCommunicator& owner)
    : group_(std::move(group)),
      rank_(rank),
      stream_channel_(control(), control().stream_region(), everybody(control()), rank),
      host_channel_(control(), control().host_region(), everybody(control()), rank),
      owner_(&owner) {
  for (int other = 0; other < control().ranks(); ++other) {
    to_.emplace_back(control(), control().pair_region(rank, other), std::vector<int>{rank, other}, 0);
    from_.emplace_back(control(), control().pair_region(other, rank), std::vector<int>{other, rank}, 1);
  }
}

ShmRank::~ShmRank() {
  if (control().in_own_process()) control().set_presence(rank_, ControlBlock::Presence::left);
}

Channel& ShmRank::channel(const Collective& collective) {
  const auto peer = static_cast<std::size_t>(collective.peer);
  if (collective.kind == Collective::Kind::send) return to_[peer];
  if (collective.kind == Collective::Kind::recv) return from_[peer];
  return stream_channel_;
}

void ShmRank::announce(const Collective& collective, const Stream& stream) {
  if (!collective.pairwise()) count_call(collective);
  if (!group_->share_devices() || !stream || stream.synchronous()) return;
  try {
    channel(collective).meet_hosts(collective);
  } catch (const CommError& error) {
    notify_owner(error);
    throw;
  }
}

// Hosts come to all of a batch before they wait for any.
void ShmRank::announce(const std::vector<Collective>& transfers, const Stream& stream) {
  if (!group_->share_devices() || stream.synchronous()) return;
  for (const Collective& each : transfers) channel(each).come_to_hosts(each);
  for (const Collective& each : transfers) announce(each, stream);
}

void ShmRank::count_call(const Collective& collective) {
  std::atomic<std::uint64_t>& called = control().host_region().states[rank_].called;  // only this thread writes it
  const std::uint64_t before = called.load(std::memory_order_relaxed);
  called.store(collective.kind == Kind::exchange
                   ? (before & ~std::uint64_t{0xffffffff}) | (collective.sequence & 0xffffffff)
                   : (before & 0xffffffff) | collective.sequence << 32,
               std::memory_order_seq_cst);
  control().notify_all();
}

void ShmRank::perform(const Collective& collective) {
  try {
    channel(collective).perform(collective);
  } catch (const CommError& error) {
    notify_owner(error);
    throw;
  }
}

void ShmRank::perform(const std::vector<Collective>& transfers) {
  try {
    perform_together(transfers, [this](const Collective& each) { channel(each).perform(each); });
  } catch (const CommError& error) {
    notify_owner(error);
    throw;
  }
}

void ShmRank::skip(const Collective& collective) noexcept try {
  const std::string text = cat("rank ", rank_, " could not begin ", to_string(fingerprint(collective)),
                               ": work before it on its stream failed");
  const std::optional<ControlBlock::Failure> before = control().failure();
  // Its own communicator first, which tells the others: what they do then may ask it.
  notify_owner(CommError(before ? before->rank : rank_, to_string(collective.kind), before ? before->text : text));
  control().fail(rank_, text);  // where there is no owner any more
} catch (...) {                 // no memory for the text: the others end at their deadlines
}

void ShmRank::notify_owner(const CommError& error) {
  const std::lock_guard lock(mutex_);
  if (owner_) owner_->break_with(error);
}

void ShmRank::disown() {
  const std::lock_guard lock(mutex_);
  owner_ = nullptr;
}

}  // namespace lockstep::detail
