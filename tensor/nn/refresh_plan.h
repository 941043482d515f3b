// What a refresh copies, from where to where and in which order: worked out before anything is enqueued. Private to the
// library.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/runtime/topology.h"
#include "lockstep/tensor/nn/slab_set.h"

namespace lockstep {

// Neighbours in a slab that the same mirrors lack are a run. A run is cut into pieces, and each piece goes along a
// route of the mirrors that lack it: from home to the first one, and from each to the next, as the devices are linked.
// Where lines of their own make several lanes (runtime/topology.h), pieces take them by turns.
class RefreshPlan {
 public:
  static constexpr std::size_t kHome = static_cast<std::size_t>(-1);
  struct Piece {
    std::size_t slab, offset_bytes, bytes;
    std::size_t first, end;  // places in slab.entries: those that it has bytes of
  };
  struct Copy {
    std::size_t piece;
    std::size_t from, to;  // mirrors, by their places in the list; or from kHome
    std::size_t after;     // the copies that `from` gets first, up to the one of this piece
    std::size_t lane;
  };

  // Needs one mirror at least, and each of them to lack something.
  RefreshPlan(const SlabSet& set, std::span<const SlabSet::Mirror> mirrors);

  const Piece& piece(const Copy& copy) const { return pieces_[copy.piece]; }
  // In the order in which they can run when each takes as long as the others: so no copy waits on its mirror's stream
  // behind one that begins later, and the host starts first what begins first. What the host has to wait for comes
  // last.
  const std::vector<Copy>& copies() const { return copies_; }
  std::size_t lanes() const { return lanes_; }  // that copies are on
  std::size_t runs() const { return runs_; }    // each of them once for each of its mirrors

 private:
  struct Run {
    std::size_t slab, begin, end;  // places in slab.entries
    std::size_t from_bytes, to_bytes;
    std::vector<std::size_t> mirrors;
  };
  struct Hop {
    std::size_t from, to, depth;  // depth: the hops of the route before it
  };
  using Route = std::vector<Hop>;
  struct Way {  // to some mirrors
    std::vector<std::size_t> mirrors;
    bool straight;  // from home to each
    std::vector<Lane> lanes;
    std::vector<Route> routes;  // by lane
  };

  const SlabSet::Entry& entry(std::size_t slab, std::size_t place) const {
    return set_.entries[static_cast<std::size_t>(set_.slabs[slab].entries[place])];
  }
  void add(const Run& run, std::size_t piece_bytes);
  std::vector<Lane> lanes_to(const std::vector<std::size_t>& mirrors) const;
  double largest_share() const;  // of the lanes to all mirrors
  std::size_t way_to(std::vector<std::size_t> mirrors, bool straight);
  void cut(const Run& run, std::size_t most_bytes, std::size_t way);
  void order_copies();

  const SlabSet& set_;
  const std::span<const SlabSet::Mirror> mirrors_;
  std::size_t runs_ = 0, lanes_ = 1;
  std::vector<Piece> pieces_;
  std::vector<Way> ways_;
  std::vector<std::size_t> way_of_;  // by piece
  std::vector<Copy> copies_;
};

}  // namespace lockstep
