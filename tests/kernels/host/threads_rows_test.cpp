// Norms, softmax, losses and cells divided among threads: the same bytes for any number of them, and right values in
// every piece.
#include "support/catch.h"
#include "support/threads.h"

using namespace lockstep;
using namespace support;

namespace {

constexpr DType kRowThreadDTypes[] = {DType::f32, DType::f64, DType::bf16};
std::size_t row_place(std::int64_t i) { return static_cast<std::size_t>(i); }

// The mean of f(i) over the positions of a tensor that key(i) sends to each of `count` groups.
template <class Key, class F>
std::vector<double> means_by(std::int64_t count, std::int64_t positions, Key&& key, F&& f) {
  std::vector<long double> sums(row_place(count));  // more digits than the kernels have in f64
  for (std::int64_t i = 0; i < positions; ++i) sums[row_place(key(i))] += f(i);
  std::vector<double> means;
  for (const long double sum : sums) means.push_back(static_cast<double>(sum * count / positions));
  return means;
}

}  // namespace

TEST_CASE("batch_norm with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  // A few channels at a time; too few for that; rows of channels.
  for (const Shape& shape : {Shape{7, 33, 601}, Shape{7, 5, 2401}, Shape{1501, 129, 1}})
    for (const DType dtype : kRowThreadDTypes) {
      INFO(cat(dtype, shape));
      const std::int64_t channels = shape[1], length = shape[2], n = shape[0] * length;
      const Shape parameters{channels};
      TestTensor x(dtype, shape), weight(dtype, parameters), bias(dtype, parameters), kept_mean(dtype, parameters),
          kept_var(dtype, parameters), y(dtype, shape), mean(wide(dtype), parameters), inv_std(wide(dtype), parameters);
      x.fill_random(1, 0, 4), weight.fill_random(2), bias.fill_random(3), kept_mean.fill_random(4),
          kept_var.fill_random(5, 0, 1);
      BatchNormArgs args{.x = x.in(),
                         .weight = weight.in(),
                         .bias = bias.in(),
                         .running_mean = kept_mean.inout(),
                         .running_var = kept_var.inout(),
                         .y = y.out(),
                         .mean = mean.out(),
                         .inv_std = inv_std.out(),
                         .training = true,
                         .momentum = 0.1,
                         .eps = 1e-3};
      CHECK(differs_with_threads(args, {&y, &mean, &inv_std, &kept_mean, &kept_var}) == "");
      const auto channel = [&](std::int64_t i) { return i / length % channels; };
      const auto means = means_by(channels, x.count(), channel, [&](std::int64_t i) { return x[i]; });
      const auto variances = means_by(channels, x.count(), channel, [&](std::int64_t i) {
        return (x[i] - means[row_place(channel(i))]) * (x[i] - means[row_place(channel(i))]);
      });
      const auto normal = [&](std::int64_t i) {
        const std::size_t c = row_place(channel(i));
        return (x[i] - means[c]) / std::sqrt(variances[c] + 1e-3);
      };
      CHECK(mismatch(
                mean, [&](std::int64_t c) { return means[row_place(c)]; }, 4, 4) == "");
      CHECK(mismatch(
                y, [&](std::int64_t i) { return normal(i) * weight[channel(i)] + bias[channel(i)]; }, 4, 32) == "");
      TestTensor dy(dtype, shape), dx(dtype, shape), dweight(dtype, parameters), dbias(dtype, parameters);
      dy.fill_random(6, -1, 2);
      BatchNormGradArgs grad{.dy = dy.in(),
                             .x = x.in(),
                             .weight = weight.in(),
                             .mean = mean.in(),
                             .inv_std = inv_std.in(),
                             .dx = dx.out(),
                             .dweight = dweight.out(),
                             .dbias = dbias.out()};
      CHECK(differs_with_threads(grad, {&dx, &dweight, &dbias}) == "");
      const auto of_dy = means_by(channels, x.count(), channel, [&](std::int64_t i) { return dy[i]; });
      const auto products = means_by(channels, x.count(), channel, [&](std::int64_t i) { return dy[i] * normal(i); });
      const auto count = static_cast<double>(n);
      CHECK(mismatch(
                dbias, [&](std::int64_t c) { return of_dy[row_place(c)] * count; }, 4, 4) == "");
      CHECK(mismatch(
                dweight, [&](std::int64_t c) { return products[row_place(c)] * count; }, 16, 8192) == "");
      const auto want = [&](std::int64_t i) {
        const std::size_t c = row_place(channel(i));
        return weight[channel(i)] / std::sqrt(variances[c] + 1e-3) * (dy[i] - of_dy[c] - normal(i) * products[c]);
      };
      CHECK(mismatch(dx, want, 8, 32) == "");
      args.relu = grad.relu = true, grad.bias = bias.in();
      CHECK(differs_with_threads(args, {&y, &mean, &inv_std, &kept_mean, &kept_var}) == "");
      CHECK(differs_with_threads(grad, {&dx, &dweight, &dbias}) == "");
    }
}

