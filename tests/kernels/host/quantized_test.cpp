// Products with weights of 8 and 4 bits against the sum of codes times scales in f64, and what is made of the codes.
#include "support/catch.h"
#include "support/threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct QuantizedSize {
  std::int64_t rows, columns;  // of the weight
};
// No multiple of a register, of a block, or of a group; one column; more blocks than lanes of integers are added of; of
// whole packs, and more of them than there are threads on a GPU's multiprocessor.
constexpr QuantizedSize kQuantizedSizes[] = {{1, 1},   {3, 31},   {5, 65},    {7, 129},
                                             {9, 200}, {66, 515}, {2, 33000}, {70, 512}};

struct Weight {
  TestTensor codes, scales;
  std::int64_t columns, group;

  // `group`: 0 for 8 bits.
  Weight(QuantizedSize size, std::int64_t of_group)
      : codes(of_group ? DType::u8 : DType::i8, {size.rows, of_group ? (size.columns + 1) / 2 : size.columns}),
        scales(DType::f32, {size.rows, of_group ? (size.columns + of_group - 1) / of_group : 1}),
        columns(size.columns),
        group(of_group ? of_group : size.columns) {
    const std::int64_t bytes = codes.shape()[1];
    codes.fill([&](std::int64_t i) -> double {
      const std::int64_t byte = i * 40503 % 257 % 255;
      if (!of_group) return static_cast<double>(byte - 127);
      return static_cast<double>(columns % 2 != 0 && i % bytes == bytes - 1 ? byte & 15 : byte);
    });
    // Different everywhere, and of both signs.
    scales.fill([](std::int64_t i) { return (i % 3 == 1 ? -0.001 : 0.001) * static_cast<double>(1 + i % 29); });
  }
  QuantizedView view() const { return {codes.in(), scales.in(), columns, group}; }
  double at(std::int64_t row, std::int64_t column) const {
    double code;
    if (codes.dtype() == DType::i8) {
      code = codes[row * columns + column];
    } else {
      const int byte = static_cast<int>(codes[row * codes.shape()[1] + column / 2]);
      const int half = column % 2 == 0 ? byte % 16 : byte / 16;
      code = half < 8 ? half : half - 16;
    }
    return code * scales[row * scales.shape()[1] + column / group];
  }
};

// Row i of x as the kernel rounds it to 8 bits.
std::vector<double> rounded_row(const TestTensor& x, std::int64_t i, std::int64_t columns, bool round) {
  std::vector<double> row(static_cast<std::size_t>(columns));
  float largest = 0;
  for (std::int64_t k = 0; k < columns; ++k) {
    row[static_cast<std::size_t>(k)] = x[i * columns + k];
    largest = std::max(largest, static_cast<float>(std::fabs(x[i * columns + k])));
  }
  const double scale = double{largest / 127};
  if (round && scale > 0)
    for (double& each : row) each = std::nearbyint(each * (1 / scale)) * scale;
  return row;
}

}  // namespace

TEST_CASE("quantised products of one to nine rows are the sums of codes times scales, with any number of threads",
          "[quantized][threads]") {
  if (!kernels::table(test_device().type()).entry<QuantizedMatmulArgs>()) return;  // made of other kernels
  for (const std::int64_t group : {0, 32, 64, 128})
    for (const QuantizedSize size : kQuantizedSizes) {
      const Weight weight(size, group);
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const bool round : {false, true}) {
          TestTensor x(dtype, {9, size.columns}), bias(dtype, {size.rows});
          x.fill_random(7, -1, 1), bias.fill_random(3, -1, 1);
          std::vector<double> sums, sizes;
          for (std::int64_t i = 0; i < 9; ++i) {
            const std::vector<double> row = rounded_row(x, i, size.columns, round);
            for (std::int64_t n = 0; n < size.rows; ++n) {
              double sum = 0, absolute = 0;
              for (std::int64_t k = 0; k < size.columns; ++k) {
                const double term = row[static_cast<std::size_t>(k)] * weight.at(n, k);
                sum += term, absolute += std::fabs(term);
              }
              sums.push_back(sum), sizes.push_back(absolute);
            }
          }
          for (std::int64_t rows = 1; rows <= 9; ++rows) {
            INFO(cat(dtype, " group ", group, " ", size.rows, "x", size.columns, " rows ", rows,
                     round ? " rounded" : ""));
            TestTensor some(dtype, {rows, size.columns}), out(dtype, {rows, size.rows});
            some.fill([&](std::int64_t i) { return x[i]; });
            QuantizedMatmulArgs args{
                .x = some.in(), .weight = weight.view(), .bias = {}, .out = out.out(), .round_x = round};
            const auto check = [&](auto&& want) {
              for (std::int64_t i = 0; i < out.count(); ++i) {
                const double expected = want(i), size_of_terms = sizes[static_cast<std::size_t>(i)] + 1;
                // More than eight rows of 16 bits have a weight of 16 bits.
                const double eps = rows > 8 && !round && size_of(dtype) == 2 ? epsilon(dtype) : 0x1p-21;
                REQUIRE(std::fabs(out[i] - expected) <= eps * size_of_terms + epsilon(dtype) * std::fabs(expected));
              }
              REQUIRE(out.guards_intact());
            };
            run(args);
            check([&](std::int64_t i) { return sums[static_cast<std::size_t>(i)]; });
            if (rows % 4 != 1) continue;
            args.bias = bias.in(), args.activation = Activation::relu;
            run(args);
            check(
                [&](std::int64_t i) { return std::max(sums[static_cast<std::size_t>(i)] + bias[i % size.rows], 0.0); });
          }
        }
    }
}

