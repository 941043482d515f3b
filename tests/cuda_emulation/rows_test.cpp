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
