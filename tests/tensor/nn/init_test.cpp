// Initialisers.
#include "lockstep/tensor/nn/init.h"

#include <cmath>

#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("initialisers have the bounds and deviations of their formulas") {
  manual_seed(5);
  const Tensor w = empty({64, 32, 3, 3});
  CHECK(init::fans(w).in == 288);
  CHECK(init::fans(w).out == 576);
  const auto bound = [&] { return max(abs(w)).item<double>(); };
  const auto deviation = [&] { return std::sqrt(var(w).item<double>()); };
  const auto check_uniform = [&](double limit) {
    CHECK(bound() <= limit * (1 + 1e-6));
    CHECK(bound() > 0.99 * limit);
    CHECK(deviation() == Approx(limit / std::sqrt(3.0)).epsilon(0.02));
  };
  const std::uint64_t version = w.version();
  init::kaiming_uniform(w);
  CHECK(w.version() > version);
  check_uniform(std::sqrt(2.0) * std::sqrt(3.0 / 288));
  init::kaiming_uniform(w, std::sqrt(5.0), init::FanMode::fan_out);
  check_uniform(std::sqrt(1.0 / 3) * std::sqrt(3.0 / 576));
  init::xavier_uniform(w, 2);
  check_uniform(2 * std::sqrt(6.0 / (288 + 576)));
  init::uniform(w, -0.5, 0.5);
  check_uniform(0.5);
  init::kaiming_normal(w);
  CHECK(deviation() == Approx(std::sqrt(2.0 / 288)).epsilon(0.02));
  init::xavier_normal(w);
  CHECK(deviation() == Approx(std::sqrt(2.0 / (288 + 576))).epsilon(0.02));
  init::normal(w, 3, 0.1);
  CHECK(mean(w).item<double>() == Approx(3).margin(0.01));
  init::constant(w, 4);
  CHECK(bound() == 4);
  const Tensor bias = empty({64});
  init::default_affine(w, bias);
  check_uniform(1 / std::sqrt(288.0));
  CHECK(max(abs(bias)).item<double>() <= 1 / std::sqrt(288.0));
  CHECK_THROWS_AS(init::kaiming_uniform(bias), InvalidArgument);
  // Through a view, and into a leaf: no graph is involved.
  Tensor grid = zeros({3, 4}, {.requires_grad = true});
  init::normal(grid.detach().t());
  CHECK(min(abs(grid.detach())).item<double>() > 0);
  init::constant(grid, 1);
}
