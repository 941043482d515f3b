// Attention of any kind of arguments, against the host, with the way that it takes.
#pragma once

#include <limits>
#include <string>

#include "lockstep/kernels/cuda/attention_products.cuh"
#include "lockstep/runtime/trace/trace.h"
#include "support/parity.h"

namespace attention_cases {

using namespace lockstep;
using namespace support;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Mask { none, allowed, added };
struct Problem {
  std::int64_t batch, heads, kv_heads, queries, keys, key_size, value_size;
  Layout layout = Layout::contiguous;
  bool causal = false;
  CausalVariant variant = CausalVariant::upper_left;
  Mask mask = Mask::none;
  bool lengths = false;
  double dropout = 0;
  std::int64_t page = 0;
};

// The spans that begin with `attention ` or `attention_grad `: the way that was taken.
inline std::string way_of_trace() {
  trace::stop();
  std::string found;
  for (const trace::Span& span : trace::spans()) {
    const std::string name = span.work.name;
    if (name.starts_with("attention ") || name.starts_with("attention_grad ")) found += name + ";";
  }
  return found;
}

inline void fill_row(TestTensor& t, std::int64_t row, double value) {
  const std::int64_t size = t.shape()[3];
  for (std::int64_t n = row * size; n < (row + 1) * size; ++n) t.set(n, value);
}

// The gradients of these problems are hundredths in size: of 16-bit types too little would be seen of them with a
// tolerance as for numbers of one and more.
inline void check(const Problem& p, DType dtype, const std::string& forward, const std::string& backward) {
  const double scale = size_of(dtype) == 2 ? 0.05 : 4;
  const bool wide = dtype == DType::f64;
  const std::int64_t pages = p.page ? p.keys / p.page : 0;
  const Shape key = p.page ? Shape{p.batch * pages + 1, p.kv_heads, p.page, p.key_size}
                           : Shape{p.batch, p.kv_heads, p.keys, p.key_size};
  Shape value = key;
  value[3] = p.value_size;
  TestTensor q(dtype, {p.batch, p.heads, p.queries, p.key_size}, p.layout), k(dtype, key, p.layout),
      v(dtype, value, p.layout), out(dtype, {p.batch, p.heads, p.queries, p.value_size}),
      dout(dtype, out.shape(), p.layout), dq(dtype, q.shape()), dk(dtype, key), dv(dtype, value),
      lse(wide ? DType::f64 : DType::f32, {p.batch, p.heads, p.queries}), lengths(DType::i64, {p.batch}),
      table(DType::i32, {p.batch, std::max<std::int64_t>(pages, 1)}),
      mask(p.mask == Mask::allowed ? DType::boolean : dtype, {p.batch, p.heads, p.queries, p.keys}, p.layout);
  q.fill_random(1, -1, 1), k.fill_random(2, -1, 1), v.fill_random(3, -1, 1), dout.fill_random(4, -1, 1);
  mask.fill_random(5);
  // One query sees nothing.
  if (p.mask != Mask::none && p.layout != Layout::broadcast)
    fill_row(mask, p.queries - 2 >= 0 ? p.queries - 2 : 0, p.mask == Mask::allowed ? 0 : -kInfinity);
  // Sequences of all keys, of none, and of some; what lies behind them is not read.
  lengths.fill([&](std::int64_t b) {
    return static_cast<double>(b % 3 == 0 ? p.keys - p.keys / 3 : b % 3 == 1 ? 0 : p.keys);
  });
  table.fill([&](std::int64_t n) { return static_cast<double>((n * 5 + 2) % (p.batch * pages + 1)); });
  if (p.lengths && !p.page && p.layout != Layout::broadcast)
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t n = 0; n < p.kv_heads * p.keys; ++n)
        if (static_cast<double>(n % p.keys) >= lengths[b]) {
          fill_row(k, b * p.kv_heads * p.keys + n, std::numeric_limits<double>::quiet_NaN());
          fill_row(v, b * p.kv_heads * p.keys + n, std::numeric_limits<double>::quiet_NaN());
        }
  AttentionArgs args{.q = q.in(),
                     .k = k.in(),
                     .v = v.in(),
                     .mask = {},
                     .seqlens_k = {},
                     .block_table = {},
                     .out = out.out(),
                     .lse = lse.out(),
                     .scale = 0.4,
                     .causal = p.causal,
                     .variant = p.variant,
                     .dropout = {p.dropout, 5, 6}};
  if (p.mask != Mask::none) args.mask = mask.in();
  if (p.lengths) args.seqlens_k = lengths.in();
  if (p.page) args.block_table = table.in();
  const std::string what =
      cat(dtype, " batch ", p.batch, " heads ", p.heads, " of ", p.kv_heads, " queries ", p.queries, " keys ", p.keys,
          " sizes ", p.key_size, " ", p.value_size, " ", name_of(p.layout), p.causal ? " causal " : " ",
          static_cast<int>(p.variant), " mask ", static_cast<int>(p.mask), p.lengths ? " lengths" : "", " dropout ",
          p.dropout, " page ", p.page, " bytes ", kernels::cuda::scores_bytes);
  CAPTURE(what);
  trace::start();
  check_parity(compare_with_host(args, {&q, &k, &v, &mask, &lengths, &table, &out, &lse}, 16, 1), what);
  CHECK(way_of_trace() == forward);
  if (p.page) return;
  const AttentionGradArgs grad{.dout = dout.in(),
                               .q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = args.mask,
                               .seqlens_k = args.seqlens_k,
                               .out = {out.view()},
                               .lse = {lse.view()},
                               .dq = dq.out(),
                               .dk = dk.out(),
                               .dv = dv.out(),
                               .scale = args.scale,
                               .causal = args.causal,
                               .variant = args.variant,
                               .dropout = args.dropout};
  trace::start();
  check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &mask, &lengths, &out, &lse, &dq, &dk, &dv}, 32, scale),
               what);
  CHECK(way_of_trace() == backward);
  for (int without = 0; without < 3; ++without) {
    AttentionGradArgs partly = grad;
    (without == 0 ? partly.dq : without == 1 ? partly.dk : partly.dv) = {};
    check_parity(compare_with_host(partly, {&dout, &q, &k, &v, &mask, &lengths, &out, &lse, &dq, &dk, &dv}, 32, scale),
                 what + " partly");
  }
}

// Plain attention, and the gradient of all that it has.
inline AttentionArgs plain(In q, In k, In v, TestTensor& out, TestTensor& lse, double scale, bool causal = false) {
  return {.q = q,
          .k = k,
          .v = v,
          .mask = {},
          .out = out.out(),
          .lse = lse.out(),
          .scale = scale,
          .causal = causal,
          .dropout = {}};
}
inline AttentionGradArgs gradient(const AttentionArgs& of, In dout, TestTensor& dq, TestTensor& dk, TestTensor& dv) {
  return {.dout = dout,
          .q = of.q,
          .k = of.k,
          .v = of.v,
          .mask = {},
          .out = {of.out.view},
          .lse = {of.lse.view},
          .dq = dq.out(),
          .dk = dk.out(),
          .dv = dv.out(),
          .scale = of.scale,
          .causal = of.causal,
          .dropout = {}};
}

}  // namespace attention_cases
