#include "lockstep/kernels/host/matmul.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/few_rows.h"
#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/onednn.h"
#include "lockstep/kernels/host/product.h"
#include "lockstep/kernels/host/product_tile.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/strip_gemm.h"
#include "lockstep/kernels/packed_weights.h"

namespace lockstep::kernels::host {
namespace {

using functors::Compute;

// Each block packs its rows and columns by itself: measured, one thread loses up to 5 percent by these, 7 in f64.
constexpr std::int64_t kAll = std::int64_t{1} << 40;
constexpr Blocks::Size kFloat[] = {{256, 512}, {256, 192}, {128, 192}};
// Where b has few columns and rows, packing it once more costs less than packing a for each block of columns.
constexpr Blocks::Size kFewFloats[] = {{128, 512}, {64, 512}, {128, 192}};
constexpr Blocks::Size kDouble[] = {{kAll, 256}, {256, 256}, {256, 128}};
// Blocks of fewer rows cost more, since each packs all of b; oneDNN's best code for bf16 wants rows that follow each
// other without gaps, so columns are divided last.
constexpr Blocks::Size kHalf[] = {{256, kAll}, {256, 512}}, kFewHalf[] = {{128, kAll}, {128, 256}};
constexpr std::int64_t kSmall = std::int64_t{1} << 25;  // multiplications

template <class Operand, class T>
Blocks blocks_for(const Product<Operand, T>& p) {
  if constexpr (std::is_same_v<Operand, double>) return {kDouble, 8};
  if (p.multiplications() < kSmall) return {kFewFloats, 48};
  // Where k is large, packing the columns for few rows does not pay.
  constexpr std::int64_t kShallow = 512;
  return {std::span(kFloat).first(p.a.columns <= kShallow ? 3 : 2), 48};
}

// Up to here the work around a call of oneDNN takes longer than the product.
constexpr std::int64_t kSmallHalf = std::int64_t{8} * 8 * 8;

template <class To, class From>
void copy_line(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride, std::int64_t count) {
  if (from_stride == 1 && to_stride == 1) return convert_row(from, to, count);
  for (std::int64_t i = 0; i < count; ++i)
    to[i * to_stride] = static_cast<To>(static_cast<Compute<From>>(from[i * from_stride]));
}

// Along whichever dimension lies together in memory.
template <class To, class From>
void copy(const Batch<From>& from, const Batch<To>& to) {
  if (to.row_stride < to.column_stride) return copy(from.transposed(), to.transposed());
  const std::int64_t bytes = to.columns * static_cast<std::int64_t>(sizeof(To) + sizeof(From));
  for_pieces(to.different() * to.rows, piece_rows(to.different() * to.rows, bytes, kPieceBytes),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t line = begin; line < end; ++line) {
                 const std::int64_t b = line / to.rows, i = line % to.rows;
                 copy_line(&from.at(b, i, 0), from.column_stride, &to.at(b, i, 0), to.column_stride, to.columns);
               }
             });
}

// out = beta * out + bias, which leaves a product to be added.
template <class T>
void add_bias(const Batch<T>& out, const Batch<const T>& bias, T beta) {
  const bool contiguous = out.column_stride == 1 && bias.column_stride == 1;
  for (std::int64_t b = 0; b < out.batches; ++b)
    for (std::int64_t i = 0; i < out.rows; ++i) {
      T* row = &out.at(b, i, 0);
      const T* from = &bias.at(b, i, 0);
      if (contiguous && beta == T(0)) {
        std::copy_n(from, out.columns, row);
        continue;
      }
      for (std::int64_t j = 0; j < out.columns; ++j) {
        T& x = row[j * out.column_stride];
        x = from[j * bias.column_stride] + (beta == T(0) ? T(0) : beta * x);
      }
    }
}

// One left-hand side, and strips of the right-hand side whose products lie side by side: see strip_gemm. Whole, since
// each part would pack the left-hand side anew; false where it is no such product.
bool multiply_strips(const Product<float, float>& p) {
  const auto& [a, b, bias, out, alpha, beta, activation] = p;
  if (out.columns != kStripColumns || a.batch_stride != 0 || a.column_stride != 1 || b.column_stride != 1 ||
      b.row_stride != kStripColumns || b.batch_stride != b.rows * kStripColumns || out.column_stride != 1 ||
      out.batch_stride != kStripColumns || alpha != 1 || (beta != 0 && beta != 1) || bias.data ||
      activation != Activation::none)
    return false;
  strip_gemm({.a = a.data,
              .strips = b.data,
              .c = out.data,
              .rows = a.rows,
              .depth = a.columns,
              .columns = out.batches * kStripColumns,
              .a_stride = a.row_stride,
              .c_stride = out.row_stride,
              .start = beta == 1 ? out.data : nullptr,
              .start_stride = out.row_stride});
  return true;
}

