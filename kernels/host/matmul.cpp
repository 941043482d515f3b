#include <algorithm>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/elementwise.h"
#include "lockstep/kernels/host/gemm.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/scratch.h"

namespace lockstep::kernels::host {
namespace {

using functors::Compute;

// [B, M, N] with any strides.
template <class T>
struct Batch {
  T* data;
  std::int64_t batches, rows, columns, batch_stride, row_stride, column_stride;

  explicit Batch(const View& v)
      : data(static_cast<T*>(v.data)),
        batches(v.shape[0]),
        rows(v.shape[1]),
        columns(v.shape[2]),
        batch_stride(v.strides[0]),
        row_stride(v.strides[1]),
        column_stride(v.strides[2]) {}
  Batch(T* memory, const View& v)  // the same sizes, contiguous
      : data(memory),
        batches(v.shape[0]),
        rows(v.shape[1]),
        columns(v.shape[2]),
        batch_stride(rows * columns),
        row_stride(columns),
        column_stride(1) {}
  // For working copies: the order of `v`'s elements in memory is kept (a transposed matrix is read and written along
  // its columns, a batch that repeats one matrix stays one).
  static Batch like(T* memory, const View& v) {
    Batch batch(memory, v);
    if (v.strides[1] < v.strides[2]) {
      batch.row_stride = 1;
      batch.column_stride = batch.rows;
    }
    if (v.strides[0] == 0) batch.batch_stride = 0;
    return batch;
  }
  template <class U>
  requires std::is_same_v<const U, T>
  explicit Batch(const Batch<U>& other)  // of the same elements, to read
      : data(other.data),
        batches(other.batches),
        rows(other.rows),
        columns(other.columns),
        batch_stride(other.batch_stride),
        row_stride(other.row_stride),
        column_stride(other.column_stride) {}

