// Softmax and dropout.
#include <cmath>

#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("softmax") {
  const Tensor x = f64({1, 2, 3, 1, 1, 1}, {2, 3});
  const double total = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  CHECK(allclose(
      softmax(x, 1),
      f64({std::exp(1.0) / total, std::exp(2.0) / total, std::exp(3.0) / total, 1. / 3, 1. / 3, 1. / 3}, {2, 3})));
  CHECK(allclose(log_softmax(x, -1), log(softmax(x, -1))));
  CHECK(allclose(softmax(x.t(), 0), softmax(x, 1).t()));
  CHECK(allclose(sum(softmax(x, 0), {0}), ones({3}, kF64)));
  CHECK(softmax(f64({5}, {}), 0).item<double>() == 1);
  CHECK(softmax(zeros({0, 3}), 1).shape() == Shape{0, 3});
}

TEST_CASE("softmax of a number has one dimension") {
  CHECK(softmax(tensor(3.0), 0).item<double>() == 1);
  CHECK(log_softmax(tensor(3.0), -1).item<double>() == 0);
  for (const int dim : {1, -2})
    CHECK_THROWS_WITH(softmax(tensor(3.0), dim), Contains("[softmax]") && Contains(std::to_string(dim)));
}
