// Batch normalisation.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct Statistics {
  double mean = 0, variance = 0;
};
Statistics statistics(const TestTensor& x, std::int64_t channel) {
  const std::int64_t batch = x.shape()[0], length = x.shape()[2];
  const long double count = static_cast<long double>(batch * length);
  long double mean = 0, squares = 0;  // more digits than the kernels have in f64
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::int64_t l = 0; l < length; ++l) mean += x.at({n, channel, l}) / count;
  for (std::int64_t n = 0; n < batch; ++n)
    for (std::int64_t l = 0; l < length; ++l)
      squares += (x.at({n, channel, l}) - mean) * (x.at({n, channel, l}) - mean);
  return {static_cast<double>(mean), static_cast<double>(squares / count)};
}

const std::vector<Shape> kBatchNormShapes = {{2, 1, 1},  {8, 3, 1},  {300, 5, 1}, {4, 3, 7},
                                             {3, 2, 50}, {1, 4, 33}, {2, 3, 1000}};
// Of what is kept for the gradient.
DType statistics_of(DType dtype) { return dtype == DType::f64 ? dtype : DType::f32; }
constexpr double kBatchNormEps = 1e-3, kMomentum = 0.1;

}  // namespace

TEST_CASE("batch_norm in training", "[batch_norm]") {
  for (const Shape& shape : kBatchNormShapes)
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false}) {
        const std::int64_t channels = shape[1], length = shape[2];
        const double count = static_cast<double>(shape[0] * length);
        TestTensor x(dtype, shape), weight(dtype, {channels}), bias(dtype, {channels}), y(dtype, shape);
        TestTensor running_mean(dtype, {channels}), running_var(dtype, {channels});
        TestTensor mean(statistics_of(dtype), {channels}), inv_std(statistics_of(dtype), {channels});
        x.fill_random(1, 0, 4), weight.fill_random(2, 0.5, 1.5), bias.fill_random(3);
        running_mean.fill_random(4), running_var.fill_random(5, 1, 2);
        const TestTensor old_mean = running_mean, old_var = running_var;
        BatchNormArgs args{.x = x.in(),
                           .running_mean = running_mean.inout(),
                           .running_var = running_var.inout(),
                           .y = y.out(),
                           .mean = mean.out(),
                           .inv_std = inv_std.out(),
                           .training = true,
                           .momentum = kMomentum,
                           .eps = kBatchNormEps};
        if (affine) args.weight = weight.in(), args.bias = bias.in();
        run(args);
        const auto channel = [&](std::int64_t i) { return i / length % channels; };
        INFO(to_string(dtype) << " " << to_string(shape));
        CHECK(mismatch(
                  mean, [&](std::int64_t c) { return statistics(x, c).mean; }, 4, 4) == "");
        CHECK(mismatch(
                  inv_std, [&](std::int64_t c) { return 1 / std::sqrt(statistics(x, c).variance + kBatchNormEps); },
                  8) == "");
        CHECK(mismatch(
                  running_mean, [&](std::int64_t c) { return 0.9 * old_mean[c] + kMomentum * statistics(x, c).mean; },
                  4, 4) == "");
        CHECK(mismatch(
                  running_var,
                  [&](std::int64_t c) {
                    return 0.9 * old_var[c] + kMomentum * statistics(x, c).variance * count / (count - 1);
                  },
                  4, 4) == "");
        CHECK(mismatch(
                  y,
                  [&](std::int64_t i) {
                    const Statistics s = statistics(x, channel(i));
                    const double normal = (x[i] - s.mean) / std::sqrt(s.variance + kBatchNormEps);
                    return affine ? normal * weight[channel(i)] + bias[channel(i)] : normal;
                  },
                  8, 16) == "");

        // The same without running statistics, and in evaluation with them.
        const auto trained = y.values();
        args.running_mean = args.running_var = {};
        run(args);
        CHECK(y.values() == trained);
        args.running_mean = running_mean.inout(), args.running_var = running_var.inout();
        args.mean = args.inv_std = {};
        args.training = false;
        const auto kept = running_var.values();
        run(args);
        CHECK(running_var.values() == kept);
        CHECK(mismatch(
                  y,
                  [&](std::int64_t i) {
                    const std::int64_t c = channel(i);
                    const double normal = (x[i] - running_mean[c]) / std::sqrt(running_var[c] + kBatchNormEps);
                    return affine ? normal * weight[c] + bias[c] : normal;
                  },
                  8, 16) == "");
      }
}

