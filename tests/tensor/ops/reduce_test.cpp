// Reductions over some dimensions or all of them.
#include <cmath>

#include "tensor/ops/support.h"

using namespace op_tests;

namespace {}  // namespace

TEST_CASE("reductions") {
  const Tensor x = f64({3, 1, 2, 6, 5, 4}, {2, 3});
  CHECK(sum(x).item<double>() == 21);
  CHECK(sum(x).shape() == Shape{});
  CHECK(values(sum(x, {0})) == Doubles{9, 6, 6});
  CHECK(sum(x, {0}, true).shape() == Shape{1, 3});
  CHECK(values(sum(x, {-1, 0})) == Doubles{21});
  CHECK(values(sum(x, {})) == values(x));
  CHECK(values(x.t().sum({0})) == Doubles{6, 15});
  CHECK(values(mean(x, {1})) == Doubles{2, 5});
  CHECK(x.mean().item<double>() == 3.5);
  CHECK(values(var(x, {1})) == Doubles{1, 1});
  CHECK(var(x, {1}, 0).to_vector<double>()[0] == Approx(2.0 / 3));
  CHECK(std::isnan(var(f64({5}, {1})).item<double>()));
  CHECK(values(prod(x, 1)) == Doubles{6, 120});
  CHECK(prod(x).item<double>() == 720);
  CHECK(norm(f64({3, 4}, {2})).item<double>() == 5);
  CHECK(max(x).item<double>() == 6);
  CHECK(min(x).item<double>() == 1);
  CHECK(values(max(x, 0).values) == Doubles{6, 5, 4});
  CHECK(max(x, 1).indices.to_vector<std::int64_t>() == Integers{0, 0});
  CHECK(min(x, -1, true).indices.shape() == Shape{2, 1});
  CHECK(argmax(x).item<std::int64_t>() == 3);
  CHECK(argmin(x, 1).to_vector<std::int64_t>() == Integers{1, 2});
  CHECK(argmax(f64({1, 7, 7}, {3})).item<std::int64_t>() == 1);
  CHECK(argmax(f64({1, NAN, 7}, {3})).item<std::int64_t>() == 1);
  CHECK(any(x > 5.5).item<bool>());
  CHECK_FALSE(all(x > 5.5).item<bool>());
  CHECK(any(x > 2.5, {0}).to_vector<int>() == std::vector<int>{1, 1, 1});
  CHECK(all(x > 1.5, {1}).to_vector<int>() == std::vector<int>{0, 1});
  CHECK(sum(zeros({0, 2})).item<double>() == 0);
  CHECK(values(sum(zeros({0, 2}), {0})) == Doubles{0, 0});
  CHECK(std::isnan(mean(zeros({0})).item<double>()));
  CHECK(prod(zeros({0})).item<double>() == 1);
  CHECK(all(zeros({0})).item<bool>());
  CHECK_FALSE(any(zeros({0})).item<bool>());
  // A gradient that is wanted must not change the value.
  Tensor tracked = x.clone().set_requires_grad();
  CHECK(max(tracked).item<double>() == 6);
  CHECK(norm(tracked).item<double>() == norm(x).item<double>());
}

TEST_CASE("the gradient of a product with zeros in it") {
  for (const int zeros : {1, 2}) {
    Tensor x = random_leaf({5}, 1);
    {
      NoGrad no_grad;
      x.narrow(0, 1, zeros).fill_(0);
    }
    INFO(zeros << " zeros");
    const auto product = [](const std::vector<Tensor>& in) { return prod(in[0], 0); };
    CHECK(gradcheck(product, {x}) == "");
    CHECK(gradgradcheck(product, {x}) == "");
    CHECK(gradgradcheck([](const std::vector<Tensor>& in) { return cumprod(in[0], 0); }, {x}) == "");
  }
}

TEST_CASE("norms have the gradient 0 at 0") {
  Tensor zero = zeros({2, 2}, {.dtype = DType::f64}).set_requires_grad();
  for (const double p : {1.0, 1.5, 2.0, 3.0}) {
    zero.zero_grad();
    vector_norm(zero, p).backward();
    INFO(p);
    CHECK(equal(zero.grad(), zeros({2, 2}, {.dtype = DType::f64})));
  }
}

