// A relu that is computed with the norm before it: what comes out, and that it is.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/prepare.h"
#include "tensor/ops/support.h"

using namespace op_tests;

namespace {

using Counts = std::map<std::string, int>;

// How many kernels of each name the call enqueues.
template <class F>
Counts kernels_within(F&& call) {
  trace::start();
  call();
  trace::stop();
  Counts counts;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel) ++counts[span.work.name];
  return counts;
}

struct NormRow {
  std::string name;
  Shape shape;
  MemoryFormat format = MemoryFormat::contiguous;
  bool affine = true;
};
const std::vector<NormRow> kNormRows = {{"rows", {7, 5}},
                                        {"lines", {3, 5, 11}},
                                        {"images", {2, 5, 3, 7}},
                                        {"channels_last", {2, 5, 3, 7}, MemoryFormat::channels_last},
                                        {"without weight", {2, 5, 3, 7}, MemoryFormat::contiguous, false}};

// The result, the gradients of x, weight and bias and, where `order` is 2, those of their squares' sum; by a graph of
// the first ones where it is not 0.
std::vector<Doubles> results_of(const NormRow& row, DType dtype, bool training, bool together, int order) {
  manual_seed(3);
  const auto draw = [&](const Shape& shape) { return randn(shape, {.dtype = DType::f64}); };
  Tensor x = draw(row.shape).to(dtype), weight, bias;
  if (row.format == MemoryFormat::channels_last) x = x.to(row.format);
  if (row.affine) weight = draw({5}).to(dtype), bias = draw({5}).to(dtype);
  const Tensor direction = draw(row.shape).to(dtype);
  const BatchNormState state{
      .running_mean = draw({5}).to(dtype), .running_var = square(draw({5})).to(dtype) + 0.5, .training = training};
  std::vector<Tensor> inputs{x};
  if (row.affine) inputs.push_back(weight), inputs.push_back(bias);
  for (Tensor& input : inputs) input.set_requires_grad(true);
  const Tensor y =
      together ? batch_norm(x, weight, bias, state, Activation::relu) : relu(batch_norm(x, weight, bias, state));
  std::vector<Tensor> all = grad((y * direction).sum(), inputs, {.create_graph = order > 0});
  if (order == 2) {
    Tensor squares = zeros({}, {.dtype = dtype});
    for (const Tensor& each : all) squares = squares + square(each).sum();
    if (squares.requires_grad())  // those of a norm by given statistics without weights are constants
      for (const Tensor& each : grad(squares, inputs, {.allow_unused = true})) all.push_back(each);
  }
  std::vector<Doubles> values_of_all{values(y), values(state.running_mean)};
  for (const Tensor& each : all) values_of_all.push_back(each.defined() ? values(each) : Doubles());
  manual_seed(0);
  return values_of_all;
}

double largest_difference(const std::vector<Doubles>& a, const std::vector<Doubles>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (std::size_t k = 0; k < a[i].size(); ++k) largest = std::max(largest, std::fabs(a[i][k] - b[i][k]));
  }
  return largest;
}

class OwnReLU : public ReLU {};
// Another function of x than its base, which takes no activation.
class NormLessOne : public BatchNorm1d {
 public:
  using BatchNorm1d::BatchNorm1d;
  Tensor operator()(const Tensor& x) const { return BatchNorm1d::operator()(x) - 1; }
};

Counts of_call(const Sequential& net, const Tensor& x) {
  return kernels_within([&] { net(x); });
}

}  // namespace

TEST_CASE("a norm with a relu is one and then the other, and so are its gradients") {
  for (const NormRow& row : kNormRows)
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const bool training : {true, false}) {
        CAPTURE(row.name, to_string(dtype), training);
        for (const int order : {0, 1}) {
          const auto of = [&](bool together) { return results_of(row, dtype, training, together, order); };
          CHECK(of(true) == of(false));
        }
      }
}

TEST_CASE("second derivatives of a norm with a relu are those of one and then the other") {
  for (const NormRow& row : kNormRows)
    for (const bool training : {true, false}) {
      CAPTURE(row.name, training);
      const auto of = [&](bool together) { return results_of(row, DType::f64, training, together, 2); };
      CHECK(largest_difference(of(true), of(false)) < 1e-9);
    }
}

