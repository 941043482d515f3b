// Rows that are picked by an index in packs of 16 bytes, beside those that are not.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("rows are picked in packs where they consist of packs", "[index][rows]") {
  for (const DType dtype : kAllDTypes)
    for (const std::int64_t size : {1, 4, 16, 48, 50, 512, 2096})
      for (const Layout layout : {Layout::contiguous, Layout::slice, Layout::transposed}) {
        TestTensor table(dtype, {13, 1, size}, layout), index(DType::i64, {70}, layout), picked(dtype, {70, 1, size});
        table.fill([](std::int64_t n) { return static_cast<double>((n * 7 + n / 11) % 101); });
        index.fill([](std::int64_t n) { return static_cast<double>((n * 5 + 2) % 13); });
        run(IndexSelectArgs{.in = table.in(), .index = index.in(), .out = picked.out(), .dim = 0});
        CAPTURE(to_string(dtype), size, name_of(layout));
        CHECK(mismatch(
                  picked, [&](std::int64_t i) { return table[(i / size * 5 + 2) % 13 * size + i % size]; }, 0, 0) ==
              "");
        CHECK(picked.guards_intact());
      }
}

// Part of wider rows, by every third index.
TEST_CASE("rows are picked in packs from rows with gaps", "[index][rows]") {
  for (const DType dtype : kAllDTypes) {
    TestTensor table(dtype, {13, 96}), index(DType::i64, {210}), picked(dtype, {70, 128});
    table.fill([](std::int64_t n) { return static_cast<double>((n * 7 + n / 11) % 101); });
    index.fill([](std::int64_t n) { return static_cast<double>((n * 5 + 2) % 13); });
    picked.fill([](std::int64_t) { return 1.0; });
    View in = table.view(), every_third = index.view(), out = picked.view();
    in.shape[1] = out.shape[1] = 64;
    every_third.shape[0] = 70, every_third.strides[0] = 3;
    run(IndexSelectArgs{.in = {in}, .index = {every_third}, .out = {out}, .dim = 0});
    CAPTURE(to_string(dtype));
    CHECK(mismatch(
              picked,
              [&](std::int64_t i) { return i % 128 < 64 ? table[(i / 128 * 15 + 2) % 13 * 96 + i % 128] : 1.0; }, 0,
              0) == "");
  }
}

TEST_CASE("a row with a bad index is zeros, and reported", "[index][rows]") {
  TestTensor table(DType::bf16, {5, 64}), index(DType::i64, {3}), picked(DType::bf16, {3, 64});
  table.fill([](std::int64_t) { return 7.0; });
  picked.fill([](std::int64_t) { return 3.0; });
  for (const std::int64_t bad : {std::int64_t{5}, std::int64_t{-1}}) {
    index.fill([&](std::int64_t n) { return static_cast<double>(n == 1 ? bad : n); });
    CHECK_THROWS_AS(run(IndexSelectArgs{.in = table.in(), .index = index.in(), .out = picked.out(), .dim = 0}),
                    InvalidArgument);
    for (std::int64_t i = 0; i < picked.count(); ++i) REQUIRE(picked[i] == (i / 64 == 1 ? 0 : 7));
  }
}
