// Layers: names and shapes of their state, modes, running statistics, chains.
#include "lockstep/tensor/nn/layers.h"

#include <cmath>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/tensors.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::device_name;
using support::state_texts;
using support::values;

namespace {

using Doubles = std::vector<double>;
using Names = std::vector<std::string>;

double furthest(const Tensor& x, const Doubles& expected) {
  const Doubles got = values(x.to(DType::f64));
  REQUIRE(got.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(got[i] - expected[i]));
  return most;
}
struct ConvNet : Module<ConvNet> {
  Conv2d conv{1, 4, 3, {.stride = 2, .padding = 1}};
  BatchNorm2d norm{4};
  Linear head{4 * 4 * 4, 3};
  Tensor forward(const Tensor& x) const { return head(flatten(relu(norm(conv(x))), 1)); }
  void members(Members& m) override { m("conv", conv), m("norm", norm), m("head", head); }
};

}  // namespace

TEST_CASE("layers have the names, shapes and dtypes of PyTorch's") {
  CHECK(state_texts(Linear(3, 2)) == Names{"weight f32[2, 3] on cpu", "bias f32[2] on cpu"});
  CHECK(state_texts(Linear(3, 2, {.bias = false})) == Names{"weight f32[2, 3] on cpu"});
  CHECK(state_texts(Conv2d(4, 6, {3, 5}, {.groups = 2})) ==
        Names{"weight f32[6, 2, 3, 5] on cpu", "bias f32[6] on cpu"});
  CHECK(state_texts(BatchNorm2d(4)) == Names{"weight f32[4] on cpu", "bias f32[4] on cpu", "running_mean f32[4] on cpu",
                                             "running_var f32[4] on cpu", "num_batches_tracked i64[] on cpu"});
  CHECK(state_texts(BatchNorm1d(4, {.affine = false, .track_running_stats = false})).empty());
  CHECK(state_texts(LayerNorm(5)) == Names{"weight f32[5] on cpu", "bias f32[5] on cpu"});
  CHECK(state_texts(LayerNorm(Shape{2, 3}, {.bias = false})) == Names{"weight f32[2, 3] on cpu"});
  CHECK(state_texts(LayerNorm(5, {.affine = false})).empty());
  CHECK(state_texts(RMSNorm(5)) == Names{"weight f32[5] on cpu"});
  CHECK(state_texts(RMSNorm(Shape{2, 3}, {.affine = false})).empty());
  CHECK(state_texts(Embedding(7, 3)) == Names{"weight f32[7, 3] on cpu"});
  {
    const DefaultDType f64(DType::f64);
    CHECK(Linear(1, 1).weight.dtype() == DType::f64);
  }
  const ConvNet net;
  Names names;
  for (const NamedTensor& entry : net.state_dict()) names.push_back(entry.name);
  CHECK(names == Names{"conv.weight", "conv.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
                       "norm.num_batches_tracked", "head.weight", "head.bias"});
  CHECK(net.parameters().size() == 6);
  CHECK(net.buffers().size() == 3);
}

TEST_CASE("layers begin with PyTorch's distributions") {
  manual_seed(1);
  const auto bound = [](const Parameter& p) { return max(abs(p.tensor())).item<double>(); };
  const Linear linear(100, 200);
  CHECK(bound(linear.weight) <= 0.1);
  CHECK(bound(linear.weight) > 0.099);
  CHECK(bound(linear.bias) > 0.09);
  const Conv2d conv(4, 50, 5);
  CHECK(bound(conv.weight) <= 0.1);
  CHECK(bound(conv.weight) > 0.099);
  const BatchNorm1d norm(3);
  CHECK(values(norm.weight.tensor()) == Doubles{1, 1, 1});
  CHECK(values(norm.running_var.tensor()) == Doubles{1, 1, 1});
  CHECK(values(norm.running_mean.tensor()) == Doubles{0, 0, 0});
  CHECK(norm.num_batches_tracked.tensor().item<int>() == 0);
  CHECK(std::sqrt(var(Embedding(1000, 20).weight.tensor()).item<double>()) == Approx(1).margin(0.02));
  manual_seed(1);
  CHECK(equal(Linear(100, 200).weight.tensor(), linear.weight.tensor()));
  manual_seed(0);
}

