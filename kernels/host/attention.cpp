// Attention by tiles of queries and keys: scores by the matrix product, then a pass over their rows, then another
// product. A row's maximum and sum are carried from tile to tile (Milakov and Gimelshein, 2018); backward makes the
// probabilities again from the saved logarithm of the sum (Dao, 2023).
#include <algorithm>
#include <limits>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/gemm.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/maximum.h"
#include "lockstep/kernels/host/sums.h"
#include "lockstep/kernels/host/widen.h"
#include "lockstep/kernels/philox.h"

namespace lockstep::kernels::host {
namespace {

constexpr std::int64_t kQueries = 64, kKeys = 256;  // of a tile: its scores stay in the second-level cache

template <class C>
constexpr C kInfinity = std::numeric_limits<C>::infinity();

// One head as a matrix: in place where its elements are of type C, else a copy.
template <class C>
Matrix<C> head(const View& v, std::int64_t b, std::int64_t h, C* copy) {
  const std::int64_t rows = v.shape[2], columns = v.shape[3], begin = b * v.strides[0] + h * v.strides[1];
  if (v.dtype == dtype_of<C>())
    return {static_cast<const C*>(v.data) + begin, rows, columns, v.strides[2], v.strides[3]};
  dispatch_floating(v.dtype, [&]<class T>(Type<T>) {
    const T* from = static_cast<const T*>(v.data) + begin;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        copy[i * columns + j] =
            static_cast<C>(static_cast<functors::Compute<T>>(from[i * v.strides[2] + j * v.strides[3]]));
  });
  return {copy, rows, columns, columns, 1};
}
template <class C>
C* copy_for(const View& v, Scratch& scratch) {
  return v.dtype == dtype_of<C>() ? nullptr : scratch.take<C>(v.shape[2] * v.shape[3]);
}
template <class C>
Matrix<C> some_rows(const Matrix<C>& m, std::int64_t first, std::int64_t count) {
  return {m.data + first * m.row_stride, count, m.columns, m.row_stride, m.column_stride};
}
template <class C>
Matrix<C> dense(const C* data, std::int64_t rows, std::int64_t columns) {
  return {data, rows, columns, columns, 1};
}

// What is the same for all tiles of a call.
struct Problem {
  std::int64_t batch, heads, queries, keys;
  const View& mask;
  double scale;
  bool causal;
  const AttentionDropout& dropout;

  template <class Args>
  explicit Problem(const Args& a)
      : batch(a.q.view.shape[0]),
        heads(a.q.view.shape[1]),
        queries(a.q.view.shape[2]),
        keys(a.k.view.shape[2]),
        mask(a.mask.view),
        scale(a.scale),
        causal(a.causal),
        dropout(a.dropout) {}
  std::int64_t key_limit(std::int64_t first_query, std::int64_t rows) const {
    return causal ? std::min(keys, first_query + rows) : keys;
  }
};

struct Tile {
  std::int64_t b, h, query, rows, key, columns;
};

template <class C>
void add_mask(const View& mask, const Tile& t, C* scores) {
  const auto each = [&]<class T>(const T* from, auto&& f) {
    from += t.b * mask.strides[0] + t.h * mask.strides[1] + t.query * mask.strides[2] + t.key * mask.strides[3];
    for (std::int64_t r = 0; r < t.rows; ++r, from += mask.strides[2])
      for (std::int64_t j = 0; j < t.columns; ++j) {
        C& score = scores[r * t.columns + j];
        score = f(score, from[j * mask.strides[3]]);
      }
  };
  if (mask.dtype == DType::boolean)
    return each(static_cast<const bool*>(mask.data), [](C score, bool in) { return in ? score : -kInfinity<C>; });
  dispatch_floating(mask.dtype, [&]<class T>(Type<T>) {
    each(static_cast<const T*>(mask.data),
         [](C score, T bias) { return score + static_cast<C>(static_cast<functors::Compute<T>>(bias)); });
  });
}

// scores [rows, columns] = scale * q @ k^T, minus infinity where a query does not see a key.
template <class C>
void make_scores(const Problem& p, const Tile& t, const Matrix<C>& q, const Matrix<C>& k, C* scores) {
  gemm<C>(some_rows(q, t.query, t.rows), some_rows(k, t.key, t.columns).transposed(), scores, t.columns,
          static_cast<C>(p.scale), 0);
  if (p.mask.present) add_mask(p.mask, t, scores);
  if (!p.causal) return;
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const std::int64_t seen = std::clamp<std::int64_t>(t.query + r + 1 - t.key, 0, t.columns);
    std::fill(scores + r * t.columns + seen, scores + (r + 1) * t.columns, -kInfinity<C>);
  }
}

// What each probability is multiplied with: 0, or 1 / (1 - p).
template <class C>
void make_factors(const Problem& p, const Tile& t, C* factors) {
  const std::uint64_t threshold = philox::threshold(1 - p.dropout.p);
  const C kept = static_cast<C>(1 / (1 - p.dropout.p));
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const std::int64_t begin = ((t.b * p.heads + t.h) * p.queries + t.query + r) * p.keys + t.key;
    for (std::int64_t j = 0; j < t.columns;) {
      const std::int64_t at = begin + j;
      const philox::Block block = philox::block(static_cast<std::uint64_t>(at / 4), p.dropout.stream, p.dropout.key);
      for (std::int64_t w = at % 4; w < 4 && j < t.columns; ++w, ++j)
        factors[r * t.columns + j] = block.words[w] < threshold ? kept : C(0);
    }
  }
}

