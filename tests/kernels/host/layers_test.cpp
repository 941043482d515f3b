// Group normalisation, resampling and the loss of classes, against plain loops.
#include <algorithm>

#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// The weights of all source elements in element `at` of the result, by the definition of each map.
std::vector<double> weights_of(const Resample2dArgs& a, int axis, std::int64_t source, std::int64_t result,
                               std::int64_t at) {
  std::vector<double> weights(static_cast<std::size_t>(source));
  const auto add = [&](std::int64_t i, double weight) {
    weights[static_cast<std::size_t>(std::clamp<std::int64_t>(i, 0, source - 1))] += weight;
  };
  if (a.kind == ResampleKind::average) {
    const double begin = std::floor(static_cast<double>(at * source) / static_cast<double>(result));
    const double end = std::ceil(static_cast<double>((at + 1) * source) / static_cast<double>(result));
    for (double i = begin; i < end; ++i) add(static_cast<std::int64_t>(i), 1 / (end - begin));
  } else if (a.kind == ResampleKind::nearest) {
    add(static_cast<std::int64_t>(std::floor(static_cast<double>(at) * a.step[static_cast<std::size_t>(axis)])), 1);
  } else {
    const double step = a.step[static_cast<std::size_t>(axis)], position = static_cast<double>(at);
    const double from = std::max(0.0, a.align_corners ? step * position : step * (position + 0.5) - 0.5);
    const double low = std::min(std::floor(from), static_cast<double>(source - 1));
    add(static_cast<std::int64_t>(low), 1 - std::min(from - low, 1.0));
    add(static_cast<std::int64_t>(low) + 1, std::min(from - low, 1.0));
  }
  return weights;
}

}  // namespace

