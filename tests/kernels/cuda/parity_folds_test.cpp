// Reductions, around the ends of packs: every result is the host's, and has the same bits wherever the elements lie.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

namespace {

struct Fold {
  Shape in, out;
};
// Rows, one row in parts, planes in several images, columns, and columns in parts; of whole packs and not.
std::vector<Fold> folds() {
  std::vector<Fold> all;
  for (const std::int64_t size : {1, 3, 7, 8, 9, 33, 255, 256, 1001, 2056}) all.push_back({{3, size}, {3, 1}});
  for (const std::int64_t size : {1, 3, 7, 9, 1001, 8191, 16384, 20003}) all.push_back({{1, size}, {1, 1}});
  all.push_back({{2, 20008}, {2, 1}});
  for (const std::int64_t plane : {4, 16, 24, 49}) all.push_back({{6, 5, plane}, {1, 5, 1}});
  for (const std::int64_t columns : {2, 3, 4, 8, 12, 17, 40, 264})
    for (const std::int64_t size : {2, 37}) all.push_back({{size, columns}, {1, columns}});
  for (const std::int64_t columns : {8, 9}) all.push_back({{4099, columns}, {1, columns}});
  all.push_back({{0, 8}, {0, 1}});
  all.push_back({{9, 5, 24}, {1, 1, 24}});
  all.push_back({{9, 5, 24}, {1, 5, 24}});
  all.push_back({{9, 5, 24}, {9, 1, 24}});
  return all;
}
constexpr Layout kPlaces[] = {Layout::contiguous, Layout::shifted, Layout::slice};

// Elements of one result that cancel, from both ends, but for small ones: another order of the sum has other bits.
double wild(std::int64_t position, std::int64_t count, DType dtype) {
  const std::int64_t from_end = std::min(position, count - 1 - position);
  const double fraction = static_cast<double>(from_end * 31 % 101) / 101;
  const double small = std::ldexp(fraction + (position % 2 ? 0.3 : 0.1), dtype == DType::f16 ? -12 : -5);
  const int exponents = dtype == DType::f16 ? 15 : 60;
  // The last ones cancel at once, and with them all that their lane had before.
  if (count > 3 && position >= count - 3)
    return position == count - 2 ? small : std::ldexp(position == count - 1 ? -1 : 1, exponents);
  if (from_end % 3 == 0 || from_end < 3 || 2 * from_end + 1 == count) return small;
  const double large = std::ldexp(1 + fraction, static_cast<int>((from_end * 7 + 45) % exponents));
  return 2 * position < count ? large : -large;
}
void fill_wild(TestTensor& x, const Shape& out) {
  const Shape& in = x.shape();
  x.fill([&](std::int64_t i) {
    std::int64_t position = 0, count = 1;
    for (int d = in.rank() - 1; d >= 0; i /= in[d--])
      if (out[d] == 1) position += i % in[d] * count, count *= in[d];
    return wild(position, count, x.dtype());
  });
}
// Around 0, with ties.
double tame(std::int64_t i) { return static_cast<double>(i * 5 % 17) / 8 - 1; }

// Of sums over the first elements of each row.
std::vector<std::byte> bits_of_part(TestTensor& x, const Shape& part, const Shape& out) {
  View in = x.view();
  in.shape = part;
  TestTensor y(x.dtype(), out);
  return on_device(ReduceArgs{ReduceOp::sum, {in}, y.out()}, {&x, &y}, &y).bytes();
}

template <class F>
void for_places(const std::string& what, F&& f) {
  std::vector<std::vector<std::byte>> first;
  for (const Layout place : {Layout::contiguous, Layout::shifted, Layout::slice}) {
    std::vector<std::vector<std::byte>> bits = f(place, cat(what, " ", name_of(place)));
    if (place == Layout::contiguous) first = bits;
    for (std::size_t k = 0; k < bits.size(); ++k)
      if (bits[k] != first[k]) FAIL_CHECK(what << ": result " << k << " has other bits where it is " << name_of(place));
  }
}

}  // namespace