TEST_CASE("batch_norm_grad", "[batch_norm]") {
  for (const Shape& shape : kBatchNormShapes)
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false}) {
        const std::int64_t channels = shape[1], length = shape[2];
        const double count = static_cast<double>(shape[0] * length);
        TestTensor x(dtype, shape), dy(dtype, shape), weight(dtype, {channels}), mean(statistics_of(dtype), {channels});
        TestTensor inv_std(statistics_of(dtype), {channels}), dx(dtype, shape), dweight(dtype, {channels});
        TestTensor dbias(dtype, {channels});
        x.fill_random(1, 0, 4), dy.fill_random(2, -1, 1), weight.fill_random(3, 0.5, 1.5);
        mean.fill([&](std::int64_t c) { return statistics(x, c).mean; });
        inv_std.fill([&](std::int64_t c) { return 1 / std::sqrt(statistics(x, c).variance + kBatchNormEps); });
        BatchNormGradArgs args{.dy = dy.in(),
                               .x = x.in(),
                               .mean = mean.in(),
                               .inv_std = inv_std.in(),
                               .dx = dx.out(),
                               .dweight = dweight.out(),
                               .dbias = dbias.out()};
        if (affine) args.weight = weight.in();
        run(args);
        std::vector<double> sums(static_cast<std::size_t>(channels)), products(sums.size());
        const auto channel = [&](std::int64_t i) { return i / length % channels; };
        const auto normal = [&](std::int64_t i) { return (x[i] - mean[channel(i)]) * inv_std[channel(i)]; };
        for (std::int64_t i = 0; i < x.count(); ++i) {
          sums[static_cast<std::size_t>(channel(i))] += dy[i];
          products[static_cast<std::size_t>(channel(i))] += dy[i] * normal(i);
        }
        const auto at = [&](const std::vector<double>& v, std::int64_t c) { return v[static_cast<std::size_t>(c)]; };
        INFO(to_string(dtype) << " " << to_string(shape));
        CHECK(mismatch(
                  dbias, [&](std::int64_t c) { return at(sums, c); }, 2, 2 * std::sqrt(count)) == "");
        CHECK(mismatch(
                  dweight, [&](std::int64_t c) { return at(products, c); }, 4, 4 * std::sqrt(count)) == "");
        const auto want_dx = [&](std::int64_t i) {
          const std::int64_t c = channel(i);
          return (affine ? weight[c] : 1.0) * inv_std[c] *
                 (dy[i] - at(sums, c) / count - normal(i) * at(products, c) / count);
        };
        CHECK(mismatch(dx, want_dx, 8, 64) == "");
        const auto values = dx.values();
        args.dweight = args.dbias = {};
        run(args);
        CHECK(dx.values() == values);
      }
}

