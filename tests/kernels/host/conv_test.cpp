// Convolution and its gradients against loops over every tap.
#include <array>

#include "lockstep/kernels/host/onednn_version.h"
#include "lockstep/kernels/packed_weights.h"
#include "lockstep/runtime/host/compute_threads.h"
#include "support/catch.h"
#include "support/threads.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct ConvProblem {
  std::int64_t batch, channels, height, width, outputs;
  Window2d window;
  int groups = 1;
};
const std::vector<ConvProblem> kConvProblems = {
    {1, 1, 1, 1, 1, {}},
    {2, 1, 8, 8, 16, {.kernel = {3, 3}}},
    {3, 4, 5, 7, 6, {.kernel = {3, 2}, .padding = {1, 1}}},
    {2, 4, 9, 8, 6, {.kernel = {3, 3}, .stride = {2, 3}, .padding = {1, 2}}},
    {2, 3, 9, 9, 5, {.kernel = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}}},
    {2, 6, 6, 6, 9, {.kernel = {3, 3}, .padding = {1, 0}}, 3},
    {2, 4, 6, 5, 4, {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 1}}, 4},  // depthwise
    {2, 3, 9, 21, 3, {.kernel = {5, 5}, .padding = {2, 2}}, 3},
    {3, 2, 11, 19, 4, {.kernel = {7, 7}, .stride = {2, 2}, .padding = {3, 3}}, 2},
    {2, 8, 6, 18, 8, {.kernel = {3, 4}, .stride = {1, 2}, .padding = {1, 3}, .dilation = {2, 1}}, 2},
    {2, 6, 8, 24, 8, {.kernel = {1, 2}, .stride = {3, 3}, .padding = {0, 1}, .dilation = {1, 2}}, 2},
    {1, 4, 9, 16, 2, {.kernel = {2, 1}, .stride = {4, 2}}, 2},
    {1, 2, 3, 3, 2, {.kernel = {3, 3}, .padding = {4, 4}}, 2},  // windows wholly in the padding
    {0, 2, 5, 5, 2, {.kernel = {3, 3}}, 2},
    {3, 8, 4, 4, 10, {}},  // pointwise
    {2, 5, 6, 6, 3, {.stride = {2, 2}}},
    {1, 2, 3, 3, 2, {.kernel = {3, 3}, .padding = {4, 4}}},  // windows wholly in the padding
    {1, 2, 2, 2, 3, {.kernel = {2, 2}, .stride = {5, 5}, .padding = {3, 3}}},
    {0, 2, 5, 5, 3, {.kernel = {3, 3}}},
    {17, 16, 8, 8, 32, {.kernel = {3, 3}, .padding = {1, 1}}},
    {2, 3, 20, 20, 4, {.kernel = {5, 5}, .stride = {1, 1}, .padding = {2, 2}}},
    {1, 2, 41, 40, 5, {.kernel = {3, 3}, .padding = {1, 1}}},  // more rows than a product has columns for
    {2, 37, 11, 9, 8, {.kernel = {3, 3}, .padding = {1, 1}}},  // more channels than one has
    {2, 300, 5, 3, 4, {}},                                     // the same, of the image itself
    {1, 6, 33, 41, 5, {}},  // more rows than a product has columns for, of the image itself
};
// Large enough to be divided among threads: what is divided stands behind.
const std::vector<ConvProblem> kLargeProblems = {
    {19, 8, 24, 24, 16, {.kernel = {3, 3}, .padding = {1, 1}}},                                        // images
    {17, 16, 32, 32, 24, {.kernel = {3, 3}, .padding = {1, 1}}},                                       // images
    {1, 16, 61, 50, 48, {.kernel = {3, 3}, .padding = {1, 1}}},                                        // rows
    {1, 24, 70, 49, 96, {.kernel = {5, 3}, .stride = {2, 1}, .padding = {3, 2}, .dilation = {1, 2}}},  // rows
    {5, 3, 65, 64, 32, {.kernel = {7, 7}, .stride = {2, 2}, .padding = {3, 3}}},       // images and rows
    {6, 16, 40, 40, 33, {.kernel = {3, 3}, .padding = {1, 1}}},                        // images and rows
    {9, 64, 20, 20, 96, {}},                                                           // images and rows
    {1, 8, 4, 200, 64, {.kernel = {3, 3}, .padding = {20, 1}}},                        // rows of windows without x
    {1, 160, 11, 11, 144, {.kernel = {3, 3}, .padding = {2, 2}, .dilation = {2, 2}}},  // channels
    {32, 160, 3, 3, 65, {.kernel = {3, 3}, .padding = {1, 1}}},      // channels: x looks like a part of w
    {1, 160, 17, 17, 65, {.kernel = {3, 3}, .padding = {1, 1}}},     // channels, the last alone
    {3, 72, 56, 56, 72, {.kernel = {3, 3}, .padding = {1, 1}}, 72},  // images and groups
    {2, 48, 28, 28, 96, {.kernel = {3, 3}, .padding = {1, 1}}, 3},   // images and groups
    {20, 17, 30, 30, 19, {.kernel = {3, 3}, .padding = {1, 1}}},     // odd channels
    {1, 48, 60, 61, 48, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}}, 48},  // of one image, groups or rows
    {8, 48, 60, 61, 48, {.kernel = {3, 3}, .padding = {1, 1}}, 48},                    // images, and groups or rows
};

