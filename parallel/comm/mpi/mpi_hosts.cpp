// all_reduce of ranks on several hosts, where the links between hosts are what is slow.
//
// Flat, each rank sends nearly all of its elements to other hosts, twice. Here a host sends a message once in each
// direction, whatever the number of its ranks:
//   1. in each host the ranks give each other their shares: rank l of a host has all its host's elements of share l;
//   2. the ranks l of all hosts are a chain: each adds its host's elements, in the order of the ranks, to what has come
//      from the host before, and passes that on; the last one has the result, which goes back along the chain. Pieces
//      follow each other, so all links are busy, in both directions;
//   3. in each host the ranks give each other the shares of the result.
// The elements are combined in the order of the ranks as everywhere else, to the same bits.
#include <algorithm>
#include <atomic>
#include <utility>

#include "lockstep/parallel/comm/host_reduce.h"
#include "lockstep/parallel/comm/mpi/mpi_work.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

// Below that the chain's steps cost more than the bytes.
constexpr std::int64_t kLeastBytes = 256 << 10;
// Of a piece on its way along the hosts; more than so many are longer ones.
constexpr std::int64_t kPieceBytes = 256 << 10, kMostPieces = 32;

std::int64_t pieces_of(std::int64_t bytes) { return std::clamp<std::int64_t>(bytes / kPieceBytes, 1, kMostPieces); }

std::atomic<std::uint64_t> bytes_between_hosts{0};

// How many members each host has, where all have as many and stand one after another; 0: not so, or there is one host.
int members_per_host(const std::vector<std::string>& hosts) {
  const auto size = hosts.size();
  const auto each = static_cast<std::size_t>(
      std::find_if(hosts.begin(), hosts.end(), [&](const auto& h) { return h != hosts[0]; }) - hosts.begin());
  if (each == size || size % each != 0) return 0;
  for (std::size_t first = 0; first < size; first += each) {
    for (std::size_t m = 0; m < size; ++m)
      if ((hosts[m] == hosts[first]) != (m >= first && m < first + each)) return 0;
  }
  return static_cast<int>(each);
}

}  // namespace

std::uint64_t mpi_bytes_between_hosts() { return bytes_between_hosts.load(std::memory_order_relaxed); }

void MpiRank::count(std::span<const MpiMessage> messages) const {
  if (hosts_.empty()) return;
  const std::string& mine = hosts_[static_cast<std::size_t>(rank_)];
  std::uint64_t bytes = 0;
  for (const MpiMessage& each : messages)
    if (each.send && hosts_[static_cast<std::size_t>(each.member)] != mine) bytes += each.bytes;
  bytes_between_hosts.fetch_add(bytes, std::memory_order_relaxed);
}

void MpiRank::set_hosts(std::vector<std::string> hosts) {
  hosts_ = std::move(hosts);
  per_host_ = members_per_host(hosts_);
}

// A function of where the ranks are and of the call alone. An average is divided, and 16 bits are rounded, once, at the
// end: what goes along the chain would have to be something else than elements.
bool MpiRank::goes_by_host(const Work& work) const {
  const Collective& call = work.collective;
  return per_host_ > 0 && call.kind == Collective::Kind::all_reduce && call.reduction != RedOp::avg &&
         call.dtype != DType::f16 && call.dtype != DType::bf16 && call.count * work.bytes_each >= kLeastBytes;
}

void MpiRank::all_reduce_by_host(Work& work) {
  const std::int64_t size = work.bytes_each, count = work.collective.count;
  const std::int64_t round = std::max<std::int64_t>(1, kRoundBytes / size);
  const int here = rank_ / per_host_ * per_host_, own = rank_ - here;  // the first rank of this host
  for (std::int64_t begin = 0; begin < count; begin += round) {
    const std::int64_t length = std::min(round, count - begin);
    const auto first = [&](int share) { return begin + length * share / per_host_; };
    const auto bytes = [&](int share) { return (first(share + 1) - first(share)) * size; };
    const std::int64_t mine = bytes(own);
    std::byte* const parts = staging(static_cast<std::size_t>(mine * per_host_ + mine / pieces_of(mine) + size));
    for (int m = 0; m < per_host_; ++m) {
      if (m == own) continue;
      work.send(here + m, work.input(first(m)), bytes(m));
      work.recv(here + m, parts + m * mine, mine);
    }
    work.transfer();
    reduce_along_hosts(work, first(own), mine / size, parts);
    for (int m = 0; m < per_host_; ++m) {
      if (m == own) continue;
      work.send(here + m, work.output(first(own)), mine);
      work.recv(here + m, work.output(first(m)), bytes(m));
    }
    work.transfer();
  }
}

// `parts`: the shares of this host's other ranks, and behind them room for a piece.
void MpiRank::reduce_along_hosts(Work& work, std::int64_t begin, std::int64_t length, const std::byte* parts) {
  const std::int64_t size = work.bytes_each;
  const std::int64_t pieces = pieces_of(length * size);
  const int hosts = size_ / per_host_, host = rank_ / per_host_, own = rank_ % per_host_;
  const int up = rank_ + per_host_, down = rank_ - per_host_;  // this share's rank on the hosts beside this one
  const bool is_last = host + 1 == hosts;
  std::byte* const incoming = const_cast<std::byte*>(parts) + length * size * per_host_;
  const auto first = [&](std::int64_t piece) { return length * piece / pieces; };
  const auto elements = [&](std::int64_t piece) { return first(piece + 1) - first(piece); };
  const auto place = [&](std::int64_t piece) { return work.output(begin + first(piece)); };
  const auto exists = [&](std::int64_t piece) { return piece >= 0 && piece < pieces; };

  std::vector<const void*> inputs;
  for (std::int64_t step = 0; step < pieces + 2 * std::int64_t{hosts} - 3; ++step) {
    // Up: what came in the last step, with what is of this host.
    if (const std::int64_t piece = step - host; exists(piece)) {
      inputs.clear();
      if (host > 0) inputs.push_back(incoming);
      for (int m = 0; m < per_host_; ++m)
        inputs.push_back(m == own ? work.input(begin + first(piece)) : parts + (m * length + first(piece)) * size);
      void* const sum = place(piece);
      host_reduce(work.collective.reduction, work.collective.dtype, inputs, {&sum, 1}, elements(piece));
      work.send(is_last ? down : up, sum, elements(piece) * size);
    }
    if (const std::int64_t piece = step + 1 - host; host > 0 && exists(piece))
      work.recv(down, incoming, elements(piece) * size);
    // Down: the result.
    if (!is_last) {
      const std::int64_t coming = step - (hosts - 1) - (hosts - 2 - host);
      if (exists(coming)) work.recv(up, place(coming), elements(coming) * size);
      if (host > 0 && exists(coming - 1)) work.send(down, place(coming - 1), elements(coming - 1) * size);
    }
    work.transfer();
  }
}

}  // namespace lockstep::detail
