// Products, convolution, pooling, norms and indexing on a CUDA device, see support/parity.h.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

TEST_CASE("CUDA parity: matmul", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& p : {Shape{1, 1, 1, 1}, Shape{1, 64, 48, 32}, Shape{3, 17, 33, 65}, Shape{2, 1, 40, 7},
                         Shape{2, 40, 1, 7}, Shape{2, 5, 6, 0}, Shape{0, 5, 6, 2}, Shape{1, 100, 200, 300}})
    for (const DType dtype : kFloatingDTypes)
      for (const Layout left : kInputLayouts)
        for (const Layout right : kInputLayouts)
          for (const Layout layout : kOutputLayouts) {
            const std::int64_t b = p[0], m = p[1], n = p[2], k = p[3];
            if (m * n * k > 100000 && left != Layout::contiguous) continue;
            TestTensor x(dtype, {b, m, k}, left), y(dtype, {b, k, n}, right), bias(dtype, {n}),
                z(dtype, {b, m, n}, layout);
            x.fill_random(1, -1, 1), y.fill_random(2, -1, 1), bias.fill_random(3), z.fill_random(4);
            MatmulArgs args{.a = x.in(), .b = y.in(), .bias = {}, .out = z.inout(), .alpha = 1.5, .beta = 0};
            const double scale = 4 + static_cast<double>(k) / 8;
            const std::string what = cat(dtype, " ", p, " ", name_of(left), " ", name_of(right), " ", name_of(layout));
            check_parity(compare_with_host(args, {&x, &y, &z}, 4, scale), what);
            args.bias = bias.in();
            check_parity(compare_with_host(args, {&x, &y, &bias, &z}, 4, scale), what + " bias");
            args.beta = -0.5;
            check_parity(compare_with_host(args, {&x, &y, &bias, &z}, 4, scale), what + " bias beta");
            if (m * n * k > 100000) continue;
            if (x.count() > 0) x.set(0, std::numeric_limits<double>::quiet_NaN());  // activations hand it on
            for (const Activation activation : {Activation::relu, Activation::gelu, Activation::gelu_tanh})
              for (const bool with_bias : {false, true}) {
                args.activation = activation;
                args.bias = with_bias ? bias.in() : In{};
                check_parity(compare_with_host(args, {&x, &y, &bias, &z}, 8, scale),
                             cat(what, " activation ", static_cast<int>(activation), with_bias ? " bias" : ""));
              }
          }
}

TEST_CASE("CUDA parity: convolution", "[cuda][parity]") {
  NEEDS_CUDA
  // The host's algorithm, where oneDNN chooses it, adds up in an order of its own.
  constexpr double kEpsilons = 16;
  struct Problem {
    Shape x;
    std::int64_t outputs;
    int groups;
    Window2d window;
  };
  const std::vector<Problem> problems = {
      {{5, 3, 17, 13}, 8, 1, {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 2}}},
      {{2, 8, 9, 9}, 12, 4, {.kernel = {3, 2}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 1}}},
      {{3, 6, 10, 7}, 12, 6, {.kernel = {3, 3}, .padding = {1, 1}}},
      {{4, 8, 5, 5}, 6, 2, {}},
      {{1, 16, 64, 64}, 4, 1, {.kernel = {5, 5}, .padding = {2, 2}}},
      {{0, 4, 5, 5}, 4, 1, {.kernel = {3, 3}}},
  };
  for (const Problem& p : problems)
    for (const DType dtype : kFloatingDTypes)
      for (const bool with_bias : {false, true}) {
        const auto size = [&](int d) {
          const Window2d& w = p.window;
          return (p.x[2 + d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1) / w.stride[d] + 1;
        };
        const Shape w_shape{p.outputs, p.x[1] / p.groups, p.window.kernel[0], p.window.kernel[1]};
        TestTensor x(dtype, p.x), w(dtype, w_shape), bias(dtype, {p.outputs}),
            y(dtype, {p.x[0], p.outputs, size(0), size(1)});
        x.fill_random(1, -1, 1), w.fill_random(2, -1, 1), bias.fill_random(3), y.fill_random(4, -1, 1);
        const std::string what = cat(dtype, " ", p.x, " groups ", p.groups);
        const auto terms = [](std::int64_t count) { return 1 + std::sqrt(static_cast<double>(count)); };
        Conv2dArgs args{.x = x.in(), .w = w.in(), .bias = {}, .y = y.out(), .window = p.window, .groups = p.groups};
        if (with_bias) args.bias = bias.in();
        const double scale = terms(element_count(w_shape) / p.outputs);
        check_parity(compare_with_host(args, {&x, &w, &bias, &y}, kEpsilons, scale), what);
        args.relu = true;
        check_parity(compare_with_host(args, {&x, &w, &bias, &y}, kEpsilons, scale), what + " relu");
        if (with_bias) continue;
        TestTensor dx(dtype, p.x), dw(dtype, w_shape);
        y.fill_random(5, -1, 1);
        check_parity(
            compare_with_host(
                Conv2dGradInputArgs{.dy = y.in(), .w = w.in(), .dx = dx.out(), .window = p.window, .groups = p.groups},
                {&y, &w, &dx}, kEpsilons, 4 * scale * terms(p.outputs)),
            what + " grad_input");
        check_parity(
            compare_with_host(
                Conv2dGradWeightArgs{.dy = y.in(), .x = x.in(), .dw = dw.out(), .window = p.window, .groups = p.groups},
                {&y, &x, &dw}, kEpsilons, 4 * scale * terms(p.x[0] * size(0) * size(1))),
            what + " grad_weight");
      }
}