TEST_CASE("group_norm with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  // Rows alone; groups of images; groups of few images.
  for (const Shape& shape : {Shape{1501, 1, 129, 1}, Shape{333, 2, 3, 101}, Shape{2, 15, 3, 1501}})
    for (const DType dtype : kRowThreadDTypes)
      for (const bool affine : {true, false}) {
        if (!chosen(turn)) continue;
        INFO(cat(dtype, shape, affine));
        const std::int64_t groups = shape[1], length = shape[3], row = shape[2] * length, channels = groups * shape[2];
        const Shape parameters{channels}, rows{shape[0], groups};
        TestTensor x(dtype, shape), weight(dtype, parameters), bias(dtype, parameters), y(dtype, shape),
            mean(wide(dtype), rows), inv_std(wide(dtype), rows), dy(dtype, shape), dx(dtype, shape),
            dweight(dtype, parameters), dbias(dtype, parameters);
        x.fill_random(1, 0, 4), weight.fill_random(2, 0.5, 1.5), bias.fill_random(3), dy.fill_random(4, -1, 2);
        GroupNormArgs args{.x = x.in(), .y = y.out(), .mean = mean.out(), .inv_std = inv_std.out(), .eps = 1e-3};
        GroupNormGradArgs grad{.dy = dy.in(),
                               .x = x.in(),
                               .mean = mean.in(),
                               .inv_std = inv_std.in(),
                               .dx = dx.out(),
                               .dweight = dweight.out(),
                               .dbias = dbias.out()};
        if (affine) args.weight = grad.weight = weight.in(), args.bias = bias.in();
        CHECK(differs_with_threads(args, {&y, &mean, &inv_std}) == "");
        CHECK(differs_with_threads(grad, {&dx, &dweight, &dbias}) == "");
        const std::int64_t all_rows = shape[0] * groups;
        const auto row_of = [&](std::int64_t i) { return i / row; };
        const auto channel = [&](std::int64_t i) { return i / length % channels; };
        const auto w = [&](std::int64_t i) { return affine ? weight[channel(i)] : 1.0; };
        const auto means = means_by(all_rows, x.count(), row_of, [&](std::int64_t i) { return x[i]; });
        const auto variances = means_by(all_rows, x.count(), row_of, [&](std::int64_t i) {
          return (x[i] - means[row_place(row_of(i))]) * (x[i] - means[row_place(row_of(i))]);
        });
        const auto inverse = [&](std::int64_t i) { return 1 / std::sqrt(variances[row_place(row_of(i))] + 1e-3); };
        const auto normal = [&](std::int64_t i) { return (x[i] - means[row_place(row_of(i))]) * inverse(i); };
        CHECK(mismatch(
                  y, [&](std::int64_t i) { return normal(i) * w(i) + (affine ? bias[channel(i)] : 0.0); }, 4, 32) ==
              "");
        const auto of_g = means_by(all_rows, x.count(), row_of, [&](std::int64_t i) { return dy[i] * w(i); });
        const auto products =
            means_by(all_rows, x.count(), row_of, [&](std::int64_t i) { return dy[i] * w(i) * normal(i); });
        CHECK(mismatch(
                  dx,
                  [&](std::int64_t i) {
                    return inverse(i) *
                           (dy[i] * w(i) - of_g[row_place(row_of(i))] - normal(i) * products[row_place(row_of(i))]);
                  },
                  8, 32) == "");
        const double count = static_cast<double>(x.count() / channels);
        const auto sums = means_by(channels, x.count(), channel, [&](std::int64_t i) { return dy[i]; });
        const auto slopes = means_by(channels, x.count(), channel, [&](std::int64_t i) { return dy[i] * normal(i); });
        CHECK(mismatch(
                  dbias, [&](std::int64_t c) { return sums[row_place(c)] * count; }, 16, 8192) == "");
        CHECK(mismatch(
                  dweight, [&](std::int64_t c) { return slopes[row_place(c)] * count; }, 16, 8192) == "");
      }
}

