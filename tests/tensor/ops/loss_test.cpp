// Losses.
#include <cmath>

#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("losses of class targets") {
  manual_seed(3);
  const std::int64_t classes[] = {2, 0, -100, 1, 2, 2};
  const double weights[] = {0.5, 2, 1.5};
  const Tensor logits = randn({2, 3, 3}, kF64);  // [batch, classes, positions]
  const Tensor targets = from_data(std::span<const std::int64_t>(classes), {2, 3});
  const Tensor weight = f64({0.5, 2, 1.5}, {3});
  const Doubles scores = values(log_softmax(logits, 1));
  for (const bool weighted : {false, true}) {
    for (const double smoothing : {0.0, 0.3}) {
      Doubles each;
      double total = 0, weight_sum = 0;
      for (std::size_t i = 0; i < 6; ++i) {
        const auto score = [&](std::size_t c) { return scores[(i / 3 * 3 + c) * 3 + i % 3]; };
        double loss = 0;
        if (classes[i] >= 0) {
          const auto target = static_cast<std::size_t>(classes[i]);
          const double own = weighted ? weights[target] : 1;
          loss = -(1 - smoothing) * own * score(target);
          for (std::size_t c = 0; c < 3; ++c) loss -= smoothing / 3 * (weighted ? weights[c] : 1) * score(c);
          weight_sum += own;
        }
        each.push_back(loss);
        total += loss;
      }
      const Tensor w = weighted ? weight : Tensor();
      const auto loss = [&](Reduction reduction) {
        return cross_entropy(logits, targets, {.weight = w, .reduction = reduction, .label_smoothing = smoothing});
      };
      INFO(weighted << ' ' << smoothing);
      CHECK(allclose(loss(Reduction::none), f64(each, {2, 3}), 1e-12, 1e-12));
      CHECK(loss(Reduction::sum).item<double>() == Approx(total));
      CHECK(loss(Reduction::mean).item<double>() == Approx(total / weight_sum));
      if (smoothing == 0)
        CHECK(nll_loss(log_softmax(logits, 1), targets, {.weight = w}).item<double>() == Approx(total / weight_sum));
    }
  }
  // A class of weight 0 takes part in the smoothing, an ignored one does not.
  const Tensor none =
      cross_entropy(zeros({1, 2}), from_data({0}, {1}),
                    {.weight = from_data({0.0, 1.0}, {2}), .reduction = Reduction::sum, .label_smoothing = 0.5});
  CHECK(none.item<double>() == Approx(0.25 * std::log(2.0)));
  CHECK(values(cross_entropy(zeros({2, 3}), from_data({2, 1}, {2}),
                             {.ignore_index = 2, .reduction = Reduction::none}))[0] == 0);
  CHECK(std::isnan(cross_entropy(zeros({1, 2}), from_data({-100}, {1})).item<double>()));
  manual_seed(0);
}

TEST_CASE("losses of values") {
  const Tensor x = f64({1, -2, 3, 0}, {2, 2}), y = f64({2, 2, 1, 1}, {2, 2}), p = f64({1, 0, 0.25, 0.5}, {2, 2});
  CHECK(mse_loss(x, y).item<double>() == (1 + 16 + 4 + 1) / 4.0);
  CHECK(mse_loss(x, y, Reduction::sum).item<double>() == 22);
  CHECK(values(mse_loss(x, y, Reduction::none)) == Doubles{1, 16, 4, 1});
  CHECK(l1_loss(x, y).item<double>() == 2);
  CHECK(values(l1_loss(x, y, Reduction::none)) == Doubles{1, 4, 2, 1});
  const Tensor s = sigmoid(x);
  CHECK(allclose(bce_with_logits(x, p, Reduction::none), -(p * log(s) + (1 - p) * log(1 - s)), 1e-12, 1e-12));
  // Probabilities as targets: the mean is over the batch.
  const Tensor wanted = f64({0.9, 0.1, 0.3, 0.7}, {2, 2});
  CHECK(cross_entropy(x, wanted).item<double>() == Approx(-sum(wanted * log_softmax(x, 1)).item<double>() / 2));
  CHECK(cross_entropy(x, wanted, {.label_smoothing = 0.2}).item<double>() ==
        Approx(-sum((wanted * 0.8 + 0.1) * log_softmax(x, 1)).item<double>() / 2));
  CHECK(cross_entropy(x, wanted, {.weight = f64({1, 3}, {2}), .reduction = Reduction::sum}).item<double>() ==
        Approx(-sum(wanted * f64({1, 3}, {2}) * log_softmax(x, 1)).item<double>()));
}