TEST_CASE("layers compute on the device of their input") {
  ConvNet net;
  manual_seed(2);
  const Tensor x = randn({2, 1, 8, 8});
  net.eval();
  const Tensor here = net(x);
  CHECK(here.shape() == Shape{2, 3});
  net.to(device_at(3));
  const Tensor there = net(x.to(device_at(3)));
  CHECK(there.device() == device_at(3));
  CHECK(allclose(there, here));
  CHECK_THROWS_WITH(net(x), Contains("conv.weight") && Contains(device_name(3)) && Contains("cpu"));
  CHECK_THROWS_WITH(Linear(3, 2)(zeros({2, 4})), Contains("[linear]") && Contains("[2, 4]") && Contains("[2, 3]"));
  CHECK_THROWS_WITH(Linear(3, 2)(zeros({2, 3}, {.dtype = DType::f64})), Contains("[linear]") && Contains("f64"));
}

TEST_CASE("batch norm in training uses the batch and moves the running statistics") {
  const BatchNorm1d norm(2);
  const Tensor x = from_data({1.0, 10.0, 3.0, 20.0, 5.0, 60.0}, {3, 2});
  const Tensor y = norm(x);
  // Biased variances normalise, unbiased ones are kept: means 3 and 30; biased 8/3 and 1400/3, unbiased 4 and 700.
  CHECK(allclose(y, (x - from_data({3.0, 30.0}, {2})) / sqrt(from_data({8.0 / 3 + 1e-5, 1400.0 / 3 + 1e-5}, {2})), 1e-5,
                 1e-6));
  CHECK(allclose(norm.running_mean.tensor(), from_data({0.3, 3.0}, {2})));
  CHECK(allclose(norm.running_var.tensor(), from_data({0.9 + 0.4, 0.9 + 70}, {2})));
  CHECK(norm.num_batches_tracked.tensor().item<int>() == 1);
  norm(x);
  CHECK(allclose(norm.running_mean.tensor(), from_data({0.57, 5.7}, {2})));
  CHECK(norm.num_batches_tracked.tensor().item<int>() == 2);
  CHECK(norm.running_mean.tensor().version() > 0);
  {
    const TrainingScope evaluation(false);
    const Doubles kept = values(norm.running_mean.tensor());
    const Tensor z = norm(x);
    CHECK(allclose(z, (x - norm.running_mean.tensor()) / sqrt(norm.running_var.tensor() + 1e-5), 1e-5, 1e-5));
    CHECK(values(norm.running_mean.tensor()) == kept);
    CHECK(norm.num_batches_tracked.tensor().item<int>() == 2);
    CHECK(norm(x.narrow(0, 0, 1)).shape() == Shape{1, 2});  // one value per channel is enough
  }
  CHECK_THROWS_WITH(norm(x.narrow(0, 0, 1)), Contains("more than one value"));
  CHECK(norm.num_batches_tracked.tensor().item<int>() == 2);
  CHECK_THROWS_WITH(norm(zeros({2})), Contains("[BatchNorm1d]") && Contains("f32[2]"));
  CHECK_THROWS_WITH(BatchNorm2d(2)(x), Contains("[BatchNorm2d]"));

  const BatchNorm1d quick(2, {.momentum = 1, .affine = false});
  quick(x);
  CHECK(allclose(quick.running_mean.tensor(), from_data({3.0, 30.0}, {2})));
  // Without running statistics evaluation uses the batch too.
  BatchNorm1d own(2, {.track_running_stats = false});
  own.eval();
  CHECK(allclose(own(x), y));
}

