// A rank of DistributedDataParallel throws, dies, stops or does something else, wherever it is: the others get an error
// that names it, and a new start from the checkpoint ends with the bits of a training that nothing has disturbed.
#include <csignal>
#include <filesystem>

#include "lockstep/parallel/comm/parameter_hash.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/tensor/io/safetensors.h"
#include "parallel/ddp/support.h"
#include "processes/forked.h"
#include "support/devices.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using support::first_devices;

namespace {

constexpr int kRanks = 3, kBad = 1, kSteps = 6, kSavedAt = 3, kBadStep = 4;

enum class Place { construction, forward, backward, checkpoint };
constexpr const char* kPlaces[] = {"construction", "forward", "backward", "checkpoint"};
using Deed = std::function<void(Communicator&)>;

// Calls something inside its forward.
struct Watched : Module<Watched> {
  Mlp net;
  std::function<void()> in_forward = [] {};
  Tensor forward(const Tensor& x) const {
    in_forward();
    return net(x);
  }
  void members(Members& m) override { m("net", net); }
};

std::string train(const std::shared_ptr<Store>& store, int rank, Milliseconds timeout, const std::string& checkpoint,
                  bool resume, Place place, const Deed& deed) {
  const auto communicator = make_process_communicator(
      store, rank, kRanks, first_devices(kRanks)[static_cast<std::size_t>(rank)], {.timeout = Milliseconds(60'000)});
  Stream stream(communicator->device());
  const StreamScope scope(stream);
  const auto act = [&](Place here) {
    if (deed && rank == kBad && here == place) deed(*communicator);
  };
  try {
    if (place == Place::construction) communicator->set_timeout(timeout);
    act(Place::construction);
    DistributedDataParallel<Watched> net(Watched{}, *communicator, small_buckets());
    SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
    int step = 0;
    if (resume) {
      std::vector<NamedTensor> model, state;
      for (const NamedTensor& named : load_safetensors(checkpoint).tensors)
        (named.name.starts_with("net.") ? model : state).push_back(named);
      net.module().load_state_dict(model);
      optimizer.load_state_dict(state);
      step = kSavedAt;
    }
    for (; step < kSteps; ++step) {
      if (step == kBadStep) {
        communicator->set_timeout(timeout);  // not before: a busy machine is no failure
        net.module().in_forward = [&] { act(Place::forward); };
        net.module().net.first.weight.tensor().register_hook([&](Tensor&) { act(Place::backward); });
      }
      optimizer.zero_grad();
      loss_of(net(share(batch(step, kRanks, DType::f64, communicator->device()), rank))).backward();
      optimizer.step();
      if (step + 1 == kSavedAt && !resume) {
        if (rank == 0) {
          std::vector<NamedTensor> all = net.module().state_dict();
          for (const NamedTensor& named : optimizer.state_dict()) all.push_back(named);
          save_safetensors(checkpoint, all);
        }
        communicator->barrier();
      }
      if (step == kBadStep) {
        act(Place::checkpoint);
        communicator->barrier();
      }
    }
    synchronize(stream);
    return parameters_sha256(net.module());
  } catch (const CommError& error) {
    return cat("CommError: rank ", error.rank, " in ", error.collective, ": ", error.what());
  }
}

constexpr Milliseconds kPatient{60'000}, kBrief{1'500};

// Rank 0 alone waits no longer than `timeout`: of those that are not there it names the first, rank 1, should the other
// be late.
std::vector<std::string> run(const std::string& checkpoint, bool resume = false, Place place = Place::construction,
                             const Deed& deed = {}, Milliseconds timeout = kPatient) {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  return processes::fork_ranks(kRanks, [&](int rank) {
    const Milliseconds its = rank == 0 ? timeout : kPatient;
    return train(store, rank, its, checkpoint, resume, place, deed);
  });
}

}  // namespace

TEST_CASE("ddp drill: whatever a rank does, the others hear of it, and a new start loses nothing") {
  const lockstep::test::TemporaryFolder folder;
  const std::string checkpoint = folder / "checkpoint";
  const std::vector<std::string> undisturbed = run(checkpoint);
  for (const std::string& hash : undisturbed) REQUIRE(hash == undisturbed[0]);
  REQUIRE(undisturbed[0].size() == 64);

  struct Case {
    const char* name;
    Deed deed;
    Milliseconds timeout;
  };
  const std::vector<Case> cases = {
      {"throws", [](Communicator&) { throw std::out_of_range("no such row"); }, kPatient},
      {"is killed", [](Communicator&) { ::raise(SIGKILL); }, kPatient},
      {"stops", [](Communicator&) { ::raise(SIGSTOP); }, kBrief},
      {"calls something else",
       [](Communicator& c) { c.broadcast(counting({7}, c.device()), 0), synchronize(c.device()); }, kPatient},
      {"calls with another count",
       [](Communicator& c) { c.all_reduce(counting({77}, c.device())), synchronize(c.device()); }, kPatient},
  };
#ifdef __SANITIZE_THREAD__  // half a minute less: the threads are the same
  const auto places = {Place::construction, Place::backward};
#else
  const auto places = {Place::construction, Place::forward, Place::backward, Place::checkpoint};
#endif
  for (const Place place : places) {
    for (const Case& c : cases) {
      INFO("rank 1 " << c.name << " in " << kPlaces[static_cast<int>(place)]);
      std::filesystem::remove(checkpoint);
      const std::vector<std::string> said = run(checkpoint, false, place, c.deed, c.timeout);
      for (const int other : {0, 2})
        CHECK(missing(said[static_cast<std::size_t>(other)], {"CommError: rank 1 in "}) == "");
      if (place == Place::construction) continue;
      const std::vector<std::string> again = run(checkpoint, true);
      for (const std::string& hash : again) CHECK(hash == undisturbed[0]);
    }
  }
  CHECK(processes::threads() == 1);
}