TEST_CASE("CUDA parity: pooling", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Window2d& w :
       {Window2d{.kernel = {2, 2}, .stride = {2, 2}}, Window2d{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
        Window2d{.kernel = {2, 3}, .stride = {1, 2}, .padding = {1, 1}, .dilation = {2, 1}}})
    for (const Shape& shape : {Shape{2, 3, 12, 13}, Shape{1, 1, 130, 131}, Shape{0, 2, 6, 6}})
      for (const DType dtype : kFloatingDTypes) {
        const auto size = [&](int d) {
          const std::int64_t room = shape[2 + d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1;
          return (room + d * (w.stride[d] - 1)) / w.stride[d] + 1;  // rounded up in the width
        };
        const Shape out{shape[0], shape[1], size(0), size(1)};
        TestTensor x(dtype, shape), y(dtype, out), indices(DType::i64, out), dx(dtype, shape);
        x.fill_random(1, -4, 4);
        if (x.count() > 50) x.set(40, std::numeric_limits<double>::quiet_NaN());
        const std::string what = cat(dtype, " ", shape);
        check_parity(compare_with_host(MaxPool2dArgs{x.in(), y.out(), indices.out(), w}, {&x, &y, &indices}), what);
        y.fill_random(2);
        check_parity(compare_with_host(MaxUnpool2dArgs{y.in(), indices.in(), dx.out()}, {&y, &indices, &dx}), what);
        x.fill_random(3);
        for (const PoolMean mean : {PoolMean{}, PoolMean{.padding = false}, PoolMean{.divisor = -3}}) {
          const AvgPool2dArgs forward{x.in(), y.out(), w, mean};
          check_parity(compare_with_host(forward, {&x, &y}, 4), what);
          check_parity(compare_with_host(AvgPool2dGradArgs{y.in(), dx.out(), w, mean}, {&y, &dx}, 4), what);
        }
      }
}

TEST_CASE("CUDA parity: batch_norm and softmax", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& shape :
       {Shape{8, 3, 1}, Shape{300, 70, 1}, Shape{0, 3, 5}, Shape{4, 5, 49}, Shape{2, 3, 10000}, Shape{16, 2, 64}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool training : {true, false}) {
        const Shape c{shape[1]};
        const DType kept = dtype == DType::f64 ? dtype : DType::f32;
        TestTensor x(dtype, shape), y(dtype, shape), dx(dtype, shape), weight(dtype, c), bias(dtype, c),
            running_mean(dtype, c), running_var(dtype, c), mean(kept, c), inv_std(kept, c), dweight(dtype, c),
            dbias(dtype, c);
        x.fill_random(1, -1, 5), weight.fill_random(2), bias.fill_random(3), running_mean.fill_random(4),
            running_var.fill_random(5, 1, 2);
        BatchNormArgs args{.x = x.in(),
                           .weight = weight.in(),
                           .bias = bias.in(),
                           .running_mean = running_mean.inout(),
                           .running_var = running_var.inout(),
                           .y = y.out(),
                           .mean = {},
                           .inv_std = {},
                           .training = training,
                           .momentum = 0.1,
                           .eps = 1e-5};
        if (training) args.mean = mean.out(), args.inv_std = inv_std.out();
        const std::string what = cat(dtype, " ", shape);
        check_parity(
            compare_with_host(args, {&x, &weight, &bias, &running_mean, &running_var, &y, &mean, &inv_std}, 4, 4),
            what);
        if (training) {
          const BatchNormGradArgs grad{y.in(),       x.in(),   weight.in(),   mean.in(),
                                       inv_std.in(), dx.out(), dweight.out(), dbias.out()};
          check_parity(compare_with_host(grad, {&y, &x, &weight, &mean, &inv_std, &dx, &dweight, &dbias}, 8, 8),
                       what + " grad");
        }
        // With a relu. The two may disagree on which side of 0 a result is, so the gradient has a test of its own.
        args.relu = true;
        check_parity(
            compare_with_host(args, {&x, &weight, &bias, &running_mean, &running_var, &y, &mean, &inv_std}, 4, 4),
            what + " relu");
      }
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{70, 10, 1}, Shape{3, 5000, 1}, Shape{2, 33, 40}, Shape{4, 0, 2}, Shape{1, 3, 1000}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool log : {false, true}) {
        TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape);
        x.fill_random(1, -9, 9), dy.fill_random(2);
        check_parity(compare_with_host(SoftmaxArgs{x.in(), y.out(), log}, {&x, &y}, 4, log ? 16 : 1),
                     cat(dtype, " ", shape));
        check_parity(compare_with_host(SoftmaxGradArgs{dy.in(), y.in(), dx.out(), log}, {&dy, &y, &dx}, 8, 64),
                     cat(dtype, " ", shape));
      }
}

