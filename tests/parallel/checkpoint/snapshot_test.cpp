// What a snapshot has: what was enqueued before it, and nothing that was enqueued later, on every kind of device.
#include "lockstep/parallel/checkpoint/snapshot.h"

#include <cstring>
#include <functional>
#include <optional>

#include "lockstep/parallel/checkpoint/checkpoint_writer.h"
#include "lockstep/parallel/sharding/fully_sharded_data_parallel.h"
#include "parallel/sharding/support.h"
#include "support/devices.h"
#include "support/temporary_folder.h"

using namespace parallel_test;
using lockstep::test::TemporaryFolder;

namespace {

Doubles doubles_of(const detail::Snapshot::Piece& piece) {
  Doubles values(piece.bytes / sizeof(double));
  std::memcpy(values.data(), piece.data, piece.bytes);
  return values;
}

// A tensor, its columns as rows, and some of its rows.
std::vector<CheckpointEntry> entries_of(const Tensor& x, const std::string& name) {
  const Tensor rows = x.narrow(0, 3, 5);
  return {{name, x}, {name + ".turned", x.t()}, {name + ".rows", rows, TensorShard{x.shape(), 0, 3}}};
}

}  // namespace

TEST_CASE("a snapshot has what was enqueued before it, and nothing of what is enqueued after it") {
  const std::vector<Device> devices{support::device_at(1), support::device_at(0), Device::cpu()};
  detail::Snapshot snapshot;
  for (int round = 0; round < 4; ++round) {  // in the memory of the one before
    INFO("round " << round);
    const Stream one(devices[0]), other(devices[1]);
    std::optional<StreamScope> scope, inner;
    if (round % 2 == 1) scope.emplace(one), inner.emplace(other);
    std::vector<Tensor> tensors;
    std::vector<CheckpointEntry> entries, wanted;
    for (const Device device : devices) {
      const Tensor x = counting({32, 16 + round}, device, 100.0 * round);
      tensors.push_back(x);
      for (CheckpointEntry& entry : entries_of(x, cat(device))) entries.push_back(std::move(entry));
      for (CheckpointEntry& entry :
           entries_of(counting({32, 16 + round}, Device::cpu(), 100.0 * round + 1), cat(device)))
        wanted.push_back(std::move(entry));
    }
    for (const Tensor& x : tensors) x.detach().add_(1);
    snapshot.take(entries, true);
    for (const Tensor& x : tensors) x.detach().add_(1e6);  // the optimizer
    snapshot.await(Deadline::after(kDefaultTimeout));
    REQUIRE(snapshot.pieces().size() == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      INFO(wanted[i].name);
      CHECK(snapshot.pieces()[i].name == wanted[i].name);
      CHECK(doubles_of(snapshot.pieces()[i]) == values(wanted[i].tensor));
    }
  }
}

TEST_CASE("a snapshot on another stream than its tensors' keeps their memory until it is taken") {
  const Device device = support::device_at(0);
  const Stream other(device);
  detail::Snapshot snapshot;
  for (int round = 1; round <= 4; ++round) {
    Tensor weights = full({64, 64}, round, {.dtype = DType::f64, .device = device});
    other.wait_for(current_stream(device));
    {
      const StreamScope scope(other);
      const Tensor busy = zeros({512, 512}, {.device = device});
      for (int i = 0; i < 20; ++i) busy.detach().add_(1);
      snapshot.take({{"w", weights}}, true);
    }
    weights = Tensor();
    const Tensor again = full({64, 64}, -1, {.dtype = DType::f64, .device = device});  // may have its place
    synchronize(current_stream(device));
    snapshot.await(Deadline::after(kDefaultTimeout));
    CHECK(doubles_of(snapshot.pieces()[0]) == Doubles(std::size_t{64} * 64, round));
  }
}

namespace {

using MarkedNet = FullyShardedDataParallel<Marked>;

// Trains, and calls `save` with the number of each step between two that the optimizer makes.
void train(Communicator& c, const std::function<void(MarkedNet&, Optimizer&, int)>& save) {
  MarkedNet net(Marked(), c, {.wrap = wrap_modules<Block>()});
  Adam optimizer(net.parameters(), {.lr = 0.01});
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    loss_of(net(rows_of(c, i))).backward();
    optimizer.step();
    save(net, optimizer, i);
    optimizer.step();
  }
  synchronize(c.device());
}

}  // namespace

TEST_CASE("checkpoints of sharded ranks have the steps at which they were saved, while the optimizer goes on") {
  constexpr int kRanks = 2;
  const RunRanksOptions options{.devices = support::first_devices(kRanks), .make = communicators()[1].second};
  const auto expected = run_ranks(
      kRanks,
      [](Communicator& c) {
        std::vector<std::vector<NamedTensor>> states;
        train(c, [&](MarkedNet& net, Optimizer& optimizer, int) {
          states.push_back(net.whole_state_dict());
          for (NamedTensor& each : net.whole_state_dict(optimizer)) states.back().push_back(std::move(each));
        });
        return states;
      },
      options)[0];
  const TemporaryFolder folder;
  run_ranks(
      kRanks,
      [&](Communicator& c) {
        CheckpointWriter writer(folder.path().string(), c, {.keep = 9});
        train(c, [&](MarkedNet& net, Optimizer& optimizer, int step) {
          std::vector<CheckpointEntry> entries = net.checkpoint_entries("");
          for (CheckpointEntry& each : net.checkpoint_entries(optimizer, "")) entries.push_back(std::move(each));
          writer.save(step, entries);
        });
        writer.close();
      },
      options);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    INFO("step " << step);
    const Checkpoint found(folder / cat("step-0000000", step));
    CHECK(found.names().size() == expected[step].size());
    for (const NamedTensor& each : expected[step]) {
      INFO(each.name);
      CHECK(values(found.load(each.name).to(DType::f64)) == values(each.tensor.to(DType::f64)));
    }
  }
}