TEST_CASE("a norm computes any activation of its result") {
  manual_seed(4);
  const BatchNorm2d norm(3);
  const Tensor x = randn({4, 3, 5, 5});
  const auto expect = [&](const Tensor& got, const Tensor& want) { CHECK(values(got) == values(want)); };
  expect(norm.activated(x, Activation::none), norm(x));
  expect(norm.activated(x, Activation::relu), relu(norm(x)));
  expect(norm.activated(x, Activation::gelu), gelu(norm(x)));
  expect(norm.activated(x, Activation::gelu_tanh), gelu(norm(x), GeluForm::tanh));
  const Tensor before = norm.running_mean.tensor().clone();
  norm.activated(x, Activation::gelu);
  CHECK(values(before) != values(norm.running_mean.tensor()));
  CHECK(norm.num_batches_tracked.tensor().item<int>() == 9);

  CHECK(norm.activated(zeros({0, 3, 5, 5}), Activation::relu).shape() == Shape{0, 3, 5, 5});
  CHECK_THROWS_WITH(norm.activated(zeros({2, 3}), Activation::relu), Contains("[BatchNorm2d]"));
  CHECK_THROWS_WITH(norm.activated(zeros({2, 4, 1, 1}), Activation::relu), Contains("[batch_norm]") && Contains("[4]"));
  manual_seed(0);
}

TEST_CASE("a norm in f32 with a relu takes images of 16 bits") {
  manual_seed(5);
  const BatchNorm2d norm(3);
  const Tensor x = randn({4, 3, 5, 5}).to(DType::bf16);
  const Tensor together = norm.activated(x, Activation::relu), apart = relu(norm(x));
  CHECK(together.dtype() == DType::bf16);
  CHECK(values(together) == values(apart));
  const Autocast autocast(DType::bf16);
  CHECK(values(norm.activated(x, Activation::relu)) == values(relu(norm(x))));
  manual_seed(0);
}

TEST_CASE("a chain computes a norm and the relu behind it as one") {
  manual_seed(6);
  const Tensor x = randn({6, 4});
  Sequential net(Linear(4, 4), BatchNorm1d(4), ReLU(), Linear(4, 4), BatchNorm1d(4), ReLU(), BatchNorm1d(4));
  Counts counts = kernels_within([&] { net(x).sum().backward(); });
  CHECK(counts["batch_norm"] == 3);
  CHECK(counts["batch_norm_grad"] == 3);
  CHECK(counts["relu"] + counts["relu_grad"] == 0);
  const auto step_by_step = [&] {
    Tensor y = x;
    for (std::size_t i = 0; i < net.count(); ++i) {
      if (i == 0 || i == 3) y = net.at<Linear>(i)(y);
      if (i == 1 || i == 4 || i == 6) y = net.at<BatchNorm1d>(i)(y);
      if (i == 2 || i == 5) y = relu(y);
    }
    return y;
  };
  for (const bool training : {true, false}) {
    net.train(training);
    CHECK(values(net(x)) == values(step_by_step()));
    CHECK(of_call(net, x)["relu"] == 0);
    CHECK(of_call(Sequential(net), x)["relu"] == 0);
    CHECK(of_call(deep_copy(net), x)["relu"] == 0);
  }
  manual_seed(0);
}

TEST_CASE("the bias is kept for the gradient of a norm with a relu, and for nothing else") {
  BatchNorm1d norm(2);
  const Tensor x = f64({1, 2, 3, 5}, {2, 2}).to(DType::f32);
  for (const bool rectified : {true, false}) {
    const Tensor y = norm.activated(x, rectified ? Activation::relu : Activation::none);
    {
      const NoGrad no_grad;
      norm.bias.tensor().add_(1);
    }
    if (rectified)
      CHECK_THROWS_AS(y.sum().backward(), Error);
    else
      y.sum().backward();
  }
}

