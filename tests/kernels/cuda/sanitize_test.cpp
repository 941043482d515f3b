// One or two small shapes of each family of kernels, for compute-sanitizer, under which everything takes many times as
// long (scripts/gpu_check): [.sanitize], and [shared] where threads of a block meet in shared memory. Whole parity is
// elsewhere.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

namespace {

constexpr DType kSanitizedDTypes[] = {DType::f32, DType::bf16};

}  // namespace

TEST_CASE("CUDA, small: elementwise", "[.sanitize]") {
  NEEDS_CUDA
  for (const DType dtype : kSanitizedDTypes)
    for (const Layout layout : {Layout::contiguous, Layout::transposed, Layout::broadcast}) {
      const Shape shape{33, 129};
      TestTensor x(dtype, shape, layout), y(dtype, shape), z(dtype, shape);
      x.fill_random(1, -3, 3), y.fill_random(2, -3, 3);
      check_parity(compare_with_host(UnaryArgs{.op = UnaryOp::neg, .in = x.in(), .out = z.out()}, {&x, &z}, 1),
                   "unary");
      check_parity(
          compare_with_host(BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = y.in(), .out = z.out()}, {&x, &y, &z}, 1),
          "binary");
      check_parity(compare_with_host(CastArgs{x.in(), z.out()}, {&x, &z}), "copy");
    }
}

TEST_CASE("CUDA, small: reductions", "[.sanitize][shared]") {
  NEEDS_CUDA
  for (const DType dtype : kSanitizedDTypes)
    for (const auto& [shape, out] : {std::pair{Shape{9001}, Shape{1}}, std::pair{Shape{70, 300}, Shape{70, 1}},
                                     std::pair{Shape{300, 70}, Shape{1, 70}}})
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
        TestTensor x(dtype, shape), y(dtype, out);
        x.fill_random(5, -2, 2);
        check_parity(compare_with_host(ReduceArgs{op, x.in(), y.out()}, {&x, &y}, 2, 4), "reduce");
      }
  TestTensor x(DType::f32, {5, 700}), y(DType::i64, {5, 1});
  x.fill_random(6, -20, 20);
  check_parity(compare_with_host(ArgReduceArgs{ArgReduceOp::max, 1, x.in(), y.out()}, {&x, &y}), "arg_reduce");
}

TEST_CASE("CUDA, small: softmax and the loss of classes", "[.sanitize][shared]") {
  NEEDS_CUDA
  for (const DType dtype : kSanitizedDTypes)
    for (const Shape& shape : {Shape{3, 1500, 1}, Shape{2, 33, 20}}) {
      const Shape lines{shape[0], shape[2]};
      TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape);
      TestTensor targets(DType::i64, lines), loss(DType::f32, lines), own(DType::f32, lines);
      TestTensor log_sum(DType::f32, {2, shape[0], shape[2]});
      x.fill_random(1, -9, 9), dy.fill_random(2);
      targets.fill([&](std::int64_t i) { return static_cast<double>(i * 7 % shape[1]); });
      check_parity(compare_with_host(SoftmaxArgs{x.in(), y.out(), false}, {&x, &y}, 4, 1), "softmax");
      check_parity(compare_with_host(SoftmaxGradArgs{dy.in(), y.in(), dx.out(), false}, {&dy, &y, &dx}, 8, 64),
                   "softmax_grad");
      const CrossEntropyArgs args{.x = x.in(),
                                  .targets = targets.in(),
                                  .loss = loss.out(),
                                  .target_weight = own.out(),
                                  .log_sum = log_sum.out(),
                                  .ignore_index = -100,
                                  .label_smoothing = 0};
      check_parity(compare_with_host(args, {&x, &targets, &loss, &own, &log_sum}, 16, 16), "cross_entropy");
    }
}