TEST_CASE("CUDA parity: reductions by packs", "[cuda][parity][reduce]") {
  NEEDS_CUDA
  for (const Fold& fold : folds())
    for (const DType dtype : kAllDTypes)
      for_places(cat(dtype, " ", fold.in, " to ", fold.out), [&](Layout place, const std::string& what) {
        TestTensor x(dtype, fold.in, place), y(dtype, fold.out);
        std::vector<std::vector<std::byte>> bits;
        const bool is_bool = dtype == DType::boolean;
        std::vector<ReduceOp> ops{ReduceOp::max, ReduceOp::min};
        if (!is_bool) ops.push_back(ReduceOp::sum);
        if (is_floating(dtype)) ops.insert(ops.end(), {ReduceOp::mean, ReduceOp::norm});
        for (const ReduceOp op : ops) {
          x.fill([&](std::int64_t i) { return is_bool ? static_cast<double>(i % 3 == 1) : 8 * tame(i) + 8; });
          check_parity(compare_with_host(ReduceArgs{op, x.in(), y.out()}, {&x, &y}, 4, 4), what);
          if (!is_floating(dtype)) continue;
          fill_wild(x, fold.out);
          bits.push_back(on_device(ReduceArgs{op, x.in(), y.out()}, {&x, &y}, &y).bytes());
        }
        return bits;
      });
}

// The first row begins at a pack, the others do not: a pack has whole elements of two rows.
TEST_CASE("CUDA parity: reductions of rows whose distance is no whole number of packs", "[cuda][parity][reduce]") {
  NEEDS_CUDA
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool columns : {false, true}) {
      TestTensor wide_rows(dtype, {9, 33}), x(dtype, {9, 32});
      const Shape out = columns ? Shape{1, 32} : Shape{9, 1};
      fill_wild(x, out);
      wide_rows.fill([&](std::int64_t i) { return i % 33 < 32 ? x[i / 33 * 32 + i % 33] : kNaN; });
      CAPTURE(to_string(dtype), columns);
      CHECK(bits_of_part(wide_rows, x.shape(), out) == bits_of_part(x, x.shape(), out));
    }
}

// Gaps of whole packs, in one part and where one begins within a row.
TEST_CASE("CUDA parity: reductions of rows with gaps of packs", "[cuda][parity][reduce]") {
  NEEDS_CUDA
  if (parity_is_exact) return;  // between the host's instruction sets, whose sums follow the rows
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const auto& [rows, size] : {std::pair{9, 32}, std::pair{40, 1032}})
      for (const Shape& out : {Shape{1, 1}, Shape{rows, 1}, Shape{1, size}}) {
        TestTensor wide_rows(dtype, {rows, size + 8}), x(dtype, {rows, size});
        fill_wild(x, out);
        wide_rows.fill([&](std::int64_t i) {
          const std::int64_t in_row = i % (size + 8);
          return in_row < size ? x[i / (size + 8) * size + in_row] : kNaN;
        });
        CAPTURE(to_string(dtype), rows, to_string(out));
        CHECK(bits_of_part(wide_rows, x.shape(), out) == bits_of_part(x, x.shape(), out));
      }
}

// The first of equal ones, and the first that is not a number.
TEST_CASE("CUDA parity: positions by packs", "[cuda][parity][reduce]") {
  NEEDS_CUDA
  for (const Fold& fold : folds())
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i64, DType::u8})
      for (int dim = 0; dim < fold.in.rank(); ++dim)
        for (const ArgReduceOp op : {ArgReduceOp::max, ArgReduceOp::min})
          for (const Layout place : {Layout::contiguous, Layout::shifted, Layout::slice}) {
            if (fold.in[dim] == 0) continue;
            Shape out = fold.in;
            out[dim] = 1;
            TestTensor x(dtype, fold.in, place), y(DType::i64, out);
            const std::string what = cat("arg ", dtype, " ", fold.in, " ", dim, " ", name_of(place));
            x.fill([&](std::int64_t i) { return 8 * tame(i) + 8; });
            check_parity(compare_with_host(ArgReduceArgs{op, dim, x.in(), y.out()}, {&x, &y}), what);
            if (!is_floating(dtype)) continue;
            for (std::int64_t i = x.count() / 2; i < x.count(); i += 5) x.set(i, kNaN);
            check_parity(compare_with_host(ArgReduceArgs{op, dim, x.in(), y.out()}, {&x, &y}), what + " NaN");
          }
}

