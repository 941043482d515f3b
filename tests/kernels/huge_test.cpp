// Views whose elements lie more than 2^31 elements apart, in memory that is reserved and hardly touched.
#include <sys/mman.h>

#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

constexpr std::int64_t kGap = (std::int64_t{1} << 31) + 5;  // from row to row

class Huge {  // [2, 3] of f32 or i64
 public:
  explicit Huge(DType dtype) : dtype_(dtype) {
    data_ = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
  }
  Huge(const Huge&) = delete;
  ~Huge() { munmap(data_, bytes()); }

  View view() const { return {data_, {2, 3}, {kGap, 1}, dtype_, test_device(), true}; }
  In in() const { return {view()}; }
  Out out() const { return {view()}; }
  InOut inout() const { return {view()}; }
  Huge& fill(const TestTensor& from) {
    run(CastArgs{from.in(), out()});
    return *this;
  }
  std::vector<double> values() const {
    TestTensor small(dtype_, {2, 3});
    run(CastArgs{in(), small.out()});
    return small.values();
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(kGap + 3) * size_of(dtype_); }
  DType dtype_;
  void* data_;
};

using Doubles = std::vector<double>;

TestTensor numbers(DType dtype, const Shape& shape, const Doubles& values) {
  TestTensor t(dtype, shape);
  return t.fill([&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; });
}

}  // namespace

TEST_CASE("kernels reach elements beyond 2^31", "[huge]") {
  const TestTensor small = numbers(DType::f32, {2, 3}, {1, -2, 3, -4, 5, -6});
  Huge x(DType::f32), y(DType::f32);
  x.fill(small);
  CHECK(*static_cast<const float*>(x.view().data) == 1);
  CHECK(static_cast<const float*>(x.view().data)[kGap + 2] == -6);
  CHECK(x.values() == Doubles{1, -2, 3, -4, 5, -6});

  run(UnaryArgs{.op = UnaryOp::neg, .in = x.in(), .out = y.out()});
  CHECK(y.values() == Doubles{-1, 2, -3, 4, -5, 6});
  run(BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = y.in(), .out = y.out()});
  CHECK(y.values() == Doubles{-1, -4, -9, -16, -25, -36});
  TestTensor flags = numbers(DType::boolean, {2, 3}, {1, 0, 1, 0, 1, 0});
  run(WhereArgs{flags.in(), x.in(), y.in(), y.out()});
  CHECK(y.values() == Doubles{1, -4, 3, -16, 5, -36});

  TestTensor columns(DType::f32, {1, 3}), rows(DType::f32, {2, 1}), where(DType::i64, {1, 3});
  run(ReduceArgs{ReduceOp::sum, x.in(), columns.out()});
  CHECK(columns.values() == Doubles{-3, 3, -3});
  run(ReduceArgs{ReduceOp::max, x.in(), rows.out()});
  CHECK(rows.values() == Doubles{3, 5});
  run(ArgReduceArgs{ArgReduceOp::max, 0, x.in(), where.out()});
  CHECK(where.values() == Doubles{0, 1, 0});

  TestTensor index = numbers(DType::i64, {2, 3}, {1, 0, 1, 0, 1, 1}), picked(DType::f32, {2, 3});
  run(GatherArgs{x.in(), index.in(), picked.out(), 0});
  CHECK(picked.values() == Doubles{-4, -2, -6, 1, 5, -6});
  run(FillArgs{y.out(), 10});
  run(ScatterAddArgs{small.in(), index.in(), y.inout(), 0});
  CHECK(y.values() == Doubles{6, 8, 10, 11, 15, 7});
  TestTensor lines = numbers(DType::i64, {2}, {1, 1});
  run(IndexSelectArgs{x.in(), lines.in(), picked.out(), 0});
  CHECK(picked.values() == Doubles{-4, 5, -6, -4, 5, -6});
  run(IndexAddArgs{small.in(), lines.in(), x.inout(), 0});
  CHECK(x.values() == Doubles{1, -2, 3, -7, 8, -9});

  // Transposed: the large step is the inner one.
  const auto turned = [](const Huge& t) {
    View v = t.view();
    v.shape = {3, 2}, v.strides = {1, kGap};
    return v;
  };
  TestTensor plain(DType::f32, {3, 2});
  run(UnaryArgs{.op = UnaryOp::abs, .in = In{turned(x)}, .out = plain.out()});
  CHECK(plain.values() == Doubles{1, 7, 2, 8, 3, 9});
  run(CastArgs{plain.in(), Out{turned(y)}});
  CHECK(y.values() == Doubles{1, 2, 3, 7, 8, 9});
  Huge whole(DType::i64);
  run(CastArgs{y.in(), whole.out()});
  CHECK(whole.values() == Doubles{1, 2, 3, 7, 8, 9});
}