TEST_CASE("batch norm of an input in another floating dtype than its parameters and statistics") {
  struct Dtypes {
    DType x, weight, statistics;
  };
  for (const auto [x, weight, statistics] :
       {Dtypes{DType::bf16, DType::bf16, DType::f32}, Dtypes{DType::f16, DType::f32, DType::f32},
        Dtypes{DType::f32, DType::f64, DType::f64}, Dtypes{DType::f32, DType::f32, DType::bf16},
        Dtypes{DType::bf16, DType::f16, DType::f16}}) {
    INFO(to_string(x) << ", " << to_string(weight) << ", " << to_string(statistics));
    for (const std::optional<double> momentum : {std::optional(0.5), std::optional<double>()}) {
      BatchNorm1d norm(2, {.momentum = momentum});
      norm.weight = Parameter(from_data(std::vector<double>{1, 2}, {2}, {.dtype = DType::f64}).to(weight));
      norm.bias = Parameter(zeros({2}, {.dtype = weight}));
      norm.running_mean = Buffer(zeros({2}, {.dtype = statistics}));
      norm.running_var = Buffer(ones({2}, {.dtype = statistics}));
      Tensor input = from_data(std::vector<double>{-1, 2, 1, 6, -1, 2, 1, 6}, {4, 2}, {.dtype = DType::f64}).to(x);
      input.set_requires_grad();
      const Tensor y = norm(input);  // means 0 and 4, variances 1 and 4
      CHECK(y.dtype() == x);
      CHECK(furthest(y, {-1, -2, 1, 2, -1, -2, 1, 2}) < 1e-2);
      sum(y * y).backward();
      CHECK(input.grad().dtype() == x);
      CHECK(norm.weight.grad().dtype() == weight);
      CHECK(furthest(norm.weight.grad(), {8, 16}) < 0.1);  // 2 w sum(normalised^2)
      CHECK(norm.running_mean.tensor().dtype() == statistics);
      CHECK(furthest(norm.running_mean.tensor(), momentum ? Doubles{0, 2} : Doubles{0, 4}) < 1e-2);
      norm.eval();
      CHECK(norm(input).dtype() == x);
    }
  }
}

TEST_CASE("an evaluation pass does not disturb the backward of an earlier one, nor a training pass") {
  const BatchNorm1d norm(2);
  Tensor x = from_data({1.0, 10.0, 3.0, 20.0, 5.0, 60.0}, {3, 2});
  x.set_requires_grad();
  Tensor evaluated;
  {
    const TrainingScope evaluation(false);
    evaluated = norm(x);
  }
  norm(x);  // writes the running statistics
  evaluated.sum().backward();
  CHECK(allclose(x.grad(), full({3, 2}, 1 / std::sqrt(1 + 1e-5))));
}

TEST_CASE("dropout") {
  support::needs_devices(2);
  manual_seed(4);
  Dropout drop(0.25);
  const Tensor x = ones({100, 1000});
  const Tensor y = drop(x);
  CHECK(mean((y == 0).to(DType::f32)).item<double>() == Approx(0.25).margin(0.01));
  CHECK(mean(y).item<double>() == Approx(1).margin(0.01));
  CHECK(all(logical_or(y == 0, abs(y - 4.0 / 3) < 1e-6)).item<bool>());
  CHECK_FALSE(equal(drop(x), y));
  manual_seed(4);
  CHECK(equal(drop(x), y));
  manual_seed(4);
  CHECK(equal(drop(x.to(device_at(1))).to(Device::cpu()), y));
  // What is dropped is the same for all numbers and dtypes, and in backward, where the rest is scaled alike.
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    Tensor numbers = randn({100, 10}, {.dtype = dtype}).set_requires_grad();
    const Tensor weights = randn({100, 10}, {.dtype = dtype});
    manual_seed(4);
    const Tensor mask = drop(ones({100, 10}, {.dtype = dtype})).to(DType::f64);
    manual_seed(4);
    const Tensor dropped = drop(numbers);
    CHECK(equal(mask != 0, y.reshape({100000}).narrow(0, 0, 1000).reshape({100, 10}) != 0));
    CHECK(allclose(dropped.to(DType::f64), numbers.to(DType::f64) * mask, 1e-2));
    CHECK(equal(dropped != 0, logical_and(mask != 0, numbers != 0)));
    dropped.backward(weights);
    CHECK(allclose(numbers.grad().to(DType::f64), weights.to(DType::f64) * mask, 1e-2));
    CHECK(equal(numbers.grad() != 0, logical_and(mask != 0, weights != 0)));
  }
  drop.eval();
  CHECK(drop(x).identity() == x.identity());
  {
    const TrainingScope training(true);
    CHECK_FALSE(equal(drop(x), x));
  }
  CHECK(equal(Dropout(0)(x), x));
  CHECK(equal(Dropout(1)(x), zeros({100, 1000})));
  CHECK_THROWS_AS(Dropout(-0.1), InvalidArgument);
  manual_seed(0);
}

TEST_CASE("embedding") {
  const Embedding table(5, 2, {.padding_index = -2});
  CHECK(values(table.weight.tensor()[3]) == Doubles{0, 0});
  const Tensor rows = table(from_data({3, 1}, {2, 1}));
  CHECK(rows.shape() == Shape{2, 1, 2});
  CHECK(equal(rows[1][0], table.weight.tensor()[1]));
  rows.sum().backward();
  CHECK(values(table.weight.grad()) == Doubles{0, 0, 1, 1, 0, 0, 0, 0, 0, 0});
  CHECK_THROWS_AS(table(from_data({5}, {1})), InvalidArgument);
  CHECK_THROWS_AS(Embedding(3, 2, {.padding_index = 3}), InvalidArgument);
}

