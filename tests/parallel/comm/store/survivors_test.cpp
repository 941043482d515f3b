// Ranks that agree on who is left, and go on in run_ranks.
#include "lockstep/parallel/comm/survivors.h"

#include <map>
#include <thread>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/comm/store/store.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"
#include "parallel/comm/conformance.h"
#include "parallel/comm/store/forwarding_store.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

constexpr Milliseconds kForEver{3'600'000};

std::string agreed(const detail::RollCall& call, std::uint64_t number, int rank, int size,
                   const std::vector<int>& exclude = {}, Milliseconds timeout = kForEver) {
  try {
    std::string text;
    for (const int r : detail::agree_on_survivors(call, number, rank, size, exclude, timeout)) text += cat(' ', r);
    return text;
  } catch (const CommError& error) {
    return cat(error.collective, " of rank ", error.rank);
  }
}

// Counts how often somebody asks who has come. `came` comes when so many waits have been in vain.
class AskedStore final : public lockstep::test::ForwardingStore {
 public:
  AskedStore(std::string came, int waits)
      : ForwardingStore(make_local_store()), came_(std::move(came)), waits_(waits) {}

  std::string get(const std::string& key, Deadline) override {
    if (waits_-- == 0) set(came_, "");
    throw TimeoutError(key);
  }
  std::optional<std::string> try_get(const std::string& key) override {
    ++asked_[key];
    return next().try_get(key);
  }
  int asked(const std::string& key) { return asked_[key]; }

 private:
  const std::string came_;
  int waits_;
  std::map<std::string, int> asked_;
};

}  // namespace

TEST_CASE("survivors: those that have come or are gone are not asked for again") {
  const auto store = std::make_shared<AskedStore>("p/shrink/1/here/4", 9);
  store->set("p/shrink/1/here/1", "3");  // it excludes 3, which has not come
  CHECK(agreed({.store = store, .prefix = "p", .gone = [] { return std::vector<int>{2}; }}, 1, 0, 5) == " 0 1 4");
  for (const int settled : {0, 1, 2}) CHECK(store->asked(cat("p/shrink/1/here/", settled)) == 1);
  CHECK(store->asked("p/shrink/1/here/4") == 11);
}

TEST_CASE("survivors: who is gone is not waited for, who comes late is left out for good") {
  const std::shared_ptr<Store> store = make_local_store();
  const detail::RollCall all{.store = store, .prefix = "all"};
  const detail::RollCall two{.store = store, .prefix = "two", .gone = [] { return std::vector<int>{1, 2}; }};
  std::vector<std::string> said(4);
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r)
    threads.emplace_back([&, r] {
      std::string& text = said[static_cast<std::size_t>(r)];
      text = agreed(all, 1, r, 4, r == 2 ? std::vector<int>{3} : std::vector<int>{});
      if (r == 0 || r == 3) text += agreed(two, 1, r, 4);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(said == std::vector<std::string>{" 0 1 2 0 3", " 0 1 2", " 0 1 2", "shrink of rank 3 0 3"});
  // Alone at the deadline, then too late, then for ever.
  const detail::RollCall slow{.store = store, .prefix = "slow"};
  CHECK(agreed(slow, 1, 1, 3, {}, Milliseconds(1)) == " 1");
  CHECK(agreed(slow, 1, 0, 3) == "shrink of rank 0");
  CHECK(agreed(slow, 2, 0, 3) == "shrink of rank 0");
  // Nobody waits again for whom an earlier meeting has left out.
  CHECK(agreed(slow, 2, 1, 3) == " 1");
  // All exclude themselves.
  CHECK(agreed({.store = store, .prefix = "none"}, 1, 0, 1, {0}) == "shrink of rank 0");
}

TEST_CASE("survivors: in run_ranks the others go on when one throws") {
  const auto peers = [](std::span<const Device> devices, Milliseconds timeout) {
    return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
  };
  for (const bool with_peers : {false, true}) {
    RunRanksOptions options{.timeout = conformance::kPatience};
    if (with_peers) options.make = peers;
    std::vector<std::string> said(4);
    std::string thrown;
    try {
      run_ranks(
          4,
          [&](Communicator& all) {
            if (all.rank() == 1) throw std::out_of_range("no such row");
            const Tensor x = conformance::tensor_of({all.rank() + 1.0}, DType::f64, all.device());
            const std::string wrong = conformance::comm_error(all, {"no such row"}, [&] { all.all_reduce(x.clone()); });
            const auto left = all.shrink({.timeout = kForEver});
            left->all_reduce(x);
            said[static_cast<std::size_t>(all.rank())] =
                cat(wrong, left->backend(), ": ", left->rank(), " of ", left->size(), ", sum ", x.item<double>());
          },
          options);
    } catch (const CommError& error) {
      thrown = cat(error.rank, ": ", error.what());
    }
    const std::string name = with_peers ? "peer" : "shared_memory";
    CHECK(said[0] == name + ": 0 of 3, sum 8");
    CHECK(said[2] == name + ": 1 of 3, sum 8");
    CHECK(said[3] == name + ": 2 of 3, sum 8");
    CHECK(support::missing(thrown, {"1: ", "no such row"}) == "");
  }
}
