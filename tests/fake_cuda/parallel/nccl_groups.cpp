// What ranks over NCCL make of failures that they hear of: from another communicator of the process, or from others.
#if __has_include(<nccl.h>)
#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/store/forwarding_store.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;
using StoreOf = std::function<std::shared_ptr<Store>(std::size_t rank)>;

// Ranks that take each other for processes, on these devices.
Group group_on(const std::vector<int>& devices, const StoreOf& store) {
  support::needs_devices(1 + *std::max_element(devices.begin(), devices.end()));
  std::set<int> gpus;
  for (const int device : devices) gpus.insert(native_ordinal(support::device_at(device)));
  if (gpus.size() < devices.size()) support::skip("GPUs of their own expected, logical devices of one found");
  Group group(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    threads.emplace_back([&, r] {
      const std::string token = cat("process ", r);
      detail::process_token_override = &token;
      group[r] = make_nccl_communicator(store(r), static_cast<int>(r), static_cast<int>(devices.size()),
                                        support::device_at(devices[r]), {.timeout = Milliseconds(60'000)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}
Group group_on(const std::vector<int>& devices) {
  return group_on(devices, [store = make_local_store()](std::size_t) { return store; });
}

Tensor ones_on(const Communicator& comm) { return ones({9}, {.dtype = DType::f32, .device = comm.device()}); }

bool becomes(const std::function<bool()>& condition) {
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (!condition() && !patience.passed()) std::this_thread::sleep_for(Milliseconds(1));
  return condition();
}

// What a host wait for the rank's device throws.
std::optional<CommError> told(const Communicator& comm) {
  try {
    synchronize(current_stream(comm.device()), Milliseconds(60'000));
  } catch (const CommError& error) {
    return error;
  }
  return std::nullopt;
}

// Whom a launcher is told of, in turn, by their numbers in the job.
std::mutex blamed_mutex;
std::vector<int> blamed;
void blame(const std::vector<int>& ranks, const CommError& error) noexcept {
  const std::lock_guard lock(blamed_mutex);
  blamed.push_back(error.rank < 0 ? -1 : ranks[static_cast<std::size_t>(error.rank)]);
}

// The store of a rank that is looked at by the test.
class WatchedStore final : public lockstep::test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::function<void(const std::string& key)> sees = [](const std::string&) {};
  void set(const std::string& key, const std::string& value) override {
    next().set(key, value);
    sees(key);
  }
};

}  // namespace

TEST_CASE("NCCL: a failure in one group blames nobody of the process's other groups") {
  // Ranks 0 1 2 of a job. Ranks 0 and 1 are a group, ranks 0 and 2 another; rank 1 does not come.
  blamed.clear();
  Group row = group_on({0, 1}), column = group_on({0, 2});
  for (std::size_t r = 0; r < 2; ++r) {
    row[r]->set_failure_report({&blame, {0, 1}, nullptr});
    column[r]->set_failure_report({&blame, {0, 2}, nullptr});
  }
  const Tensor in_row = ones_on(*row[0]), in_column = ones_on(*column[0]);
  for (Group* group : {&row, &column}) {  // with all that is made at the first time
    const Tensor at_other = ones_on(*(*group)[1]);
    (*group)[0]->all_reduce(in_row);
    (*group)[1]->all_reduce(at_other);
    for (const auto& comm : *group) CHECK_FALSE(told(*comm));
  }
  column[0]->set_timeout(Milliseconds(60'000));
  row[0]->set_timeout(Milliseconds(200));
  row[0]->all_reduce(in_row);
  column[0]->broadcast(in_column, 0);
  CHECK(becomes([&] { return row[0]->broken() && column[0]->broken() && column[1]->broken(); }));
  CHECK(row[0]->failure()->rank == 1);
  for (std::size_t r = 0; r < 2; ++r) {
    INFO(column[r]->failure()->what());
    CHECK(column[r]->failure()->rank == 0);  // it has broken off what it had on the way there
    CHECK(column[r]->failure()->collective == "broadcast");
    CHECK(std::string(column[r]->failure()->what()).find("200 ms") != std::string::npos);
  }
  CHECK(becomes([&] { return row[1]->broken(); }));
  CHECK(becomes([&] {
    const std::lock_guard lock(blamed_mutex);
    return blamed.size() == 4;
  }));
  const std::lock_guard lock(blamed_mutex);
  CHECK(blamed[0] == 1);
  CHECK(std::count(blamed.begin(), blamed.end(), 2) == 0);
}

TEST_CASE("NCCL: the error of who waits names the collective that it waits in, whatever the others did") {
  {
    Group two = group_on({0, 1});
    const Tensor x = ones_on(*two[0]);
    two[0]->all_reduce(x);
    two[1]->abort("out of ideas");
    const std::optional<CommError> error = told(*two[0]);
    REQUIRE(error);
    CHECK(error->rank == 1);
    CHECK(error->collective == "all_reduce");
    CHECK(two[0]->failure()->collective == "all_reduce");
  }
  const auto store = std::make_shared<WatchedStore>(make_local_store());
  std::atomic<bool> waits{false};
  store->sees = [&](const std::string& key) {
    if (key.find("/exchange/") != key.npos) waits = true;
  };
  Group two = group_on({0, 1}, [&](std::size_t) { return store; });
  std::optional<CommError> error;
  std::thread waiter([&] {
    try {
      two[0]->all_gather_bytes("x");
    } catch (const CommError& thrown) {
      error = thrown;
    }
  });
  CHECK(becomes([&] { return waits.load(); }));
  two[1]->abort("out of ideas");
  waiter.join();
  REQUIRE(error);
  CHECK(error->rank == 1);
  CHECK(error->collective == "exchange");
}
#endif
