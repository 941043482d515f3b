// Further layers, and what goes around them, in replicas and in ranks: as on one device.
#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

// Words [B, 4] and a picture [B, 4, 3, 3] of each to 2 numbers.
struct MixedLayers : Module<MixedLayers> {
  Embedding words{11, 6, {.padding_index = 0, .sparse = true}};
  MultiheadAttention attention{6, 3, {.dropout = 0.4, .batch_first = true}};
  LSTM lstm{6, 5, {.layers = 2, .dropout = 0.3, .bidirectional = true}};
  ConvTranspose2d grow{4, 6, 2, {.stride = 2, .groups = 2}};
  GroupNorm groups{3, 6};
  LayerNorm layers{10};
  RMSNorm roots{10};
  Linear head{16, 2};
  bool checkpointed = false;
  Tensor forward(const Tensor& tokens, const Tensor& picture) const {
    const auto read = [this](const Tensor& x, const Tensor& missing) {
      const Tensor seen = attention(x, {.key_padding = missing});
      return roots(layers(lstm(seen.transpose(0, 1)).output.mean({0})));
    };
    const auto look = [this](const Tensor& x) { return gelu(groups(grow(x))).mean({2, 3}); };
    const Tensor missing = tokens == 0.0, x = words(tokens);
    if (!checkpointed) return head(cat({read(x, missing), look(picture)}, 1));
    // One inside the other.
    return head(checkpoint(
        [this, read, look](const Tensor& in, const Tensor& mask, const Tensor& image) {
          return cat({checkpoint(read, in, mask), look(image)}, 1);
        },
        x, missing, picture));
  }
  void members(Members& m) override {
    m("words", words), m("attention", attention), m("lstm", lstm), m("grow", grow), m("groups", groups);
    m("layers", layers), m("roots", roots), m("head", head);
  }
};

struct Batch {
  Tensor tokens, picture;
};
Batch batch(std::int64_t size) {
  manual_seed(static_cast<std::uint64_t>(size));
  Tensor tokens = randint(0, 11, {size, 4});
  tokens.select(1, 0).fill_(3);  // nobody sees nothing
  return {tokens, noise({size, 4, 3, 3}, static_cast<std::uint64_t>(size))};
}
Doubles all_gradients(const ModuleBase& net) {
  Doubles all;
  for (const Parameter& p : net.parameters()) {
    const bool rows = p.tensor().sparse_grad().defined();
    for (const double value : values(rows ? p.sparse_grad().to_dense() : p.grad())) all.push_back(value);
  }
  return all;
}
double distance(const Doubles& a, const Doubles& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("layers of every kind in replicas: outputs and gradients of one device, also checkpointed") {
  support::needs_devices(5);
  MixedLayers reference = seeded<MixedLayers>(5);
  reference.eval();
  for (const auto& devices : {first_devices(1), first_devices(2), devices_at({2, 0, 1}), first_devices(5)}) {
    for (const bool checkpointed : {false, true}) {
      MixedLayers copy = deep_copy(reference);
      copy.checkpointed = checkpointed;
      const auto net = DataParallel(copy, {.devices = devices});
      for (const std::int64_t size : {7, 3}) {
        const Batch in = batch(size);
        const Tensor want = reference(in.tokens, in.picture), got = net(in.tokens, in.picture);
        CHECK(largest_difference(got, want) < 1e-10);
        square(want).sum().backward();
        square(got).sum().backward();
      }
      CHECK(distance(all_gradients(copy), all_gradients(reference)) < 1e-10);
      reference.zero_grad();
    }
  }
}

TEST_CASE("layers of every kind in replicas: the seed decides what is dropped, also checkpointed") {
  support::needs_devices(3);
  const MixedLayers first = seeded<MixedLayers>(5);
  const Batch in = batch(7);
  for (const auto& devices : {first_devices(1), devices_at({1, 0, 2})}) {
    std::vector<Doubles> seen;
    for (const bool checkpointed : {false, true, false}) {
      MixedLayers copy = deep_copy(first);
      copy.checkpointed = checkpointed;
      const auto net = DataParallel(copy, {.devices = devices});
      manual_seed(8);
      const Tensor y = net(in.tokens, in.picture);
      square(y).sum().backward();
      seen.push_back(all_gradients(copy));
      for (const double value : values(y)) seen.back().push_back(value);
    }
    CHECK(seen[1] == seen[0]);
    CHECK(seen[2] == seen[0]);
  }
}

TEST_CASE("layers of every kind in ranks: the gradients of one device, under a loss scale and checkpointed") {
  MixedLayers reference = seeded<MixedLayers>(5);
  reference.eval();
  const std::int64_t rows = 3;
  for (const int ranks : {1, 2, 3}) {
    const Batch whole = batch(rows * ranks);
    square(reference(whole.tokens, whole.picture)).mean().backward();
    const Doubles want = all_gradients(reference);
    reference.zero_grad();
    const auto got = run_ranks(ranks, [&](Communicator& comm) {
      MixedLayers copy = deep_copy(reference);
      copy.words = Embedding(11, 6, {.padding_index = 0});  // a dense gradient
      copy.words.to(DType::f64);
      copy.words.weight.assign(reference.words.weight.tensor());
      copy.checkpointed = true;
      copy.eval();
      DistributedDataParallel<MixedLayers> net(std::move(copy), comm);
      const auto mine = [&](const Tensor& x) { return x.narrow(0, rows * comm.rank(), rows).to(comm.device()); };
      GradScaler scaler(GradScalerOptions{.init_scale = 1024});
      SGD optimizer(net.module().parameters(), {.lr = 0.1});
      scaler.scale(square(net(mine(whole.tokens), mine(whole.picture))).mean()).backward();
      scaler.unscale_(optimizer);
      return all_gradients(net.module());
    });
    for (const Doubles& rank : got) CHECK(distance(rank, want) < 1e-10);
  }
}