template <class T>
void multiply(const Batch<const T>& a, const Batch<const T>& b, const Batch<T>& out, T alpha, T beta) {
  const bool row_major = (out.column_stride == 1 || out.columns == 1) && out.row_stride >= out.columns;
  Scratch scratch;
  T* packed = row_major ? nullptr : scratch.take<T>(out.rows * out.columns);
  for (std::int64_t i = 0; i < out.batches; ++i) {
    if (row_major) {
      gemm<T>(a.matrix(i), b.matrix(i), &out.at(i, 0, 0), out.row_stride, alpha, beta);
      continue;
    }
    const auto each = [&](auto&& f) {
      for (std::int64_t r = 0; r < out.rows; ++r)
        for (std::int64_t c = 0; c < out.columns; ++c) f(packed[r * out.columns + c], out.at(i, r, c));
    };
    if (beta != T(0)) each([](T& mine, T x) { mine = x; });
    gemm<T>(a.matrix(i), b.matrix(i), packed, out.columns, alpha, beta);
    each([](T mine, T& x) { x = mine; });
  }
}

// A pass over the result: dnnl_sgemm has no epilogues, and making a primitive of oneDNN that has them costs more than
// the pass, over elements that are still in the cache.
template <class T>
void activate(const Batch<T>& out, Activation activation) {
  if (activation == Activation::none) return;
  const Loop<1> loop = unary_loop(functors::unary_op(activation), dtype_of<T>());
  const bool row_major = out.column_stride == 1 || out.columns == 1;
  for (std::int64_t b = 0; b < out.batches; ++b)
    for (std::int64_t i = 0; i < out.rows; ++i) {
      T* row = &out.at(b, i, 0);
      if (row_major) {
        loop({row}, row, out.columns, {});
        continue;
      }
      for (std::int64_t j = 0; j < out.columns; ++j) {
        T* x = row + j * out.column_stride;
        loop({x}, x, 1, {});
      }
    }
}

// f32 and f64: where the result lies.
template <class T>
void compute(const Product<T, T>& p) {
  T beta = p.beta;
  if (p.bias.data) {
    add_bias(p.out, p.bias, beta);
    beta = 1;
  }
  multiply(p.a, p.b, p.out, p.alpha, beta);
  activate(p.out, p.activation);
}

template <class T>
void add_line(const T* from, std::int64_t stride, float factor, float* to, std::int64_t count) {
  if (stride == 1)
    for (std::int64_t j = 0; j < count; ++j) to[j] += factor * static_cast<float>(from[j]);
  else
    for (std::int64_t j = 0; j < count; ++j) to[j] += factor * static_cast<float>(from[j * stride]);
}

// What remains to be done with a @ b, which is destroyed. One rounding.
template <class Operand, class T>
void finish(const Batch<float>& sums, const Product<Operand, T>& p) {
  const Loop<1> activate =
      p.activation == Activation::none ? nullptr : unary_loop(functors::unary_op(p.activation), DType::f32);
  const std::int64_t columns = p.out.columns;
  for (std::int64_t b = 0; b < p.out.batches; ++b)
    for (std::int64_t i = 0; i < p.out.rows; ++i) {
      float* row = &sums.at(b, i, 0);
      T* to = &p.out.at(b, i, 0);
      if (p.alpha != 1)
        for (std::int64_t j = 0; j < columns; ++j) row[j] *= p.alpha;
      if (p.beta != 0) add_line(to, p.out.column_stride, p.beta, row, columns);
      if (p.bias.data) add_line(&p.bias.at(b, i, 0), p.bias.column_stride, 1, row, columns);
      if (activate) activate({row}, row, columns, {});
      copy_line(row, 1, to, p.out.column_stride, columns);
    }
}

template <class T>
Batch<float> take_sums(Scratch& scratch, const Batch<T>& out) {
  return Batch<float>::contiguous(scratch.take<float>(out.batches * out.rows * out.columns), out);
}

template <class T>
void compute_wide(const Product<float, T>& p) {
  Scratch scratch;
  const Batch<float> sums = take_sums(scratch, p.out);
  multiply<float>(p.a, p.b, sums, 1, 0);
  finish(sums, p);
}