TEST_CASE("CUDA, small: norms", "[.sanitize][shared]") {
  NEEDS_CUDA
  for (const DType dtype : kSanitizedDTypes) {
    const Shape shape{4, 5, 300}, c{5};
    TestTensor x(dtype, shape), y(dtype, shape), dx(dtype, shape), weight(dtype, c), bias(dtype, c),
        running_mean(dtype, c), running_var(dtype, c), mean(DType::f32, c), inv_std(DType::f32, c), dweight(dtype, c),
        dbias(dtype, c);
    x.fill_random(1, -1, 5), weight.fill_random(2), bias.fill_random(3), running_mean.fill_random(4),
        running_var.fill_random(5, 1, 2);
    const BatchNormArgs args{.x = x.in(),
                             .weight = weight.in(),
                             .bias = bias.in(),
                             .running_mean = running_mean.inout(),
                             .running_var = running_var.inout(),
                             .y = y.out(),
                             .mean = mean.out(),
                             .inv_std = inv_std.out(),
                             .training = true,
                             .momentum = 0.1,
                             .eps = 1e-5};
    check_parity(compare_with_host(args, {&x, &weight, &bias, &running_mean, &running_var, &y, &mean, &inv_std}, 4, 4),
                 "batch_norm");
    const BatchNormGradArgs grad{y.in(),       x.in(),   weight.in(),   mean.in(),
                                 inv_std.in(), dx.out(), dweight.out(), dbias.out()};
    check_parity(compare_with_host(grad, {&y, &x, &weight, &mean, &inv_std, &dx, &dweight, &dbias}, 8, 8),
                 "batch_norm_grad");
  }
  for (const Shape& shape : {Shape{5, 1, 1500, 1}, Shape{2, 3, 4, 50}}) {
    const Shape parameters{shape[1] * shape[2]}, rows{shape[0], shape[1]};
    const DType dtype = DType::f32;
    TestTensor x(dtype, shape), weight(dtype, parameters), bias(dtype, parameters), y(dtype, shape), mean(dtype, rows),
        inv_std(dtype, rows), dx(dtype, shape), dweight(dtype, parameters), dbias(dtype, parameters);
    x.fill_random(1, -1, 5), weight.fill_random(2), bias.fill_random(3);
    const GroupNormArgs args{.x = x.in(),
                             .weight = weight.in(),
                             .bias = bias.in(),
                             .y = y.out(),
                             .mean = mean.out(),
                             .inv_std = inv_std.out(),
                             .eps = 1e-5};
    check_parity(compare_with_host(args, {&x, &weight, &bias, &y, &mean, &inv_std}, 8, 8), "group_norm");
    const GroupNormGradArgs grad{.dy = y.in(),
                                 .x = x.in(),
                                 .weight = weight.in(),
                                 .mean = mean.in(),
                                 .inv_std = inv_std.in(),
                                 .dx = dx.out(),
                                 .dweight = dweight.out(),
                                 .dbias = dbias.out()};
    check_parity(compare_with_host(grad, {&y, &x, &weight, &mean, &inv_std, &dx, &dweight, &dbias}, 8, 16),
                 "group_norm_grad");
  }
}

TEST_CASE("CUDA, small: attention", "[.sanitize][shared]") {
  NEEDS_CUDA
  // By tiles, by products, and of few queries with the keys in two parts.
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{33, 47}, {70, 65}, {2, 300}})
    for (const DType dtype : kSanitizedDTypes) {
      const Shape query{1, 2, queries, 20}, key{1, 2, keys, 20}, value{1, 2, keys, 12}, result{1, 2, queries, 12};
      TestTensor q(dtype, query), k(dtype, key), v(dtype, value), out(dtype, result), lse(DType::f32, {1, 2, queries});
      TestTensor dout(dtype, result), dq(dtype, query), dk(dtype, key), dv(dtype, value);
      q.fill_random(1), k.fill_random(2), v.fill_random(3), dout.fill_random(5);
      const AttentionArgs args{.q = q.in(),
                               .k = k.in(),
                               .v = v.in(),
                               .mask = {},
                               .out = out.out(),
                               .lse = lse.out(),
                               .scale = 0.3,
                               .causal = true,
                               .dropout = {}};
      check_parity(compare_with_host(args, {&q, &k, &v, &out, &lse}, 16, 4), "attention");
      const AttentionGradArgs grad{.dout = dout.in(),
                                   .q = q.in(),
                                   .k = k.in(),
                                   .v = v.in(),
                                   .mask = {},
                                   .out = {out.view()},
                                   .lse = {lse.view()},
                                   .dq = dq.out(),
                                   .dk = dk.out(),
                                   .dv = dv.out(),
                                   .scale = 0.3,
                                   .causal = true,
                                   .dropout = {}};
      check_parity(compare_with_host(grad, {&dout, &q, &k, &v, &out, &lse, &dq, &dk, &dv}, 32, 16), "attention_grad");
    }
}