struct Case {
  ConvProblem problem;
  Layout images, weights;
  std::string layouts() const { return cat(name_of(images), " images, ", name_of(weights), " weights"); }
};
std::vector<Case> in_all_layouts(const std::vector<ConvProblem>& problems) {
  std::vector<Case> all;
  for (const Layout images : image_layouts())
    for (const Layout weights : image_layouts())
      for (const ConvProblem& p : problems) all.push_back({p, images, weights});
  return all;
}

std::int64_t out_size(const ConvProblem& p, int d) {
  const Window2d& w = p.window;
  const std::int64_t size = d == 0 ? p.height : p.width;
  return (size + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1) / w.stride[d] + 1;
}

// Calls f(index of y, of w, of x) for every product that the convolution sums.
template <class F>
void for_each_product(const ConvProblem& p, F&& f) {
  const std::int64_t oh = out_size(p, 0), ow = out_size(p, 1), kh = p.window.kernel[0], kw = p.window.kernel[1];
  const std::int64_t group_channels = p.channels / p.groups, group_outputs = p.outputs / p.groups;
  for (std::int64_t n = 0; n < p.batch; ++n)
    for (std::int64_t o = 0; o < p.outputs; ++o)
      for (std::int64_t i = 0; i < oh; ++i)
        for (std::int64_t j = 0; j < ow; ++j)
          for (std::int64_t c = 0; c < group_channels; ++c)
            for (std::int64_t r = 0; r < kh; ++r)
              for (std::int64_t s = 0; s < kw; ++s) {
                const std::int64_t h = i * p.window.stride[0] - p.window.padding[0] + r * p.window.dilation[0];
                const std::int64_t w = j * p.window.stride[1] - p.window.padding[1] + s * p.window.dilation[1];
                if (h < 0 || h >= p.height || w < 0 || w >= p.width) continue;
                const std::int64_t channel = o / group_outputs * group_channels + c;
                f(static_cast<std::size_t>(((n * p.outputs + o) * oh + i) * ow + j),
                  static_cast<std::size_t>(((o * group_channels + c) * kh + r) * kw + s),
                  static_cast<std::size_t>(((n * p.channels + channel) * p.height + h) * p.width + w));
              }
}

std::string compare(const TestTensor& got, const std::vector<double>& want, double terms) {
  const double tolerance = size_of(got.dtype()) == 2 ? 4 : 4 + terms / 2;
  return mismatch(
      got, [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, tolerance, tolerance);
}

// Operands that look random, and the results.
struct Tensors {
  Tensors(const ConvProblem& p, DType dtype, Layout images = Layout::contiguous, Layout weights = Layout::contiguous)
      : problem(p),
        x(dtype, {p.batch, p.channels, p.height, p.width}, images),
        w(dtype, {p.outputs, p.channels / p.groups, p.window.kernel[0], p.window.kernel[1]}, weights),
        bias(dtype, {p.outputs}),
        dy(dtype, {p.batch, p.outputs, out_size(p, 0), out_size(p, 1)}, images),
        y(dtype, dy.shape(), images),
        dx(dtype, x.shape(), images),
        dw(dtype, w.shape(), weights) {
    std::uint64_t seed = 0;
    for (TestTensor* t : {&x, &w, &bias, &dy}) t->fill_random(++seed);
  }
  void convolve() {
    const Window2d& window = problem.window;
    const int groups = problem.groups;
    run(Conv2dArgs{.x = x.in(), .w = w.in(), .bias = bias.in(), .y = y.out(), .window = window, .groups = groups});
    run(Conv2dGradInputArgs{.dy = dy.in(), .w = w.in(), .dx = dx.out(), .window = window, .groups = groups});
    run(Conv2dGradWeightArgs{.dy = dy.in(), .x = x.in(), .dw = dw.out(), .window = window, .groups = groups});
  }

  ConvProblem problem;
  TestTensor x, w, bias, dy, y, dx, dw;
};

}  // namespace

