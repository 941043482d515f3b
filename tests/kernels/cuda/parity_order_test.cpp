// Group normalisation, resampling, the loss of classes, running sums and sorting on a CUDA device, see
// support/parity.h.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

namespace {}  // namespace

TEST_CASE("CUDA parity: group_norm", "[cuda][parity][group_norm]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{2, 1, 1, 3}, Shape{70, 1, 10, 1}, Shape{5, 1, 1500, 1}, Shape{2, 3, 4, 50},
                             Shape{1, 2, 3, 2000}, Shape{300, 1, 33, 1}, Shape{0, 1, 4, 1}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false}) {
        const Shape parameters{shape[1] * shape[2]}, rows{shape[0], shape[1]};
        TestTensor x(dtype, shape), weight(dtype, parameters), bias(dtype, parameters), y(dtype, shape);
        TestTensor mean(wide(dtype), rows), inv_std(wide(dtype), rows), dx(dtype, shape);
        TestTensor dweight(dtype, parameters), dbias(dtype, parameters);
        x.fill_random(1, -1, 5), weight.fill_random(2), bias.fill_random(3);
        GroupNormArgs args{.x = x.in(), .y = y.out(), .mean = mean.out(), .inv_std = inv_std.out(), .eps = 1e-5};
        GroupNormGradArgs grad{.dy = y.in(),
                               .x = x.in(),
                               .mean = mean.in(),
                               .inv_std = inv_std.in(),
                               .dx = dx.out(),
                               .dweight = dweight.out(),
                               .dbias = dbias.out()};
        if (affine) args.weight = grad.weight = weight.in(), args.bias = bias.in();
        const std::string what = cat(dtype, " ", shape, " ", affine);
        check_parity(compare_with_host(args, {&x, &weight, &bias, &y, &mean, &inv_std}, 8, 8), what);
        y.fill_random(4, -1, 1);
        check_parity(compare_with_host(grad, {&y, &x, &weight, &mean, &inv_std, &dx, &dweight, &dbias}, 8, 16),
                     what + " grad");
      }
}

TEST_CASE("CUDA parity: resample2d", "[cuda][parity][resample]") {
  NEEDS_CUDA
  struct Problem {
    Shape source, result;
    ResampleKind kind;
    std::array<double, 2> step{};
    bool align_corners = false;
  };
  using enum ResampleKind;
  for (const Problem& p : std::vector<Problem>{
           {{2, 2, 5, 7}, {2, 2, 3, 7}, average},
           {{1, 2, 4, 3}, {1, 2, 9, 1}, average},
           {{1, 1, 40, 33}, {1, 1, 7, 6}, average},
           {{0, 2, 4, 4}, {0, 2, 2, 2}, average},
           {{2, 1, 3, 4}, {2, 1, 6, 8}, nearest, {0.5, 0.5}},
           {{1, 2, 6, 50}, {1, 2, 2, 90}, nearest, {3, 5.0 / 9}},
           {{1, 1, 4, 4}, {1, 1, 10, 10}, nearest, {0.4, 0.3}},
           {{1, 2, 6, 5}, {1, 2, 40, 30}, bilinear, {6.0 / 40, 5.0 / 30}},
           {{1, 2, 6, 5}, {1, 2, 3, 9}, bilinear, {2.5, 0.5}, true},
           {{1, 1, 1, 5}, {1, 1, 4, 1}, bilinear, {0, 0}, true},
           {{1, 1, 30, 31}, {1, 1, 4, 5}, bilinear, {7.5, 6.2}},
       })
    for (const DType dtype : kFloatingDTypes) {
      TestTensor x(dtype, p.source), y(dtype, p.result);
      x.fill_random(1);
      const std::string what = cat(dtype, " ", p.source, " ", p.result);
      check_parity(
          compare_with_host(Resample2dArgs{x.in(), y.out(), p.kind, p.step, p.align_corners, false}, {&x, &y}, 4, 4),
          what);
      y.fill_random(2);
      check_parity(
          compare_with_host(Resample2dArgs{y.in(), x.out(), p.kind, p.step, p.align_corners, true}, {&y, &x}, 8, 8),
          what + " adjoint");
    }
}

