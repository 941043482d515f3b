// What every store does, asked of each kind.
#include <limits>

#include "lockstep/parallel/comm/store/file_store.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "parallel/comm/store/tcp_store_support.h"
#include "support/catch.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::in_threads;
using lockstep::test::kToken;
using lockstep::test::soon;
using support::message_of;

namespace {

// A store, and what it needs to live. `clients` share its values and may be used by threads of their own.
struct Kind {
  std::string name;
  std::function<std::vector<std::shared_ptr<Store>>(int clients)> make;
};

std::vector<Kind> kinds() {
  const auto tcp = [](const std::string& token) {
    return [token](int clients) {
      auto server = std::make_shared<TcpStoreServer>(TcpStoreServerOptions{.token = token});
      std::vector<std::shared_ptr<Store>> stores;
      for (int i = 0; i < clients; ++i) {
        auto client = make_tcp_store({.address = server->address(), .token = token});
        // The server goes with the last of its clients.
        auto both =
            std::make_shared<std::pair<std::shared_ptr<TcpStoreServer>, std::shared_ptr<Store>>>(server, client);
        stores.emplace_back(both, both->second.get());
      }
      return stores;
    };
  };
  return {
      {"local", [](int clients) { return std::vector<std::shared_ptr<Store>>(clients, make_local_store()); }},
      {"prefix",
       [](int clients) {
         return std::vector<std::shared_ptr<Store>>(clients, make_prefix_store(make_local_store(), "a"));
       }},
      {"file",
       [](int clients) {
         auto folder = std::make_shared<test::TemporaryFolder>();
         std::vector<std::shared_ptr<Store>> stores;
         for (int i = 0; i < clients; ++i) {
           auto client = make_file_store({.folder = folder->path().string(), .run_id = "run"});
           // The folder goes with the last of its clients.
           auto both = std::make_shared<std::pair<std::shared_ptr<test::TemporaryFolder>, std::shared_ptr<Store>>>(
               folder, client);
           stores.emplace_back(both, both->second.get());
         }
         return stores;
       }},
      {"tcp", tcp("")},
      {"tcp, token", tcp(kToken)},
  };
}

}  // namespace

TEST_CASE("a store keeps values, counts, compares and forgets") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto store = kind.make(1).front();
    CHECK_FALSE(store->try_get("a").has_value());
    store->set("a", "1");
    CHECK(store->try_get("a") == "1");
    CHECK(store->get("a", soon()) == "1");
    store->set("a", std::string("\0two\n", 5));
    CHECK(store->get("a", soon()) == std::string("\0two\n", 5));
    store->set("empty", "");
    CHECK(store->get("empty", soon()).empty());
    CHECK(store->try_get("empty") == "");

    CHECK(store->add("n", 5) == 5);
    CHECK(store->add("n", -7) == -2);
    CHECK(store->get("n", soon()) == "-2");

    CHECK(store->compare_set("c", "x", "y").empty());
    CHECK_FALSE(store->try_get("c").has_value());
    CHECK(store->compare_set("c", "", "x") == "x");
    CHECK(store->compare_set("c", "other", "y") == "x");
    CHECK(store->compare_set("c", "x", "y") == "y");
    CHECK(store->get("c", soon()) == "y");

    CHECK(store->erase("c"));
    CHECK_FALSE(store->erase("c"));
    CHECK_FALSE(store->try_get("c").has_value());
  }
}

TEST_CASE("a store takes names of any bytes") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto store = kind.make(1).front();
    const std::vector<std::string> keys = {"",
                                           ".",
                                           "..",
                                           "a/../b",
                                           "/",
                                           std::string("\0", 1),
                                           "\xff\xfe",
                                           "a b\n",
                                           "A",
                                           "a",
                                           std::string(Store::kMaxKeyBytes - 2, 'k')};
    for (const auto& key : keys) store->set(key, "value of " + key);
    for (const auto& key : keys) REQUIRE(store->get(key, soon()) == "value of " + key);
  }
}

