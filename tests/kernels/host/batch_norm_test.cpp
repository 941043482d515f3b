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

TEST_CASE("batch_norm refuses what has no statistics", "[batch_norm]") {
  TestTensor x(DType::f32, {2, 3, 4}), y(DType::f32, {2, 3, 4}), one(DType::f32, {1, 3, 1});
  BatchNormArgs args{.x = x.in(), .y = y.out(), .training = false, .momentum = 0, .eps = 0};
  CHECK_THROWS_AS(run(args), InvalidArgument);
  args.training = true;
  args.x = one.in(), args.y = one.out();
  CHECK_THROWS_AS(run(args), InvalidArgument);
}
