// The derivatives of the activations in 16-bit dtypes, and where a function is saturated.
#include <cmath>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

struct Function {
  const char* name;
  Tensor (*f)(const Tensor& x);
};
const Function kFunctions[] = {{"softplus", [](const Tensor& x) { return softplus(x); }},
                               {"silu", [](const Tensor& x) { return silu(x); }},
                               {"gelu", [](const Tensor& x) { return gelu(x); }},
                               {"gelu tanh", [](const Tensor& x) { return gelu(x, GeluForm::tanh); }}};

Tensor slope(const Function& function, const Tensor& at, bool create_graph) {
  const Tensor x = at.clone().set_requires_grad(true);
  return grad((function.f(x) * 0.75).sum(), {x}, {.create_graph = create_graph})[0];
}

}  // namespace

TEST_CASE("gradients of activations in 16-bit dtypes are rounded once") {
  for (const Function& function : kFunctions)
    for (const DType dtype : {DType::f16, DType::bf16})
      for (const bool create_graph : {false, true}) {
        INFO(function.name << " " << to_string(dtype) << (create_graph ? " create_graph" : ""));
        // Every number of the dtype would do; these are some hundred, both signs, and 0.
        const Tensor x = (arange(801).to(DType::f64) * 0.0125 - 5).to(dtype);
        const std::vector<double> got = slope(function, x, create_graph).detach().to_vector<double>();
        const std::vector<double> want = slope(function, x.to(DType::f64), false).to(dtype).to_vector<double>();
        int apart = 0;  // f32 may round to the other side of a tie, and cancels around a zero
        for (std::size_t i = 0; i < got.size(); ++i) {
          const double ulp = std::abs(want[i]) * (dtype == DType::f16 ? 0x1p-10 : 0x1p-7);
          CHECK(std::abs(got[i] - want[i]) <= ulp + 1e-6);
          apart += got[i] != want[i] ? 1 : 0;
        }
        CHECK(apart <= 4);
      }
}

TEST_CASE("gradients of activations where they are saturated") {
  for (const Function& function : kFunctions)
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
      for (const bool create_graph : {false, true}) {
        INFO(function.name << " " << to_string(dtype) << (create_graph ? " create_graph" : ""));
        const double large = dtype == DType::f16 ? 6e4 : 1e15;
        const Tensor x = from_data({-large, -400.0, 400.0, large}, {4}, {.dtype = dtype});
        const std::vector<double> got = slope(function, x, create_graph).detach().to_vector<double>();
        CHECK(std::abs(got[0]) + std::abs(got[1]) < 1e-100);
        CHECK((got[2] == 0.75 && got[3] == 0.75));
      }
}
