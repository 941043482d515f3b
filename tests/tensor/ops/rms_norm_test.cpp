// rms_norm: values, layouts, derivatives, autocast and errors.
#include <limits>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/gradcheck.h"
#include "tensor/ops/support.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using op_tests::kF64;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {

using Inputs = const std::vector<Tensor>&;

// Over the last two dimensions.
Tensor plain(const Tensor& x, double eps) { return x / sqrt(square(x).mean({-2, -1}, true) + eps); }

void check_derivatives(const std::string& name, const support::Function& f, const std::vector<Tensor>& inputs) {
  INFO(name);
  CHECK(gradcheck(f, inputs) == "");
  CHECK(gradgradcheck(f, inputs) == "");
}

}  // namespace

TEST_CASE("rms_norm over the last dimensions, of every layout") {
  manual_seed(2);
  const Tensor x = randn({3, 4, 5, 2}, kF64) * 3 + 1, weight = randn({5, 2}, kF64);
  const Tensor want = plain(x, 0.1);
  CHECK(allclose(rms_norm(x, {5, 2}, {}, 0.1), want, 1e-12, 1e-12));
  CHECK(allclose(rms_norm(x, {5, 2}, weight, 0.1), want * weight, 1e-12, 1e-12));
  CHECK(allclose(rms_norm(x, x.shape(), {}, 0.1), x / sqrt(square(x).mean() + 0.1), 1e-12, 1e-12));
  const Tensor transposed = x.transpose(0, 3).contiguous().transpose(0, 3);
  const Tensor column = weight.t().contiguous().t();
  CHECK_FALSE(transposed.contiguous_layout());
  CHECK(allclose(rms_norm(transposed, {5, 2}, column, 0.1), want * weight, 1e-12, 1e-12));
  CHECK(allclose(rms_norm(x.narrow(1, 1, 2), {5, 2}, weight, 0.1), (want * weight).narrow(1, 1, 2), 1e-12, 1e-12));
  const Tensor row = randn({2}, kF64), repeated = row.expand({3, 5, 2}), scale = row.expand({5, 2});
  CHECK(allclose(rms_norm(repeated, {5, 2}, scale, 0.1), plain(repeated.contiguous(), 0.1) * row, 1e-12, 1e-12));
  // One row; one element, of which the sign is left; none.
  CHECK(allclose(rms_norm(x.select(0, 0).select(0, 0), {5, 2}, {}, 0.1), want.select(0, 0).select(0, 0), 1e-12, 1e-12));
  CHECK(equal(rms_norm(from_data({-4.0, 2.0}, {2, 1}), {1}, {}, 0), from_data({-1.0, 1.0}, {2, 1})));
  for (const Shape& empty : {Shape{0, 3}, Shape{3, 0}}) {
    Tensor none = zeros(empty).set_requires_grad(), w = ones({empty[1]}).set_requires_grad();
    const Tensor y = rms_norm(none, {empty[1]}, w);
    CHECK(y.shape() == empty);
    y.sum().backward();
    CHECK(none.grad().shape() == empty);
    CHECK(equal(w.grad(), zeros({empty[1]})));
  }
  manual_seed(0);
}

TEST_CASE("rms_norm without eps adds the epsilon of the dtype it computes in") {
  const double f32 = std::numeric_limits<float>::epsilon(), f64 = std::numeric_limits<double>::epsilon();
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const double eps = dtype == DType::f64 ? f64 : f32;
    const Tensor x = full({2, 4}, dtype == DType::f64 ? 1e-9 : 1e-4, {.dtype = dtype});
    INFO(to_string(dtype));
    CHECK(equal(rms_norm(x, {4}), rms_norm(x, {4}, {}, eps)));
    CHECK_FALSE(equal(rms_norm(x, {4}), rms_norm(x, {4}, {}, 2 * eps)));
  }
  CHECK(equal(rms_norm(zeros({2, 4}), {4}), zeros({2, 4})));
}

TEST_CASE("rms_norm of 16 bits takes its statistics in f32") {
  manual_seed(3);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = ((randn({4, 600}, kF64) + 3) * 100).to(dtype);  // a square does not fit into f16
    const Tensor want = rms_norm(x.to(DType::f64), {600}).to(dtype).to(DType::f64);
    const double step = dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
    CHECK(allclose(rms_norm(x, {600}).to(DType::f64), want, step, 0));
  }
  const Tensor half = randn({2, 4}).to(DType::f16), weight = randn({4});
  CHECK(rms_norm(half, {4}).dtype() == DType::f16);
  const Autocast scope(DType::f16);
  CHECK(equal(rms_norm(half, {4}, weight), rms_norm(half.to(DType::f32), {4}, weight)));
  CHECK(rms_norm(half.to(DType::f32), {4}, weight.to(DType::f16)).dtype() == DType::f32);
  CHECK(rms_norm(half.to(DType::f64), {4}).dtype() == DType::f64);
  manual_seed(0);
}

TEST_CASE("derivatives of rms_norm") {
  check_derivatives("weight", [](Inputs in) { return rms_norm(in[0], {4}, in[1], 0.1); },
                    {random_leaf({3, 4}, 1), random_leaf({4}, 2)});
  check_derivatives("without weight", [](Inputs in) { return rms_norm(in[0], {5}); }, {random_leaf({3, 5}, 1)});
  check_derivatives("over two, not contiguous",
                    [](Inputs in) {
                      return square(rms_norm(in[0], {2, 3}, in[1]));
                    },
                    {random_transposed_leaf({2, 2, 3}, 1), random_transposed_leaf({2, 3}, 2)});
  check_derivatives("weight alone", [](Inputs in) { return rms_norm(in[0], {4}, in[1]); },
                    {random_leaf({3, 4}, 1).detach(), random_leaf({4}, 2)});
  check_derivatives("input alone", [](Inputs in) { return rms_norm(in[0], {4}, in[1]); },
                    {random_leaf({3, 4}, 1), random_leaf({4}, 2).detach()});
  // The gradient that sum() sends back has stride 0 everywhere.
  Tensor x = random_leaf({20, 3}, 1), w = random_leaf({3}, 2);
  rms_norm(x, {3}, w).sum().backward();
  const Tensor dx = x.grad(), dw = w.grad();
  x.zero_grad(), w.zero_grad();
  const Tensor y = rms_norm(x, {3}, w);
  y.backward(ones_like(y));
  CHECK(allclose(dx, x.grad(), 1e-12, 1e-12));
  CHECK(allclose(dw, w.grad(), 1e-12, 1e-12));
}

TEST_CASE("rms_norm refuses what does not fit") {
  const Tensor x = zeros({2, 3}), weight = ones({3});
  const auto refused = [](auto&& f, const char* first, const char* second) {
    CHECK_THROWS_AS(f(), InvalidArgument);
    CHECK_THROWS_WITH(f(), Contains("[rms_norm]") && Contains(first) && Contains(second));
  };
  refused([&] { rms_norm(x, {2}); }, "[2]", "[2, 3]");
  refused([&] { rms_norm(x, {}); }, "[]", "[2, 3]");
  refused([&] { rms_norm(x, {1, 2, 3}); }, "[1, 2, 3]", "f32[2, 3]");
  refused([&] { rms_norm(x, {3}, ones({2})); }, "[3]", "f32[2]");
  refused([&] { rms_norm(x, {3}, weight.to(DType::f64)); }, "f32[2, 3]", "f64[3]");
  refused([&] { rms_norm(zeros({2, 3}, {.dtype = DType::i64}), {3}); }, "i64", "floating");
  refused([&] { rms_norm(Tensor(), {3}); }, "defined", "");
}