template <class T>
bool is_for_few_rows(const Product<T, T>& p) {
  return p.out.batches == 1 && is_for_few_rows<T>(p.a.matrix(0), p.b.matrix(0), onednn_multiplies(dtype_of<T>()));
}
template <class T>
void compute_few_rows(const Product<T, T>& p) {
  Scratch scratch;
  const Batch<float> sums = take_sums(scratch, p.out);
  multiply_few_rows<T>(p.a.matrix(0), p.b.matrix(0), sums.data);
  finish(sums, p);
}

template <class T>
Batch<const float> widened(Scratch& scratch, const Batch<const T>& from) {
  const auto to = Batch<float>::ordered(scratch.take<float>(from.different() * from.rows * from.columns), from);
  copy(from, to);
  return to;
}
template <class T>
Product<float, T> widened(Scratch& scratch, const Product<T, T>& p) {
  return {widened(scratch, p.a), widened(scratch, p.b), p.bias, p.out, p.alpha, p.beta, p.activation};
}

template <class T>
Stack stack_of(const Batch<T>& batch) {
  return {batch.data,       dtype_of<std::remove_const_t<T>>(),
          batch.batches,    batch.rows,
          batch.columns,    batch.batch_stride,
          batch.row_stride, batch.column_stride};
}

// f16 and bf16 where the processor multiplies them.
template <class T>
void compute_half(const Product<T, T>& p) {
  Scratch scratch;
  const Stack a = stack_of(p.a), b = stack_of(p.b);
  const bool row_of_bias = p.bias.row_stride == 0 && p.bias.column_stride == 1;
  // Into rows with gaps oneDNN's best code does not write: sums in memory of our own cost less, unless the columns of b
  // keep it away as well.
  const bool dense = p.out.row_stride == p.out.columns || p.b.column_stride == 1;
  if (dense && p.alpha == 1 && p.beta == 0 && p.activation == Activation::none && (!p.bias.data || row_of_bias) &&
      onednn_matmul(a, b, p.bias.data, stack_of(p.out)))
    return;
  const Batch<float> sums = take_sums(scratch, p.out);
  if (onednn_matmul(a, b, nullptr, stack_of(sums)))
    finish(sums, p);
  else
    compute_wide(widened(scratch, p));
}

// With rows that lie together in the result, where there are any, and as few products as that leaves.
template <class T>
Product<T, T> product_of(const MatmulArgs& args) {
  Product<T, T> p{Batch<const T>::of(args.a.view),
                  Batch<const T>::of(args.b.view),
                  {},
                  Batch<T>::of(args.out.view),
                  static_cast<Compute<T>>(args.alpha),
                  static_cast<Compute<T>>(args.beta),
                  args.activation};
  const View& bias = args.bias.view;
  p.bias = {nullptr, p.out.batches, p.out.rows, p.out.columns, 0, 0, 0};
  if (bias.present) p.bias.data = static_cast<const T*>(bias.data), p.bias.column_stride = bias.strides[0];
  // One right-hand side for the whole batch: one tall product.
  if (p.out.batches > 1 && p.b.batch_stride == 0 && p.a.batch_stride == p.a.rows * p.a.row_stride &&
      p.out.batch_stride == p.out.rows * p.out.row_stride) {
    for (std::int64_t* rows : {&p.a.rows, &p.bias.rows, &p.out.rows}) *rows *= p.out.batches;
    p.a.batches = p.b.batches = p.bias.batches = p.out.batches = 1;
  }
  const bool row_major = (p.out.column_stride == 1 || p.out.columns == 1) && p.out.row_stride >= p.out.columns;
  const bool column_major = (p.out.row_stride == 1 || p.out.rows == 1) && p.out.column_stride >= p.out.rows;
  return column_major && !row_major ? p.transposed() : p;
}

// A b whose columns lie together, as a layer's weights, is packed more slowly, and for every block of rows anew: where
// there are many rows and b is small, to copy it first costs less.
Product<float, float> with_rows_of_b(Scratch& scratch, const Product<float, float>& p) {
  constexpr std::int64_t kManyRows = 512, kSmallMatrix = std::int64_t{1} << 18;
  const Batch<const float>& b = p.b;
  if (b.row_stride != 1 || b.column_stride < b.rows || b.rows * b.columns > kSmallMatrix || p.out.batches > 1 ||
      p.out.rows < kManyRows)
    return p;
  float* const rows = scratch.take<float>(b.rows * b.columns);
  const auto view = [&](const float* data, std::int64_t row_stride, std::int64_t column_stride) {
    return View{
        const_cast<float*>(data), {b.rows, b.columns}, {row_stride, column_stride}, DType::f32, Device::cpu(), true};
  };
  copy_view(view(b.data, b.row_stride, b.column_stride), view(rows, b.columns, 1));
  Product<float, float> copied = p;
  copied.b = {rows, 1, b.rows, b.columns, 0, b.columns, 1};
  return copied;
}