TEST_CASE("batch_norm of many channels and of long ones, with its gradient", "[batch_norm]") {
  // By a few channels at a time, the last of which are fewer; all together; in one piece.
  for (const Shape& shape : {Shape{3, 151, 300}, Shape{8, 3, 4000}, Shape{2, 21, 17}})
    for (const bool relu : {false, true}) {
      const std::int64_t channels = shape[1], length = shape[2], count = shape[0] * length;
      const DType dtype = DType::f32;
      TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape), weight(dtype, {channels}),
          bias(dtype, {channels}), mean(dtype, {channels}), inv_std(dtype, {channels}), dweight(dtype, {channels}),
          dbias(dtype, {channels});
      x.fill_random(1, 0, 4), dy.fill_random(2), weight.fill_random(3, 0.5, 1.5), bias.fill_random(4);
      run(BatchNormArgs{.x = x.in(),
                        .weight = weight.in(),
                        .bias = bias.in(),
                        .y = y.out(),
                        .mean = mean.out(),
                        .inv_std = inv_std.out(),
                        .training = true,
                        .momentum = 0,
                        .eps = kBatchNormEps,
                        .relu = relu});
      run(BatchNormGradArgs{.dy = dy.in(),
                            .x = x.in(),
                            .weight = weight.in(),
                            .mean = mean.in(),
                            .inv_std = inv_std.in(),
                            .dx = dx.out(),
                            .dweight = dweight.out(),
                            .dbias = dbias.out(),
                            .relu = relu,
                            .bias = bias.in()});
      std::vector<Statistics> of(static_cast<std::size_t>(channels));
      std::vector<double> sums(of.size()), products(of.size());
      for (std::int64_t c = 0; c < channels; ++c) of[static_cast<std::size_t>(c)] = statistics(x, c);
      const auto channel = [&](std::int64_t i) { return static_cast<std::size_t>(i / length % channels); };
      const auto normal = [&](std::int64_t i) {
        return (x[i] - of[channel(i)].mean) / std::sqrt(of[channel(i)].variance + kBatchNormEps);
      };
      const auto gradient = [&](std::int64_t i) { return relu && y[i] <= 0 ? 0 : dy[i]; };
      for (std::int64_t i = 0; i < x.count(); ++i) {
        sums[channel(i)] += gradient(i);
        products[channel(i)] += gradient(i) * normal(i);
      }
      CAPTURE(to_string(shape), relu);
      const auto want_y = [&](std::int64_t i) {
        const auto c = static_cast<std::int64_t>(channel(i));
        const double result = normal(i) * weight[c] + bias[c];
        return relu && result < 0 ? 0 : result;
      };
      CHECK(mismatch(y, want_y, 8, 16) == "");
      const double scale = std::sqrt(static_cast<double>(count));
      const auto at = [&](const std::vector<double>& v, std::int64_t c) { return v[static_cast<std::size_t>(c)]; };
      CHECK(mismatch(
                dbias, [&](std::int64_t c) { return at(sums, c); }, 2, 2 * scale) == "");
      CHECK(mismatch(
                dweight, [&](std::int64_t c) { return at(products, c); }, 4, 4 * scale) == "");
      const auto want_dx = [&](std::int64_t i) {
        const auto c = static_cast<std::int64_t>(channel(i));
        const auto n = static_cast<double>(count);
        return weight[c] / std::sqrt(of[channel(i)].variance + kBatchNormEps) *
               (gradient(i) - at(sums, c) / n - normal(i) * at(products, c) / n);
      };
      CHECK(mismatch(dx, want_dx, 8, 64) == "");
    }
}

TEST_CASE("batch_norm statistics survive a large mean", "[batch_norm]") {
  TestTensor x(DType::f32, {64, 1, 100}), y(DType::f32, {64, 1, 100}), mean(DType::f32, {1}), inv_std(DType::f32, {1});
  x.fill([](std::int64_t i) { return 10000.0 + (i % 2 ? 0.25 : -0.25); });
  run(BatchNormArgs{.x = x.in(),
                    .y = y.out(),
                    .mean = mean.out(),
                    .inv_std = inv_std.out(),
                    .training = true,
                    .momentum = 0,
                    .eps = 0});
  CHECK(mean[0] == 10000);
  CHECK(inv_std[0] == 4);
}

TEST_CASE("batch_norm statistics survive whatever comes first, on the host", "[batch_norm]") {
  if (!test_device().is_cpu()) return;  // CUDA devices take the distances from the first element alone
  const auto run_on = [](const Shape& shape, auto value) {
    TestTensor x(DType::f64, shape), y(DType::f64, shape), mean(DType::f64, {shape[1]}),
        inv_std(DType::f64, {shape[1]});
    x.fill([&](std::int64_t i) { return value(i, i / shape[2] % shape[1]); });
    run(BatchNormArgs{.x = x.in(),
                      .y = y.out(),
                      .mean = mean.out(),
                      .inv_std = inv_std.out(),
                      .training = true,
                      .momentum = 0,
                      .eps = 0});
    for (std::int64_t c = 0; c < shape[1]; ++c) {
      CAPTURE(shape, c);
      const Statistics want = statistics(x, c);
      // The error may be that of a second pass times the number of elements, over those that come first.
      CHECK(std::fabs(mean[c] - want.mean) <= 1e-14 * (std::fabs(want.mean) + std::sqrt(want.variance)));
      CHECK(std::fabs(inv_std[c] * std::sqrt(want.variance) - 1) <= 1e-13);
    }
  };
  const auto wave = [](std::int64_t i) { return std::sin(static_cast<double>(i) * 0.7); };
  for (const Shape& shape : {Shape{900, 3, 1}, Shape{30, 3, 100}}) {
    const std::int64_t last = shape[0] * shape[1] * shape[2] - 1;
    run_on(shape, [&](std::int64_t i, std::int64_t) { return 1e6 + wave(i); });  // far from 0
    run_on(shape, [&](std::int64_t i, std::int64_t c) { return i < 64 * (c + 1) ? 1e6 : wave(i); });
    run_on(shape, [&](std::int64_t i, std::int64_t) { return i == 0 || i == last ? -1e8 : wave(i); });
    run_on(shape, [&](std::int64_t i, std::int64_t) { return static_cast<double>(i * i); });  // in order
  }
}

