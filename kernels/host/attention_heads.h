// What the kernels of attention share: the problem, the rows of a head, and scores of several queries side by side.
#pragma once

#include <algorithm>
#include <limits>

#include "lockstep/kernels/common/attention.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/attention_tile.h"
#include "lockstep/kernels/host/half_rows.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/widen.h"
#include "lockstep/kernels/philox.h"

namespace lockstep::kernels::host {

template <class C>
inline constexpr C kInfinity = std::numeric_limits<C>::infinity();

// Element of an i32 or i64 view.
inline std::int64_t integer_at(const View& view, std::int64_t offset) {
  return view.dtype == DType::i32 ? static_cast<const std::int32_t*>(view.data)[offset]
                                  : static_cast<const std::int64_t*>(view.data)[offset];
}

struct AttentionProblem : AttentionSizes {
  const View &mask, &seqlens_k, &block_table;
  double scale;
  bool causal;
  CausalVariant variant;
  const AttentionDropout& dropout;

  explicit AttentionProblem(const AttentionArgs& a) : AttentionProblem(a, a.block_table.view) {}
  explicit AttentionProblem(const AttentionGradArgs& a) : AttentionProblem(a, kNoView) {}

  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t length(std::int64_t b) const {
    return seqlens_k.present ? integer_at(seqlens_k, b * seqlens_k.strides[0]) : keys;
  }
  std::int64_t seen(std::int64_t i, std::int64_t sequence_length) const {
    return seen_keys(causal, variant, i, queries, sequence_length);
  }

 private:
  static inline const View kNoView;
  template <class Args>
  AttentionProblem(const Args& a, const View& table)
      : AttentionSizes(attention_sizes(a.q.view, a.k.view, a.v.view, table)),
        mask(a.mask.view),
        seqlens_k(a.seqlens_k.view),
        block_table(table),
        scale(a.scale),
        causal(a.causal),
        variant(a.variant),
        dropout(a.dropout) {}
};

// Throws InvalidArgument for a length or a page that is not there; `pages`: of the pool.
void check_places(const char* name, const AttentionProblem& p, std::int64_t pages);

template <class C>
struct Rows {
  const C* data;
  std::int64_t stride;
  Rows from(std::int64_t first) const { return {data + first * stride, stride}; }
};

// `count` rows as rows of C, zeros between a row's end and `stride`.
template <class C>
void read_rows(const View& x, std::int64_t begin, std::int64_t count, C* to, std::int64_t stride) {
  const std::int64_t columns = x.shape[3], row = x.strides[2], column = x.strides[3];
  dispatch_floating(x.dtype, [&]<class T>(Type<T>) {
    const T* from = static_cast<const T*>(x.data) + begin;
    for (std::int64_t i = 0; i < count; ++i, from += row, to += stride) {
      if constexpr (std::is_same_v<T, double> == std::is_same_v<C, double>) {
        if (column == 1)
          convert_row(from, to, columns);
        else
          for (std::int64_t j = 0; j < columns; ++j) to[j] = static_cast<C>(from[j * column]);
      }
      std::fill(to + columns, to + stride, C(0));
    }
  });
}

template <class C>
void read_row(const View& x, std::int64_t b, std::int64_t h, std::int64_t i, C* to, std::int64_t stride) {
  read_rows(x, b * x.strides[0] + h * x.strides[1] + i * x.strides[2], 1, to, stride);
}

// The rows of the heads of one operand, padded to whole registers: in place where they are that already, else in memory
// of our own.
template <class C>
class Heads {
 public:
  // At most `most` rows are asked for at a time. With `table`, the operand is a pool of pages.
  Heads(const View& x, std::int64_t most, Scratch& scratch, const View* table = nullptr)
      : x_(x), table_(table && table->present ? table : nullptr), stride_(padded<C>(x.shape[3])) {
    in_place_ = x.dtype == dtype_of<C>() && x.strides[3] == 1 && x.shape[3] == stride_;
    if (!in_place_ || table_) memory_ = scratch.take<C>(most * stride_);
  }
  // Rows first … first + count - 1 of a head; until the next call.
  Rows<C> rows(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count) {
    if (count == 0) return {memory_, stride_};  // a page behind the last need not be in the table
    const std::int64_t page = table_ ? x_.shape[2] : std::numeric_limits<std::int64_t>::max();
    if (in_place_ && first % page + count <= page)
      return {static_cast<const C*>(x_.data) + begin(b, h, first), x_.strides[2]};
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t at = first + done, run = std::min(count - done, page - at % page);
      read_rows(x_, begin(b, h, at), run, memory_ + done * stride_, stride_);
      done += run;
    }
    return {memory_, stride_};
  }

 private:
  std::int64_t begin(std::int64_t b, std::int64_t h, std::int64_t row) const {
    if (table_) {
      const std::int64_t entry = row / x_.shape[2];
      row %= x_.shape[2];
      b = integer_at(*table_, b * table_->strides[0] + entry * table_->strides[1]);
    }
    return b * x_.strides[0] + h * x_.strides[1] + row * x_.strides[2];
  }
  const View& x_;
  const View* table_;
  std::int64_t stride_;
  bool in_place_;
  C* memory_ = nullptr;
};

// Queries of one sequence that are worked on side by side, and how many keys each sees. The lanes behind the last query
// repeat it.
template <class C>
struct Lanes {
  std::int64_t b, count, most = 0, fewest = 0;
  std::int64_t head[kLanes<C>], query[kLanes<C>], seen[kLanes<C>];