TEST_CASE("quantised products have the same bits for any number of threads, and for a row among others",
          "[quantized][threads]") {
  if (!test_device().is_cpu() || !kernels::table(DeviceType::cpu).entry<QuantizedMatmulArgs>()) return;
  for (const std::int64_t group : {0, 64}) {
    const Weight weight({1031, 1030}, group);
    for (const bool round : {false, true}) {
      TestTensor x(DType::f32, {8, 1030}), all(DType::f32, {8, 1031}), many(DType::f32, {20, 1031}),
          bias(DType::f32, {1031});
      x.fill_random(5, -1, 1);
      const QuantizedMatmulArgs args{
          .x = x.in(), .weight = weight.view(), .bias = {}, .out = all.out(), .round_x = round};
      CHECK(differs_with_threads(args, {&all}) == "");
      for (const std::int64_t rows : {1, 2, 3, 5}) {
        TestTensor out(DType::f32, {rows, 1031});
        QuantizedMatmulArgs fewer = args;
        fewer.x.view.shape[0] = rows, fewer.out = out.out();
        run(fewer);
        CHECK(mismatch(
                  out, [&](std::int64_t i) { return all[i]; }, 0) == "");
      }
      TestTensor tall(DType::f32, {20, 1030});
      tall.fill([&](std::int64_t i) { return x[i % x.count()]; });
      bias.fill_random(6, -1, 1);
      QuantizedMatmulArgs blocks = args;
      blocks.x = tall.in(), blocks.bias = bias.in(), blocks.out = many.out();
      CHECK(differs_with_threads(blocks, {&many}) == "");
      // Of more than one block of the weight.
      const auto want = [&](std::int64_t i) { return all[i % all.count()] + bias[i % 1031]; };
      CHECK(mismatch(many, want, 512, 512) == "");
    }
  }
}

TEST_CASE("NaN and infinity in a row of a quantised product stay in that row", "[quantized]") {
  if (!kernels::table(test_device().type()).entry<QuantizedMatmulArgs>()) return;  // made of other kernels
  const double kBad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  for (const std::int64_t group : {0, 32})
    for (const double bad : kBad)
      for (const bool round : {false, true}) {
        const Weight weight({6, 70}, group);
        TestTensor x(DType::f32, {3, 70}), out(DType::f32, {3, 6});
        x.fill_random(2, 0.5, 1).set(70 + 69, bad);
        run(QuantizedMatmulArgs{.x = x.in(), .weight = weight.view(), .bias = {}, .out = out.out(), .round_x = round});
        for (std::int64_t i = 0; i < out.count(); ++i) CHECK(std::isfinite(out[i]) == (i / 6 != 1));
      }
}

TEST_CASE("dequantised weights are codes times scales, rounded once", "[quantized]") {
  for (const std::int64_t group : {0, 32, 64, 128})
    for (const QuantizedSize size : kQuantizedSizes) {
      const Weight weight(size, group);
      for (const DType dtype : kFloatingDTypes) {
        INFO(cat(dtype, " group ", group, " ", size.rows, "x", size.columns));
        const auto want = [&](std::int64_t i) {
          return double{static_cast<float>(weight.at(i / size.columns, i % size.columns))};
        };
        for (const Layout layout : {Layout::contiguous, Layout::shifted}) {
          TestTensor out(dtype, {size.rows, size.columns}, layout);
          run(DequantizeArgs{weight.view(), out.out()});
          REQUIRE(mismatch(out, want, 0) == "");
        }
      }
    }
}

TEST_CASE("weights of fewer bits may begin at any byte", "[quantized]") {
  for (const std::int64_t group : {0, 32}) {
    const Weight weight({4, 64}, group);
    TestTensor codes(weight.codes.dtype(), weight.codes.shape(), Layout::shifted), out(DType::f32, {4, 64});
    codes.fill([&](std::int64_t i) { return weight.codes[i]; });
    run(DequantizeArgs{{codes.in(), weight.scales.in(), weight.columns, weight.group}, out.out()});
    CHECK(mismatch(
              out, [&](std::int64_t i) { return double{static_cast<float>(weight.at(i / 64, i % 64))}; }, 0) == "");
  }
}

TEST_CASE("products of quantised weights are of f32, f16 and bf16", "[quantized]") {
  const Weight weight({2, 3}, 0);
  TestTensor x(DType::f64, {1, 3}), out(DType::f64, {1, 2}), whole(DType::i32, {2, 3});
  CHECK_THROWS_AS(run(QuantizedMatmulArgs{.x = x.in(), .weight = weight.view(), .bias = {}, .out = out.out()}),
                  NotSupported);
  CHECK_THROWS_AS(run(DequantizeArgs{weight.view(), whole.out()}), NotSupported);
}
