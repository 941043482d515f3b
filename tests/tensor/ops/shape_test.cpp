// Views, copies, joining, splitting and indexing: which elements end up where, and what shares memory.
#include <numeric>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::device_at;

namespace {
using Ints = std::vector<int>;
Ints ints(const Tensor& x) { return x.to_vector<int>(); }
// 0, 1, 2, … in row-major order.
Tensor numbered(const Shape& shape) { return arange(element_count(shape)).reshape(shape); }
bool shares(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }
}  // namespace

TEST_CASE("reshape is a view wherever strides allow it") {
  const Tensor x = numbered({2, 3, 4});
  CHECK(shares(x.reshape({6, 4}), x));
  CHECK(x.reshape({4, -1}).shape() == Shape{4, 6});
  CHECK(x.reshape({-1}).shape() == Shape{24});
  CHECK(x.reshape({2, 3, 4}).identity() == x.identity());
  CHECK(ints(x.reshape({3, 8})[1]) == Ints{8, 9, 10, 11, 12, 13, 14, 15});
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
  CHECK(ints(x.t()) == Ints{0, 3, 1, 4, 2, 5});
  CHECK(ints(x.transpose(-1, 0)) == ints(x.t()));
  CHECK(ints(numbered({2, 2, 2}).permute({2, 0, 1})) == Ints{0, 2, 4, 6, 1, 3, 5, 7});
  CHECK(ints(x.narrow(1, 1, 2)) == Ints{1, 2, 4, 5});
  CHECK(ints(x.select(1, -1)) == Ints{2, 5});
  CHECK(ints(x[1]) == Ints{3, 4, 5});
  CHECK(x[1][2].item<int>() == 5);
  CHECK(ints(x.t()[1].narrow(0, 1, 1)) == Ints{4});
  CHECK(x.flatten().shape() == Shape{6});
  CHECK(numbered({2, 3, 4}).flatten(1).shape() == Shape{2, 12});
  CHECK(numbered({2, 3, 4}).flatten(0, 1).shape() == Shape{6, 4});
  CHECK(numbered({}).flatten().shape() == Shape{1});
  CHECK(ints(numbered({3}).expand({2, -1})) == Ints{0, 1, 2, 0, 1, 2});
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

TEST_CASE("copies") {
  const Tensor x = numbered({2, 3});
  CHECK(x.contiguous().identity() == x.identity());
  CHECK(x.t().contiguous().contiguous_layout());
  CHECK(ints(x.t().contiguous()) == ints(x.t()));
  CHECK_FALSE(shares(x.clone(), x));
  CHECK(ints(x.t().clone()) == ints(x.t()));
  CHECK(x.to(DType::i64).identity() == x.identity());
  CHECK(x.to(Device::cpu()).identity() == x.identity());
  CHECK(from_data({1.9, -1.9, 0.0}, {3}).to(DType::i32).to_vector<int>() == Ints{1, -1, 0});
  CHECK(from_data({1.9, -1.9, 0.0}, {3}).to(DType::boolean).to_vector<int>() == Ints{1, 1, 0});
  const Tensor there = x.t().to(device_at(3));
  CHECK(there.device() == device_at(3));
  CHECK(ints(there) == ints(x.t()));
  CHECK(ints(there.to(device_at(5)).t()) == ints(x));
  CHECK(zeros({0}).to(device_at(0)).shape() == Shape{0});
}

TEST_CASE("joining") {
  const Tensor x = numbered({2, 2});
  CHECK(ints(cat({x, x * 10})) == Ints{0, 1, 2, 3, 0, 10, 20, 30});
  CHECK(ints(cat({x, x.t() * 10, x.narrow(1, 0, 0)}, -1)) == Ints{0, 1, 0, 20, 2, 3, 10, 30});
  CHECK(ints(cat(std::vector<Tensor>{x})) == ints(x));
  CHECK(cat(std::vector<Tensor>{x, x}, 1).shape() == Shape{2, 4});
  CHECK(cat({zeros({0}), zeros({0})}).shape() == Shape{0});
  CHECK(ints(stack({x, x * 10}, 2)) == Ints{0, 0, 1, 10, 2, 20, 3, 30});
  CHECK(stack({x, x}, -1).shape() == Shape{2, 2, 2});
  CHECK(stack(std::vector<Tensor>{tensor(1), tensor(2)}).shape() == Shape{2});
  CHECK(ints(pad(x, 1, 1, 2)) == Ints{0, 0, 1, 0, 0, 0, 2, 3, 0, 0});
}

TEST_CASE("splitting") {
  const Tensor x = numbered({7, 2});
  const auto shapes = [](const std::vector<Tensor>& parts) {
    Ints sizes;
    for (const Tensor& part : parts) sizes.push_back(static_cast<int>(part.size(0)));
    return sizes;
  };
  CHECK(shapes(split(x, 3)) == Ints{3, 3, 1});
  CHECK(shapes(split(x, 9)) == Ints{7});
  CHECK(shapes(chunk(x, 3)) == Ints{3, 3, 1});
  CHECK(shapes(chunk(x, 4)) == Ints{2, 2, 2, 1});
  CHECK(shapes(chunk(x, 20)) == Ints{1, 1, 1, 1, 1, 1, 1});
  CHECK(shapes(chunk(zeros({0}), 3)) == Ints{0});
  CHECK(shapes(split_lengths(x, std::vector<std::int64_t>{0, 5, 2})) == Ints{0, 5, 2});
  CHECK(ints(split(x, 3)[2]) == Ints{12, 13});
  CHECK(shares(split(x, 3)[1], x));
  CHECK(ints(split(x, 1, 1)[1]) == Ints{1, 3, 5, 7, 9, 11, 13});
}

TEST_CASE("indexing") {
  const Tensor x = numbered({2, 3});
  const Tensor picks = from_data({2, 0, 2}, {3});
  CHECK(ints(index_select(x, 1, picks)) == Ints{2, 0, 2, 5, 3, 5});
  CHECK(ints(index_select(x.t(), 0, picks)) == Ints{2, 5, 0, 3, 2, 5});
  CHECK(ints(index_select(x, 0, from_data({1}, {1}, {.dtype = DType::u8}))) == Ints{3, 4, 5});
  CHECK(index_select(x, 0, zeros({0}, {.dtype = DType::i64})).shape() == Shape{0, 3});
  CHECK(ints(index_add(x, 1, picks, numbered({2, 3}) * 10)) == Ints{10, 1, 22, 43, 4, 85});
  CHECK(ints(gather(x, 1, from_data({2, 1, 0, 0}, {2, 2}))) == Ints{2, 1, 3, 3});
  CHECK(ints(gather(x, 0, from_data({1, 0}, {1, 2}))) == Ints{3, 1});
  CHECK(ints(scatter_add(x, 1, from_data({2, 2, 0, 1}, {2, 2}), numbered({2, 2}) * 10)) == Ints{0, 1, 12, 23, 34, 5});
  CHECK(ints(one_hot(from_data({1, 0, 2}, {3}), 3)) == Ints{0, 1, 0, 1, 0, 0, 0, 0, 1});
  CHECK(one_hot(from_data({1, 0}, {2, 1}), 4).shape() == Shape{2, 1, 4});
  CHECK(one_hot(tensor(1), 2).dtype() == DType::i64);
  CHECK(ints(flip(x, {1})) == Ints{2, 1, 0, 5, 4, 3});
  CHECK(ints(flip(x, {0, 1})) == Ints{5, 4, 3, 2, 1, 0});
  CHECK(ints(flip(x, {})) == ints(x));
  CHECK_THROWS_AS(index_select(x, 1, from_data({3}, {1})), InvalidArgument);
  CHECK_THROWS_AS(gather(x, 0, from_data({-1}, {1, 1})), InvalidArgument);
  // Where x itself may not be written, its copy is.
  CHECK(ints(x) == Ints{0, 1, 2, 3, 4, 5});
}
