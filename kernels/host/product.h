// Stacks of matrix products, and how they are divided into blocks of their results.
#pragma once

#include <span>
#include <type_traits>

#include "lockstep/kernels/args.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/gemm.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {

struct Range {
  std::int64_t begin, count;
};

// [B, M, N] with any strides.
template <class T>
struct Batch {
  T* data;
  std::int64_t batches, rows, columns, batch_stride, row_stride, column_stride;

  static Batch of(const View& v) {
    return {static_cast<T*>(v.data), v.shape[0], v.shape[1], v.shape[2], v.strides[0], v.strides[1], v.strides[2]};
  }
  // The same sizes, contiguous.
  template <class U>
  static Batch contiguous(T* memory, const Batch<U>& like) {
    return {memory, like.batches, like.rows, like.columns, like.rows * like.columns, like.columns, 1};
  }
  // For working copies: the order of the elements in memory is kept (a transposed matrix is read and written along its
  // columns, a batch that repeats one matrix stays one).
  template <class U>
  static Batch ordered(T* memory, const Batch<U>& like) {
    Batch batch = contiguous(memory, like);
    if (like.row_stride < like.column_stride) {
      batch.row_stride = 1;
      batch.column_stride = batch.rows;
    }
    if (like.batch_stride == 0) batch.batch_stride = 0;
    return batch;
  }
  operator Batch<const T>() const requires(!std::is_const_v<T>) {
    return {data, batches, rows, columns, batch_stride, row_stride, column_stride};
  }

  T& at(std::int64_t b, std::int64_t i, std::int64_t j) const {
    return data[b * batch_stride + i * row_stride + j * column_stride];
  }
  Matrix<std::remove_const_t<T>> matrix(std::int64_t b) const {
    return {data + b * batch_stride, rows, columns, row_stride, column_stride};
  }
  std::int64_t different() const { return batch_stride == 0 ? std::min<std::int64_t>(batches, 1) : batches; }
  Range all_rows() const { return {0, rows}; }
  Range all_columns() const { return {0, columns}; }

  Batch part(Range b, Range i, Range j) const {
    return {data + (b.begin * batch_stride + i.begin * row_stride + j.begin * column_stride),
            b.count,
            i.count,
            j.count,
            batch_stride,
            row_stride,
            column_stride};
  }
  Batch transposed() const { return {data, batches, columns, rows, batch_stride, column_stride, row_stride}; }
};

// out = activation(alpha * a @ b + beta * out + bias). The operands may be copies of another type.
template <class Operand, class T>
struct Product {
  Batch<const Operand> a, b;
  Batch<const T> bias;  // as large as `out`, with strides of 0; without data: absent
  Batch<T> out;
  functors::Compute<T> alpha, beta;
  Activation activation;

  std::int64_t multiplications() const { return out.batches * out.rows * out.columns * a.columns; }
  Product part(Range batches, Range rows, Range columns) const {
    return {a.part(batches, rows, a.all_columns()),
            b.part(batches, b.all_rows(), columns),
            bias.part(batches, rows, columns),
            out.part(batches, rows, columns),
            alpha,
            beta,
            activation};
  }
  Product transposed() const {
    return {b.transposed(), a.transposed(), bias.transposed(), out.transposed(), alpha, beta, activation};
  }
};

// The rows and columns of the result that a piece may have, from the largest to the smallest: the first that gives
// enough pieces is taken. Columns are divided at multiples of `unit`.
struct Blocks {
  struct Size {
    std::int64_t rows, columns;
  };
  std::span<const Size> sizes;
  std::int64_t unit;
};

struct Piece {
  std::int64_t batches, rows, columns;
};
// How large the pieces of `batches` products of [rows, depth] and [depth, columns] are.
Piece piece_of_product(std::int64_t batches, std::int64_t rows, std::int64_t columns, std::int64_t depth,
                       const Blocks& blocks);

// Calls f for parts of a product that are together the whole, on the threads there are.
template <class P, class F>
void for_blocks(const P& product, const Blocks& blocks, F&& f) {
  const auto& out = product.out;
  const Piece piece = piece_of_product(out.batches, out.rows, out.columns, product.a.columns, blocks);
  const auto count = [](std::int64_t all, std::int64_t part) { return (all + part - 1) / part; };
  const auto range = [](std::int64_t i, std::int64_t part, std::int64_t all) {
    return Range{i * part, std::min(part, all - i * part)};
  };
  const std::int64_t batches = count(out.batches, piece.batches), rows = count(out.rows, piece.rows),
                     columns = count(out.columns, piece.columns);
  if (batches * rows * columns == 1) return f(product);
  for_pieces(batches * rows * columns, 1, [&](std::int64_t i, std::int64_t) {
    f(product.part(range(i / (rows * columns), piece.batches, out.batches), range(i % rows, piece.rows, out.rows),
                   range(i / rows % columns, piece.columns, out.columns)));
  });
}

}  // namespace lockstep::kernels::host
