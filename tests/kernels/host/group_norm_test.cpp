// Group normalisation, against plain loops.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {}  // namespace

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