TEST_CASE("CUDA parity: indexing", "[cuda][parity]") {
  NEEDS_CUDA
  struct Problem {
    Shape in, index;
    int dim;
  };
  for (const Problem& p : std::vector<Problem>{{{5}, {9}, 0},
                                               {{100}, {9000}, 0},
                                               {{70000}, {5000}, 0},
                                               {{64, 10}, {64, 1}, 1},
                                               {{3, 40, 5}, {3, 70, 5}, 1},
                                               {{3, 4, 5}, {2, 4, 1}, 2},
                                               {{4, 6}, {4, 0}, 1}})
    for (const DType dtype : kAllDTypes)
      for (const Layout layout : kInputLayouts) {
        TestTensor x(dtype, p.in, layout), index(DType::i64, p.index, layout), y(dtype, p.index);
        x.fill_random(1), y.fill_random(2, -3, 3);
        index.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % 1009 % p.in[p.dim]); });
        const std::string what = cat(dtype, " ", p.in, " ", p.index, " ", name_of(layout));
        check_parity(compare_with_host(GatherArgs{x.in(), index.in(), y.out(), p.dim}, {&x, &index, &y}), what);
        if (dtype == DType::boolean || layout == Layout::broadcast) continue;
        check_parity(compare_with_host(ScatterAddArgs{y.in(), index.in(), x.inout(), p.dim}, {&y, &index, &x}), what);
      }
  for (const auto& [rows, count] : {std::pair{7, 5}, std::pair{50, 300}, std::pair{3, 5000}, std::pair{9000, 5000}})
    for (const DType dtype : kAllDTypes)
      for (const int dim : {0, 1}) {
        Shape in{rows, 6}, picked{count, 6};
        if (dim == 1) in = {6, rows}, picked = {6, count};
        TestTensor x(dtype, in), index(DType::i64, {count}), y(dtype, picked);
        x.fill_random(1), y.fill_random(2, -3, 3);
        index.fill([&, rows = rows](std::int64_t i) { return static_cast<double>(i * 7919 % 10007 % rows); });
        const std::string what = cat(dtype, " ", in, " ", count, " dim ", dim);
        check_parity(compare_with_host(IndexSelectArgs{x.in(), index.in(), y.out(), dim}, {&x, &index, &y}), what);
        if (dtype == DType::boolean) continue;
        check_parity(compare_with_host(IndexAddArgs{y.in(), index.in(), x.inout(), dim}, {&y, &index, &x}), what);
      }
}

TEST_CASE("CUDA: an index out of range is reported, and the device works on", "[cuda][parity]") {
  NEEDS_CUDA
  const Device device = *parity_device();
  if (device.is_cpu()) return;
  const Stream stream = current_stream(device);
  TestTensor x(DType::f32, {4}), index(DType::i64, {3}), y(DType::f32, {3});
  x.fill_random(1), index.fill([](std::int64_t i) { return i == 1 ? 9.0 : 2.0; });
  const Mirror there_x(x, stream), there_index(index, stream), there_y(y, stream);
  const auto on_device = [&](View view, const Mirror& mirror) {
    view.data = mirror.translate(view.data);
    view.device = device;
    return view;
  };
  kernels::launch(
      stream,
      GatherArgs{
          {on_device(x.view(), there_x)}, {on_device(index.view(), there_index)}, {on_device(y.view(), there_y)}, 0});
  CHECK_THROWS_WITH(synchronize(stream), Catch::Matchers::Contains("gather") && Catch::Matchers::Contains("9"));
  const TestTensor result = there_y.download(stream);
  CHECK(result[0] == x[2]);
  CHECK(result[1] == 0);
}
