// Processes that train over the groups of a mesh, and that go on without one of them.
#include <unistd.h>

#include <csignal>

#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "parallel/comm/conformance.h"
#include "parallel/comm/store/forwarding_store.h"
#include "parallel/ddp/mesh_scenarios.h"
#include "processes/forked.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace parallel_test;
using support::first_devices;

namespace {

std::unique_ptr<Communicator> connect(const std::shared_ptr<Store>& store, int rank, int size) {
  return make_process_communicator(store, rank, size, first_devices(size)[static_cast<std::size_t>(rank)],
                                   {.timeout = conformance::kPatience});
}

// A store whose process is killed before one of its calls.
class DeadlyStore final : public lockstep::test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  int calls_left = 0;  // 0: for ever

 private:
  void before_call() override {
    if (calls_left > 0 && --calls_left == 0) ::raise(SIGKILL);
  }
};

// Nobody waits that long: who is gone must be noticed.
constexpr Milliseconds kForEver{3'600'000};

}  // namespace

TEST_CASE("processes: modules along the rows and columns of a mesh train as one loop does") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = processes::fork_ranks(kMeshRanks, [&](int rank) -> std::string {
    const auto world = connect(store, rank, kMeshRanks);
    const Doubles got = train_on_mesh(*world);
    const double difference = largest_difference(got, train_mesh_alone()[static_cast<std::size_t>(rank)]);
    return difference <= 1e-10 ? "" : cat("off by ", difference);
  });
  for (const std::string& each : said) CHECK(each == "");
}

TEST_CASE("processes: the survivors of a rank that is killed shrink, wrap the module again and stay alike") {
  for (const int victim : {0, 1, 3}) {
    INFO("rank " << victim);
    const std::shared_ptr<Store> store = processes::make_mapped_store();
    const std::vector<std::string> said = processes::fork_ranks(4, [&](int rank) -> std::string {
      const auto world = connect(store, rank, 4);
      Stream stream(world->device());
      const StreamScope scope(stream);
      Mlp net;
      net.to(world->device());
      SGD optimizer(net.parameters(), {.lr = 0.1});
      std::unique_ptr<Communicator> left;
      for (int step = 0; step < 6; ++step) {
        Communicator& now = left ? *left : *world;
        try {
          DistributedDataParallel<Mlp> wrapped(net, now, small_buckets());
          if (step == 2 && rank == victim) ::raise(SIGKILL);
          optimizer.zero_grad();
          loss_of(wrapped(share(batch(step, 4, DType::f64, now.device()), now.rank()))).backward();
          synchronize(stream);
          optimizer.step();
        } catch (const CommError& error) {
          if (left || error.rank != victim) return cat("unexpected: ", error.what());
          drain(world->device());
          left = world->shrink({.timeout = kForEver});
          if (left->size() != 3 || left->rank() != rank - (rank > victim ? 1 : 0))
            return cat("became rank ", left->rank(), " of ", left->size());
        }
      }
      if (!left) return "nobody noticed";
      std::string hash;
      for (const double value : all_parameters(net)) hash += cat(value, ' ');
      for (const std::string& other : left->all_gather_bytes(hash))
        if (other != hash) return "the ranks that are left differ";
      return "";
    });
    for (int rank = 0; rank < 4; ++rank)
      if (rank != victim) CHECK(said[static_cast<std::size_t>(rank)] == "");
  }
}

TEST_CASE("processes: a rank that is killed while the others meet is left out, or they hear of it and meet again") {
  // Before it says that it is there, before it looks who is, before anybody can decide, and when the group is made.
  for (const int call : {1, 2, 4, 5, 6, 7}) {
    INFO("killed at its call " << call << " of the store");
    const std::shared_ptr<Store> store = processes::make_mapped_store();
    const std::vector<std::string> said = processes::fork_ranks(3, [&](int rank) -> std::string {
      const auto deadly = std::make_shared<DeadlyStore>(store);
      const auto world = connect(deadly, rank, 3);
      world->barrier();
      if (rank == 2) deadly->calls_left = call;
      for (int tries = 0; tries < 3; ++tries) {
        try {
          const auto left = world->shrink({.exclude = {}, .timeout = kForEver});
          if (rank == 2) ::raise(SIGKILL);  // it was made with fewer calls
          // Rank 2 was still there when they met: what it leaves is a failure of the new communicator.
          if (left->size() == 2) return "";
          std::string wrong = conformance::comm_error(*left, {"rank 2"}, [&] { left->barrier(); });
          if (!wrong.empty()) return wrong;
          const auto rest = left->shrink({.timeout = kForEver});
          return rest->size() == 2 && rest->rank() == rank ? "" : "expected two ranks";
        } catch (const CommError& error) {
          if (error.collective == "shrink" || rank == 2) return error.what();
        }
      }
      return "expected to get through";
    });
    CHECK(said[0] == "");
    CHECK(said[1] == "");
    CHECK(said[2] == "signal 9");
  }
}
