// Joining and splitting.
#include "tensor/ops/support.h"

using namespace op_tests;

namespace {}  // namespace

TEST_CASE("joining") {
  const Tensor x = numbered({2, 2});
  CHECK(ints(cat({x, x * 10})) == std::vector<int>{0, 1, 2, 3, 0, 10, 20, 30});
  CHECK(ints(cat({x, x.t() * 10, x.narrow(1, 0, 0)}, -1)) == std::vector<int>{0, 1, 0, 20, 2, 3, 10, 30});
  CHECK(ints(cat(std::vector<Tensor>{x})) == ints(x));
  CHECK(cat(std::vector<Tensor>{x, x}, 1).shape() == Shape{2, 4});
  CHECK(cat({zeros({0}), zeros({0})}).shape() == Shape{0});
  CHECK(ints(stack({x, x * 10}, 2)) == std::vector<int>{0, 0, 1, 10, 2, 20, 3, 30});
  CHECK(stack({x, x}, -1).shape() == Shape{2, 2, 2});
  CHECK(stack(std::vector<Tensor>{tensor(1), tensor(2)}).shape() == Shape{2});
  CHECK(ints(pad(x, 1, 1, 2)) == std::vector<int>{0, 0, 1, 0, 0, 0, 2, 3, 0, 0});
  CHECK(ints(pad(x, {1, 0, 0, 1})) == std::vector<int>{0, 0, 1, 0, 2, 3, 0, 0, 0});
  CHECK(ints(pad(x.t(), {0, 1, 2, 0}, 7)) == std::vector<int>{7, 7, 7, 7, 7, 7, 0, 2, 7, 1, 3, 7});
  CHECK(ints(pad(zeros({0, 2}), {0, 1, 1, 0}, 7)) == std::vector<int>{7, 7, 7});
  CHECK(shares(pad(x, {0, 0, 0, 0}), x));
}

TEST_CASE("padding that an integer dtype does not have is refused, not cut") {
  const auto padded = [](DType dtype, double value) { return pad(zeros({2}, {.dtype = dtype}), {0, 1}, value); };
  const std::pair<DType, double> refused[] = {{DType::i64, 0.5},    {DType::u8, -1},    {DType::u8, 256},
                                              {DType::i8, 128},     {DType::i32, kNaN}, {DType::i64, 1e30},
                                              {DType::i64, 0x1p63}, {DType::i32, -kInf}};
  for (const auto& [dtype, value] : refused)
    CHECK_THROWS_WITH(padded(dtype, value),
                      "[pad] expected padding that " + to_string(dtype) + " has, got " + number_to_string(value));
  CHECK_THROWS_AS(pad(zeros({2}, {.dtype = DType::u8}), {0, 0}, -1), InvalidArgument);  // also where nothing is padded
  CHECK(ints(padded(DType::u8, 255)) == std::vector<int>{0, 0, 255});
  CHECK(ints(padded(DType::i8, -128)) == std::vector<int>{0, 0, -128});
  CHECK(padded(DType::i64, -0x1p63)[2].item<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK(padded(DType::f16, 0.5)[2].item<double>() == 0.5);
  CHECK(padded(DType::f32, -kInf)[2].item<double>() == -kInf);
  CHECK(padded(DType::boolean, 2)[2].item<bool>());
}

TEST_CASE("joining more than caches hold") {
  // Rows of whole cache lines, which are written around the caches, and others, which begin anywhere in a line.
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{8195, 1024}, {2053, 4099}}) {
    INFO(rows << " rows of " << columns);
    const Tensor x = numbered({rows, columns}), y = -x;
    const Tensor joined = cat({x, y}, 1), copied = joined.clone();
    CHECK(all(eq(joined.narrow(1, 0, columns), x)).item<bool>());
    CHECK(all(eq(joined.narrow(1, columns, columns), y)).item<bool>());
    CHECK(all(eq(joined, copied)).item<bool>());
  }
}

TEST_CASE("splitting") {
  const Tensor x = numbered({7, 2});
  const auto shapes = [](const std::vector<Tensor>& parts) {
    std::vector<int> sizes;
    for (const Tensor& part : parts) sizes.push_back(static_cast<int>(part.size(0)));
    return sizes;
  };
  CHECK(shapes(split(x, 3)) == std::vector<int>{3, 3, 1});
  CHECK(shapes(split(x, 9)) == std::vector<int>{7});
  CHECK(shapes(chunk(x, 3)) == std::vector<int>{3, 3, 1});
  CHECK(shapes(chunk(x, 4)) == std::vector<int>{2, 2, 2, 1});
  CHECK(shapes(chunk(x, 20)) == std::vector<int>{1, 1, 1, 1, 1, 1, 1});
  CHECK(shapes(chunk(zeros({0}), 3)) == std::vector<int>{0});
  CHECK(shapes(split_lengths(x, std::vector<std::int64_t>{0, 5, 2})) == std::vector<int>{0, 5, 2});
  CHECK(ints(split(x, 3)[2]) == std::vector<int>{12, 13});
  CHECK(shares(split(x, 3)[1], x));
  CHECK(ints(split(x, 1, 1)[1]) == std::vector<int>{1, 3, 5, 7, 9, 11, 13});
}
