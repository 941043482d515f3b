#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// Whole numbers around, all below `size`.
void fill_indices(TestTensor& index, std::int64_t size) {
  index.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % 1009 % size); });
}

Dims position_of(std::int64_t i, const Shape& shape) {
  Dims index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = i % shape[d];
    i /= shape[d];
  }
  return index;
}
std::int64_t row_major(const Dims& index, const Shape& shape) {
  std::int64_t at = 0;
  for (int d = 0; d < shape.rank(); ++d) at = at * shape[d] + index[d];
  return at;
}

struct IndexProblem {
  Shape in, index;
  int dim;
};
const std::vector<IndexProblem> kIndexProblems = {
    {{5}, {9}, 0},
    {{5}, {0}, 0},
    {{4, 6}, {4, 3}, 1},
    {{4, 6}, {2, 6}, 0},
    {{3, 4, 5}, {3, 7, 5}, 1},
    {{3, 4, 5}, {2, 4, 1}, 2},
};

}  // namespace

TEST_CASE("gather and scatter_add agree with one element at a time", "[index]") {
  for (const IndexProblem& p : kIndexProblems)
    for (const DType dtype : kAllDTypes)
      for (const Layout layout : kInputLayouts)
        for (const Layout index_layout : kInputLayouts)
          for (const Layout out_layout : kOutputLayouts) {
            TestTensor x(dtype, p.in, layout), index(DType::i64, p.index, index_layout), y(dtype, p.index, out_layout);
            x.fill_random(1);
            fill_indices(index, p.in[p.dim]);
            INFO(to_string(dtype) << " " << to_string(p.in) << " " << to_string(p.index) << " dim " << p.dim);
            run(GatherArgs{.in = x.in(), .index = index.in(), .out = y.out(), .dim = p.dim});
            const auto source = [&](std::int64_t i) {
              Dims at = position_of(i, p.index);
              at[p.dim] = index.integer(i);
              return at;
            };
            const std::string error = mismatch(
                y, [&](std::int64_t i) { return x.at(source(i)); }, 0);
            if (!error.empty()) FAIL(error);

            if (dtype == DType::boolean) continue;
            TestTensor add(dtype, p.index, layout), sums(dtype, p.in, out_layout);
            add.fill([](std::int64_t i) { return static_cast<double>(i % 5); });
            sums.fill([](std::int64_t i) { return static_cast<double>(i % 3); });
            std::vector<double> want = sums.values();
            for (std::int64_t i = 0; i < add.count(); ++i)
              want[static_cast<std::size_t>(row_major(source(i), p.in))] += add[i];
            run(ScatterAddArgs{.in = add.in(), .index = index.in(), .out = sums.inout(), .dim = p.dim});
            const std::string sum_error = mismatch(
                sums, [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, 0);
            if (!sum_error.empty()) FAIL("scatter_add: " << sum_error);
          }
}

TEST_CASE("index_select and index_add agree with one element at a time", "[index]") {
  for (const Shape& shape : {Shape{5}, Shape{4, 6}, Shape{3, 4, 5}, Shape{3, 70, 2}})
    for (int dim = 0; dim < shape.rank(); ++dim)
      for (const std::int64_t count : {0, 1, 11})
        for (const DType dtype : kAllDTypes)
          for (const Layout layout : kInputLayouts)
            for (const Layout out_layout : kOutputLayouts) {
              Shape selected = shape;
              selected[dim] = count;
              TestTensor x(dtype, shape, layout), index(DType::i64, {count}, Layout::slice),
                  y(dtype, selected, out_layout);
              x.fill_random(1);
              fill_indices(index, shape[dim]);
              const auto source = [&](std::int64_t i) {
                Dims at = position_of(i, selected);
                at[dim] = index.integer(at[dim]);
                return at;
              };
              INFO(to_string(dtype) << " " << to_string(shape) << " dim " << dim << " count " << count);
              run(IndexSelectArgs{.in = x.in(), .index = index.in(), .out = y.out(), .dim = dim});
              const std::string error = mismatch(
                  y, [&](std::int64_t i) { return x.at(source(i)); }, 0);
              if (!error.empty()) FAIL(error);

              if (dtype == DType::boolean) continue;
              TestTensor add(dtype, selected, layout), sums(dtype, shape, out_layout);
              add.fill([](std::int64_t i) { return static_cast<double>(i % 5); });
              sums.fill([](std::int64_t i) { return static_cast<double>(i % 3); });
              std::vector<double> want = sums.values();
              for (std::int64_t i = 0; i < add.count(); ++i)
                want[static_cast<std::size_t>(row_major(source(i), shape))] += add[i];
              run(IndexAddArgs{.in = add.in(), .index = index.in(), .out = sums.inout(), .dim = dim});
              const std::string sum_error = mismatch(
                  sums, [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, 0);
              if (!sum_error.empty()) FAIL("index_add: " << sum_error);
            }
}

TEST_CASE("index_select of indices that are evenly apart", "[index]") {
  // Longer and shorter than vectors and blocks.
  for (const Shape& shape : {Shape{3, 2100}, Shape{2100, 3}, Shape{2, 37, 70}})
    for (int dim = 0; dim < shape.rank(); ++dim)
      for (const std::int64_t step : {-1, -2, 0, 1, 3})
        for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::i64})
          for (const Layout layout : kInputLayouts)
            for (const Layout out_layout : kOutputLayouts) {
              const std::int64_t size = shape[dim], first = step < 0 ? size - 1 : step == 0 ? 1 : 0;
              Shape selected = shape;
              selected[dim] = step == 0 ? 35 : (size - 1) / std::abs(step) + 1;
              TestTensor x(dtype, shape, layout), index(DType::i64, {selected[dim]}, Layout::slice),
                  y(dtype, selected, out_layout);
              x.fill_random(1);
              index.fill([&](std::int64_t i) { return static_cast<double>(first + i * step); });
              INFO(to_string(dtype) << " " << to_string(shape) << " dim " << dim << " step " << step << " "
                                    << name_of(layout) << " to " << name_of(out_layout));
              run(IndexSelectArgs{.in = x.in(), .index = index.in(), .out = y.out(), .dim = dim});
              const std::string error = mismatch(
                  y,
                  [&](std::int64_t i) {
                    Dims at = position_of(i, selected);
                    at[dim] = first + at[dim] * step;
                    return x.at(at);
                  },
                  0);
              if (!error.empty()) FAIL(error);
            }
}

