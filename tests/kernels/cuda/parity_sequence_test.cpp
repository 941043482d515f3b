// Attention and the cells of recurrent networks on a CUDA device, see support/parity.h.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

TEST_CASE("CUDA parity: attention", "[cuda][parity]") {
  NEEDS_CUDA
  struct Problem {
    Shape q;
    std::int64_t keys, value_size;
    Layout layout;
  };
  const std::vector<Problem> problems = {
      {{1, 1, 1, 1}, 1, 1, Layout::contiguous}, {{2, 3, 33, 20}, 47, 12, Layout::transposed},
      {{1, 2, 70, 16}, 65, 40, Layout::slice},  {{1, 1, 5, 256}, 40, 256, Layout::contiguous},
      {{2, 2, 9, 3}, 7, 5, Layout::broadcast},  {{2, 1, 3, 4}, 0, 5, Layout::contiguous},
      {{2, 1, 0, 4}, 3, 5, Layout::contiguous}};
  enum class Mask { none, allowed, added };
  const OnBothSides<std::uint64_t> replayed{7, 8};
  for (const Problem& p : problems)
    for (const DType dtype : kFloatingDTypes)
      for (const Mask kind : {Mask::none, Mask::allowed, Mask::added})
        for (const bool causal : {false, true})
          for (const double dropout : {0.0, 0.4}) {
            if (dropout > 0 && kind == Mask::allowed) continue;
            Shape key = p.q, value = p.q, out_shape = p.q;
            key[2] = value[2] = p.keys;
            value[3] = out_shape[3] = p.value_size;
            TestTensor q(dtype, p.q, p.layout), k(dtype, key, p.layout), v(dtype, value, p.layout),
                mask(kind == Mask::allowed ? DType::boolean : dtype, {p.q[0], p.q[1], p.q[2], p.keys}, p.layout);
            TestTensor out(dtype, out_shape), dout(dtype, out_shape, p.layout), dq(dtype, p.q), dk(dtype, key),
                dv(dtype, value);
            TestTensor lse(dtype == DType::f64 ? DType::f64 : DType::f32, {p.q[0], p.q[1], p.q[2]});
            q.fill_random(1), k.fill_random(2), v.fill_random(3), mask.fill_random(4), dout.fill_random(5);
            AttentionArgs args{.q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = {},
                               .out = out.out(),
                               .lse = lse.out(),
                               .scale = 0.3,
                               .causal = causal,
                               .dropout = {dropout, 5, 6, causal ? replayed.data() : nullptr}};
            if (kind != Mask::none) args.mask = mask.in();
            const std::string what = cat(dtype, " ", p.q, " keys ", p.keys, " mask ", static_cast<int>(kind),
                                         causal ? " causal" : "", " dropout ", dropout);
            // A score is the sum of as many products as a head has elements, added in another order.
            check_parity(compare_with_host(args, {&q, &k, &v, &mask, &out, &lse}, p.q[3] > 100 ? 64 : 16, 4), what);
            const AttentionGradArgs grad{.dout = dout.in(),
                                         .q = q.in(),
                                         .k = k.in(),
                                         .v = v.in(),
                                         .mask = args.mask,
                                         .out = {out.view()},
                                         .lse = {lse.view()},
                                         .dq = dq.out(),
                                         .dk = dk.out(),
                                         .dv = dv.out(),
                                         .scale = args.scale,
                                         .causal = causal,
                                         .dropout = args.dropout};
            check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &mask, &out, &lse, &dq, &dk, &dv}, 32, 16), what);
            AttentionGradArgs partly = grad;
            partly.dq = {}, partly.dv = {};
            check_parity(compare_with_host(partly, {&dout, &q, &k, &v, &mask, &out, &lse, &dk}, 32, 16),
                         what + ", of the keys");
          }
}

