// Communicators that ranks make with make_communicator after they have failed, or with fewer ranks.
#include <thread>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/runtime/strings.h"
#include "parallel/comm/conformance.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

// As one of `size` threads: "" when they can talk to each other, else what is wrong.
std::string talk(const std::shared_ptr<Store>& store, int rank, int size, Milliseconds timeout) try {
  const auto comm = make_communicator({.store = store,
                                       .rank = {.rank = rank, .size = size, .local_rank = rank, .local_size = size},
                                       .device = support::device_at(rank),
                                       .timeout = timeout});
  std::string all;
  for (const std::string& each : comm->all_gather_bytes(cat(rank, ' '))) all += each;
  comm->barrier();  // nobody leaves while others talk
  std::string expected;
  for (int r = 0; r < size; ++r) expected += cat(r, ' ');
  return all == expected ? "" : "got " + all;
} catch (const std::exception& error) {
  return error.what();
}

template <class Body>
std::vector<std::string> on_threads(int count, const Body& body) {
  std::vector<std::string> said(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) threads.emplace_back([&, r] { said[static_cast<std::size_t>(r)] = body(r); });
  for (std::thread& thread : threads) thread.join();
  return said;
}

}  // namespace

TEST_CASE("make_communicator: those that are left of a store's ranks make one of their own") {
  support::needs_devices(4);
  const std::shared_ptr<Store> store = make_local_store();
  for (const int size : {4, 3, 2, 3, 4}) {
    INFO(size << " ranks");
    CHECK(on_threads(size, [&](int rank) { return talk(store, rank, size, conformance::kPatience); }) ==
          std::vector<std::string>(static_cast<std::size_t>(size)));
  }
}

TEST_CASE("make_communicator: when one does not come, the others can do without it") {
  support::needs_devices(4);
  const std::shared_ptr<Store> store = make_local_store();
  const auto three_of_four = on_threads(3, [&](int rank) { return talk(store, rank, 4, Milliseconds(100)); });
  for (const std::string& each : three_of_four) CHECK(each.find("rank 3") != std::string::npos);
  CHECK(on_threads(3, [&](int rank) { return talk(store, rank, 3, conformance::kPatience); }) ==
        std::vector<std::string>(3));
  // All four, by a name that nobody has met under: rank 3 has not been there for the first one.
  const std::shared_ptr<Store> again = make_prefix_store(store, "second attempt");
  CHECK(on_threads(4, [&](int rank) { return talk(again, rank, 4, conformance::kPatience); }) ==
        std::vector<std::string>(4));
}