TEST_CASE("CUDA, small: running sums and sorting", "[.sanitize][shared]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{3, 3000, 1}, Shape{2, 33, 20}}) {
    TestTensor x(DType::f32, shape), y(DType::f32, shape), indices(DType::i64, shape);
    x.fill_random(1, -1, 1);
    check_parity(compare_with_host(CumsumArgs{x.in(), y.out(), false}, {&x, &y}, 2, 1), "cumsum");
    check_parity(compare_with_host(ArgsortArgs{x.in(), indices.out(), true}, {&x, &indices}), "argsort");
  }
}

TEST_CASE("CUDA, small: pooling and indexing", "[.sanitize][shared]") {
  NEEDS_CUDA
  const Window2d window{.kernel = {2, 2}, .stride = {2, 2}};
  const Shape shape{2, 3, 12, 14}, out{2, 3, 6, 7};
  TestTensor x(DType::f32, shape), y(DType::f32, out), indices(DType::i64, out), dx(DType::f32, shape);
  x.fill_random(1, -4, 4);
  check_parity(compare_with_host(MaxPool2dArgs{x.in(), y.out(), indices.out(), window}, {&x, &y, &indices}),
               "max_pool2d");
  check_parity(compare_with_host(MaxUnpool2dArgs{y.in(), indices.in(), dx.out()}, {&y, &indices, &dx}), "max_unpool2d");
  TestTensor table(DType::f32, {50, 6}), index(DType::i64, {300}), picked(DType::f32, {300, 6});
  table.fill_random(1), index.fill([](std::int64_t i) { return static_cast<double>(i * 7919 % 10007 % 50); });
  check_parity(compare_with_host(IndexSelectArgs{table.in(), index.in(), picked.out(), 0}, {&table, &index, &picked}),
               "index_select");
  TestTensor into(DType::f32, {100}), at(DType::i64, {900}), values(DType::f32, {900});
  into.fill_random(1), values.fill_random(2, -3, 3),
      at.fill([](std::int64_t i) { return static_cast<double>(i * 31 % 100); });
  check_parity(compare_with_host(ScatterAddArgs{values.in(), at.in(), into.inout(), 0}, {&values, &at, &into}),
               "scatter_add");
}

TEST_CASE("CUDA, small: products and convolution", "[.sanitize]") {
  NEEDS_CUDA
  for (const DType dtype : kSanitizedDTypes) {
    TestTensor a(dtype, {2, 17, 65}), b(dtype, {2, 65, 33}), bias(dtype, {33}), z(dtype, {2, 17, 33});
    a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3);
    const MatmulArgs product{.a = a.in(), .b = b.in(), .bias = bias.in(), .out = z.inout(), .alpha = 1, .beta = 0};
    check_parity(compare_with_host(product, {&a, &b, &bias, &z}, 4, 16), "matmul");
    const Window2d window{.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}};
    TestTensor x(dtype, {2, 4, 12, 11}), w(dtype, {6, 4, 3, 3}), y(dtype, {2, 6, 12, 11}), dx(dtype, x.shape());
    x.fill_random(1, -1, 1), w.fill_random(2, -1, 1);
    check_parity(compare_with_host(Conv2dArgs{x.in(), w.in(), {}, y.out(), window, 1}, {&x, &w, &y}, 4, 16), "conv2d");
    y.fill_random(4, -1, 1);
    check_parity(compare_with_host(Conv2dGradInputArgs{y.in(), w.in(), dx.out(), window, 1}, {&y, &w, &dx}, 4, 16),
                 "conv2d_grad_input");
  }
}