TEST_CASE("losses with weights") {
  const Tensor x = f64({1, -2, 3, 0.5}, {2, 2}), y = f64({2, 2, 1, 0.25}, {2, 2}), p = f64({1, 0, 0.25, 0.5}, {2, 2});
  CHECK(values(smooth_l1_loss(x, y, Reduction::none)) == Doubles{0.5, 3.5, 1.5, 0.03125});
  CHECK(values(smooth_l1_loss(x, y, Reduction::none, 2)) == Doubles{0.25, 3, 1, 0.015625});
  CHECK(equal(smooth_l1_loss(x, y, Reduction::sum, 0), l1_loss(x, y, Reduction::sum)));
  CHECK(smooth_l1_loss(x, y).item<double>() == (0.5 + 3.5 + 1.5 + 0.03125) / 4);
  CHECK_THROWS_WITH(smooth_l1_loss(x, y, Reduction::mean, -1), Contains("[smooth_l1_loss]") && Contains("-1"));
  CHECK_THROWS_WITH(smooth_l1_loss(x, y[0]), Contains("[2, 2]") && Contains("f64[2]"));

  const Tensor s = sigmoid(x), weight = f64({1, 2}, {2}), positive = f64({3, 0.5}, {2, 1});
  const Tensor want = -(positive * p * log(s) + (1 - p) * log(1 - s)) * weight;
  CHECK(allclose(bce_with_logits(x, p, {.weight = weight, .pos_weight = positive, .reduction = Reduction::none}), want,
                 1e-12, 1e-12));
  CHECK(bce_with_logits(x, p, {.weight = weight, .pos_weight = positive}).item<double>() ==
        Approx(mean(want).item<double>()));
  CHECK(allclose(bce_with_logits(x, p, {.weight = weight}), mean(bce_with_logits(x, p, Reduction::none) * weight)));
  // Neither overflows.
  const Tensor large = f64({1000, -1000}, {2}), ones = f64({0, 1}, {2});
  CHECK(values(bce_with_logits(large, ones, {.pos_weight = f64({2}, {1}), .reduction = Reduction::none})) ==
        Doubles{1000, 2000});
  CHECK_THROWS_WITH(bce_with_logits(x, p, {.weight = zeros({3}, kF64)}),
                    Contains("[bce_with_logits]") && Contains("[3]"));
  CHECK_THROWS_WITH(bce_with_logits(x, p, {.pos_weight = zeros({3, 2, 2}, kF64)}), Contains("[3, 2, 2]"));
}

TEST_CASE("cross entropy of 16-bit scores is summed in f32") {
  manual_seed(5);
  const Tensor logits = (randn({70000, 3}) * 4).to(DType::f16);
  const Tensor targets = full({70000}, 1).to(DType::i64);
  const double want = cross_entropy(logits.to(DType::f64), targets).item<double>();
  CHECK(cross_entropy(logits, targets).dtype() == DType::f16);
  CHECK(cross_entropy(logits, targets).item<double>() == Approx(want).epsilon(1e-3));
  Tensor leaf = logits.narrow(0, 0, 50).clone().set_requires_grad();
  cross_entropy(leaf, targets.narrow(0, 0, 50), {.reduction = Reduction::sum}).backward();
  Tensor wide = logits.narrow(0, 0, 50).to(DType::f64).set_requires_grad();
  cross_entropy(wide, targets.narrow(0, 0, 50), {.reduction = Reduction::sum}).backward();
  CHECK(allclose(leaf.grad().to(DType::f64), wide.grad(), 1e-3, 1e-3));
  CHECK_THROWS_WITH(cross_entropy(logits, targets + 2), Contains("[cross_entropy]") && Contains("got 3"));
  manual_seed(0);
}

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
