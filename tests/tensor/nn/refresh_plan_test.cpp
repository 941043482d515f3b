// What a refresh copies: every byte that a mirror lacks once, from where it is by then, and nothing else.
#include "lockstep/tensor/nn/refresh_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;

namespace {

constexpr std::int64_t kCounts[] = {1, 300'001, 64, 0, 700'000, 5, 123'457, 2'000'003};

struct Uneven : Module<Uneven> {
  std::vector<Parameter> all;
  Buffer state{zeros({70'000})};
  Uneven() {
    int i = 0;
    for (const std::int64_t count : kCounts)
      all.emplace_back(zeros({count}, {.dtype = ++i % 3 == 0 ? DType::f64 : DType::f32}));
  }
  void members(Members& m) override { m("all", all), m("state", state); }
};

void check_plan(const SlabSet& set, const std::vector<SlabSet::Mirror>& mirrors) {
  const RefreshPlan plan(set, mirrors);
  std::vector<std::vector<std::pair<std::size_t, std::size_t>>> got(mirrors.size());  // slab and offset, in order
  std::vector<std::set<std::size_t>> has(mirrors.size());                             // entries, so far in part
  std::vector<std::map<std::size_t, std::map<std::size_t, std::size_t>>> bytes(mirrors.size());  // by slab, offset
  for (const RefreshPlan::Copy& copy : plan.copies()) {
    const RefreshPlan::Piece& piece = plan.piece(copy);
    REQUIRE(copy.to < mirrors.size());
    REQUIRE(piece.bytes > 0);
    const std::pair place(piece.slab, piece.offset_bytes);
    if (copy.from != RefreshPlan::kHome) {
      CHECK_FALSE(set.slabs[piece.slab].buffers);
      REQUIRE(copy.after > 0);
      REQUIRE(copy.after <= got[copy.from].size());  // it has been enqueued there
      CHECK(got[copy.from][copy.after - 1] == place);
    }
    CHECK(bytes[copy.to][piece.slab].emplace(piece.offset_bytes, piece.bytes).second);
    got[copy.to].push_back(place);
    // The entries that it names are those that it has bytes of.
    const std::vector<int>& order = set.slabs[piece.slab].entries;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const SlabSet::Entry& entry = set.entries[static_cast<std::size_t>(order[i])];
      const bool overlaps = entry.bytes > 0 && entry.offset_bytes < piece.offset_bytes + piece.bytes &&
                            piece.offset_bytes < entry.offset_bytes + entry.bytes;
      if (overlaps) CHECK((i >= piece.first && i < piece.end));
      if (overlaps) has[copy.to].insert(static_cast<std::size_t>(order[i]));
    }
  }
  for (std::size_t m = 0; m < mirrors.size(); ++m) {
    for (std::size_t e = 0; e < set.entries.size(); ++e) {
      const SlabSet::Entry& entry = set.entries[e];
      const std::vector<int>& stale = mirrors[m].stale;
      const bool lacks = std::binary_search(stale.begin(), stale.end(), static_cast<int>(e));
      if (entry.bytes == 0) continue;
      CHECK(has[m].count(e) == (lacks ? 1 : 0));
      if (!lacks) continue;
      std::size_t at = entry.offset_bytes;  // without gaps, and nothing twice
      const auto& there = bytes[m][static_cast<std::size_t>(entry.slab)];
      for (auto piece = std::prev(there.upper_bound(at)); at < entry.offset_bytes + entry.bytes; ++piece) {
        REQUIRE(piece != there.end());
        REQUIRE(piece->first <= at);
        at = piece->first + piece->second;
        const auto next = std::next(piece);
        if (next != there.end()) CHECK(next->first >= at);
      }
    }
  }
}

}  // namespace

TEST_CASE("a refresh copies what each mirror lacks once, from where it has been sent before") {
  support::needs_devices(6);
  Uneven net;
  net.to(support::device_at(0));
  const ModuleSlots slots(net);
  slots.form_slabs();
  const SlabSet& set = *net.all[0].body()->slabs;
  std::mt19937 random(7);
  for (const std::size_t count : {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{5}}) {
    for (int round = 0; round < 40; ++round) {
      CAPTURE(count, round);
      std::vector<SlabSet::Mirror> mirrors;
      for (std::size_t m = 0; m < count; ++m) {
        SlabSet::Mirror mirror{.device = support::device_at(static_cast<int>(m) + 1), .stale = {}, .at_once = false};
        for (int entry = 0; entry < static_cast<int>(set.entries.size()); ++entry)
          if (round == 0 || random() % 3 > 0) mirror.stale.push_back(entry);
        if (round % 2 == 1 && m > 0) mirror.stale = mirrors.front().stale;  // as it mostly is
        if (round % 5 == 4) mirror.at_once = m % 2 == 0;
        if (mirror.stale.empty()) mirror.stale.push_back(1);
        mirrors.push_back(std::move(mirror));
      }
      check_plan(set, mirrors);
    }
  }
}

TEST_CASE("a refresh sends along a chain, piece by piece, in the order in which the copies can run") {
  support::needs_devices(4);
  Uneven net;
  net.to(support::device_at(0));
  const ModuleSlots slots(net);
  slots.form_slabs();
  const SlabSet& set = *net.all[0].body()->slabs;
  std::vector<int> all(set.entries.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  std::vector<SlabSet::Mirror> mirrors;
  for (int d = 1; d < 4; ++d) mirrors.push_back({.device = support::device_at(d), .stale = all, .at_once = false});
  const RefreshPlan plan(set, mirrors);
  std::vector<int> begun(3);
  std::size_t from_home = 0;
  for (const RefreshPlan::Copy& copy : plan.copies()) {
    if (set.slabs[plan.piece(copy).slab].buffers) {
      CHECK(copy.from == RefreshPlan::kHome);
      CHECK(begun == std::vector<int>(3));  // before all parameters
      continue;
    }
    ++begun[copy.to];
    CHECK(copy.from == (copy.to == 0 ? RefreshPlan::kHome : copy.to - 1));
    if (copy.to == 0) from_home += plan.piece(copy).bytes;
    // The host makes first the calls for what begins first: no mirror is ahead of another by more than the way between
    // them, or by less.
    CHECK(begun[0] - begun[2] <= 3);
    if (copy.to == 2 && begun[2] == 1) CHECK(begun[0] == 2);
  }
  CHECK(begun == std::vector<int>(3, begun[0]));
  CHECK(begun[0] >= 4);
  std::size_t slabs = 0;
  for (const SlabSet::Slab& slab : set.slabs)
    if (!slab.buffers) slabs += slab.bytes;
  CHECK(from_home <= slabs);
  CHECK(plan.runs() == 3 * set.slabs.size());
}