TEST_CASE("a single element has one dimension for those who name it") {
  Tensor x = tensor(-3.0, {.dtype = DType::f64, .requires_grad = true});
  for (const std::int64_t dim : {0, -1})
    for (const bool keep : {false, true}) {
      for (const Tensor& y : {sum(x, {dim}, keep), mean(x, {dim}, keep), prod(x, dim, keep), max(x, dim, keep).values,
                              min(x, dim, keep).values, x.squeeze(dim), x.transpose(dim, 0), flip(x, {dim}),
                              gather(x, dim, tensor(0)), index_select(x, dim, from_data({0}, {1}))}) {
        CHECK(y.shape() == Shape{});
        CHECK(y.item<double>() == -3);
        CHECK(sum_gradient(x, y).item<double>() == 1);
      }
      CHECK(norm(x, {dim}, keep).item<double>() == 3);
      CHECK(vector_norm(x, kInf, {dim}, keep).item<double>() == 3);
      CHECK(var(x, {dim}, 0, keep).item<double>() == 0);
      CHECK(all(x, {dim}, keep).item<bool>());
      CHECK(argmax(x, dim, keep).shape() == Shape{});
      CHECK(min(x, dim, keep).indices.item<int>() == 0);
    }
  CHECK(scatter_add(x, 0, tensor(0), tensor(1.0, {.dtype = DType::f64})).item<double>() == -2);
  CHECK(index_add(x, -1, from_data({0, 0}, {2}), reals({1, 2})).item<double>() == 0);
  CHECK(flatten(x, -1, 0).shape() == Shape{1});
  CHECK_THROWS_AS(flatten(x, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(sum(x, {1}), InvalidArgument);
  CHECK_THROWS_AS(sum(x, {0, -1}), InvalidArgument);
  CHECK_THROWS_AS(max(x, -2), InvalidArgument);
  CHECK_THROWS_AS(x.narrow(0, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(x.select(0, 0), InvalidArgument);
}

TEST_CASE("a variance of too few elements is no number") {
  CHECK(std::isnan(var(reals({})).item<double>()));
  CHECK(std::isnan(var(reals({1})).item<double>()));
  CHECK(std::isnan(var(reals({1}), {0}, 2).item<double>()));
  CHECK(var(reals({1, 3}), {0}, 5).item<double>() == kInf);
}

TEST_CASE("logsumexp at the edges") {
  const Doubles rows = values(logsumexp(f64({-kInf, -kInf, kInf, 1, NAN, 1, -kInf, 2}, {4, 2}), {1}));
  CHECK(rows[0] == -kInf);
  CHECK(rows[1] == kInf);
  CHECK(std::isnan(rows[2]));
  CHECK(rows[3] == 2);
  CHECK(logsumexp(f64({3}, {}), {}).item<double>() == 3);
  CHECK(logsumexp(f64({3}, {}), {0}, true).item<double>() == 3);
  CHECK(values(logsumexp(zeros({2, 0}), {1})) == Doubles{-kInf, -kInf});
  CHECK(logsumexp(zeros({0, 2}), {1}).shape() == Shape{0});
  CHECK(logsumexp(zeros({2, 3, 0}), {1}, true).shape() == Shape{2, 1, 0});
  const Tensor images = rand({2, 3, 4, 5}).contiguous(MemoryFormat::channels_last);
  CHECK(logsumexp(images, {1}, true).memory_format() == sum(images, {1}, true).memory_format());
  CHECK(logsumexp(images, {2, 3}, true).memory_format() == sum(images, {2, 3}, true).memory_format());
  // What lies far from 0 has few digits behind the point; its gradient has all of them.
  const Tensor far = full({10}, 1e6, {.dtype = DType::f32}).set_requires_grad();
  const Tensor y = logsumexp(far, {0});
  y.backward();
  for (const double g : values(far.grad())) CHECK(g == Approx(0.1).epsilon(1e-6));
}

TEST_CASE("a power norm has the gradient 0 at 0") {
  Tensor x = reals({0, 3, -4}).set_requires_grad();
  for (const double p : {0.5, -1.0, 1.0, 1.5, 3.0}) {
    const Tensor y = vector_norm(x, p);
    const Doubles of = values(sum_gradient(x, y));
    INFO(p);
    CHECK(of[0] == 0);
    CHECK(std::isfinite(of[1]));
    CHECK(std::isfinite(of[2]));
  }
  CHECK(vector_norm(x, -1).item<double>() == 0);
}