template <class C>
void multiply(C* x, const C* factors, std::int64_t count) {
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) x[i] *= factors[i];
}

// Rows to the contiguous `to`, from its row `first` of head [b, h] on; each times its factor.
template <class C>
void store_rows(const View& to, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows, const C* from,
                const C* row_factors) {
  const std::int64_t columns = to.shape[3];
  const std::int64_t begin = ((b * to.shape[1] + h) * to.shape[2] + first) * columns;
  dispatch_floating(to.dtype, [&]<class T>(Type<T>) {
    T* out = static_cast<T*>(to.data) + begin;
    for (std::int64_t r = 0; r < rows; ++r) {
      const C factor = row_factors ? row_factors[r] : C(1);
      LOCKSTEP_INDEPENDENT
      for (std::int64_t j = 0; j < columns; ++j)
        out[r * columns + j] = static_cast<T>(static_cast<functors::Compute<T>>(from[r * columns + j] * factor));
    }
  });
}

template <class C>
void forward(const AttentionArgs& a) {
  const Problem p(a);
  const std::int64_t size = a.v.view.shape[3];
  Scratch scratch;
  C* q_copy = copy_for<C>(a.q.view, scratch);
  C* k_copy = copy_for<C>(a.k.view, scratch);
  C* v_copy = copy_for<C>(a.v.view, scratch);
  const std::int64_t tile = std::min(kQueries, p.queries) * std::min(kKeys, p.keys);
  C* scores = scratch.take<C>(tile);
  C* factors = p.dropout.p > 0 ? scratch.take<C>(tile) : nullptr;
  C* sums = scratch.take<C>(kQueries * size);
  C tops[kQueries], shares[kQueries];
  double totals[kQueries];
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const Matrix<C> q = head(a.q.view, b, h, q_copy), k = head(a.k.view, b, h, k_copy),
                      v = head(a.v.view, b, h, v_copy);
      for (std::int64_t i = 0; i < p.queries; i += kQueries) {
        const std::int64_t rows = std::min(kQueries, p.queries - i), limit = p.key_limit(i, rows);
        std::fill_n(sums, rows * size, C(0));
        std::fill_n(tops, rows, -kInfinity<C>);
        std::fill_n(totals, rows, 0.0);
        for (std::int64_t j = 0; j < limit; j += kKeys) {
          const Tile t{b, h, i, rows, j, std::min(kKeys, limit - j)};
          make_scores(p, t, q, k, scores);
          if (factors) make_factors(p, t, factors);
          for (std::int64_t r = 0; r < rows; ++r) {
            C* row = scores + r * t.columns;
            const C top = functors::larger(maximum(row, t.columns), tops[r]);
            if (top == -kInfinity<C>) {  // no key so far
              std::fill_n(row, t.columns, C(0));
              continue;
            }
            LOCKSTEP_INDEPENDENT
            for (std::int64_t c = 0; c < t.columns; ++c) row[c] = math::exp_of_negative(row[c] - top);
            const C shrink = math::exp(tops[r] - top);
            totals[r] = totals[r] * static_cast<double>(shrink) + sum(row, t.columns);
            tops[r] = top;
            for (std::int64_t c = 0; j > 0 && c < size; ++c) sums[r * size + c] *= shrink;
          }
          if (factors) multiply(scores, factors, rows * t.columns);
          gemm<C>(dense(scores, rows, t.columns), some_rows(v, j, t.columns), sums, size, 1, 1);
        }
        for (std::int64_t r = 0; r < rows; ++r) {
          const bool empty = totals[r] == 0;
          shares[r] = empty ? C(0) : static_cast<C>(1 / totals[r]);
          static_cast<C*>(a.lse.view.data)[(b * p.heads + h) * p.queries + i + r] =
              empty ? kInfinity<C> : static_cast<C>(static_cast<double>(tops[r]) + math::log(totals[r]));
        }
        store_rows<C>(a.out.view, b, h, i, rows, sums, shares);
      }
    }
}

// One head's gradient: where it is stored, if it can be, else in memory of our own.
template <class C>
struct Gradient {
  const View& view;
  C* memory = nullptr;
  bool direct = false;

