// Running sums, sorting and the largest.
#include <cmath>

#include "tensor/ops/support.h"

using namespace op_tests;

TEST_CASE("running sums, sorting and the largest") {
  const Tensor x = f64({3, 1, 2, -1, 5, 3}, {2, 3});
  CHECK(values(cumsum(x, 1)) == Doubles{3, 4, 6, -1, 4, 7});
  CHECK(values(cumsum(x, -2)) == Doubles{3, 1, 2, 2, 6, 5});
  CHECK(values(cumsum(x.t(), 0)) == Doubles{3, -1, 4, 4, 6, 7});
  CHECK(cumsum(from_data({1, 2}, {2}).to(DType::u8), 0).dtype() == DType::i64);
  CHECK(values(cumsum(ones({3000}, {.dtype = DType::f16}), 0))[2999] == 3000);  // 2048 + 1 is 2048 in f16
  CHECK(cumsum(f64({2}, {}), 0).item<double>() == 2);

  CHECK(values(sort(x).values) == Doubles{1, 2, 3, -1, 3, 5});
  CHECK(values(sort(x).indices) == Doubles{1, 2, 0, 0, 2, 1});
  CHECK(values(sort(x, 0, true).values) == Doubles{3, 5, 3, -1, 1, 2});
  CHECK(values(sort(x, 0, true).indices) == Doubles{0, 1, 1, 1, 0, 0});
  CHECK(values(argsort(x.t(), 0, true)) == Doubles{0, 1, 2, 2, 1, 0});
  const ValuesAndIndices special = sort(f64({kNaN, kInf, -kInf, 0, kNaN, -0.0}, {6}));
  CHECK(values(special.indices) == Doubles{2, 3, 5, 1, 0, 4});
  CHECK(std::isnan(values(special.values)[5]));
  CHECK(values(argsort(f64({0, kNaN, kInf}, {3}), 0, true)) == Doubles{1, 2, 0});
  CHECK(values(sort(f64({1, 1, 1, 0}, {4}), 0, true).indices) == Doubles{0, 1, 2, 3});
  CHECK(sort(f64({4}, {})).values.item<double>() == 4);
  CHECK(sort(zeros({2, 0})).indices.shape() == Shape{2, 0});
  CHECK(sort(x).indices.dtype() == DType::i64);

  CHECK(values(topk(x, 2).values) == Doubles{3, 2, 5, 3});
  CHECK(values(topk(x, 2).indices) == Doubles{0, 2, 1, 2});
  CHECK(values(topk(x, 1, 0, false).values) == Doubles{-1, 1, 2});
  CHECK(topk(x, 0).values.shape() == Shape{2, 0});
  const Tensor many = randn({3, 500});
  CHECK(equal(topk(many, 7).values, sort(many, 1, true).values.narrow(1, 0, 7)));

  Tensor leaf = x.clone().set_requires_grad();
  (topk(leaf, 2).values * f64({1, 2, 3, 4}, {2, 2})).sum().backward();
  CHECK(values(leaf.grad()) == Doubles{1, 0, 2, 0, 3, 4});
  CHECK_FALSE(sort(leaf).indices.requires_grad());

  CHECK_THROWS_WITH(topk(x, 4), Contains("[topk]") && Contains("[0, 3]") && Contains("got 4"));
  CHECK_THROWS_WITH(sort(x, 2), Contains("[sort]") && Contains("2"));
  CHECK_THROWS_WITH(cumsum(x, -3), Contains("[cumsum]"));
  CHECK_THROWS_WITH(argsort(Tensor()), Contains("[argsort]") && Contains("undefined"));
}