// Gradients of parameters, and the statistics of batch norm: two inputs, and what is the same for all of a pack.
TEST_CASE("CUDA parity: sums of norms by packs", "[cuda][parity][norm]") {
  NEEDS_CUDA
  for (const Shape& shape :
       {Shape{37, 8, 1}, Shape{37, 12, 1}, Shape{37, 264, 1}, Shape{6, 5, 16}, Shape{6, 5, 24}, Shape{6, 5, 49},
        Shape{4099, 16, 1}, Shape{9, 1, 1}, Shape{16, 1, 1}, Shape{5, 1, 24}, Shape{1, 1, 20003}, Shape{3, 2, 8200}})
    for (const DType dtype : kFloatingDTypes)
      for_places(cat(dtype, " ", shape), [&](Layout place, const std::string& what) {
        if (place == Layout::slice) place = Layout::shifted;  // these arguments are contiguous
        const std::int64_t channels = shape[1];
        TestTensor x(dtype, shape, place), dy(dtype, shape, place), y(dtype, shape, place), weight(dtype, {channels}),
            bias(dtype, {channels});
        TestTensor dweight(dtype, {channels}), dbias(dtype, {channels}), mean(wide(dtype), {channels}),
            inv(wide(dtype), {channels});
        x.fill([](std::int64_t i) { return tame(i) + tame(i / 16); }), dy.fill(tame);
        weight.fill([](std::int64_t i) { return tame(i) + 2; }), bias.fill(tame);
        std::vector<std::vector<std::byte>> bits;
        const auto run = [&](const auto& args, std::initializer_list<TestTensor*> tensors, const char* name,
                             std::initializer_list<TestTensor*> results) {
          for (TestTensor* t : results) bits.push_back(on_device(args, tensors, t).bytes());
          check_parity(compare_with_host(args, tensors, 32, 32), cat(name, " ", what));
        };
        BatchNormArgs norm{.x = x.in(), .weight = weight.in(), .bias = bias.in(), .y = y.out()};
        norm.mean = mean.out(), norm.inv_std = inv.out(), norm.training = true, norm.eps = 1e-3;
        run(norm, {&x, &weight, &bias, &y, &mean, &inv}, "batch_norm", {&mean, &inv});
        BatchNormGradArgs grad{dy.in(), x.in(), weight.in(), mean.in(), inv.in(), y.out(), dweight.out(), dbias.out()};
        run(grad, {&dy, &x, &weight, &mean, &inv, &y, &dweight, &dbias}, "batch_norm_grad", {&dweight, &dbias});
        for (const std::int64_t groups : {std::int64_t{1}, channels % 2 == 0 ? channels / 2 : channels}) {
          const Shape grouped{shape[0], groups, channels / groups, shape[2]};
          TestTensor means(wide(dtype), {shape[0], groups}), scales(wide(dtype), {shape[0], groups});
          means.fill(tame), scales.fill([](std::int64_t i) { return tame(i) + 1.5; });
          TestTensor gx(dtype, grouped, place), gdy(dtype, grouped, place), dx(dtype, grouped, place);
          gx.fill([&](std::int64_t i) { return x[i]; }), gdy.fill(tame);
          GroupNormGradArgs args{.dy = gdy.in(), .x = gx.in(), .weight = weight.in()};
          args.mean = means.in(), args.inv_std = scales.in(), args.dx = dx.out();
          args.dweight = dweight.out(), args.dbias = dbias.out();
          run(args, {&gdy, &gx, &weight, &means, &scales, &dx, &dweight, &dbias}, "group_norm_grad",
              {&dweight, &dbias});
        }
        if (shape[2] != 1) return bits;
        const Shape flat{shape[0], channels};
        TestTensor rows(wide(dtype), {shape[0]}), fx(dtype, flat, place), fdy(dtype, flat, place),
            dx(dtype, flat, place);
        rows.fill([](std::int64_t i) { return tame(i) + 1.5; });
        fx.fill([&](std::int64_t i) { return x[i]; }), fdy.fill(tame);
        RmsNormGradArgs rms{.dy = fdy.in(), .x = fx.in(), .weight = weight.in()};
        rms.inv_rms = rows.in(), rms.dx = dx.out(), rms.dweight = dweight.out();
        run(rms, {&fdy, &fx, &weight, &rows, &dx, &dweight}, "rms_norm_grad", {&dweight});
        return bits;
      });
}
