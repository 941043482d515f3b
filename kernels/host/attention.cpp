// Attention by blocks of keys, in one pass over them (Milakov and Gimelshein, 2018; Dao, 2023). The scores of a tile of
// queries stand with the queries side by side, so that each step of a softmax is vector code without sums across a
// register, and keys and values are read where they lie.
#include "lockstep/kernels/host/attention_few.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/pieces.h"

namespace lockstep::kernels::host {
namespace {

constexpr std::int64_t kKeys = 128;  // of a block: its scores and a strip of its values stay in the first-level cache

// The running maximum and sum of each lane.
template <class C>
struct Softmax {
  C top[kLanes<C>], shrink[kLanes<C>];
  double total[kLanes<C>];

  Softmax() {
    std::fill_n(top, kLanes<C>, -kInfinity<C>);
    std::fill_n(total, kLanes<C>, 0.0);
  }
  // Scores become exponentials; `shrink` is what earlier ones are to be multiplied with.
  void step(const Block<C>& x) {
    constexpr std::int64_t kHalf = kTileWidth<C>;
    TileVector<C> top0 = load_tile(top), top1 = load_tile(top + kHalf);
    for (std::int64_t c = 0; c < x.count; ++c) {
      // NaN is passed over here, and comes back as the exponential of NaN.
      const TileVector<C> x0 = load_tile(x.data + c * x.stride), x1 = load_tile(x.data + c * x.stride + kHalf);
      top0 = x0 > top0 ? x0 : top0;
      top1 = x1 > top1 ? x1 : top1;
    }
    C next[kLanes<C>], shift[kLanes<C>], sums[kLanes<C>];
    store_tile<C>(top0, next);
    store_tile<C>(top1, next + kHalf);
    for (std::int64_t l = 0; l < kLanes<C>; ++l) {
      shift[l] = next[l] == -kInfinity<C> ? C(0) : next[l];  // no key so far
      shrink[l] = math::exp_of_negative(top[l] - shift[l]);
      top[l] = next[l];
    }
    TileVector<C> sum0 = {}, sum1 = {};
    for (std::int64_t c = 0; c < x.count; ++c) {
      C* row = x.data + c * x.stride;
      LOCKSTEP_INDEPENDENT
      for (std::int64_t l = 0; l < kLanes<C>; ++l) row[l] = math::exp_of_negative(row[l] - shift[l]);
      sum0 += load_tile(row);
      sum1 += load_tile(row + kHalf);
    }
    store_tile<C>(sum0, sums);
    store_tile<C>(sum1, sums + kHalf);
    for (std::int64_t l = 0; l < kLanes<C>; ++l)
      total[l] = total[l] * static_cast<double>(shrink[l]) + static_cast<double>(sums[l]);
  }
};

constexpr std::int64_t kPieceQueries = 256;                 // at most, a multiple of kLanes
constexpr std::int64_t kPieceWork = std::int64_t{1} << 20;  // multiplications

// What one thread works with.
template <class C>
struct Forward {
  const AttentionArgs& a;
  const AttentionProblem& p;
  const std::int64_t key_row = padded<C>(p.key_size), value_row = padded<C>(p.value_size);
  Scratch scratch{};
  Heads<C> keys{a.k.view, p.keys, scratch, &p.block_table}, values{a.v.view, p.keys, scratch, &p.block_table};
  C* q_rows = scratch.take<C>(kLanes<C> * key_row);
  C* q = scratch.take<C>(p.key_size * kLanes<C>);
  C* scores = scratch.take<C>(kKeys * kLanes<C>);
  C* factors = p.dropout.p > 0 ? scratch.take<C>(kKeys* kLanes<C>) : nullptr;
  C* sums = scratch.take<C>(kLanes<C> * value_row);

  Forward(const AttentionArgs& args, const AttentionProblem& problem) : a(args), p(problem) {}

