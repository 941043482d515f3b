// Backward of attention: the probabilities are made again from the saved logarithms of the sums (Dao, 2023). With P the
// probabilities, O the output and M the dropout's factors: dV = (P M)^T dO, dP = dO V^T M, dS = P (dP - sum(dO O)),
// dQ = scale dS K, dK = scale dS^T Q.
#include "lockstep/kernels/host/attention_heads.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/sums.h"

namespace lockstep::kernels::host {
namespace {

constexpr std::int64_t kQueries = 64, kKeys = 64;           // of a tile
constexpr std::int64_t kPieceWork = std::int64_t{1} << 20;  // multiplications

// The queries of a tile, and what comes with them.
template <class C>
struct Queries {
  static constexpr std::int64_t kStrips = kQueries / kLanes<C>;

  std::int64_t key_row, value_row;
  C *q, *dout, *across_q, *across_dout;  // rows; and in strips of kLanes queries side by side, q times the scale
  C *dq, *lse, *delta;

  Queries(const AttentionProblem& p, Scratch& scratch)
      : key_row(padded<C>(p.key_size)), value_row(padded<C>(p.value_size)) {
    for (C** memory : {&q, &across_q, &dq}) *memory = scratch.take<C>(kQueries * key_row);
    for (C** memory : {&dout, &across_dout}) *memory = scratch.take<C>(kQueries * value_row);
    for (C** memory : {&lse, &delta}) *memory = scratch.take<C>(kQueries);
  }
  void read(const AttentionGradArgs& a, const AttentionProblem& p, std::int64_t b, std::int64_t h, std::int64_t first,
            std::int64_t count) {
    const auto rows_of = [&](const View& x, C* to, std::int64_t stride) {
      read_rows(x, b * x.strides[0] + h * x.strides[1] + first * x.strides[2], count, to, stride);
      std::fill(to + count * stride, to + kQueries * stride, C(0));
    };
    rows_of(a.out.view, across_dout, value_row);  // its place for the moment
    rows_of(a.dout.view, dout, value_row);
    rows_of(a.q.view, q, key_row);
    const C* sums = static_cast<const C*>(a.lse.view.data) + (b * p.heads + h) * p.queries + first;
    for (std::int64_t r = 0; r < kQueries; ++r) {
      const C *x = across_dout + r * value_row, *y = dout + r * value_row;
      delta[r] = static_cast<C>(
          sum_of(value_row, [&](std::int64_t e) { return static_cast<double>(x[e]) * static_cast<double>(y[e]); }));
      lse[r] = r < count ? sums[r] : kInfinity<C>;  // no probability for queries that there are not
    }
    for (std::int64_t s = 0; s < kStrips; ++s) {
      const std::int64_t r = s * kLanes<C>;
      transpose(q + r * key_row, key_row, kLanes<C>, key_row, static_cast<C>(p.scale), across_q + r * key_row);
      transpose(dout + r * value_row, value_row, kLanes<C>, value_row, C(1), across_dout + r * value_row);
    }
    std::fill_n(dq, kQueries * key_row, C(0));
  }
};

// The gradient of one head of keys or values, in rows of whole registers.
template <class C>
struct Sums {
  const View& view;
  std::int64_t row;
  C* data = nullptr;

  Sums(const Out& out, Scratch& scratch) : view(out.view), row(view.present ? padded<C>(view.shape[3]) : 0) {
    if (view.present) data = scratch.take<C>(view.shape[2] * row);
  }
  void begin() {
    if (data) std::fill_n(data, view.shape[2] * row, C(0));
  }
  void end(std::int64_t b, std::int64_t h, double factor) {
    if (data) store_rows<C>(view, b, h, 0, view.shape[2], {data, row}, static_cast<C>(factor));
  }
};

template <class C>
struct Backward {
  const AttentionGradArgs& a;
  const AttentionProblem& p;
  Scratch scratch{};
  Queries<C> queries{p, scratch};
  Sums<C> dk{a.dk, scratch}, dv{a.dv, scratch};
  // [keys, queries]: probabilities, and first their gradients, then those of the scores.
  C *probabilities = scratch.take<C>(kKeys * kQueries), *ds = scratch.take<C>(kKeys * kQueries);
  C* factors = p.dropout.p > 0 ? scratch.take<C>(kKeys* kLanes<C>) : nullptr;

  Heads<C> keys{a.k.view, p.keys, scratch}, values{a.v.view, p.keys, scratch};

  // The heads that have the keys of head g.
  void run(std::int64_t b, std::int64_t g) {
    const std::int64_t length = p.length(b);
    const Rows<C> k = keys.rows(b, g, 0, length), v = values.rows(b, g, 0, length);
    dk.begin(), dv.begin();
    for (std::int64_t h = g * p.group(); h < (g + 1) * p.group(); ++h)
      for (std::int64_t i = 0; i < p.queries; i += kQueries) tile(b, h, i, k, v);
    dk.end(b, g, p.scale), dv.end(b, g, 1);
  }

