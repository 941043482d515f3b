// Rows looked up in a table.
#include <cmath>

#include "lockstep/tensor/nn/layers.h"
#include "tensor/ops/support.h"

using namespace op_tests;

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

TEST_CASE("the padding row of an embedding gets no gradient") {
  Tensor weight = random_leaf({3, 2}, 1);
  embedding(weight, integers({0, 1, 1, 2}, {4}), {.padding_index = 1}).sum().backward();
  CHECK(values(weight.grad()) == Doubles{1, 1, 0, 0, 1, 1});
}