TEST_CASE("convolutions that are divided among threads are right, and the same for any number of them", "[conv]") {
  const std::uint32_t calls = detail::divided_calls();
  int turn = 0;
  for (const auto& each : in_all_layouts(kLargeProblems)) {
    if (!chosen(turn)) continue;
    const ConvProblem& p = each.problem;
    INFO("batch " << p.batch << ", " << p.channels << " to " << p.outputs << " channels, " << each.layouts());
    Tensors f32(p, DType::f32, each.images, each.weights), f64(p, DType::f64),
        bf16(p, DType::bf16, each.images, each.weights);
#ifdef __SANITIZE_THREAD__  // the others are computed as f32 is, and sums over every tap take a minute
    const std::vector<Tensors*> divided{&f32};
    constexpr bool kSums = false;
#else
    const std::vector<Tensors*> divided{&f32, &f64, &bf16};
    constexpr bool kSums = true;
#endif
    const auto results = [&](int count) {
      const Threads threads(count);
      std::vector<std::vector<std::byte>> bytes;
      for (Tensors* t : divided) {
        t->convolve();
        for (const TestTensor* result : {&t->y, &t->dx, &t->dw}) bytes.push_back(result->bytes());
      }
      return bytes;
    };
    const auto one = results(1);
    for (const int count : kThreadCounts) CHECK((results(count) == one));
    if (!kSums) continue;

    // Those of oneDNN are divided in another way than those of f64.
    for (const auto& [from, to] :
         {std::pair{&f32.x, &f64.x}, {&f32.w, &f64.w}, {&f32.bias, &f64.bias}, {&f32.dy, &f64.dy}})
      to->fill([from = from](std::int64_t i) { return (*from)[i]; });
    f64.convolve();
    const auto close = [](const TestTensor& got, const TestTensor& want, std::int64_t terms) {
      const double tolerance = 64 + 4 * static_cast<double>(terms);
      return mismatch(
          got, [&](std::int64_t i) { return want[i]; }, tolerance, tolerance);
    };
    const std::int64_t kernel = std::int64_t{p.window.kernel[0]} * p.window.kernel[1];
    CHECK(close(f32.y, f64.y, p.channels / p.groups * kernel) == "");
    CHECK(close(f32.dx, f64.dx, p.outputs / p.groups * kernel) == "");
    CHECK(close(f32.dw, f64.dw, p.batch * out_size(p, 0) * out_size(p, 1)) == "");
  }
  CHECK(detail::divided_calls() != calls);
}

TEST_CASE("a convolution keeps its weights packed, and gives the bits that it gives without", "[conv]") {
  const bool packs = !kernels::host::onednn_version().found.empty();
  std::vector<ConvProblem> problems = kLargeProblems;
  problems.insert(problems.end(), kConvProblems.begin(), kConvProblems.end());
  int turn = 0;
  for (const ConvProblem& p : problems)
    for (const bool has_bias : {false, true}) {
      if (!chosen(turn)) continue;
      INFO("batch " << p.batch << ", " << p.channels << " to " << p.outputs << " channels");
      Tensors t(p, DType::f32);
      const Conv2dArgs args{.x = t.x.in(),
                            .w = t.w.in(),
                            .bias = has_bias ? t.bias.in() : In{},
                            .y = t.y.out(),
                            .window = p.window,
                            .groups = p.groups};
      run(args);
      const std::vector<std::byte> expected = t.y.bytes();
      Conv2dArgs packed = args;
      packed.packed = std::make_shared<PackedWeights>();
      for (const int count : kThreadCounts) {
        const Threads threads(count);
        for (int i = 0; i < 2; ++i) {
          t.y.fill_random(9);
          run(packed);
          CHECK((t.y.bytes() == expected));
        }
      }
      CHECK(packed.packed->size() == (packs && p.batch > 0 ? 1 : 0));
    }
}

TEST_CASE("the relu of a convolution is what relu gives of its result", "[conv]") {
  std::vector<ConvProblem> problems;
  if (test_device().is_cpu()) problems = kLargeProblems;  // there they are divided
  problems.insert(problems.end(), kConvProblems.begin(), kConvProblems.end());
  for (const ConvProblem& p : problems)
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      if (dtype == DType::f64 && p.batch * p.channels * p.outputs > 4096) continue;  // as f32 without oneDNN
      INFO(to_string(dtype) << " batch " << p.batch << ", " << p.channels << " to " << p.outputs << " channels");
      Tensors t(p, dtype);
      Conv2dArgs args{
          .x = t.x.in(), .w = t.w.in(), .bias = t.bias.in(), .y = t.y.out(), .window = p.window, .groups = p.groups};
      run(args);
      TestTensor expected(dtype, t.y.shape());
      run(UnaryArgs{UnaryOp::relu, t.y.in(), expected.out()});
      args.relu = true;
      for (const int count : {1, 3}) {
        const Threads threads(count);
        t.y.fill_random(9);
        run(args);
        CHECK((t.y.bytes() == expected.bytes()));
        CHECK(t.y.guards_intact());
      }
    }
}