  // Queries i … i + kQueries - 1 of head h.
  void tile(std::int64_t b, std::int64_t h, std::int64_t i, Rows<C> k, Rows<C> v) {
    const std::int64_t count = std::min(kQueries, p.queries - i), limit = p.seen(i + count - 1, p.length(b));
    queries.read(a, p, b, h, i, count);
    for (std::int64_t j = 0; j < limit; j += kKeys) {
      const std::int64_t n = std::min(kKeys, limit - j);
      std::int64_t first = kQueries;  // the first query of the first strip that sees one of the keys
      const std::int64_t strips_end = (count + kLanes<C> - 1) / kLanes<C> * kLanes<C>;
      for (std::int64_t r = 0; r < strips_end; r += kLanes<C>) {
        const Lanes<C> lanes(p, b, h, i + r, count - r);
        const std::int64_t seen = std::min(n, lanes.most - j);
        if (seen <= 0) continue;
        first = std::min(first, r);
        strip(lanes, {j, seen, probabilities + r, kQueries}, r, k.from(j), v.from(j));
        for (std::int64_t c = seen; c < n; ++c) {
          std::fill_n(probabilities + c * kQueries + r, kLanes<C>, C(0));
          std::fill_n(ds + c * kQueries + r, kLanes<C>, C(0));
        }
      }
      const std::int64_t depth = strips_end - first;
      if (dk.data)
        multiply<C>(n, dk.row, depth, {ds + first, kQueries, 1}, {queries.q + first * queries.key_row, queries.key_row},
                    dk.data + j * dk.row, dk.row, kAdd<C>);
      if (dv.data)
        multiply<C>(n, dv.row, depth, {probabilities + first, kQueries, 1},
                    {queries.dout + first * queries.value_row, queries.value_row}, dv.data + j * dv.row, dv.row,
                    kAdd<C>);
    }
    if (a.dq.view.present)
      store_rows<C>(a.dq.view, b, h, i, count, {queries.dq, queries.key_row}, static_cast<C>(p.scale));
  }

  // kLanes queries, from query r of the tile on.
  void strip(const Lanes<C>& lanes, const Block<C>& x, std::int64_t r, Rows<C> k, Rows<C> v) {
    multiply<C>(x.count, kLanes<C>, p.key_size, {k.data, k.stride, 1},
                {queries.across_q + r * queries.key_row, kLanes<C>}, x.data, kQueries, {});
    multiply<C>(x.count, kLanes<C>, p.value_size, {v.data, v.stride, 1},
                {queries.across_dout + r * queries.value_row, kLanes<C>}, ds + r, kQueries, {});
    hide(p, lanes, x);
    const C *lse = queries.lse + r, *delta = queries.delta + r;
    if (factors) make_factors(p, lanes, {x.first, x.count, factors, kLanes<C>});
    for (std::int64_t c = 0; c < x.count; ++c) {
      C *probability = x.data + c * kQueries, *gradient = ds + r + c * kQueries;
      const C* factor = factors + c * kLanes<C>;
      if (factors)
        for (std::int64_t l = 0; l < kLanes<C>; ++l) gradient[l] *= factor[l];
      LOCKSTEP_INDEPENDENT
      for (std::int64_t l = 0; l < kLanes<C>; ++l) {
        probability[l] = math::exp(probability[l] - lse[l]);
        gradient[l] = probability[l] * (gradient[l] - delta[l]);
      }
      if (factors)
        for (std::int64_t l = 0; l < kLanes<C>; ++l) probability[l] *= factor[l];
    }
    if (a.dq.view.present)
      multiply<C>(kLanes<C>, queries.key_row, x.count, {ds + r, 1, kQueries}, {k.data, k.stride},
                  queries.dq + r * queries.key_row, queries.key_row, kAdd<C>);
  }
};

template <class C>
void backward(const AttentionGradArgs& a) {
  const AttentionProblem p(a);
  check_places(AttentionGradArgs::kName, p, 0);
  // Each piece has heads of its own: what several add to is in one.
  const std::int64_t heads = p.batch * p.kv_heads;
  if (heads == 0) return;
  const std::int64_t cost = 2 * p.group() * p.queries * p.keys * (p.key_size + p.value_size);
  for_pieces(heads, piece_rows(heads, cost, kPieceWork), [&](std::int64_t begin, std::int64_t end) {
    Backward<C> piece{a, p};
    for (std::int64_t head = begin; head < end; ++head) piece.run(head / p.kv_heads, head % p.kv_heads);
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const AttentionGradArgs& args) {
  const DType dtype = args.q.view.dtype;
  check_floating(AttentionGradArgs::kName, dtype, stream);
  dispatch_compute(dtype, [&]<class C>(Type<C>) { launch(stream, args, backward<C>); });
}

}  // namespace lockstep::kernels::host