  T& at(std::int64_t b, std::int64_t i, std::int64_t j) const {
    return data[b * batch_stride + i * row_stride + j * column_stride];
  }
  Matrix<std::remove_const_t<T>> matrix(std::int64_t b) const {
    return {data + b * batch_stride, rows, columns, row_stride, column_stride};
  }
};

template <class To, class From>
void copy_line(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride, std::int64_t count) {
  const auto convert = [](const From& x) { return static_cast<To>(static_cast<Compute<From>>(x)); };
  if (from_stride == 1 && to_stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = convert(from[i]);  // this one becomes vector code
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * to_stride] = convert(from[i * from_stride]);
  }
}

// Along whichever dimension lies together in memory.
template <class To, class From>
void copy(const Batch<From>& from, const Batch<To>& to) {
  const std::int64_t batches = to.batch_stride == 0 ? 1 : to.batches;
  for (std::int64_t b = 0; b < batches; ++b) {
    if (to.row_stride < to.column_stride) {
      for (std::int64_t j = 0; j < to.columns; ++j)
        copy_line(&from.at(b, 0, j), from.row_stride, &to.at(b, 0, j), to.row_stride, to.rows);
    } else {
      for (std::int64_t i = 0; i < to.rows; ++i)
        copy_line(&from.at(b, i, 0), from.column_stride, &to.at(b, i, 0), to.column_stride, to.columns);
    }
  }
}

// out = beta * out + bias, which leaves a product to be added.
template <class T>
void add_bias(const Batch<T>& out, const T* bias, std::int64_t bias_stride, T beta) {
  const bool contiguous = out.column_stride == 1 && bias_stride == 1;
  for (std::int64_t b = 0; b < out.batches; ++b)
    for (std::int64_t i = 0; i < out.rows; ++i) {
      T* row = &out.at(b, i, 0);
      if (contiguous && beta == T(0)) {
        std::copy_n(bias, out.columns, row);
        continue;
      }
      for (std::int64_t j = 0; j < out.columns; ++j) {
        T& x = row[j * out.column_stride];
        x = bias[j * bias_stride] + (beta == T(0) ? T(0) : beta * x);
      }
    }
}

template <class T>
void multiply(Batch<const T> a, const Batch<const T>& b, Batch<T> out, T alpha, T beta) {
  // One right-hand side for the whole batch: one tall product.
  if (out.batches > 1 && b.batch_stride == 0 && a.batch_stride == a.rows * a.row_stride &&
      out.batch_stride == out.rows * out.row_stride) {
    a.rows *= a.batches;
    out.rows *= out.batches;
    a.batches = out.batches = 1;
  }
  const bool row_major = (out.column_stride == 1 || out.columns == 1) && out.row_stride >= out.columns;
  const bool column_major = (out.row_stride == 1 || out.rows == 1) && out.column_stride >= out.rows;
  Scratch scratch;
  T* packed = row_major || column_major ? nullptr : scratch.take<T>(out.rows * out.columns);
  for (std::int64_t i = 0; i < out.batches; ++i) {
    if (row_major) {
      gemm<T>(a.matrix(i), b.matrix(i), &out.at(i, 0, 0), out.row_stride, alpha, beta);
    } else if (column_major) {
      gemm<T>(b.matrix(i).transposed(), a.matrix(i).transposed(), &out.at(i, 0, 0), out.column_stride, alpha, beta);
    } else {
      gemm<T>(a.matrix(i), b.matrix(i), packed, out.columns, alpha, T(0));
      for (std::int64_t r = 0; r < out.rows; ++r)
        for (std::int64_t c = 0; c < out.columns; ++c) {
          T& x = out.at(i, r, c);
          x = packed[r * out.columns + c] + (beta == T(0) ? T(0) : beta * x);
        }
    }
  }
}

// A pass over the result: dnnl_sgemm has no epilogues, and making a primitive of oneDNN that has them costs more than
// the pass, over elements that are still in the cache.
template <class T>
void activate(const Batch<T>& out, Activation activation) {
  if (activation == Activation::none) return;
  const Loop<1> loop = unary_loop(functors::unary_op(activation), dtype_of<T>());
  const auto run = [&](T* from, std::int64_t count) { loop({from}, from, count, {}); };
  const bool row_major = out.column_stride == 1 || out.columns == 1;
  const bool column_major = out.row_stride == 1 || out.rows == 1;
  for (std::int64_t b = 0; b < out.batches; ++b) {
    if (row_major) {
      for (std::int64_t i = 0; i < out.rows; ++i) run(&out.at(b, i, 0), out.columns);
    } else if (column_major) {
      for (std::int64_t j = 0; j < out.columns; ++j) run(&out.at(b, 0, j), out.rows);
    } else {
      for (std::int64_t i = 0; i < out.rows; ++i)
        for (std::int64_t j = 0; j < out.columns; ++j) run(&out.at(b, i, j), 1);
    }
  }
}

template <class T>
void matmul_views(const MatmulArgs& args) {
  const View& a = args.a.view;
  const View& b = args.b.view;
  const View& out = args.out.view;
  const View& bias = args.bias.view;
  if (element_count(out.shape) == 0) return;
  using C = Compute<T>;
  const C alpha = static_cast<C>(args.alpha);
  C beta = static_cast<C>(args.beta);
  if constexpr (std::is_same_v<T, C>) {
    const Batch<T> result(out);
    if (bias.present) {
      add_bias(result, static_cast<const T*>(bias.data), bias.strides[0], beta);
      beta = 1;
    }
    multiply<T>(Batch<const T>(a), Batch<const T>(b), result, alpha, beta);
    activate(result, args.activation);
  } else {
    Scratch scratch;
    const auto wide = [&](const View& v) {
      auto* const memory = scratch.take<C>(element_count(v.shape) / (v.strides[0] == 0 ? v.shape[0] : 1));
      const auto copied = Batch<C>::like(memory, v);
      if (element_count(v.shape) > 0) copy(Batch<const T>(v), copied);
      return Batch<const C>{copied};
    };
    const Batch<const C> wide_a = wide(a), wide_b = wide(b);
    Batch<C> result(scratch.take<C>(element_count(out.shape)), out);
    if (beta != C(0)) copy(Batch<const T>(out), result);
    if (bias.present) {
      C* row = scratch.take<C>(result.columns);
      for (std::int64_t j = 0; j < result.columns; ++j) row[j] = static_cast<const T*>(bias.data)[j * bias.strides[0]];
      add_bias(result, row, 1, beta);
      beta = 1;
    }
    multiply<C>(wide_a, wide_b, result, alpha, beta);
    activate(result, args.activation);
    copy(result, Batch<T>(out));
  }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const MatmulArgs& args) {
  const DType dtype = args.out.view.dtype;
  check_floating(MatmulArgs::kName, dtype, stream);
  dispatch_floating(dtype, [&]<class T>(Type<T>) { launch(stream, args, matmul_views<T>); });
}

}  // namespace lockstep::kernels::host