TEST_CASE("rms_norm with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  const Shape shape{1501, 129};
  const std::int64_t size = shape[1];
  for (const DType dtype : kRowThreadDTypes) {
    INFO(to_string(dtype));
    TestTensor x(dtype, shape), weight(dtype, {size}), y(dtype, shape), inv_rms(wide(dtype), {shape[0]}),
        dy(dtype, shape), dx(dtype, shape), dweight(dtype, {size});
    x.fill_random(1, 0, 4), weight.fill_random(2, 0.5, 1.5), dy.fill_random(3, -1, 2);
    CHECK(differs_with_threads(RmsNormArgs{x.in(), weight.in(), y.out(), inv_rms.out(), 1e-3}, {&y, &inv_rms}) == "");
    CHECK(differs_with_threads(RmsNormGradArgs{dy.in(), x.in(), weight.in(), inv_rms.in(), dx.out(), dweight.out()},
                               {&dx, &dweight}) == "");
    const auto row_of = [&](std::int64_t i) { return i / size; };
    const auto squares = means_by(shape[0], x.count(), row_of, [&](std::int64_t i) { return x[i] * x[i]; });
    const auto inverse = [&](std::int64_t i) { return 1 / std::sqrt(squares[row_place(row_of(i))] + 1e-3); };
    CHECK(mismatch(
              y, [&](std::int64_t i) { return x[i] * inverse(i) * weight[i % size]; }, 4, 8) == "");
    const auto products = means_by(shape[0], x.count(), row_of,
                                   [&](std::int64_t i) { return dy[i] * weight[i % size] * x[i] * inverse(i); });
    CHECK(mismatch(
              dx,
              [&](std::int64_t i) {
                return inverse(i) * (dy[i] * weight[i % size] - x[i] * inverse(i) * products[row_place(row_of(i))]);
              },
              8, 32) == "");
    const auto slopes = means_by(
        size, x.count(), [&](std::int64_t i) { return i % size; },
        [&](std::int64_t i) { return dy[i] * x[i] * inverse(i); });
    CHECK(mismatch(
              dweight, [&](std::int64_t c) { return slopes[row_place(c)] * static_cast<double>(shape[0]); }, 16,
              1024) == "");
  }
}

TEST_CASE("softmax and cross_entropy with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  // Rows, short rows, columns of few and of many.
  for (const Shape& shape : {Shape{1501, 130, 1}, Shape{5003, 27, 1}, Shape{3, 34, 2503}, Shape{140, 7, 501}})
    for (const DType dtype : kRowThreadDTypes) {
      if (!chosen(turn)) continue;
      const std::int64_t size = shape[1], inner = shape[2], lines = shape[0] * inner;
      const auto line = [&](std::int64_t i) { return i / (size * inner) * inner + i % inner; };
      TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape);
      x.fill_random(1), dy.fill_random(2, -1, 2);
      const auto sums =
          means_by(lines, x.count(), line, [&](std::int64_t i) { return std::exp(x[i]) * static_cast<double>(size); });
      for (const bool log : {false, true}) {
        INFO(cat(dtype, shape, log));
        CHECK(differs_with_threads(SoftmaxArgs{x.in(), y.out(), log}, {&y}) == "");
        const auto want = [&](std::int64_t i) {
          const double logarithm = x[i] - std::log(sums[row_place(line(i))]);
          return log ? logarithm : std::exp(logarithm);
        };
        CHECK(mismatch(y, want, 32) == "");
        CHECK(differs_with_threads(SoftmaxGradArgs{dy.in(), y.in(), dx.out(), log}, {&dx}) == "");
        const auto totals = means_by(lines, x.count(), line, [&](std::int64_t i) {
          return (log ? dy[i] : dy[i] * y[i]) * static_cast<double>(size);
        });
        const auto want_dx = [&](std::int64_t i) {
          const double total = totals[row_place(line(i))];
          return log ? dy[i] - std::exp(y[i]) * total : y[i] * (dy[i] - total);
        };
        CHECK(mismatch(dx, want_dx, 8, 32) == "");
      }
      INFO(cat(dtype, shape));
      const Shape targets{shape[0], inner};
      TestTensor target(DType::i64, targets), weight(dtype, {size}), loss(wide(dtype), targets),
          own(wide(dtype), targets), log_sum(wide(dtype), {2, shape[0], inner});
      for (std::int64_t i = 0; i < target.count(); ++i) target.set_integer(i, i % 11 == 3 ? -100 : i * 7 % size);
      weight.fill_random(3, 0.5, 1.5);
      const CrossEntropyArgs args{x.in(), target.in(), weight.in(), loss.out(), own.out(), log_sum.out(), -100, 0.25};
      CHECK(differs_with_threads(args, {&loss, &own, &log_sum}) == "");
      double weights = 0;
      for (std::int64_t c = 0; c < size; ++c) weights += weight[c];
      const auto distances = means_by(lines, x.count(), line, [&](std::int64_t i) {
        return weight[i / inner % size] * (std::log(sums[row_place(line(i))]) - x[i]);
      });
      const auto want = [&](std::int64_t i) {
        const std::int64_t t = target.integer(i);
        if (t < 0) return 0.0;
        const double distance = std::log(sums[row_place(i)]) - x[(i / inner * size + t) * inner + i % inner];
        return 0.75 * weight[t] * distance + 0.25 * distances[row_place(i)];
      };
      CHECK(mismatch(loss, want, 16, 16) == "");
      TestTensor dloss(wide(dtype), targets);
      dloss.fill_random(4);
      const CrossEntropyGradArgs grad{.dloss = dloss.in(),
                                      .x = x.in(),
                                      .targets = target.in(),
                                      .weight = weight.in(),
                                      .target_weight = own.in(),
                                      .log_sum = log_sum.in(),
                                      .dx = dx.out(),
                                      .ignore_index = -100,
                                      .label_smoothing = 0.25};
      CHECK(differs_with_threads(grad, {&dx}) == "");
      const auto want_dx = [&](std::int64_t i) {
        const std::int64_t at = line(i), c = i / inner % size, t = target.integer(at);
        if (t < 0) return 0.0;
        const double p = std::exp(x[i]) / sums[row_place(at)], share = 0.25 / static_cast<double>(size);
        return dloss[at] * (0.75 * weight[t] * (p - (c == t ? 1 : 0)) + share * (weights * p - weight[c]));
      };
      CHECK(mismatch(dx, want_dx, 16, 16) == "");
    }
}