TEST_CASE("an index out of range is named, and nothing is read or written with it", "[index]") {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{4}, std::numeric_limits<std::int64_t>::min()})
    for (const Layout layout : {Layout::contiguous, Layout::transposed}) {
      TestTensor x(DType::f32, {2, 4}), index(DType::i64, {2, 3}, layout), y(DType::f32, {2, 3}), line(DType::i64, {3});
      x.fill_random(1), y.fill_random(2);
      fill_indices(index, 4);
      fill_indices(line, 4);
      index.set_integer(4, bad);
      line.set_integer(2, bad);
      std::vector<double> x_before = x.values(), y_before = y.values();
      const auto message = [&](const char* op, int position) {
        return cat("[", op, "] expected indices in [0, 4), got ", bad, " at position ", position);
      };
      CHECK_THROWS_WITH(run(GatherArgs{.in = x.in(), .index = index.in(), .out = y.out(), .dim = 1}),
                        message("gather", 4));
      CHECK_THROWS_WITH(run(ScatterAddArgs{.in = y.in(), .index = index.in(), .out = x.inout(), .dim = 1}),
                        message("scatter_add", 4));
      for (std::int64_t i = 3; i < 6; ++i) CHECK(y[i] == y_before[static_cast<std::size_t>(i)]);
      for (std::int64_t i = 4; i < 8; ++i) CHECK(x[i] == x_before[static_cast<std::size_t>(i)]);
      x_before = x.values(), y_before = y.values();
      CHECK_THROWS_WITH(run(IndexSelectArgs{.in = x.in(), .index = line.in(), .out = y.out(), .dim = 1}),
                        message("index_select", 2));
      CHECK_THROWS_WITH(run(IndexAddArgs{.in = y.in(), .index = line.in(), .out = x.inout(), .dim = 1}),
                        message("index_add", 2));
      CHECK(x.values() == x_before);
      CHECK(y.values() == y_before);
      CHECK(x.guards_intact());
      CHECK(y.guards_intact());
      CHECK_THROWS_AS(run(GatherArgs{.in = x.in(), .index = index.in(), .out = y.out(), .dim = 1}), InvalidArgument);
    }
}