TEST_CASE("simple layers call their functions") {
  manual_seed(6);
  const Tensor x = randn({2, 3, 4, 4});
  CHECK(equal(ReLU()(x), relu(x)));
  CHECK(equal(Tanh()(x), tanh(x)));
  CHECK(equal(Sigmoid()(x), sigmoid(x)));
  CHECK(equal(SiLU()(x), silu(x)));
  CHECK(equal(Hardswish()(x), hardswish(x)));
  CHECK(equal(GELU()(x), gelu(x)));
  CHECK(equal(GELU(GeluForm::tanh)(x), gelu(x, GeluForm::tanh)));
  CHECK(equal(Softmax(1)(x), softmax(x, 1)));
  CHECK(equal(Identity()(x), x));
  CHECK(equal(MaxPool2d(2)(x), max_pool2d(x, 2)));
  CHECK(MaxPool2d(3, {.stride = 1, .padding = 1})(x).shape() == x.shape());
  CHECK(allclose(AvgPool2d({2, 4})(x), x.reshape({2, 3, 2, 2, 4}).mean({3, 4}).reshape({2, 3, 2, 1})));
  CHECK(Flatten()(x).shape() == Shape{2, 48});
  manual_seed(7);
  const Linear plain(4, 5);
  manual_seed(7);
  const Linear activated(4, 5, {.activation = Activation::relu});
  CHECK(equal(activated(x), relu(plain(x))));
  CHECK(Flatten(2)(x).shape() == Shape{2, 3, 16});
  const LayerNorm norm(Shape{4, 4});
  CHECK(allclose(norm(x), (x - mean(x, {2, 3}, true)) / sqrt(var(x, {2, 3}, 0, true) + 1e-5), 1e-5, 1e-5));
  RMSNorm root(4, {.eps = 0.5});
  CHECK(equal(root.weight.tensor(), ones({4})));
  root.weight.assign(full({4}, 3.0));
  CHECK(allclose(root(x), x / sqrt(square(x).mean({3}, true) + 0.5) * 3, 1e-5, 1e-5));
  CHECK(equal(RMSNorm(Shape{4, 4}, {.affine = false})(x), rms_norm(x, {4, 4})));
  CHECK_THROWS_WITH(RMSNorm(Shape{}), Contains("[RMSNorm]") && Contains("[]"));
  manual_seed(0);
}

TEST_CASE("sequential") {
  Sequential net(Linear(3, 4), ReLU(), Sequential(Linear(4, 4), Dropout(0.5)));
  net.push_back(Linear(4, 2));
  CHECK(net.count() == 4);
  Names names;
  for (const NamedTensor& entry : net.state_dict()) names.push_back(entry.name);
  CHECK(names == Names{"0.weight", "0.bias", "2.0.weight", "2.0.bias", "3.weight", "3.bias"});
  CHECK(net.at<Linear>(3).weight.shape() == Shape{2, 4});
  CHECK(net.at<Sequential>(2).at<Linear>(0).weight == net.parameters()[2]);
  CHECK_THROWS_AS(net.at<ReLU>(0), InvalidArgument);
  CHECK_THROWS_WITH(net[4], Contains("below 4"));

  const Tensor x = ones({2, 3});
  net.eval();
  CHECK_FALSE(net[2].is_training());
  const Tensor y = net(x);
  CHECK(equal(y, net.at<Linear>(3)(net.at<Sequential>(2)(relu(net.at<Linear>(0)(x))))));
  CHECK(equal(Sequential()(x), x));

  // A copy shares parameters, a deep copy does not.
  Sequential shared = net;
  const Sequential separate = deep_copy(net);
  {
    NoGrad no_grad;
    net.at<Linear>(3).bias.tensor().add_(10);
  }
  CHECK(allclose(shared(x), y + 10));
  CHECK(equal(separate(x), y));
  CHECK(&shared[0] != &net[0]);
  shared = separate;
  CHECK(equal(shared(x), y));
  shared.push_back(ReLU());
  CHECK(separate.count() == 4);
  CHECK(Sequential(Sequential(ReLU(), ReLU())).count() == 2);  // a copy, not a chain of one
}