TEST_CASE("batch_norm of channels of one number has no variance", "[batch_norm]") {
  for (const Shape& shape : {Shape{333, 5, 1}, Shape{7, 5, 50}}) {
    TestTensor x(DType::f32, shape), y(DType::f32, shape), mean(DType::f32, {5}), inv_std(DType::f32, {5});
    x.fill([&](std::int64_t i) { return 0.1 * static_cast<double>(i / shape[2] % 5 + 1); });
    run(BatchNormArgs{.x = x.in(),
                      .y = y.out(),
                      .mean = mean.out(),
                      .inv_std = inv_std.out(),
                      .training = true,
                      .momentum = 0,
                      .eps = 0x1p-20});
    for (std::int64_t c = 0; c < 5; ++c) {
      CHECK(mean[c] == x.at({0, c, 0}));
      CHECK(inv_std[c] == 1024);
    }
  }
}

TEST_CASE("batch_norm of channels of one number in f64 has no variance below 0", "[batch_norm]") {
  constexpr std::int64_t kChannels = 40;
  for (const Shape& shape : {Shape{333, kChannels, 1}, Shape{7, kChannels, 77}}) {
    const DType dtype = DType::f64;
    const Shape channels{kChannels};
    TestTensor x(dtype, shape), y(dtype, shape), mean(dtype, channels), inv_std(dtype, channels),
        running_mean(dtype, channels), running_var(dtype, channels);
    x.fill([&](std::int64_t i) { return 0.1 * static_cast<double>(i / shape[2] % kChannels + 1); });
    run(BatchNormArgs{.x = x.in(),
                      .running_mean = running_mean.inout(),
                      .running_var = running_var.inout(),
                      .y = y.out(),
                      .mean = mean.out(),
                      .inv_std = inv_std.out(),
                      .training = true,
                      .momentum = 1,
                      .eps = 0});
    for (std::int64_t c = 0; c < kChannels; ++c) {
      CHECK(running_var[c] >= 0);
      CHECK(running_var[c] <= 1e-30);
    }
  }
}

TEST_CASE("batch_norm takes infinity, NaN and squares that overflow as they come", "[batch_norm]") {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const Shape channels{2};
  for (const Shape& shape : {Shape{300, 2, 1}, Shape{3, 2, 100}})
    for (const std::int64_t place : {0, 150, 299}) {  // among the elements that come first, and behind them
      const auto mean_and_scale = [&](DType dtype, double odd, double others) {
        TestTensor x(dtype, shape), y(dtype, shape), mean(dtype, channels), inv_std(dtype, channels);
        x.fill([&](std::int64_t i) {
          const std::int64_t c = i / shape[2] % 2, n = i / shape[2] / 2 * shape[2] + i % shape[2];
          return c == 1 && n == place ? odd : others * static_cast<double>(i % 3);
        });
        run(BatchNormArgs{.x = x.in(),
                          .y = y.out(),
                          .mean = mean.out(),
                          .inv_std = inv_std.out(),
                          .training = true,
                          .momentum = 0,
                          .eps = 1});
        CHECK(std::isfinite(mean[0]));  // the other channel
        return std::pair{mean[1], inv_std[1]};
      };
      CAPTURE(shape, place);
      CHECK(mean_and_scale(DType::f32, inf, 1).first == inf);
      CHECK(mean_and_scale(DType::f64, -inf, 1).first == -inf);
      CHECK(std::isnan(mean_and_scale(DType::f32, inf, 1).second));
      CHECK(std::isnan(mean_and_scale(DType::f32, nan, 1).first));
      CHECK(std::isfinite(mean_and_scale(DType::f64, 1e200, 0).first));
      CHECK(mean_and_scale(DType::f64, 1e200, 0).second == 0);
    }
}

TEST_CASE("batch_norm refuses what has no statistics", "[batch_norm]") {
  TestTensor x(DType::f32, {2, 3, 4}), y(DType::f32, {2, 3, 4}), one(DType::f32, {1, 3, 1});
  BatchNormArgs args{.x = x.in(), .y = y.out(), .training = false, .momentum = 0, .eps = 0};
  CHECK_THROWS_AS(run(args), InvalidArgument);
  args.training = true;
  args.x = one.in(), args.y = one.out();
  CHECK_THROWS_AS(run(args), InvalidArgument);
}
