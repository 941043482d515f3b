// First values with a structure.
#include <algorithm>
#include <cmath>

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/tensors.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::values;

namespace {
using Doubles = std::vector<double>;
}  // namespace

TEST_CASE("truncated normal numbers keep to their bounds and have their moments") {
  manual_seed(0);
  const Tensor x = empty({100000}, {.dtype = DType::f64});
  init::trunc_normal(x);
  // Of the standard normal distribution in [-2, 2]: variance 1 - 4 phi(2) / (2 Phi(2) - 1).
  CHECK(std::abs(x.mean().item<double>()) < 0.01);
  CHECK(std::abs(square(x).mean().item<double>() - 0.7737) < 0.01);
  CHECK(values(max(abs(x)))[0] <= 2);
  CHECK(values(max(x))[0] > 1.99);
  init::trunc_normal(x, 3, 0.5, 3, 3.25);  // nearly uniform
  CHECK(std::abs(x.mean().item<double>() - 3.1224) < 0.002);
  init::trunc_normal(x, 0, 1, 9, 10);  // exponential, far from the mean: 9 + 1 / 9 less a little
  CHECK(std::abs(x.mean().item<double>() - 9.1077) < 0.003);
  init::trunc_normal(x, 0, 1, -10, -9);
  CHECK(std::abs(x.mean().item<double>() + 9.1077) < 0.003);
  CHECK(values(max(x))[0] <= -9);
  CHECK_THROWS_WITH(init::trunc_normal(x, 0, 1, 2, 2), Contains("low < high"));
  CHECK_THROWS_WITH(init::trunc_normal(zeros({2}, {.dtype = DType::i64})), Contains("floating"));
}

TEST_CASE("orthogonal matrices are") {
  for (const Shape& shape : {Shape{3, 7}, Shape{7, 3}, Shape{4, 4}, Shape{4, 2, 3, 1}, Shape{1, 1}, Shape{0, 3}}) {
    const Tensor w = empty(shape, {.dtype = DType::f64});
    init::orthogonal(w, 2);
    if (w.count() == 0) continue;
    const Tensor m = w.reshape({shape[0], -1});
    const Tensor product = m.size(0) <= m.size(1) ? matmul(m, m.t()) : matmul(m.t(), m);
    CHECK(values(max(abs(product - eye(product.size(0), {.dtype = DType::f64}) * 4)))[0] < 1e-12);
  }
  const Tensor same = empty({3, 3}), other = empty({3, 3});
  manual_seed(1);
  init::orthogonal(same);
  init::orthogonal(other);
  CHECK(values(same) != values(other));
  CHECK_THROWS_WITH(init::orthogonal(zeros({3})), Contains("[out, in, ..]"));
}

TEST_CASE("identities, Dirac kernels and sparse matrices") {
  const Tensor m = ones({2, 3});
  init::eye(m);
  CHECK(values(m) == Doubles{1, 0, 0, 0, 1, 0});
  init::zeros(m);
  CHECK(values(m) == Doubles(6, 0));
  init::ones(m);
  CHECK(values(m) == Doubles(6, 1));

  // A convolution with it gives the input back, group by group.
  const Tensor x = randn({1, 4, 5, 6}), w = empty({4, 2, 3, 3});
  init::dirac(w, 2);
  CHECK(values(conv2d(x, w, {}, {.padding = 1, .groups = 2})) == values(x));

  const Tensor s = ones({10, 3});
  init::sparse(s, 0.25, 0.5);
  for (int column = 0; column < 3; ++column) {
    const Doubles c = values(s.select(1, column));
    CHECK(std::count(c.begin(), c.end(), 0.0) == 3);
  }
  CHECK_THROWS_WITH(init::eye(zeros({2})), Contains("a matrix"));
  CHECK_THROWS_WITH(init::dirac(zeros({3, 2, 3}), 2), Contains("2 groups"));
  CHECK_THROWS_WITH(init::sparse(m, 1.5), Contains("sparsity"));
}