TEST_CASE("group_norm and its gradient", "[group_norm]") {
  for (const Shape& shape : {Shape{2, 1, 1, 3}, Shape{3, 1, 10, 1}, Shape{5, 1, 100, 1}, Shape{2, 3, 4, 5},
                             Shape{1, 2, 1, 70}, Shape{2, 4, 8, 1}, Shape{0, 1, 4, 1}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false}) {
        const std::int64_t groups = shape[1], channels = shape[2], length = shape[3], row = channels * length;
        const Shape parameters{groups * channels}, rows{shape[0], groups};
        TestTensor x(dtype, shape), weight(dtype, parameters), bias(dtype, parameters), y(dtype, shape);
        TestTensor mean(wide(dtype), rows), inv_std(wide(dtype), rows), dy(dtype, shape), dx(dtype, shape);
        TestTensor dweight(dtype, parameters), dbias(dtype, parameters);
        x.fill_random(1, 0, 4), weight.fill_random(2, 0.5, 1.5), bias.fill_random(3), dy.fill_random(4, -1, 1);
        constexpr double kEps = 1e-3;
        GroupNormArgs args{.x = x.in(), .y = y.out(), .mean = mean.out(), .inv_std = inv_std.out(), .eps = kEps};
        GroupNormGradArgs grad{.dy = dy.in(),
                               .x = x.in(),
                               .mean = mean.in(),
                               .inv_std = inv_std.in(),
                               .dx = dx.out(),
                               .dweight = dweight.out(),
                               .dbias = dbias.out()};
        if (affine) args.weight = grad.weight = weight.in(), args.bias = bias.in();
        run(args);
        run(grad);
        const auto average = [&](std::int64_t r, auto&& f) {
          long double sum = 0;
          for (std::int64_t i = r * row; i < (r + 1) * row; ++i) sum += f(i);
          return static_cast<double>(sum / static_cast<long double>(row));
        };
        std::vector<double> means, inverses, of_g, of_products;
        const auto at = [](const std::vector<double>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
        const auto channel = [&](std::int64_t i) { return i / length % (groups * channels); };
        const auto normal = [&](std::int64_t i) { return (x[i] - at(means, i / row)) * at(inverses, i / row); };
        const auto g = [&](std::int64_t i) { return dy[i] * (affine ? weight[channel(i)] : 1.0); };
        for (std::int64_t r = 0; r < shape[0] * groups; ++r) {
          means.push_back(average(r, [&](std::int64_t i) { return x[i]; }));
          const double centre = means.back();
          inverses.push_back(
              1 / std::sqrt(average(r, [&](std::int64_t i) { return (x[i] - centre) * (x[i] - centre); }) + kEps));
          of_g.push_back(average(r, g));
          of_products.push_back(average(r, [&](std::int64_t i) { return g(i) * normal(i); }));
        }
        INFO(to_string(dtype) << " " << to_string(shape) << " " << affine);
        CHECK(mismatch(
                  mean, [&](std::int64_t r) { return at(means, r); }, 4, 4) == "");
        CHECK(mismatch(
                  inv_std, [&](std::int64_t r) { return at(inverses, r); }, 8) == "");
        const auto want = [&](std::int64_t i) {
          return affine ? normal(i) * weight[channel(i)] + bias[channel(i)] : normal(i);
        };
        CHECK(mismatch(y, want, 8, 32) == "");
        const auto want_dx = [&](std::int64_t i) {
          return at(inverses, i / row) * (g(i) - at(of_g, i / row) - normal(i) * at(of_products, i / row));
        };
        CHECK(mismatch(dx, want_dx, 8, 64) == "");
        const auto channel_sum = [&](std::int64_t c, auto&& f) {
          double sum = 0;
          for (std::int64_t i = 0; i < x.count(); ++i) sum += channel(i) == c ? f(i) : 0.0;
          return sum;
        };
        CHECK(mismatch(
                  dbias, [&](std::int64_t c) { return channel_sum(c, [&](std::int64_t i) { return dy[i]; }); }, 4,
                  16) == "");
        CHECK(mismatch(
                  dweight,
                  [&](std::int64_t c) { return channel_sum(c, [&](std::int64_t i) { return dy[i] * normal(i); }); }, 8,
                  64) == "");
        // Without what is optional.
        const auto values = y.values(), gradients = dx.values();
        args.mean = args.inv_std = {}, grad.dweight = grad.dbias = {};
        run(args);
        run(grad);
        CHECK(y.values() == values);
        CHECK(dx.values() == gradients);
      }
}

TEST_CASE("group_norm statistics survive a large mean", "[group_norm]") {
  TestTensor x(DType::f32, {2, 1, 1000, 1}), y(DType::f32, {2, 1, 1000, 1}), mean(DType::f32, {2, 1}),
      inv_std(DType::f32, {2, 1});
  x.fill([](std::int64_t i) { return 10000.0 + (i % 2 ? 0.25 : -0.25); });
  run(GroupNormArgs{.x = x.in(), .y = y.out(), .mean = mean.out(), .inv_std = inv_std.out(), .eps = 0});
  CHECK(mean[1] == 10000);
  CHECK(inv_std[1] == 4);
  CHECK(y[0] == -1);
}

TEST_CASE("resample2d and its adjoint agree with the maps written out", "[resample]") {
  struct Problem {
    Shape source, result;
    ResampleKind kind;
    std::array<double, 2> step{};
    bool align_corners = false;
  };
  using enum ResampleKind;
  const std::vector<Problem> problems = {
      {{2, 2, 5, 7}, {2, 2, 3, 7}, average},
      {{1, 2, 4, 3}, {1, 2, 9, 1}, average},
      {{0, 2, 4, 4}, {0, 2, 2, 2}, average},
      {{1, 1, 40, 33}, {1, 1, 7, 6}, average},
      {{2, 1, 3, 4}, {2, 1, 6, 8}, nearest, {0.5, 0.5}},
      {{1, 2, 6, 5}, {1, 2, 2, 9}, nearest, {3, 5.0 / 9}},
      {{1, 1, 4, 4}, {1, 1, 10, 10}, nearest, {0.4, 0.3}},  // a step of one's own: the last elements count again
      {{2, 1, 3, 4}, {2, 1, 6, 8}, bilinear, {0.5, 0.5}},
      {{1, 2, 6, 5}, {1, 2, 4, 9}, bilinear, {1.5, 5.0 / 9}},
      {{1, 2, 6, 5}, {1, 2, 3, 9}, bilinear, {2.5, 0.5}, true},
      {{1, 1, 1, 5}, {1, 1, 4, 1}, bilinear, {0, 0}, true},
      {{1, 1, 5, 5}, {1, 1, 12, 12}, bilinear, {0.4, 0.5}},
      {{1, 1, 30, 31}, {1, 1, 4, 5}, bilinear, {7.5, 6.2}},
  };
  for (const Problem& p : problems)
    for (const DType dtype : kFloatingDTypes) {
      TestTensor x(dtype, p.source), y(dtype, p.result), dx(dtype, p.source);
      x.fill_random(1);
      Resample2dArgs args{x.in(), y.out(), p.kind, p.step, p.align_corners, false};
      run(args);
      std::vector<double> matrix[2];  // [result][source]
      for (int axis = 0; axis < 2; ++axis)
        for (std::int64_t i = 0; i < p.result[2 + axis]; ++i)
          for (const double w : weights_of(args, axis, p.source[2 + axis], p.result[2 + axis], i))
            matrix[axis].push_back(w);
      const auto weight = [&](int axis, std::int64_t to, std::int64_t from) {
        return matrix[axis][static_cast<std::size_t>(to * p.source[2 + axis] + from)];
      };
      INFO(to_string(dtype) << " " << to_string(p.source) << " " << to_string(p.result));
      const auto want = [&](std::int64_t i) {
        const std::int64_t w = i % p.result[3], h = i / p.result[3] % p.result[2],
                           plane = i / p.result[3] / p.result[2];
        double sum = 0;
        for (std::int64_t r = 0; r < p.source[2]; ++r)
          for (std::int64_t c = 0; c < p.source[3]; ++c)
            sum += weight(0, h, r) * weight(1, w, c) * x[(plane * p.source[2] + r) * p.source[3] + c];
        return sum;
      };
      CHECK(mismatch(y, want, 4, 16) == "");
      y.fill_random(2);
      args.x = y.in(), args.y = dx.out(), args.adjoint = true;
      run(args);
      const auto want_dx = [&](std::int64_t i) {
        const std::int64_t c = i % p.source[3], r = i / p.source[3] % p.source[2],
                           plane = i / p.source[3] / p.source[2];
        double sum = 0;
        for (std::int64_t h = 0; h < p.result[2]; ++h)
          for (std::int64_t w = 0; w < p.result[3]; ++w)
            sum += weight(0, h, r) * weight(1, w, c) * y[(plane * p.result[2] + h) * p.result[3] + w];
        return sum;
      };
      CHECK(mismatch(dx, want_dx, 4, 32) == "");
    }
}

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