  // Queries begin … end - 1 of the heads that have the keys of head g, as one sequence.
  void run(std::int64_t b, std::int64_t g, std::int64_t begin, std::int64_t end) {
    const std::int64_t length = p.length(b);
    const Rows<C> k = keys.rows(b, g, 0, length), v = values.rows(b, g, 0, length);
    for (std::int64_t first = begin; first < end; first += kLanes<C>) {
      const Lanes<C> lanes(p, b, g * p.group(), first, end - first);
      for (std::int64_t l = 0; l < lanes.count; ++l)
        read_row(a.q.view, b, lanes.head[l], lanes.query[l], q_rows + l * key_row, key_row);
      transpose(q_rows, key_row, lanes.count, p.key_size, static_cast<C>(p.scale), q);
      Softmax<C> softmax;
      for (std::int64_t j = 0; j < lanes.most; j += kKeys) {
        const Block<C> x{j, std::min(kKeys, lanes.most - j), scores, kLanes<C>};
        multiply<C>(x.count, kLanes<C>, p.key_size, {k.from(j).data, k.stride, 1}, {q, kLanes<C>}, scores, kLanes<C>,
                    {});
        hide(p, lanes, x);
        softmax.step(x);
        if (factors) {
          make_factors(p, lanes, {x.first, x.count, factors, kLanes<C>});
          LOCKSTEP_INDEPENDENT
          for (std::int64_t c = 0; c < x.count * kLanes<C>; ++c) scores[c] *= factors[c];
        }
        multiply<C>(kLanes<C>, value_row, x.count, {scores, 1, kLanes<C>}, {v.from(j).data, v.stride}, sums, value_row,
                    j == 0 ? Keep<C>{} : Keep<C>{softmax.shrink, 1});
      }
      if (lanes.most == 0) std::fill_n(sums, kLanes<C> * value_row, C(0));
      for (std::int64_t l = 0; l < lanes.count; ++l)
        finish(a, b, lanes.head[l], lanes.query[l], sums + l * value_row, softmax.top[l], softmax.total[l]);
    }
  }
};

template <class C>
void forward(const AttentionArgs& a) {
  const AttentionProblem p(a);
  check_places(AttentionArgs::kName, p, a.k.view.shape[0]);
  if (p.queries == 0 || p.heads == 0) return;
  const std::int64_t rows = p.group() * p.queries, key_row = padded<C>(p.key_size), value_row = padded<C>(p.value_size);
  if (rows <= kFewQueries) return attend_few<C>(a, p);
  // Pieces: a part of the queries of a group of heads each, or several such where there are few.
  const std::int64_t chunks = (rows + kPieceQueries - 1) / kPieceQueries, units = p.batch * p.kv_heads * chunks;
  const std::int64_t cost = std::min(rows, kPieceQueries) * p.keys * (key_row + value_row);
  for_pieces(units, piece_rows(units, cost, kPieceWork), [&](std::int64_t begin, std::int64_t end) {
    Forward<C> piece(a, p);
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t first = unit % chunks * kPieceQueries, head = unit / chunks;
      piece.run(head / p.kv_heads, head % p.kv_heads, first, std::min(rows, first + kPieceQueries));
    }
  });
}

}  // namespace

void check_places(const char* name, const AttentionProblem& p, std::int64_t pages) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t length = p.length(b);
    if (length < 0 || length > p.keys)
      lockstep::detail::fail<InvalidArgument>("[", name, "] expected lengths in [0, ", p.keys, "], got ", length,
                                              " for sequence ", b);
    if (p.page == 0) continue;
    for (std::int64_t n = 0; n * p.page < length; ++n) {
      const std::int64_t page = integer_at(p.block_table, b * p.block_table.strides[0] + n * p.block_table.strides[1]);
      if (page < 0 || page >= pages)
        lockstep::detail::fail<InvalidArgument>("[", name, "] expected pages in [0, ", pages, "), got ", page,
                                                " at position ", n, " of sequence ", b);
    }
  }
}

void Kernels::enqueue(const Stream& stream, const AttentionArgs& args) {
  const DType dtype = args.q.view.dtype;
  check_floating(AttentionArgs::kName, dtype, stream);
  dispatch_compute(dtype, [&]<class C>(Type<C>) { launch(stream, args, forward<C>); });
}

}  // namespace lockstep::kernels::host