TEST_CASE("a store refuses what is too large or no number, and stays as it was") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto store = kind.make(1).front();
    const std::string long_key(Store::kMaxKeyBytes + 1, 'k'), large(Store::kMaxValueBytes + 1, 'v');
    CHECK_THROWS_AS(store->set(long_key, ""), InvalidArgument);
    CHECK_THROWS_AS(store->add(long_key, 1), InvalidArgument);
    CHECK_THROWS_AS(store->compare_set(long_key, "", "a"), InvalidArgument);
    CHECK_THROWS_AS(store->set("a", large), InvalidArgument);
    CHECK_THROWS_AS(store->compare_set("a", "", large), InvalidArgument);
    CHECK_FALSE(store->try_get("a").has_value());
    const std::string largest(Store::kMaxValueBytes, 'v');
    store->set("a", largest);
    CHECK(store->get("a", soon()) == largest);

    store->set("word", "12x");
    CHECK(message_of<InvalidArgument>([&] { store->add("word", 1); }).find("'12x'") != std::string::npos);
    CHECK(store->get("word", soon()) == "12x");
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    CHECK(store->add("n", kMost) == kMost);
    CHECK_THROWS_AS(store->add("n", 1), InvalidArgument);
    CHECK(store->add("n", -1) == kMost - 1);
  }
}

TEST_CASE("a get waits for its key, and names it at the deadline") {
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto stores = kind.make(2);
    const auto message =
        message_of<TimeoutError>([&] { stores[0]->get("who sets this", Deadline::after(Milliseconds(20))); });
    CHECK(message.find("who sets this'") != std::string::npos);
    stores[0]->set("after it", "goes on");
    CHECK(stores[0]->get("after it", Deadline::after(Milliseconds(0))) == "goes on");

    // Each of the calls that make a key wakes who waits for it.
    std::vector<std::string> got(6);
    const auto thrown = in_threads(6, [&](int i) {
      const auto at = static_cast<std::size_t>(i);
      if (i < 3) got[at] = stores[0]->get("key" + std::to_string(i), soon());
      if (i == 3) stores[1]->set("key0", "set");
      if (i == 4) stores[1]->add("key1", 7);
      if (i == 5) stores[1]->compare_set("key2", "", "compared");
    });
    CHECK(thrown == std::vector<std::string>(6));
    CHECK(got == std::vector<std::string>{"set", "7", "compared", "", "", ""});
  }
}

TEST_CASE("a store's calls are atomic between threads and clients") {
  constexpr int kThreads = 8, kRounds = 50;
  for (const Kind& kind : kinds()) {
    INFO(kind.name);
    const auto stores = kind.make(4);
    std::vector<int> won(kThreads);
    const auto thrown = in_threads(kThreads, [&](int t) {
      Store& store = *stores[static_cast<std::size_t>(t) % stores.size()];
      for (int i = 0; i < kRounds; ++i) {
        store.add("sum", t);
        const std::string mine = std::to_string(t);
        won[static_cast<std::size_t>(t)] += store.compare_set("round" + std::to_string(i), "", mine) == mine;
      }
      // A barrier, as ranks make one.
      if (store.add("here", 1) == kThreads) store.set("all here", "");
      store.get("all here", soon());
    });
    CHECK(thrown == std::vector<std::string>(kThreads));
    CHECK(stores[0]->get("sum", soon()) == std::to_string(kRounds * kThreads * (kThreads - 1) / 2));
    int winners = 0;
    for (const int n : won) winners += n;
    CHECK(winners == kRounds);
  }
}

TEST_CASE("a part of a store is apart from the others") {
  const auto whole = make_local_store();
  const auto a = make_prefix_store(whole, "a"), b = make_prefix_store(whole, "b"), inner = make_prefix_store(a, "b");
  a->set("k", "1");
  b->set("k", "2");
  inner->set("k", "3");
  CHECK(a->get("k", soon()) == "1");
  CHECK(b->get("k", soon()) == "2");
  CHECK(whole->get("a/b/k", soon()) == "3");
  CHECK(a->erase("k"));
  CHECK(b->try_get("k") == "2");
}
