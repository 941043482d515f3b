// Indexing.
#include "tensor/ops/support.h"

using namespace op_tests;

namespace {}  // namespace

TEST_CASE("indexing") {
  const Tensor x = numbered({2, 3});
  const Tensor picks = from_data({2, 0, 2}, {3});
  CHECK(ints(index_select(x, 1, picks)) == std::vector<int>{2, 0, 2, 5, 3, 5});
  CHECK(ints(index_select(x.t(), 0, picks)) == std::vector<int>{2, 5, 0, 3, 2, 5});
  CHECK(ints(index_select(x, 0, from_data({1}, {1}, {.dtype = DType::u8}))) == std::vector<int>{3, 4, 5});
  CHECK(index_select(x, 0, zeros({0}, {.dtype = DType::i64})).shape() == Shape{0, 3});
  CHECK(ints(index_add(x, 1, picks, numbered({2, 3}) * 10)) == std::vector<int>{10, 1, 22, 43, 4, 85});
  CHECK(ints(gather(x, 1, from_data({2, 1, 0, 0}, {2, 2}))) == std::vector<int>{2, 1, 3, 3});
  CHECK(ints(gather(x, 0, from_data({1, 0}, {1, 2}))) == std::vector<int>{3, 1});
  CHECK(ints(scatter_add(x, 1, from_data({2, 2, 0, 1}, {2, 2}), numbered({2, 2}) * 10)) ==
        std::vector<int>{0, 1, 12, 23, 34, 5});
  CHECK(ints(one_hot(from_data({1, 0, 2}, {3}), 3)) == std::vector<int>{0, 1, 0, 1, 0, 0, 0, 0, 1});
  CHECK(one_hot(from_data({1, 0}, {2, 1}), 4).shape() == Shape{2, 1, 4});
  CHECK(one_hot(tensor(1), 2).dtype() == DType::i64);
  CHECK(ints(one_hot(tensor(1), 2)) == std::vector<int>{0, 1});
  CHECK(one_hot(zeros({0}, {.dtype = DType::i64}), 2).shape() == Shape{0, 2});
  CHECK_THROWS_WITH(one_hot(from_data({0, 5, 1}, {3}), 5), Contains("expected indices in [0, 5), got 5 at position 1"));
  CHECK(ints(flip(x, {1})) == std::vector<int>{2, 1, 0, 5, 4, 3});
  CHECK(ints(flip(x, {0, 1})) == std::vector<int>{5, 4, 3, 2, 1, 0});
  CHECK(ints(flip(x, {})) == ints(x));
  CHECK_THROWS_AS(index_select(x, 1, from_data({3}, {1})), InvalidArgument);
  CHECK_THROWS_AS(gather(x, 0, from_data({-1}, {1, 1})), InvalidArgument);
  for (const double bad : {-1.0, 3.0, 0x1p62, -0x1p63}) {  // also far behind the first
    Tensor many = zeros({1500}, {.dtype = DType::i64});
    many.narrow(0, 1300, 1).fill_(bad);
    many.narrow(0, 1301, 1).fill_(-2);
    CHECK_THROWS_WITH(index_select(x, 1, many), Contains("position 1300"));
  }
  // Where x itself may not be written, its copy is.
  CHECK(ints(x) == std::vector<int>{0, 1, 2, 3, 4, 5});
}
