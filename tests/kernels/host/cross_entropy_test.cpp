// The loss of classes, against plain loops.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {}  // namespace

TEST_CASE("cross_entropy and its gradient", "[cross_entropy]") {
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{3, 10, 1}, Shape{2, 300, 1}, Shape{2, 5, 3}, Shape{1, 33, 40},
                             Shape{0, 5, 1}, Shape{2, 5, 0}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool weighted : {false, true})
        for (const double smoothing : {0.0, 0.25}) {
          const std::int64_t classes = shape[1], inner = shape[2];
          const Shape lines{shape[0], inner};
          TestTensor x(dtype, shape), targets(DType::i64, lines), weight(dtype, {classes});
          TestTensor loss(wide(dtype), lines), own(wide(dtype), lines), log_sum(wide(dtype), {2, shape[0], inner});
          TestTensor dloss(wide(dtype), lines), dx(dtype, shape);
          x.fill_random(1, -8, 8), weight.fill_random(2, 0.5, 1.5), dloss.fill_random(3, -1, 1);
          constexpr std::int64_t kIgnored = 77;
          targets.fill(
              [&](std::int64_t i) { return i % 4 == 2 ? double{kIgnored} : static_cast<double>(i * 7 % classes); });
          CrossEntropyArgs args{.x = x.in(),
                                .targets = targets.in(),
                                .loss = loss.out(),
                                .target_weight = own.out(),
                                .log_sum = log_sum.out(),
                                .ignore_index = kIgnored,
                                .label_smoothing = smoothing};
          CrossEntropyGradArgs grad{.dloss = dloss.in(),
                                    .x = x.in(),
                                    .targets = targets.in(),
                                    .target_weight = own.in(),
                                    .log_sum = log_sum.in(),
                                    .dx = dx.out(),
                                    .ignore_index = kIgnored,
                                    .label_smoothing = smoothing};
          if (weighted) args.weight = grad.weight = weight.in();
          run(args);
          run(grad);
          const auto score = [&](std::int64_t line, std::int64_t c) {
            return x[(line / inner * classes + c) * inner + line % inner];
          };
          const auto w = [&](std::int64_t c) { return weighted ? weight[c] : 1.0; };
          const auto want_log_sum = [&](std::int64_t line) {
            double sum = 0;
            for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(score(line, c));
            return std::log(sum);
          };
          INFO(to_string(dtype) << " " << to_string(shape) << " " << weighted << " " << smoothing);
          const double share = smoothing / static_cast<double>(classes);
          CHECK(mismatch(own, [&](std::int64_t line) {
                  return targets[line] == kIgnored ? 0 : w(targets.integer(line));
                }) == "");
          CHECK(mismatch(
                    loss,
                    [&](std::int64_t line) {
                      if (targets[line] == kIgnored) return 0.0;
                      const double sum = want_log_sum(line);
                      double total =
                          (1 - smoothing) * w(targets.integer(line)) * (sum - score(line, targets.integer(line)));
                      for (std::int64_t c = 0; c < classes; ++c) total += share * w(c) * (sum - score(line, c));
                      return total;
                    },
                    16, 16) == "");
          const auto want_dx = [&](std::int64_t i) {
            const std::int64_t line = i / (classes * inner) * inner + i % inner, c = i / inner % classes;
            if (targets[line] == kIgnored) return 0.0;
            const double p = std::exp(x[i] - want_log_sum(line));
            const std::int64_t target = targets.integer(line);
            double all = 0;
            for (std::int64_t k = 0; k < classes; ++k) all += w(k);
            return dloss[line] * ((1 - smoothing) * w(target) * (p - (c == target ? 1 : 0)) + share * (all * p - w(c)));
          };
          CHECK(mismatch(dx, want_dx, 16, 32) == "");
        }
}

TEST_CASE("cross_entropy of large numbers", "[cross_entropy]") {
  TestTensor x(DType::f32, {2, 3, 1}), targets(DType::i64, {2, 1}), loss(DType::f32, {2, 1}), own(DType::f32, {2, 1}),
      log_sum(DType::f32, {2, 2, 1}), dloss(DType::f32, {2, 1}), dx(DType::f32, {2, 3, 1});
  const double values[] = {1e4, 1e4 + 0.5, -kInf, 3e38, 1, 2};
  x.fill([&](std::int64_t i) { return values[i]; });
  targets.fill([](std::int64_t) { return 0; }), dloss.fill([](std::int64_t) { return 1; });
  run(CrossEntropyArgs{.x = x.in(),
                       .targets = targets.in(),
                       .loss = loss.out(),
                       .target_weight = own.out(),
                       .log_sum = log_sum.out(),
                       .ignore_index = -100,
                       .label_smoothing = 0});
  CHECK(loss[0] == Approx(std::log(1 + std::exp(0.5))).epsilon(1e-6));
  CHECK(loss[1] == 0);
  run(CrossEntropyGradArgs{.dloss = dloss.in(),
                           .x = x.in(),
                           .targets = targets.in(),
                           .target_weight = own.in(),
                           .log_sum = log_sum.in(),
                           .dx = dx.out(),
                           .ignore_index = -100,
                           .label_smoothing = 0});
  CHECK(dx[1] == Approx(1 / (1 + std::exp(-0.5))).epsilon(1e-6));
  CHECK(dx[0] == Approx(1 / (1 + std::exp(0.5)) - 1).epsilon(1e-6));
  CHECK(dx[2] == 0);
}

TEST_CASE("cross_entropy refuses indices of classes that do not exist", "[cross_entropy]") {
  TestTensor x(DType::f32, {2, 3, 1}), targets(DType::i64, {2, 1}), loss(DType::f32, {2, 1}), own(DType::f32, {2, 1}),
      log_sum(DType::f32, {2, 2, 1});
  const auto before = loss.bytes();
  for (const double bad : {3.0, -1.0}) {
    targets.fill([&](std::int64_t i) { return i == 1 ? bad : 0; });
    CHECK_THROWS_WITH(run(CrossEntropyArgs{.x = x.in(),
                                           .targets = targets.in(),
                                           .loss = loss.out(),
                                           .target_weight = own.out(),
                                           .log_sum = log_sum.out(),
                                           .ignore_index = -100,
                                           .label_smoothing = 0}),
                      Catch::Matchers::Contains("[cross_entropy]") && Catch::Matchers::Contains("[0, 3)"));
    CHECK(loss.bytes() == before);
  }
}