  Gradient(const Out& out, Scratch& scratch) : view(out.view) {
    if (!view.present) return;
    direct = view.dtype == dtype_of<C>();
    if (!direct) memory = scratch.take<C>(view.shape[2] * view.shape[3]);
  }
  void begin(std::int64_t b, std::int64_t h) {
    if (!view.present) return;
    const std::int64_t count = view.shape[2] * view.shape[3];
    if (direct) memory = static_cast<C*>(view.data) + (b * view.shape[1] + h) * count;
    std::fill_n(memory, count, C(0));
  }
  // Adds alpha * x @ y to the rows from `first` on.
  void add(std::int64_t first, const Matrix<C>& x, const Matrix<C>& y, double alpha) {
    if (view.present) gemm<C>(x, y, memory + first * view.shape[3], view.shape[3], static_cast<C>(alpha), 1);
  }
  void end(std::int64_t b, std::int64_t h) {
    if (view.present && !direct) store_rows<C>(view, b, h, 0, view.shape[2], memory, nullptr);
  }
};

// With P the probabilities, O the output and M the dropout's factors: dV = (P M)^T dO, dP = dO V^T M,
// dS = P (dP - sum(dO O)), dQ = scale dS K, dK = scale dS^T Q.
template <class C>
void backward(const AttentionGradArgs& a) {
  const Problem p(a);
  Scratch scratch;
  C* q_copy = copy_for<C>(a.q.view, scratch);
  C* k_copy = copy_for<C>(a.k.view, scratch);
  C* v_copy = copy_for<C>(a.v.view, scratch);
  C* out_copy = copy_for<C>(a.out.view, scratch);
  C* dout_copy = copy_for<C>(a.dout.view, scratch);
  Gradient<C> dq(a.dq, scratch), dk(a.dk, scratch), dv(a.dv, scratch);
  const std::int64_t tile = std::min(kQueries, p.queries) * std::min(kKeys, p.keys);
  C* probabilities = scratch.take<C>(tile);
  C* products = scratch.take<C>(tile);
  C* factors = p.dropout.p > 0 ? scratch.take<C>(tile) : nullptr;
  C* deltas = scratch.take<C>(p.queries);
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const Matrix<C> q = head(a.q.view, b, h, q_copy), k = head(a.k.view, b, h, k_copy),
                      v = head(a.v.view, b, h, v_copy), out = head(a.out.view, b, h, out_copy),
                      dout = head(a.dout.view, b, h, dout_copy);
      const C* lse = static_cast<const C*>(a.lse.view.data) + (b * p.heads + h) * p.queries;
      for (std::int64_t i = 0; i < p.queries; ++i)
        deltas[i] = static_cast<C>(sum_of(v.columns, [&](std::int64_t c) {
          return static_cast<double>(out.data[i * out.row_stride + c * out.column_stride]) *
                 static_cast<double>(dout.data[i * dout.row_stride + c * dout.column_stride]);
        }));
      dq.begin(b, h), dk.begin(b, h), dv.begin(b, h);
      for (std::int64_t j = 0; j < p.keys; j += kKeys)
        for (std::int64_t i = p.causal ? j / kQueries * kQueries : 0; i < p.queries; i += kQueries) {
          const std::int64_t rows = std::min(kQueries, p.queries - i);
          const Tile t{b, h, i, rows, j, std::min(kKeys, p.key_limit(i, rows) - j)};
          make_scores(p, t, q, k, probabilities);
          gemm<C>(some_rows(dout, i, rows), some_rows(v, j, t.columns).transposed(), products, t.columns, 1, 0);
          if (factors) {
            make_factors(p, t, factors);
            multiply(products, factors, rows * t.columns);
          }
          for (std::int64_t r = 0; r < rows; ++r) {
            C *probability = probabilities + r * t.columns, *product = products + r * t.columns;
            const C shift = lse[i + r], delta = deltas[i + r];
            LOCKSTEP_INDEPENDENT
            for (std::int64_t c = 0; c < t.columns; ++c) {
              probability[c] = math::exp(probability[c] - shift);
              product[c] = probability[c] * (product[c] - delta);
            }
          }
          const Matrix<C> ds = dense(products, rows, t.columns);
          dq.add(i, ds, some_rows(k, j, t.columns), p.scale);
          dk.add(j, ds.transposed(), some_rows(q, i, rows), p.scale);
          if (factors) multiply(probabilities, factors, rows * t.columns);
          dv.add(j, dense(probabilities, rows, t.columns).transposed(), some_rows(dout, i, rows), 1);
        }
      dq.end(b, h), dk.end(b, h), dv.end(b, h);
    }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const AttentionArgs& args) {
  const DType dtype = args.q.view.dtype;
  check_floating(AttentionArgs::kName, dtype, stream);
  dispatch_compute(dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const AttentionGradArgs& args) {
  const DType dtype = args.q.view.dtype;
  check_floating(AttentionGradArgs::kName, dtype, stream);
  dispatch_compute(dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