TEST_CASE("packed weights are those of the first call, one form for a shape, and no more than four", "[conv]") {
  if (kernels::host::onednn_version().found.empty()) return;
  const auto packed = std::make_shared<PackedWeights>();
  TestTensor w(DType::f32, {32, 16, 3, 3});
  const auto convolve = [&](std::int64_t height) {
    TestTensor x(DType::f32, {1, 16, height, 9}), y(DType::f32, {1, 32, height - 2, 7});
    x.fill_random(1);
    run(Conv2dArgs{.x = x.in(), .w = w.in(), .y = y.out(), .window = {.kernel = {3, 3}}, .packed = packed});
    return y.values();
  };
  w.fill_random(2);
  const std::vector<double> first = convolve(5);
  w.fill_random(3);
  CHECK(convolve(5) == first);
  for (std::int64_t height = 6; height < 9; ++height) convolve(height);
  CHECK(packed->size() == 4);
  CHECK(convolve(5) == first);
  convolve(9);
  CHECK(packed->size() == 4);
  CHECK(convolve(5) != first);
}

TEST_CASE("convolution and its gradients agree with loops over every tap", "[conv]") {
  for (const auto& each : in_all_layouts(kConvProblems))
    for (const DType dtype : kFloatingDTypes) {
      const ConvProblem& p = each.problem;
      const Layout images = each.images;
      if (dtype == DType::f64 && (images != Layout::contiguous || each.weights != images)) continue;
      INFO(to_string(dtype) << " x " << to_string(Shape{p.batch, p.channels, p.height, p.width}) << " to " << p.outputs
                            << ", groups " << p.groups << ", " << each.layouts());
      const Shape x_shape{p.batch, p.channels, p.height, p.width};
      const Shape w_shape{p.outputs, p.channels / p.groups, p.window.kernel[0], p.window.kernel[1]};
      const Shape y_shape{p.batch, p.outputs, out_size(p, 0), out_size(p, 1)};
      TestTensor x(dtype, x_shape, images), w(dtype, w_shape, each.weights), bias(dtype, {p.outputs}),
          dy(dtype, y_shape, images);
      x.fill_random(1, -1, 1), w.fill_random(2, -1, 1), bias.fill_random(3, -1, 1), dy.fill_random(4, -1, 1);
      const auto xs = x.values(), ws = w.values(), bs = bias.values(), dys = dy.values();
      std::vector<double> want_y(dys.size()), want_dx(xs.size()), want_dw(ws.size());
      for_each_product(p, [&](std::size_t iy, std::size_t iw, std::size_t ix) {
        want_y[iy] += ws[iw] * xs[ix];
        want_dx[ix] += dys[iy] * ws[iw];
        want_dw[iw] += dys[iy] * xs[ix];
      });
      const double taps = static_cast<double>(element_count(w_shape)) / static_cast<double>(p.outputs);
      const double plane = static_cast<double>(y_shape[2] * y_shape[3]);

      TestTensor y(dtype, y_shape, images), dx(dtype, x_shape, images), dw(dtype, w_shape, each.weights);
      run(Conv2dArgs{.x = x.in(), .w = w.in(), .y = y.out(), .window = p.window, .groups = p.groups});
      CHECK(compare(y, want_y, taps) == "");
      run(Conv2dGradInputArgs{.dy = dy.in(), .w = w.in(), .dx = dx.out(), .window = p.window, .groups = p.groups});
      CHECK(compare(dx, want_dx, taps * static_cast<double>(p.outputs) / static_cast<double>(p.channels)) == "");
      run(Conv2dGradWeightArgs{.dy = dy.in(), .x = x.in(), .dw = dw.out(), .window = p.window, .groups = p.groups});
      CHECK(compare(dw, want_dw, plane * static_cast<double>(p.batch)) == "");
      for (std::size_t i = 0; i < want_y.size(); ++i)
        want_y[i] += bs[i / static_cast<std::size_t>(plane) % static_cast<std::size_t>(p.outputs)];
      run(Conv2dArgs{
          .x = x.in(), .w = w.in(), .bias = bias.in(), .y = y.out(), .window = p.window, .groups = p.groups});
      CHECK(compare(y, want_y, taps) == "");
    }
}

TEST_CASE("the gradients of a convolution are the same bits every time", "[conv]") {
  TestTensor x(DType::f32, {16, 8, 12, 12}), dy(DType::f32, {16, 24, 12, 12});
  x.fill_random(1), dy.fill_random(2);
  const auto gradient = [&] {
    TestTensor dw(DType::f32, {24, 8, 3, 3});
    run(Conv2dGradWeightArgs{
        .dy = dy.in(), .x = x.in(), .dw = dw.out(), .window = {.kernel = {3, 3}, .padding = {1, 1}}});
    return dw.values();
  };
  const auto first = gradient();
  for (int i = 0; i < 3; ++i) CHECK(gradient() == first);
}
