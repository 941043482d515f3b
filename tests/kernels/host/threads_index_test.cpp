// Indexing and random numbers divided among threads: the same bytes for any number of them, and right values in every
// piece.
#include "support/catch.h"
#include "support/threads.h"

using namespace lockstep;
using namespace support;

namespace {

// The row-major position of element i of `shape` once its place along `dim` is `at`, in a tensor whose size along `dim`
// is `along`.
std::int64_t moved(const Shape& shape, int dim, std::int64_t i, std::int64_t at, std::int64_t along) {
  std::int64_t inner = 1;
  for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  return i / (shape[dim] * inner) * along * inner + at * inner + i % inner;
}

struct LargeIndexProblem {
  Shape index;
  int dim;
  std::int64_t along;  // the size of the other tensor along dim
  bool divided_sums;   // sums of one line stay in one piece
};
const LargeIndexProblem kLargeIndexProblems[] = {
    {{70'003}, 0, 17, false},  {{3, 23'001}, 1, 5, true},   {{23'001, 3}, 0, 70, false},
    {{201, 333}, 0, 50, true}, {{9, 2, 3'803}, 1, 7, true}, {{20, 2'100, 2}, 1, 30, true},
};

struct IndexLayouts {
  DType dtype;
  Layout in, out;
};
constexpr IndexLayouts kIndexLayouts[] = {{DType::f32, Layout::contiguous, Layout::contiguous},
                                          {DType::i64, Layout::transposed, Layout::slice}};

// Numbers that are added at `place(i)` each, by the kernel of these arguments.
template <class Args, class Place>
void check_sums(const LargeIndexProblem& p, const IndexLayouts& how, const TestTensor& index, Place&& place) {
  Shape other = p.index;
  other[p.dim] = p.along;
  TestTensor add(how.dtype, p.index, how.in), sums(how.dtype, other, how.out);
  add.fill([](std::int64_t i) { return static_cast<double>(i % 5); });
  sums.fill([](std::int64_t i) { return static_cast<double>(i % 3); });
  std::vector<double> want = sums.values();
  for (std::int64_t i = 0; i < add.count(); ++i) want[static_cast<std::size_t>(place(i))] += add[i];
  const Args args{add.in(), index.in(), sums.inout(), p.dim};
  if (p.divided_sums)
    CHECK(differs_with_threads(args, {&sums}) == "");
  else
    run(args);
  CHECK(mismatch(
            sums, [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, 0) == "");
}

}  // namespace

TEST_CASE("gather and scatter_add with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  for (const LargeIndexProblem& p : kLargeIndexProblems)
    for (const auto& [dtype, layout, out_layout] : kIndexLayouts) {
      if (!chosen(turn)) continue;
      INFO(cat(dtype, p.index, " dim ", p.dim, " ", name_of(layout), " to ", name_of(out_layout)));
      Shape other = p.index;
      other[p.dim] = p.along;
      TestTensor x(dtype, other, layout), index(DType::i64, p.index, layout), y(dtype, p.index, out_layout);
      x.fill_random(1);
      index.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % 100'003 % p.along); });
      CHECK(differs_with_threads(GatherArgs{x.in(), index.in(), y.out(), p.dim}, {&y}) == "");
      const auto place = [&](std::int64_t i) { return moved(p.index, p.dim, i, index.integer(i), p.along); };
      CHECK(mismatch(
                y, [&](std::int64_t i) { return x[place(i)]; }, 0) == "");
      check_sums<ScatterAddArgs>(p, {dtype, layout, out_layout}, index, place);
    }
}

TEST_CASE("sums at the same place are added in the order of their indices, whatever the threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  // Sums that depend on the order: a division along dimension 0 would change their bits.
  const Shape shape{4'001, 63};
  TestTensor add(DType::f32, shape), index(DType::i64, shape), line(DType::i64, {4'001}), sums(DType::f32, {2, 63}),
      rows(DType::f32, {2, 63});
  add.fill_random(1, -1e4, 1e4), index.fill([](std::int64_t i) { return static_cast<double>(i % 2); });
  line.fill([](std::int64_t i) { return static_cast<double>(i % 2); });
  sums.fill([](std::int64_t) { return 0.0; }), rows.fill([](std::int64_t) { return 0.0; });
  std::vector<float> scattered(126), added(126);
  for (std::int64_t i = 0; i < add.count(); ++i) {
    const std::int64_t row = i / 63, column = i % 63;
    scattered[static_cast<std::size_t>(index.integer(i) * 63 + column)] += static_cast<float>(add[i]);
    added[static_cast<std::size_t>(row % 2 * 63 + column)] += static_cast<float>(add[i]);
  }
  CHECK(differs_with_threads(ScatterAddArgs{add.in(), index.in(), sums.inout(), 0}, {&sums}) == "");
  CHECK(mismatch(
            sums, [&](std::int64_t i) { return scattered[static_cast<std::size_t>(i)]; }, 0) == "");
  CHECK(differs_with_threads(IndexAddArgs{add.in(), line.in(), rows.inout(), 0}, {&rows}) == "");
  CHECK(mismatch(
            rows, [&](std::int64_t i) { return added[static_cast<std::size_t>(i)]; }, 0) == "");
}

TEST_CASE("index_select and index_add with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  int turn = 0;
  for (const LargeIndexProblem& p : kLargeIndexProblems)
    for (const auto& [dtype, layout, out_layout] : kIndexLayouts) {
      if (!chosen(turn)) continue;
      INFO(cat(dtype, p.index, " dim ", p.dim, " ", name_of(layout), " to ", name_of(out_layout)));
      Shape other = p.index;
      other[p.dim] = p.along;
      const std::int64_t count = p.index[p.dim];
      TestTensor x(dtype, other, layout), index(DType::i64, {count}), y(dtype, p.index, out_layout);
      x.fill_random(1);
      index.fill([&](std::int64_t i) { return static_cast<double>(i * i % p.along); });
      CHECK(differs_with_threads(IndexSelectArgs{x.in(), index.in(), y.out(), p.dim}, {&y}) == "");
      std::int64_t inner = 1;
      for (int d = p.dim + 1; d < p.index.rank(); ++d) inner *= p.index[d];
      const auto place = [&](std::int64_t i) {
        return moved(p.index, p.dim, i, index.integer(i / inner % count), p.along);
      };
      CHECK(mismatch(
                y, [&](std::int64_t i) { return x[place(i)]; }, 0) == "");
      check_sums<IndexAddArgs>(p, {dtype, layout, out_layout}, index, place);
    }
}

TEST_CASE("random numbers with several threads", "[threads]") {
  if (!test_device().is_cpu()) return;
  const auto draw = [](RandomKind kind, DType dtype, std::int64_t count) {
    INFO(cat(dtype, " kind ", static_cast<int>(kind), " count ", count));
    TestTensor y(dtype, {count});
    const RandomArgs args{.kind = kind, .out = y.out(), .key = 5, .stream = 9, .a = 0.25, .b = 90};
    CHECK(differs_with_threads(args, {&y}) == "");
    // A tensor that is 3 shorter has the same elements, those of the last, incomplete block included.
    TestTensor shorter(dtype, {count - 3});
    run(RandomArgs{.kind = kind, .out = shorter.out(), .key = 5, .stream = 9, .a = 0.25, .b = 90});
    CHECK(mismatch(
              shorter, [&](std::int64_t i) { return y[i]; }, 0) == "");
  };
  for (const RandomKind kind : {RandomKind::uniform, RandomKind::normal})
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) draw(kind, dtype, 70'001);
  for (const DType dtype : {DType::i64, DType::u8}) draw(RandomKind::integer, dtype, 65'537);
  draw(RandomKind::bernoulli, DType::boolean, 65'539);
}