TEST_CASE("CUDA parity: cross_entropy", "[cuda][parity][cross_entropy]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{70, 10, 1}, Shape{3, 2000, 1}, Shape{2, 33, 40}, Shape{0, 5, 1}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool weighted : {false, true})
        for (const double smoothing : {0.0, 0.25}) {
          const Shape lines{shape[0], shape[2]};
          TestTensor x(dtype, shape), targets(DType::i64, lines), weight(dtype, {shape[1]}), dx(dtype, shape);
          TestTensor loss(wide(dtype), lines), own(wide(dtype), lines), log_sum(wide(dtype), {2, shape[0], shape[2]});
          x.fill_random(1, -8, 8), weight.fill_random(2, 0.5, 1.5);
          targets.fill([&](std::int64_t i) { return i % 4 == 2 ? -100.0 : static_cast<double>(i * 7 % shape[1]); });
          CrossEntropyArgs args{.x = x.in(),
                                .targets = targets.in(),
                                .loss = loss.out(),
                                .target_weight = own.out(),
                                .log_sum = log_sum.out(),
                                .ignore_index = -100,
                                .label_smoothing = smoothing};
          CrossEntropyGradArgs grad{.dloss = loss.in(),
                                    .x = x.in(),
                                    .targets = targets.in(),
                                    .target_weight = own.in(),
                                    .log_sum = log_sum.in(),
                                    .dx = dx.out(),
                                    .ignore_index = -100,
                                    .label_smoothing = smoothing};
          if (weighted) args.weight = grad.weight = weight.in();
          const std::string what = cat(dtype, " ", shape, " ", weighted, " ", smoothing);
          check_parity(compare_with_host(args, {&x, &targets, &weight, &loss, &own, &log_sum}, 16, 16), what);
          check_parity(compare_with_host(grad, {&loss, &x, &targets, &weight, &own, &log_sum, &dx}, 16, 32),
                       what + " grad");
        }
}

TEST_CASE("CUDA parity: cumsum", "[cuda][parity][cumsum]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{1, 1, 1}, Shape{70, 10, 1}, Shape{1, 100000, 1}, Shape{3, 3000, 1}, Shape{2, 33, 40},
                             Shape{1, 20000, 2}, Shape{0, 3, 1}, Shape{2, 0, 2}})
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64})
      for (const bool reverse : {false, true}) {
        TestTensor x(dtype, shape), y(dtype, shape);
        x.fill_random(1, -1, 1);
        check_parity(
            compare_with_host(CumsumArgs{x.in(), y.out(), reverse}, {&x, &y}, 2, dtype == DType::f64 ? 500 : 1),
            cat(dtype, " ", shape, " ", reverse));
      }
}

TEST_CASE("CUDA parity: argsort", "[cuda][parity][argsort]") {
  NEEDS_CUDA
  for (const auto& [shape, wanted] :
       {std::pair{Shape{1, 1, 1}, 1}, std::pair{Shape{30, 40, 1}, 40}, std::pair{Shape{2, 33, 3}, 4},
        std::pair{Shape{1, 5000, 1}, 5000}, std::pair{Shape{2, 1100, 2}, 7}, std::pair{Shape{0, 3, 1}, 2}})
    for (const DType dtype : kAllDTypes)
      for (const bool descending : {false, true}) {
        TestTensor x(dtype, shape), indices(DType::i64, {shape[0], wanted, shape[2]});
        x.fill_random(1, -50, 50);
        for (std::int64_t i = 0; i < x.count(); i += 3) x.set(i, std::floor(std::fabs(x[i])));
        if (is_floating(dtype) && x.count() > 9) x.set(9, std::numeric_limits<double>::quiet_NaN());
        check_parity(compare_with_host(ArgsortArgs{x.in(), indices.out(), descending}, {&x, &indices}),
                     cat(dtype, " ", shape, " ", descending));
      }
}