TEST_CASE("cells with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  constexpr std::int64_t kRows = 301, kSize = 129, kPeriod = 7;
  // Rows repeat: so must the results.
  const auto fill = [](TestTensor& t, std::uint64_t seed) {
    const std::int64_t size = t.shape()[1];
    TestTensor few(t.dtype(), {kPeriod, size});
    few.fill_random(seed);
    t.fill([&](std::int64_t i) { return few[i % (kPeriod * size)]; });
  };
  const auto repeats = [](const TestTensor& t) {
    const std::int64_t period = kPeriod * t.shape()[1];
    return mismatch(
        t, [&](std::int64_t i) { return t[i % period]; }, 0);
  };
  for (const DType dtype : kRowThreadDTypes) {
    INFO(to_string(dtype));
    const Shape state{kRows, kSize}, four{kRows, 4 * kSize}, three{kRows, 3 * kSize};
    TestTensor gates(dtype, four), before(dtype, state), activated(dtype, four), h(dtype, state), c(dtype, state),
        dh(dtype, state), dgates(dtype, four), dbefore(dtype, state);
    fill(gates, 1), fill(before, 2), fill(dh, 3);
    for (const bool kept : {false, true}) {
      const LstmCellArgs args{gates.in(), before.in(), kept ? activated.out() : Out{}, h.out(), c.out()};
      CHECK(differs_with_threads(args, {&activated, &h, &c}) == "");
    }
    for (const TestTensor* t : {&activated, &h, &c}) CHECK(repeats(*t) == "");
    for (const bool wanted : {false, true}) {
      const LstmCellGradArgs args{.dh = dh.in(),
                                  .dc = {},
                                  .activated = activated.in(),
                                  .c_before = before.in(),
                                  .c = c.in(),
                                  .dgates = dgates.out(),
                                  .dc_before = wanted ? dbefore.out() : Out{}};
      CHECK(differs_with_threads(args, {&dgates, &dbefore}) == "");
    }
    for (const TestTensor* t : {&dgates, &dbefore}) CHECK(repeats(*t) == "");
    TestTensor input(dtype, three), hidden(dtype, three), of_gru(dtype, three), dinput(dtype, three),
        dhidden(dtype, three);
    fill(input, 4), fill(hidden, 5);
    for (const bool kept : {false, true}) {
      const GruCellArgs args{input.in(), hidden.in(), before.in(), kept ? of_gru.out() : Out{}, h.out()};
      CHECK(differs_with_threads(args, {&of_gru, &h}) == "");
    }
    for (const TestTensor* t : {&of_gru, &h}) CHECK(repeats(*t) == "");
    for (const bool wanted : {false, true}) {
      const GruCellGradArgs args{.dh = dh.in(),
                                 .activated = of_gru.in(),
                                 .hidden = hidden.in(),
                                 .h_before = before.in(),
                                 .dinput = dinput.out(),
                                 .dhidden = dhidden.out(),
                                 .dh_before = wanted ? dbefore.out() : Out{}};
      CHECK(differs_with_threads(args, {&dinput, &dhidden, &dbefore}) == "");
    }
    for (const TestTensor* t : {&dinput, &dhidden, &dbefore}) CHECK(repeats(*t) == "");
  }
}
