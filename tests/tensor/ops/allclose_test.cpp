// Comparisons of whole tensors, answered on the host.
#include <cmath>

#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

TEST_CASE("answers for the host") {
  support::needs_devices(2);
  const Tensor x = f64({1, 2, kInf}, {3});
  CHECK(equal(x, x.to(device_at(1))));
  CHECK_FALSE(equal(x, x.to(DType::f32)));
  CHECK_FALSE(equal(x, x.reshape({3, 1})));
  CHECK_FALSE(equal(x, f64({1, 2, -kInf}, {3})));
  CHECK(equal(zeros({0}), zeros({0})));
  CHECK(allclose(x, x));
  CHECK(allclose(x, f64({1 + 1e-6, 2, kInf}, {3})));
  CHECK_FALSE(allclose(x, f64({1 + 1e-4, 2, kInf}, {3})));
  CHECK_FALSE(allclose(x, f64({1, 2, 3}, {3})));
  CHECK_FALSE(allclose(f64({1, 2, 3}, {3}), x));
  CHECK_FALSE(allclose(f64({NAN}, {1}), f64({NAN}, {1})));
}
