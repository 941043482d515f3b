// Where operations of neural networks meet an edge: nothing left to average, windows that reach outside, rows that are
// too long.
#include <cmath>
#include <limits>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"

using namespace lockstep;
using Catch::Contains;
using Doubles = std::vector<double>;

namespace {

Doubles values(const Tensor& x) { return x.detach().to_vector<double>(); }

}  // namespace

TEST_CASE("a mean over no target is NaN, and its gradients are 0") {
  for (const bool create_graph : {false, true}) {
    const Tensor x = from_data({0.5, -1.0, 2.0, 0.25}, {2, 2}).to(DType::f64).set_requires_grad(true);
    const Tensor ignored = from_data({1, 1}, {2});
    for (const double smoothing : {0.0, 0.1}) {
      const Tensor loss = cross_entropy(x, ignored, {.ignore_index = 1, .label_smoothing = smoothing});
      CHECK(std::isnan(loss.item<double>()));
      CHECK(values(grad(loss, {x}, {.create_graph = create_graph})[0]) == Doubles{0, 0, 0, 0});
    }
    const Tensor loss = nll_loss(x, ignored, {.ignore_index = 1});
    CHECK(std::isnan(loss.item<double>()));
    CHECK(values(grad(loss, {x}, {.create_graph = create_graph})[0]) == Doubles{0, 0, 0, 0});
  }
}

TEST_CASE("pooling in ceil mode") {
  const Tensor x = arange(5.0).to(DType::f64).reshape({1, 1, 1, 5});
  CHECK(values(max_pool2d(x, {1, 2}, {.ceil_mode = true})) == Doubles{1, 3, 4});
  CHECK(values(avg_pool2d(x, {1, 2}, {.ceil_mode = true})) == Doubles{0.5, 2.5, 4});
  // A window would begin in the padding behind the input: there is none.
  CHECK(max_pool2d(x, {1, 2}, {.stride = Size2{1, 3}, .padding = {0, 1}, .ceil_mode = true}).shape() ==
        Shape{1, 1, 1, 2});
  // Larger than the input.
  CHECK(values(max_pool2d(x, {2, 7}, {.stride = 3, .ceil_mode = true})) == Doubles{4});
  CHECK(values(avg_pool2d(x, {2, 7}, {.stride = 3, .ceil_mode = true})) == Doubles{2});
  CHECK_THROWS_WITH(max_pool2d(x, {2, 7}, {.stride = 2, .ceil_mode = true}), Contains("kernel 2x7"));
  CHECK_THROWS_WITH(max_pool2d(x, {2, 7}, {.stride = 3}), Contains("kernel 2x7"));
}

TEST_CASE("what the sums of average pooling are divided by") {
  const Tensor x = ones({1, 1, 2, 2}, {.dtype = DType::f64});
  const PoolGeometry padded{.stride = 2, .padding = 1};
  CHECK(values(avg_pool2d(x, 2, padded)) == Doubles{0.25, 0.25, 0.25, 0.25});
  PoolGeometry inside = padded, by_three = padded, by_nothing = padded;
  inside.count_include_pad = false;
  CHECK(values(avg_pool2d(x, 2, inside)) == Doubles{1, 1, 1, 1});
  by_three.divisor = -2;
  CHECK(values(avg_pool2d(x, 2, by_three)) == Doubles{-0.5, -0.5, -0.5, -0.5});
  by_nothing.divisor = 0;
  CHECK_THROWS_WITH(avg_pool2d(x, 2, by_nothing), Contains("[avg_pool2d]") && Contains("divisor"));
  CHECK_THROWS_WITH(max_pool2d(x, 2, inside), Contains("[max_pool2d]") && Contains("count_include_pad"));
}

TEST_CASE("interpolate by a factor that leaves the size or doubles it") {
  const Tensor x = arange(5.0).to(DType::f64).reshape({1, 1, 1, 5});
  for (const InterpolateMode mode : {InterpolateMode::nearest, InterpolateMode::bilinear})
    CHECK(values(interpolate(x, {.scale_factor = Scale2(1, 1.13), .mode = mode})) == Doubles{0, 1, 2, 3, 4});
  CHECK(values(interpolate(x, {.scale_factor = Scale2(1, 2.15)})) == Doubles{0, 0, 1, 1, 2, 2, 3, 3, 4, 4});
}

TEST_CASE("batch norm without running statistics needs two values in evaluation too") {
  CHECK_THROWS_WITH(batch_norm(ones({1, 3}), {}, {}, {.training = false}),
                    Contains("[batch_norm]") && Contains("[1, 3]"));
  BatchNorm1d layer(3, {.track_running_stats = false});
  layer.eval();
  CHECK_THROWS_AS(layer(ones({1, 3})), InvalidArgument);
  CHECK(layer(zeros({2, 3})).shape() == Shape{2, 3});
}