struct alignas(64) Line {
  float columns[kStripColumns];
};
using Strips = std::vector<Line>;

std::shared_ptr<const Strips> strips_of(const Batch<const float>& b, PackedWeights& forms) {
  constexpr std::int64_t kStripsOfMatrix = -1;  // no kind of convolution
  const std::int64_t key[] = {kStripsOfMatrix, b.rows, b.columns, b.row_stride, b.column_stride};
  if (auto found = forms.find(key)) return std::static_pointer_cast<const Strips>(found);
  const std::int64_t count = (b.columns + kStripColumns - 1) / kStripColumns;
  auto made = std::make_shared<Strips>(static_cast<std::size_t>(count * b.rows));
  for_pieces(made->empty() ? 0 : count,
             piece_rows(count, b.rows * static_cast<std::int64_t>(sizeof(Line)), kPieceBytes),
             [&](std::int64_t begin, std::int64_t end) {
               const std::int64_t first = begin * kStripColumns;
               const Range columns{first, std::min(b.columns, end * kStripColumns) - first};
               pack_strips(b.part({0, 1}, b.all_rows(), columns).matrix(0),
                           (*made)[static_cast<std::size_t>(begin * b.rows)].columns);
             });
  forms.keep(key, made);
  return made;
}

// By strips of b that are kept; false where they have no use.
bool multiply_kept(const Product<float, float>& p, const View& b, PackedWeights& forms) {
  // Measured: a single row gains nothing by them, and of many rows packing the matrix anew costs less than packing
  // them.
  constexpr std::int64_t kFewestRows = 2, kMostRows = 256;
  if (p.out.rows < kFewestRows || p.out.rows > kMostRows) return false;
  const bool row_of_bias = !p.bias.data || p.bias.column_stride == 1 || p.out.columns == 1;
  if (p.out.batches != 1 || p.b.data != b.data || p.alpha != 1 || p.beta != 0 || !row_of_bias ||
      (p.a.column_stride != 1 && p.a.columns != 1) || (p.out.column_stride != 1 && p.out.columns != 1))
    return false;
  const std::shared_ptr<const Strips> strips = strips_of(p.b, forms);
  strip_gemm({.a = p.a.data,
              .strips = strips->empty() ? nullptr : strips->front().columns,
              .c = p.out.data,
              .rows = p.out.rows,
              .depth = p.a.columns,
              .columns = p.out.columns,
              .a_stride = p.a.row_stride,
              .c_stride = p.out.row_stride,
              .start = p.bias.data,
              .activation = p.activation == Activation::none
                                ? nullptr
                                : unary_loop(functors::unary_op(p.activation), DType::f32)});
  return true;
}

template <class T>
void matmul_views(const MatmulArgs& args) {
  if (element_count(args.out.view.shape) == 0) return;
  const Product<T, T> p = product_of<T>(args);
  if constexpr (!std::is_same_v<T, double>)
    if (is_for_few_rows(p)) return compute_few_rows(p);
  if constexpr (std::is_same_v<T, float>) {
    if (args.packed && multiply_kept(p, args.b.view, *args.packed)) return;
    if (multiply_strips(p)) return;
    Scratch scratch;
    const Product<T, T> in_rows = with_rows_of_b(scratch, p);
    for_blocks(in_rows, blocks_for(p), compute<T>);
  } else if constexpr (std::is_same_v<T, double>) {
    // An element has the same bits in any block: to a single thread they would be work for nothing.
    if (lockstep::detail::computes_alone()) return compute<T>(p);
    for_blocks(p, blocks_for(p), compute<T>);
  } else if (p.multiplications() > kSmallHalf && onednn_multiplies(dtype_of<T>())) {
    for_blocks(p, {p.multiplications() < kSmall ? std::span(kFewHalf) : std::span(kHalf), 64}, compute_half<T>);
  } else {
    Scratch scratch;
    const auto wide = widened(scratch, p);
    for_blocks(wide, blocks_for(wide), compute_wide<T>);
  }
}

}  // namespace

void multiply_views(const MatmulArgs& args) {
  dispatch_floating(args.out.view.dtype, [&]<class T>(Type<T>) { matmul_views<T>(args); });
}

void Kernels::enqueue(const Stream& stream, const MatmulArgs& args) {
  check_floating(MatmulArgs::kName, args.out.view.dtype, stream);
  launch(stream, args, multiply_views);
}

}  // namespace lockstep::kernels::host