  // Queries first, first + 1, … of the heads `head0` and those behind it, as one sequence of heads * queries.
  Lanes(const AttentionProblem& p, std::int64_t b_, std::int64_t head0, std::int64_t first, std::int64_t rows)
      : b(b_), count(std::min(kLanes<C>, rows)) {
    const std::int64_t length = p.length(b);
    for (std::int64_t l = 0; l < kLanes<C>; ++l) {
      const std::int64_t at = first + std::min(l, count - 1);
      head[l] = head0 + at / p.queries;
      query[l] = at % p.queries;
      seen[l] = p.seen(query[l], length);
      most = std::max(most, seen[l]);
      fewest = l == 0 ? seen[l] : std::min(fewest, seen[l]);
    }
  }
};

// Scores or probabilities of the keys `first` … `first + count - 1`: key c of lane l is at data[c * stride + l].
template <class C>
struct Block {
  std::int64_t first, count;
  C* data;
  std::int64_t stride;
};

// Minus infinity where a query does not see a key; what a floating mask has is added.
template <class C>
void apply_mask(const AttentionProblem& p, const Lanes<C>& lanes, const Block<C>& x) {
  const View& mask = p.mask;
  const auto each = [&]<class T>(const T* from, auto&& f) {
    const T* rows[kLanes<C>];
    bool alike = true;
    for (std::int64_t l = 0; l < kLanes<C>; ++l) {
      rows[l] = from + lanes.b * mask.strides[0] + lanes.head[l] * mask.strides[1] + lanes.query[l] * mask.strides[2] +
                x.first * mask.strides[3];
      alike = alike && rows[l] == rows[0];
    }
    for (std::int64_t c = 0; c < x.count; ++c) {
      C* scores = x.data + c * x.stride;
      const std::int64_t at = c * mask.strides[3];
      if (alike)
        for (std::int64_t l = 0; l < kLanes<C>; ++l) scores[l] = f(scores[l], rows[0][at]);
      else
        for (std::int64_t l = 0; l < kLanes<C>; ++l) scores[l] = f(scores[l], rows[l][at]);
    }
  };
  if (mask.dtype == DType::boolean)
    return each(static_cast<const bool*>(mask.data),
                [](C score, bool in) { return math::select(in, score, -kInfinity<C>); });
  dispatch_floating(mask.dtype, [&]<class T>(Type<T>) {
    each(static_cast<const T*>(mask.data),
         [](C score, T bias) { return score + static_cast<C>(static_cast<functors::Compute<T>>(bias)); });
  });
}

// What the products gave becomes scores: those that a mask, the diagonal or the end of the sequence hides are minus
// infinity.
template <class C>
void hide(const AttentionProblem& p, const Lanes<C>& lanes, const Block<C>& x) {
  if (p.mask.present) apply_mask(p, lanes, x);
  for (std::int64_t c = std::max<std::int64_t>(0, lanes.fewest - x.first); c < x.count; ++c)
    for (std::int64_t l = 0; l < kLanes<C>; ++l)
      x.data[c * x.stride + l] = math::select(x.first + c < lanes.seen[l], x.data[c * x.stride + l], -kInfinity<C>);
}

// What each probability of the keys first … first + count - 1 is multiplied with: 0, or 1 / (1 - p).
template <class C>
void make_factors(const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t first,
                  std::int64_t count, C* factors, std::int64_t stride) {
  const AttentionDropout& d = p.dropout;
  const std::uint64_t key = d.replayed ? d.replayed[0] : d.key, stream = d.replayed ? d.replayed[1] : d.stream;
  const std::uint64_t threshold = philox::threshold(1 - d.p);
  const C kept = static_cast<C>(1 / (1 - d.p));
  const std::int64_t begin = ((b * p.heads + h) * p.queries + i) * p.keys + first;
  for (std::int64_t c = 0; c < count;) {
    const std::int64_t at = begin + c;
    const philox::Block block = philox::block(static_cast<std::uint64_t>(at / 4), stream, key);
    for (std::int64_t w = at % 4; w < 4 && c < count; ++w, ++c)
      factors[c * stride] = block.words[w] < threshold ? kept : C(0);
  }
}
template <class C>
void make_factors(const AttentionProblem& p, const Lanes<C>& lanes, const Block<C>& x) {
  for (std::int64_t l = 0; l < kLanes<C>; ++l)
    make_factors(p, lanes.b, lanes.head[l], lanes.query[l], x.first, x.count, x.data + l, x.stride);
}

// `count` rows to the contiguous `to`, from row `first` of head [b, h] on; each element times `factor`.
template <class C>
void store_rows(const View& to, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count, Rows<C> from,
                C factor) {
  const std::int64_t columns = to.shape[3];
  const std::int64_t begin = ((b * to.shape[1] + h) * to.shape[2] + first) * columns;
  dispatch_floating(to.dtype, [&]<class T>(Type<T>) {
    T* out = static_cast<T*>(to.data) + begin;
    for (std::int64_t r = 0; r < count; ++r) {
      const C* row = from.data + r * from.stride;
      LOCKSTEP_INDEPENDENT
      for (std::int64_t j = 0; j < columns; ++j)
        out[r * columns + j] = static_cast<T>(static_cast<functors::Compute<T>>(row[j] * factor));
    }
  });
}

// The results of one query: `sums` of values times exponentials, which are relative to `top` and sum up to `total`.
template <class C>
void finish(const AttentionArgs& a, std::int64_t b, std::int64_t h, std::int64_t i, const C* sums, C top,
            double total) {
  const bool empty = total == 0;
  store_rows<C>(a.out.view, b, h, i, 1, {sums, 0}, empty ? C(0) : static_cast<C>(1 / total));
  const View& lse = a.lse.view;
  static_cast<C*>(lse.data)[(b * lse.shape[1] + h) * lse.shape[2] + i] =
      empty ? kInfinity<C> : static_cast<C>(static_cast<double>(top) + math::log(total));
}

}  // namespace lockstep::kernels::host