TEST_CASE("a chain computes by itself what it does not know") {
  const Tensor x = arange(12, {.dtype = DType::f32}).reshape({3, 4});
  CHECK(of_call(Sequential(BatchNorm1d(4), OwnReLU()), x)["relu"] == 1);
  CHECK(of_call(Sequential(BatchNorm1d(4), Identity(), ReLU()), x)["relu"] == 1);
  CHECK(of_call(Sequential(ReLU(), BatchNorm1d(4)), x)["relu"] == 1);
  CHECK(of_call(Sequential(BatchNorm1d(4), ReLU(), ReLU()), x)["relu"] == 1);
  CHECK(of_call(Sequential(Sequential(BatchNorm1d(4)), ReLU()), x)["relu"] == 1);
  const Sequential odd(NormLessOne(4), ReLU());
  CHECK(of_call(odd, x)["relu"] == 1);
  CHECK(values(odd(x)) == values(relu(odd.at<NormLessOne>(0)(x))));
}

TEST_CASE("hooks of a norm and of the relu behind it see what each of them computes") {
  const Tensor x = arange(12, {.dtype = DType::f32}).reshape({3, 4});
  Sequential net(BatchNorm1d(4), ReLU());
  for (const std::size_t which : {0, 1}) {
    CAPTURE(which);
    double least = 0;
    int calls = 0;
    const std::uint64_t id = net[which].register_forward_hook(
        [&](const ModuleBase&, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
          ++calls;
          least = min(which == 0 ? outputs[0] : inputs[0]).item<double>();
        });
    Counts counts = of_call(net, x);
    CHECK(counts["relu"] == 1);
    CHECK(calls == 1);
    CHECK(least < -1);
    net[which].remove_hook(id);
    CHECK(of_call(net, x)["relu"] == 0);
  }
}

TEST_CASE("hooks of a norm see its result before the activation that it computes") {
  const Tensor x = arange(12, {.dtype = DType::f32}).reshape({3, 4});
  BatchNorm1d norm(4);
  const Doubles expected = values(relu(norm(x)));
  double least = 0, gradient = 0;
  norm.register_forward_hook([&](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor> outputs) {
    least = min(outputs[0]).item<double>();
  });
  norm.register_backward_hook(
      [&](const ModuleBase&, std::span<const Tensor> gradients) { gradient = gradients[0].sum().item<double>(); });
  const Tensor y = norm.activated(x, Activation::relu);
  CHECK(values(y) == expected);
  y.sum().backward();
  CHECK(least < -1);
  CHECK(gradient == 4);  // of the last row; the others are cut
}

TEST_CASE("a prepared module folds a norm that has its relu as it folds the two") {
  struct WithNorm : Module<WithNorm> {
    Conv2d conv{3, 4, 3};
    BatchNorm2d norm{4};
    Tensor forward(const Tensor& x) const { return norm.activated(conv(x), Activation::relu); }
    void members(Members& m) override { m("conv", conv), m("norm", norm); }
  };
  manual_seed(7);
  WithNorm net;
  const Tensor x = randn({2, 3, 6, 6});
  net(x);
  net.eval();
  const auto fast = prepare(net);
  const InferenceMode inference;
  const Tensor want = net(x);
  for (int call = 0; call < 3; ++call) CHECK(allclose(fast(x), want, 1e-4, 1e-5));
  Counts counts = kernels_within([&] { fast(x); });
  CHECK(counts["conv2d"] == 1);
  CHECK(counts["batch_norm"] + counts["relu"] == 0);
  counts = kernels_within([&] { net(x); });
  CHECK(counts["batch_norm"] == 1);
  CHECK(counts["relu"] == 0);

  // Before a layer there is nothing to fold it into.
  Sequential before(BatchNorm2d(3), ReLU(), Conv2d(3, 4, 1));
  before.eval();
  const auto prepared = prepare(before);
  for (int call = 0; call < 3; ++call) {
    counts = kernels_within([&] { prepared(x); });
    CHECK(counts["batch_norm"] == (call == 0 ? 2 : 1));  // the first call computes twice
    CHECK(counts["relu"] == 0);
  }
  manual_seed(0);
}
