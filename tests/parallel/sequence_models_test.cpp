// Models of sequences, autocast and checkpointing in the replicas of a DataParallel.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct Text : Module<Text> {
  Embedding embedding{7, 8};
  TransformerEncoder encoder{
      TransformerEncoderLayer(8, 2, {.feedforward = 12, .dropout = 0, .batch_first = true, .norm_first = true}), 2};
  LSTM lstm{8, 4, {.batch_first = true, .bidirectional = true}};
  GRU gru{8, 5, {.batch_first = true}};
  Linear head{5, 3};
  bool checkpointed = false;
  double p = 0;
  Tensor forward(const Tensor& tokens) const {
    const auto body = [this](const Tensor& x) {
      return dropout(gru(lstm(encoder(x, {.causal = true})).output).output, p, is_training());
    };
    const Tensor x = embedding(tokens);
    return head(checkpointed ? checkpoint(body, x) : body(x)).mean({1});
  }
  void members(Members& m) override {
    m("embedding", embedding), m("encoder", encoder), m("lstm", lstm), m("gru", gru), m("head", head);
  }
};

Tensor tokens(std::int64_t batch) {
  manual_seed(static_cast<std::uint64_t>(batch));
  return randint(0, 7, {batch, 6});
}
std::vector<Tensor> gradient_tensors(const ModuleBase& net) {
  std::vector<Tensor> all;
  for (const Parameter& p : net.parameters()) all.push_back(p.grad());
  return all;
}

struct Product : Module<Product> {
  Parameter weight{tensor({1, 2, 3, 4}, {2, 2}).to(DType::f32)};
  Tensor forward(const Tensor& x) const {
    const Tensor w = weight.on(x.device());
    Tensor y = matmul(x, w);
    for (int i = 0; i < 3; ++i) y = matmul(y, w);
    return y;
  }
  void members(Members& m) override { m("weight", weight); }
};

}  // namespace

TEST_CASE("sequence models in replicas compute and train as on one device") {
  for (const auto& devices : device_sets()) {
    Text reference = seeded<Text>(1);
    for (const bool checkpointed : {false, true}) {
      Text copy = deep_copy(reference);
      copy.checkpointed = checkpointed;
      const auto net = DataParallel(copy, {.devices = devices});
      for (const std::int64_t batch : {9, 4}) {
        const Tensor x = tokens(batch);
        const Tensor want = reference(x), got = net(x);
        CHECK(largest_difference(got, want) < 1e-10);
        square(want).sum().backward();
        square(got).sum().backward();
      }
      const std::vector<Tensor> want = gradient_tensors(reference), got = gradient_tensors(copy);
      for (std::size_t i = 0; i < want.size(); ++i) CHECK(largest_difference(got[i], want[i]) < 1e-9);
      reference.zero_grad();
    }
  }
}

TEST_CASE("replicas that checkpoint drop the same elements in backward") {
  const Text first = seeded<Text>(1);
  std::vector<Tensor> plain;
  for (const bool checkpointed : {false, true}) {
    Text net = deep_copy(first);
    net.p = 0.5;
    net.checkpointed = checkpointed;
    const auto parallel = DataParallel(net, {.devices = devices_at({3, 1})});
    const Tensor x = tokens(8);
    manual_seed(4);
    const Tensor y = parallel(x);
    manual_seed(77);
    square(y).sum().backward();
    if (!checkpointed) {
      plain = gradient_tensors(net);
      continue;
    }
    const std::vector<Tensor> got = gradient_tensors(net);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(values(got[i]) == values(plain[i]));
  }
}

TEST_CASE("autocast goes into replicas and not into their backward") {
  for (const auto& devices : device_sets())
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const Product module;
      const auto net = DataParallel(module, {.devices = devices});
      const Tensor x = counting({4, 2}).to(DType::f32);
      Tensor y;
      {
        const Autocast scope(dtype);
        y = net(x);
        square(y.to(DType::f32)).mean().backward();
      }
      CHECK(y.dtype() == dtype);
      CHECK(module.weight.grad().dtype() == DType::f32);
      CHECK(net(x).dtype() == DType::f32);
      CHECK_FALSE(Autocast::enabled());
      {
        const Autocast scope(dtype);
        const Autocast off(dtype, false);
        CHECK(net(x).dtype() == DType::f32);
      }
      Product alone;
      {
        const Autocast scope(dtype);
        CHECK(values(alone(x)) == values(y));
      }
    }
}

TEST_CASE("a parameter that changes between two calls in one autocast scope is cast again") {
  const Product module;
  const auto net = DataParallel(module, {.devices = devices_at({2, 0})});
  const Tensor x = ones({2, 2});
  const Autocast scope(DType::bf16);
  const NoGrad no_grad;
  CHECK(values(net(x)) != values(x));
  module.weight.assign(eye(2));
  CHECK(values(net(x)) == values(x));
}

TEST_CASE("a DataParallel trains under autocast with a loss scale") {
  manual_seed(3);
  Sequential body(Linear(6, 16), GELU(), Linear(16, 2));
  const auto net = DataParallel(body, {.devices = devices_at({1, 2, 0})});
  SGD optimizer(body.parameters(), {.lr = 0.3});
  GradScaler scaler;
  const Tensor x = randn({48, 6}), wanted = (x.sum({1}) > 0.0).to(DType::i64);
  double first = 0, last = 0;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    Tensor loss;
    {
      const Autocast scope(DType::f16);
      loss = cross_entropy(net(x), wanted.to(net.output_device()));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  CHECK(last < 0.4 * first);
}