TEST_CASE("CUDA parity: attention with lengths, fewer heads of keys, and pages", "[cuda][parity]") {
  NEEDS_CUDA
  for (const std::int64_t queries : {1, 40})
    for (const DType dtype : kFloatingDTypes)
      for (const DType integers : {DType::i32, DType::i64})
        for (const CausalVariant variant : {CausalVariant::upper_left, CausalVariant::lower_right}) {
          const std::string what = cat(dtype, " ", integers, " queries ", queries, " ", static_cast<int>(variant));
          TestTensor q(dtype, {2, 6, queries, 20}), k(dtype, {2, 2, 48, 20}), v(dtype, {2, 2, 48, 12}),
              pool_k(dtype, {7, 2, 16, 20}), pool_v(dtype, {7, 2, 16, 12}), lengths(integers, {2}),
              table(integers, {2, 3});
          TestTensor out(dtype, {2, 6, queries, 12}), dout(dtype, out.shape()), dq(dtype, q.shape()),
              dk(dtype, k.shape()), dv(dtype, v.shape());
          TestTensor lse(dtype == DType::f64 ? DType::f64 : DType::f32, {2, 6, queries});
          q.fill_random(1), k.fill_random(2), v.fill_random(3), dout.fill_random(4);
          pool_k.fill_random(5), pool_v.fill_random(6);
          lengths.fill([](std::int64_t b) { return b == 0 ? 37.0 : 0.0; });
          table.fill([](std::int64_t n) { return static_cast<double>((n * 5 + 2) % 7); });
          AttentionArgs args{.q = q.in(),
                             .k = k.in(),
                             .v = v.in(),
                             .mask = {},
                             .seqlens_k = lengths.in(),
                             .block_table = {},
                             .out = out.out(),
                             .lse = lse.out(),
                             .scale = 0.3,
                             .causal = true,
                             .variant = variant,
                             .dropout = {}};
          check_parity(compare_with_host(args, {&q, &k, &v, &lengths, &out, &lse}, 16, 4), what);
          const AttentionGradArgs grad{.dout = dout.in(),
                                       .q = q.in(),
                                       .k = k.in(),
                                       .v = v.in(),
                                       .mask = {},
                                       .seqlens_k = lengths.in(),
                                       .out = {out.view()},
                                       .lse = {lse.view()},
                                       .dq = dq.out(),
                                       .dk = dk.out(),
                                       .dv = dv.out(),
                                       .scale = 0.3,
                                       .causal = true,
                                       .variant = variant,
                                       .dropout = {}};
          check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &lengths, &out, &lse, &dq, &dk, &dv}, 32, 16), what);
          args.k = pool_k.in(), args.v = pool_v.in(), args.block_table = table.in();
          check_parity(compare_with_host(args, {&q, &pool_k, &pool_v, &lengths, &table, &out, &lse}, 16, 4),
                       what + ", in pages");
        }
}

TEST_CASE("CUDA: heads of attention have a largest size", "[cuda]") {
  NEEDS_CUDA
  const Device device = *parity_device();
  const Shape shape{1, 1, 1, 257};
  TestTensor q(DType::f32, shape, Layout::contiguous, device), out(DType::f32, shape, Layout::contiguous, device),
      lse(DType::f32, {1, 1, 1}, Layout::contiguous, device);
  CHECK_THROWS_AS(kernels::launch(current_stream(device), AttentionArgs{.q = q.in(),
                                                                        .k = q.in(),
                                                                        .v = q.in(),
                                                                        .mask = {},
                                                                        .out = out.out(),
                                                                        .lse = lse.out(),
                                                                        .scale = 1,
                                                                        .causal = false,
                                                                        .dropout = {}}),
                  NotSupported);
}

TEST_CASE("CUDA parity: cells of recurrent networks", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& state : {Shape{1, 1}, Shape{3, 5}, Shape{70, 33}, Shape{0, 4}, Shape{4, 0}})
    for (const DType dtype : kFloatingDTypes) {
      const Shape four{state[0], 4 * state[1]}, three{state[0], 3 * state[1]};
      const std::string what = cat(dtype, " ", state);
      {
        TestTensor gates(dtype, four), before(dtype, state), activated(dtype, four), h(dtype, state), c(dtype, state);
        TestTensor dh(dtype, state), dc(dtype, state), dgates(dtype, four), dbefore(dtype, state);
        gates.fill_random(1, -4, 4), before.fill_random(2), dh.fill_random(3), dc.fill_random(4);
        LstmCellArgs args{gates.in(), before.in(), activated.out(), h.out(), c.out()};
        check_parity(compare_with_host(args, {&gates, &before, &activated, &h, &c}, 8, 1), what);
        args.activated = {};
        check_parity(compare_with_host(args, {&gates, &before, &h, &c}, 8, 1), what);
        LstmCellGradArgs grad{dh.in(),    dc.in(),      {activated.view()}, before.in(),
                              {c.view()}, dgates.out(), dbefore.out()};
        check_parity(compare_with_host(grad, {&dh, &dc, &activated, &before, &c, &dgates, &dbefore}, 16, 1),
                     what + " grad");
        grad.dc = {}, grad.dc_before = {};
        check_parity(compare_with_host(grad, {&dh, &activated, &before, &c, &dgates}, 16, 1), what + " grad of h");
      }
      TestTensor input(dtype, three), hidden(dtype, three), before(dtype, state), activated(dtype, three),
          h(dtype, state);
      TestTensor dh(dtype, state), dinput(dtype, three), dhidden(dtype, three), dbefore(dtype, state);
      input.fill_random(1, -4, 4), hidden.fill_random(2), before.fill_random(3), dh.fill_random(4);
      GruCellArgs args{input.in(), hidden.in(), before.in(), activated.out(), h.out()};
      check_parity(compare_with_host(args, {&input, &hidden, &before, &activated, &h}, 8, 1), what);
      args.activated = {};
      check_parity(compare_with_host(args, {&input, &hidden, &before, &h}, 8, 1), what);
      GruCellGradArgs grad{dh.in(),      {activated.view()}, hidden.in(),  before.in(),
                           dinput.out(), dhidden.out(),      dbefore.out()};
      check_parity(compare_with_host(grad, {&dh, &activated, &hidden, &before, &dinput, &dhidden, &dbefore}, 16, 1),
                   what + " grad");
      grad.dh_before = {};
      check_parity(compare_with_host(grad, {&dh, &activated, &hidden, &before, &dinput, &dhidden}, 16, 1),
                   what + " grad without state");
    }
}