TEST_CASE("batch norm learns nothing from an empty batch") {
  for (const std::optional<double> momentum : {std::optional(0.5), std::optional<double>()}) {
    BatchNorm2d layer(3, {.momentum = momentum});
    layer.running_mean.assign(full({3}, 2));
    const Tensor x = ones({0, 3, 2, 2}, {.requires_grad = true});
    layer(x).sum().backward();
    CHECK(x.grad().shape() == x.shape());
    CHECK(values(layer.running_mean.tensor()) == Doubles{2, 2, 2});
    CHECK(values(layer.running_var.tensor()) == Doubles{1, 1, 1});
    CHECK(values(layer.weight.grad()) == Doubles{0, 0, 0});
    CHECK(values(layer.bias.grad()) == Doubles{0, 0, 0});
  }
}

TEST_CASE("embedding bounds the norms of the rows that it looks up") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16}) {
    const Tensor weight = from_data({3.0, 4.0, 0.3, 0.4, 6e3, 8e3, -30.0, 40.0, -0.0, 1.0}, {5, 2}, {.dtype = dtype});
    const auto version = weight.version();
    const Tensor rows = embedding(weight, from_data({2, 0, 2, 1, 4, 2}, {2, 3}), {.max_norm = 1});
    CHECK(weight.version() > version);
    const Doubles after = values(weight);
    const double tolerance = dtype == DType::f16 ? 1e-3 : 1e-6;
    CHECK(after[0] == Approx(0.6).epsilon(tolerance));
    CHECK(after[1] == Approx(0.8).epsilon(tolerance));
    CHECK(after[4] == Approx(0.6).epsilon(tolerance));  // once, although it is looked up three times
    CHECK(after[5] == Approx(0.8).epsilon(tolerance));
    CHECK(Doubles(after.begin() + 2, after.begin() + 4) == values(from_data({0.3, 0.4}, {2}, {.dtype = dtype})));
    CHECK(Doubles(after.begin() + 6, after.begin() + 8) == Doubles{-30, 40});  // not looked up
    CHECK(std::signbit(after[8]));
    CHECK(values(rows.reshape({12})) == Doubles{after[4], after[5], after[0], after[1], after[4], after[5], after[2],
                                                after[3], after[8], after[9], after[4], after[5]});
  }
  const Tensor weight = from_data({3.0, 4.0}, {1, 2}), index = from_data({0}, {1});
  const Tensor before = weight.clone();
  for (const EmbeddingOptions& wrong :
       {EmbeddingOptions{.max_norm = -1}, EmbeddingOptions{.max_norm = 1, .norm_type = 0}})
    CHECK_THROWS_WITH(embedding(weight, index, wrong), Contains("[embedding]") && Contains("norm"));
  CHECK_THROWS_AS(embedding(weight, from_data({0, 1}, {2}), {.max_norm = 1}), InvalidArgument);
  CHECK_THROWS_WITH(embedding(weight, index, {.padding_index = 1, .max_norm = 1}),
                    Contains("padding index") && Contains("1"));
  CHECK(equal(weight, before));
  embedding(weight, index, {.max_norm = 3, .norm_type = std::numeric_limits<double>::infinity()});
  CHECK(values(weight)[0] == Approx(2.25));
}

TEST_CASE("a layer with max_norm trains, and scales in evaluation too") {
  Embedding layer(3, 2, {.max_norm = 1, .sparse = true});
  layer.weight.assign(from_data({3.0, 4.0, 0.0, 5.0, 0.1, 0.1}, {3, 2}));
  const Tensor index = from_data({0, 0}, {2});
  layer(index).sum().backward();
  CHECK(values(layer.weight.sparse_grad().to_dense()) == Doubles{2, 2, 0, 0, 0, 0});
  CHECK(values(layer.weight.tensor())[0] == Approx(0.6));
  CHECK(values(layer.weight.tensor())[3] == 5);
  layer.eval();
  layer(from_data({1}, {1}));
  CHECK(values(layer.weight.tensor())[3] == Approx(1));
}

TEST_CASE("embedding divides gradients by frequency") {
  const Tensor weight = ones({4, 1}, {.dtype = DType::f64, .requires_grad = true});
  const Tensor index = from_data({2, 0, 2, 2, 2, 1}, {6});
  embedding(weight, index, {.padding_index = 1, .scale_grad_by_freq = true}).sum().backward();
  CHECK(values(weight.grad()) == Doubles{1, 0, 1, 0});
  CHECK_THROWS_WITH(embedding(weight, index, {.scale_grad_by_freq = true, .sparse = true}),
                    Contains("[embedding]") && Contains("both"));
}

TEST_CASE("softmax of a number has one dimension") {
  CHECK(softmax(tensor(3.0), 0).item<double>() == 1);
  CHECK(log_softmax(tensor(3.0), -1).item<double>() == 0);
  for (const int dim : {1, -2})
    CHECK_THROWS_WITH(softmax(tensor(3.0), dim), Contains("[softmax]") && Contains(std::to_string(dim)));
}
