// Where dtypes, ranks and ranges end: what PyTorch's users take for granted there.
#include <cmath>
#include <limits>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"

using Catch::Matchers::Contains;
using namespace lockstep;

namespace {
using Ints = std::vector<int>;
using Doubles = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

Tensor u8(std::initializer_list<int> values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::u8});
}
Tensor i32(std::initializer_list<std::int64_t> values) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = DType::i32});
}
Tensor reals(std::initializer_list<double> values, DType dtype = DType::f64) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = dtype});
}
Ints ints(const Tensor& x) { return x.to_vector<int>(); }
Doubles doubles(const Tensor& x) { return x.to_vector<double>(); }
// The gradient of the sum.
Tensor slope(const Tensor& x, const Tensor& y) { return grad(sum(y), {x})[0]; }
}  // namespace

TEST_CASE("a single element has one dimension for those who name it") {
  Tensor x = tensor(-3.0, {.dtype = DType::f64, .requires_grad = true});
  for (const std::int64_t dim : {0, -1})
    for (const bool keep : {false, true}) {
      for (const Tensor& y : {sum(x, {dim}, keep), mean(x, {dim}, keep), prod(x, dim, keep), max(x, dim, keep).values,
                              min(x, dim, keep).values, x.squeeze(dim), x.transpose(dim, 0), flip(x, {dim}),
                              gather(x, dim, tensor(0)), index_select(x, dim, from_data({0}, {1}))}) {
        CHECK(y.shape() == Shape{});
        CHECK(y.item<double>() == -3);
        CHECK(slope(x, y).item<double>() == 1);
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

TEST_CASE("numbers wrap into an integer dtype, and are compared by their value") {
  CHECK(ints(add(u8({5, 1}), u8({3, 3}), -1)) == Ints{2, 254});
  CHECK(ints(u8({5}).add_(u8({3}), -1)) == Ints{2});
  CHECK(ints(add(i32({1}), i32({1}), -4294967295.0)) == Ints{2});
  CHECK(ints(i32({1}) + 4294967298.0) == Ints{3});
  CHECK(ints(i32({3}) * -4294967295.0) == Ints{3});
  CHECK(ints(full({1}, -1, {.dtype = DType::u8})) == Ints{255});
  CHECK(ints(u8({0, 0}).fill_(-2)) == Ints{254, 254});
  CHECK(ints(where(from_data({true, false}, {2}), -7.0, u8({1, 2}))) == Ints{249, 2});
  CHECK(ints(pow(-2.0, u8({0, 1, 2, 3}))) == Ints{1, 254, 4, 248});
  CHECK(ints(remainder(u8({255, 7}), -2)) == Ints{1, 7});

  CHECK(ints(eq(u8({0, 255}), -1)) == Ints{0, 0});
  CHECK(ints(ne(u8({0, 255}), 256)) == Ints{1, 1});
  CHECK(ints(gt(u8({0, 255}), -1)) == Ints{1, 1});
  CHECK(ints(le(u8({0, 255}), 256)) == Ints{1, 1});
  CHECK(ints(lt(i32({2147483647}), 2147483648.0)) == Ints{1});
  CHECK(ints(eq(i32({2147483647, -2147483647 - 1}), -2147483649.0)) == Ints{0, 0});
  const Tensor most = from_data({std::numeric_limits<std::int64_t>::max()}, {1});
  CHECK(ints(lt(most, 0x1p63)) == Ints{1});
  CHECK(ints(ge(most, -1e30)) == Ints{1});

  CHECK_THROWS_AS(add(i32({1}), i32({1}), 0.5), InvalidArgument);
  CHECK_THROWS_AS(i32({1}).add_(i32({1}), 0.5), InvalidArgument);
  CHECK_THROWS_AS(add(i32({1}), i32({1}), kInf), InvalidArgument);
}

TEST_CASE("16-bit results do not overflow on the way") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Tensor x = reals({300, -300, 1000, 2}, dtype).set_requires_grad();
    for (const bool again : {false, true}) {
      const GradOptions options{.create_graph = again};
      CHECK(doubles(grad(sum(gelu(x, GeluForm::tanh)), {x}, options)[0].narrow(0, 0, 3)) == Doubles{1, 0, 1});
      CHECK(doubles(grad(sum(gelu(x)), {x}, options)[0].narrow(0, 0, 3)) == Doubles{1, 0, 1});
      CHECK(doubles(grad(sum(silu(x)), {x}, options)[0].narrow(0, 0, 3)) == Doubles{1, 0, 1});
    }
    CHECK(vector_norm(reals({300, 400}, dtype), 3).item<double>() == Approx(449.79).epsilon(0.01));
    // The sum of the squares is beyond f16; the mean, 257, is no bf16.
    CHECK(var(cat({full({2000}, 10, {.dtype = dtype}), full({2000}, -10, {.dtype = dtype})})).item<double>() ==
          Approx(100).epsilon(0.01));
    CHECK(var(reals({256, 258}, dtype)).item<double>() == 2);
    CHECK(stddev(reals({500, -500}, dtype)).item<double>() == Approx(707).epsilon(0.01));
  }
}

TEST_CASE("a variance of too few elements is no number") {
  CHECK(std::isnan(var(reals({})).item<double>()));
  CHECK(std::isnan(var(reals({1})).item<double>()));
  CHECK(std::isnan(var(reals({1}), {0}, 2).item<double>()));
  CHECK(var(reals({1, 3}), {0}, 5).item<double>() == kInf);
}

TEST_CASE("quotients rounded down, where infinities take part") {
  CHECK(doubles(floor_divide(reals({1, -1, 1, -1, 0}), reals({-kInf, kInf, kInf, -kInf, kInf}))) ==
        Doubles{-1, -1, 0, 0, 0});
  CHECK(doubles(floor_divide(reals({7, -7, 0.3}), reals({2, 2, 0.1}))) == Doubles{3, -4, 2});
  CHECK(std::isnan(floor_divide(reals({kInf}), 2).item<double>()));
  CHECK(floor_divide(reals({1}), 0).item<double>() == kInf);
}

TEST_CASE("NaN passes the gradient on") {
  Tensor x = reals({kNan, 1, -1, 0}).set_requires_grad(), y = reals({2, kNan, -2, 0}).set_requires_grad();
  CHECK(doubles(slope(x, relu(x))) == Doubles{1, 1, 0, 0});
  CHECK(doubles(slope(x, maximum(x, y))) == Doubles{1, 1, 1, 0.5});
  CHECK(doubles(slope(y, maximum(x, y))) == Doubles{1, 1, 0, 0.5});
  CHECK(doubles(slope(x, minimum(x, y))) == Doubles{1, 1, 0, 0.5});
}

TEST_CASE("a power norm has the gradient 0 at 0") {
  Tensor x = reals({0, 3, -4}).set_requires_grad();
  for (const double p : {0.5, -1.0, 1.0, 1.5, 3.0}) {
    const Tensor y = vector_norm(x, p);
    const Doubles of = doubles(slope(x, y));
    INFO(p);
    CHECK(of[0] == 0);
    CHECK(std::isfinite(of[1]));
    CHECK(std::isfinite(of[2]));
  }
  CHECK(vector_norm(x, -1).item<double>() == 0);
}

TEST_CASE("slice takes every step-th element, and leaves out what lies beyond the dimension") {
  const Tensor x = arange(7);
  using Numbers = std::vector<std::int64_t>;
  CHECK(x.slice(0, 1, 6, 2).to_vector<std::int64_t>() == Numbers{1, 3, 5});
  CHECK(x.slice(0, {}, {}, 3).to_vector<std::int64_t>() == Numbers{0, 3, 6});
  CHECK(x.slice(-1, -3).to_vector<std::int64_t>() == Numbers{4, 5, 6});
  CHECK(x.slice(0, -100, -5).to_vector<std::int64_t>() == Numbers{0, 1});
  CHECK(x.slice(0, 5, 2, 2).count() == 0);
  CHECK(x.slice(0, 100, 200, 2).count() == 0);
  CHECK(x.slice(0, 6, 7, std::numeric_limits<std::int64_t>::max()).to_vector<std::int64_t>() == Numbers{6});
  CHECK(x.slice(0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), 6)
            .to_vector<std::int64_t>() == Numbers{0, 6});
  Tensor y = zeros({2, 5});
  y.slice(1, 1, {}, 2).fill_(1);
  CHECK(y.to_vector<float>() == std::vector<float>{0, 1, 0, 1, 0, 0, 1, 0, 1, 0});
  CHECK_THROWS_WITH(x.slice(0, 0, 7, 0), Contains("[slice] expected a positive step, got 0"));
  CHECK_THROWS_WITH(x.slice(0, {}, {}, -1), Contains("flip"));
  CHECK_THROWS_AS(x.slice(1, 0), InvalidArgument);
}
