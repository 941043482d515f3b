// Views and copies.
#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

namespace {}  // namespace

TEST_CASE("reshape is a view wherever strides allow it") {
  const Tensor x = numbered({2, 3, 4});
  CHECK(shares(x.reshape({6, 4}), x));
  CHECK(x.reshape({4, -1}).shape() == Shape{4, 6});
  CHECK(x.reshape({-1}).shape() == Shape{24});
  CHECK(x.reshape({2, 3, 4}).identity() == x.identity());
  CHECK(ints(x.reshape({3, 8})[1]) == std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(numbered({1}).reshape({}).shape() == Shape{});
  CHECK(numbered({}).reshape({1, 1}).shape() == Shape{1, 1});
  CHECK(zeros({0, 3}).reshape({3, 0}).shape() == Shape{3, 0});
  CHECK(zeros({0, 3}).reshape({-1, 3}).shape() == Shape{0, 3});
  CHECK_THROWS_AS(zeros({0, 3}).reshape({-1, 0}), InvalidArgument);

  // Not contiguous: merging or splitting within a run of memory is a view, anything else a copy.
  struct Case {
    Tensor from;
    Shape to;
    bool view;
  };
  const Tensor t = x.permute({1, 0, 2});  // strides 4, 12, 1
  const Case cases[] = {
      {t, {3, 2, 2, 2}, true},
      {t, {3, 1, 2, 4}, true},
      {t, {6, 4}, false},
      {t, {3, 8}, false},
      {x.narrow(1, 0, 2), {2, 8}, true},
      {x.narrow(1, 0, 2), {16}, false},
      {x.narrow(2, 1, 2), {6, 2}, true},
      {x.narrow(2, 1, 2), {12}, false},
      {x.select(2, 1), {6}, true},
      {numbered({3}).expand({2, 3}), {6}, false},
      {numbered({1}).expand({6}), {2, 3}, true},
      {numbered({3, 1}).expand({3, 4}), {3, 2, 2}, true},
      {x.permute({2, 0, 1}).narrow(0, 1, 1), {2, 3}, true},
      {x.permute({2, 0, 1}).narrow(0, 1, 1), {6, 1}, true},
  };
  for (const Case& c : cases) {
    INFO(to_string(c.from.strides()) << " of " << to_string(c.from.shape()) << " to " << to_string(c.to));
    const Tensor y = c.from.reshape(c.to);
    CHECK(y.shape() == c.to);
    CHECK(shares(y, c.from) == c.view);
    CHECK(ints(y) == ints(c.from));
  }
}

TEST_CASE("views") {
  const Tensor x = numbered({2, 3});
  CHECK(ints(x.t()) == std::vector<int>{0, 3, 1, 4, 2, 5});
  CHECK(ints(x.transpose(-1, 0)) == ints(x.t()));
  CHECK(ints(numbered({2, 2, 2}).permute({2, 0, 1})) == std::vector<int>{0, 2, 4, 6, 1, 3, 5, 7});
  CHECK(ints(x.narrow(1, 1, 2)) == std::vector<int>{1, 2, 4, 5});
  CHECK(ints(x.select(1, -1)) == std::vector<int>{2, 5});
  CHECK(ints(x[1]) == std::vector<int>{3, 4, 5});
  CHECK(x[1][2].item<int>() == 5);
  CHECK(ints(x.t()[1].narrow(0, 1, 1)) == std::vector<int>{4});
  CHECK(x.flatten().shape() == Shape{6});
  CHECK(numbered({2, 3, 4}).flatten(1).shape() == Shape{2, 12});
  CHECK(numbered({2, 3, 4}).flatten(0, 1).shape() == Shape{6, 4});
  CHECK(numbered({}).flatten().shape() == Shape{1});
  CHECK(ints(numbered({3}).expand({2, -1})) == std::vector<int>{0, 1, 2, 0, 1, 2});
  CHECK(numbered({3}).expand({0, 3}).shape() == Shape{0, 3});
  CHECK(x.unsqueeze(-1).shape() == Shape{2, 3, 1});
  CHECK(x.unsqueeze(0).shape() == Shape{1, 2, 3});
  CHECK(x.unsqueeze(1).squeeze(1).shape() == Shape{2, 3});
  CHECK(x.squeeze(0).identity() == x.identity());
  CHECK(x.narrow(0, 0, 2).identity() == x.identity());
  for (const Tensor& view :
       {x.t(), x.narrow(1, 1, 2), x.select(0, 1), x.expand({2, 2, 3}), x.unsqueeze(0), x.flatten()})
    CHECK(shares(view, x));
  CHECK_FALSE(x.t().contiguous_layout());
  CHECK(x.select(0, 1).contiguous_layout());
}

TEST_CASE("slice takes every step-th element, and leaves out what lies beyond the dimension") {
  const Tensor x = arange(7);
  using Numbers = std::vector<std::int64_t>;
  CHECK(x.slice(0, 1, 6, 2).to_vector<std::int64_t>() == Numbers{1, 3, 5});
  CHECK(x.slice(0, {}, {}, 3).to_vector<std::int64_t>() == Numbers{0, 3, 6});
  CHECK(x.slice(-1, -3).to_vector<std::int64_t>() == Numbers{4, 5, 6});
  CHECK(x.slice(0, -100, -5).to_vector<std::int64_t>() == Numbers{0, 1});
  CHECK(x.slice(0, 5, 2, 2).count() == 0);
  CHECK(x.slice(0, 100, 200, 2).count() == 0);
  CHECK(x.slice(0, 6, 7, std::numeric_limits<std::int64_t>::max()).to_vector<std::int64_t>() == Numbers{6});
  CHECK(x.slice(0, std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(), 6)
            .to_vector<std::int64_t>() == Numbers{0, 6});
  Tensor y = zeros({2, 5});
  y.slice(1, 1, {}, 2).fill_(1);
  CHECK(y.to_vector<float>() == std::vector<float>{0, 1, 0, 1, 0, 0, 1, 0, 1, 0});
  CHECK_THROWS_WITH(x.slice(0, 0, 7, 0), Contains("[slice] expected a positive step, got 0"));
  CHECK_THROWS_WITH(x.slice(0, {}, {}, -1), Contains("flip"));
  CHECK_THROWS_AS(x.slice(1, 0), InvalidArgument);
}
