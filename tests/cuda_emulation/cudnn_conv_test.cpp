// Convolutions that go to cuDNN, here to one that computes with plain loops: which engine they take, and when they do
// not go there.
#include "lockstep/kernels/cuda/cudnn_conv.h"

#include "cudnn/stand_in.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

std::vector<cudnn_stand_in::Convolution> calls;

// Until a test says otherwise, what a program that convolves has.
const bool computing = [] {
  cudnn_stand_in::hooks().execute = [](cudnn::Handle, const cudnn_stand_in::Convolution& call) {
    calls.push_back(call);
    cudnn_stand_in::compute(call);
    return cudnn::kSuccess;
  };
  return true;
}();

struct ConvCase {
  std::int64_t batch, channels, height, width, outputs;
  Window2d window;
  int groups = 1;

  std::int64_t out(int d) const {
    const std::int64_t size = d == 0 ? height : width;
    return (size + 2 * window.padding[d] - window.dilation[d] * (window.kernel[d] - 1) - 1) / window.stride[d] + 1;
  }
};

struct ConvArrays {
  TestTensor x, w, bias, y, dx, dw;

  ConvArrays(const ConvCase& c, DType dtype, Layout images = Layout::contiguous, Layout weights = Layout::contiguous)
      : x(dtype, {c.batch, c.channels, c.height, c.width}, images),
        w(dtype, {c.outputs, c.channels / c.groups, c.window.kernel[0], c.window.kernel[1]}, weights),
        bias(dtype, {c.outputs}),
        y(dtype, {c.batch, c.outputs, c.out(0), c.out(1)}, images),
        dx(dtype, x.shape(), images),
        dw(dtype, w.shape(), weights) {
    x.fill_random(1, -1, 1), w.fill_random(2, -1, 1), bias.fill_random(3, -1, 1), y.fill_random(4, -1, 1);
  }
};

// Runs the emulated kernel and the host's; empty when `out` is the same.
template <class Args>
std::string differs(const Args& args, TestTensor& out, double tolerance = 16) {
  run(args);
  const TestTensor got = out;
  kernels::table(DeviceType::host).entry<Args>()(current_stream(Device::cpu()), args);
  return mismatch(
      got, [&](std::int64_t i) { return out[i]; }, tolerance, tolerance);
}

// The engines of forward, both gradients, and forward with a bias and a ReLU; -1 for what did not go to cuDNN.
std::vector<std::int64_t> engines_of(const ConvCase& c, DType dtype, Layout images = Layout::contiguous,
                                     Layout weights = Layout::contiguous) {
  ConvArrays a(c, dtype, images, weights);
  std::vector<std::int64_t> engines;
  const auto check = [&](std::string difference) {
    CHECK(difference == "");
    engines.push_back(calls.empty() ? -1 : calls.back().engine);
    for (const auto& call : calls)
      CHECK((call.x.channels_last && call.w.channels_last && call.y.channels_last) ==
            (images == Layout::channels_last));
    CHECK(calls.size() <= 1);
    calls.clear();
  };
  calls.clear();
  check(differs(Conv2dArgs{a.x.in(), a.w.in(), {}, a.y.out(), c.window, c.groups}, a.y));
  check(differs(Conv2dGradInputArgs{a.y.in(), a.w.in(), a.dx.out(), c.window, c.groups}, a.dx));
  check(differs(Conv2dGradWeightArgs{a.y.in(), a.x.in(), a.dw.out(), c.window, c.groups}, a.dw, 64));
  a.y.fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });  // which the bias replaces
  check(differs(Conv2dArgs{a.x.in(), a.w.in(), a.bias.in(), a.y.out(), c.window, c.groups, true}, a.y));
  return engines;
}

using Engines = std::vector<std::int64_t>;

// Where cuDNN offers what it usually does.
Engines usual(DType dtype) { return dtype == DType::f32 ? Engines{58, 58, 58, 33} : Engines{57, 57, 57, 32}; }

// What the calls of one forward convolution were: empty when there was one that added the bias itself.
std::string how(const Conv2dArgs& args, TestTensor& y) {
  calls.clear();
  std::string found = differs(args, y);
  if (calls.size() != 1) return cat(found, calls.size(), " calls");
  const cudnn_stand_in::Convolution& call = calls[0];
  if (call.bias.count() == 0) found += call.beta == 0 ? "plain" : "added to the bias";
  if (call.bias.count() > 0 && (call.beta != 0 || call.bias.data != args.bias.view.data)) found += "another bias";
  return found;
}

const Window2d kOfNine{.kernel = {3, 3}, .padding = {1, 1}};

}  // namespace

TEST_CASE("convolutions go to the first engine of cuDNN that keeps what is promised", "[conv][cudnn]") {
  const std::vector<ConvCase> cases = {
      {2, 4, 9, 8, 6, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
      {3, 6, 7, 11, 4, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}}, 2},
      {1, 3, 8, 8, 5, {.kernel = {1, 1}, .stride = {2, 2}}},
      {2, 3, 7, 7, 5, {.kernel = {1, 1}}},  // rows of 49 elements, which products would read one by one
      {1, 1, 1, 1, 1, {.kernel = {1, 3}, .padding = {0, 1}}},
  };
  for (const ConvCase& c : cases)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      CAPTURE(to_string(dtype), c.channels, c.height, c.window.kernel[1]);
      CHECK(engines_of(c, dtype) == usual(dtype));
    }
}

TEST_CASE("cuDNN gets images as they lie, and weights that lie otherwise as images do", "[conv][cudnn]") {
  const std::vector<ConvCase> cases = {
      {2, 4, 10, 8, 6, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
      {3, 6, 7, 12, 4, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}}, 2},
      {2, 3, 8, 8, 5, {.kernel = {1, 1}}},  // no product of planes now
  };
  for (const ConvCase& c : cases)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const Layout weights : {Layout::contiguous, Layout::channels_last}) {
        CAPTURE(to_string(dtype), c.channels, c.height, name_of(weights));
        CHECK(engines_of(c, dtype, Layout::channels_last, weights) == usual(dtype));
      }
  CHECK(engines_of(cases[0], DType::f16, Layout::contiguous, Layout::channels_last) == usual(DType::f16));
}

TEST_CASE("images in channels_last for which cuDNN has no engine go through planes", "[conv][cudnn]") {
  const cudnn_stand_in::Offering none({}, {});
  for (const ConvCase& c : {ConvCase{2, 4, 10, 9, 6, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 1}}},
                            ConvCase{2, 6, 6, 13, 4, {.kernel = {2, 3}, .stride = {2, 1}, .padding = {0, 1}}, 2}})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Layout weights : {Layout::contiguous, Layout::channels_last}) {
        CAPTURE(to_string(dtype), c.channels, name_of(weights));
        CHECK(engines_of(c, dtype, Layout::channels_last, weights) == Engines(4, -1));
      }
}

TEST_CASE("what is a product of planes as they lie, or of f64, or of each channel, does not go to cuDNN",
          "[conv][cudnn]") {
  const ConvCase planes{2, 3, 8, 8, 5, {.kernel = {1, 1}}};
  const ConvCase each{2, 4, 9, 9, 4, {.kernel = {3, 3}, .padding = {1, 1}}, 4};
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    CHECK(engines_of(planes, dtype) == Engines(4, -1));
    CHECK(engines_of(each, dtype) == Engines(4, -1));
  }
  CHECK(engines_of({2, 4, 9, 8, 6, {.kernel = {3, 3}}}, DType::f64) == Engines(4, -1));
}

TEST_CASE("convolutions without an engine of the first heuristic take the other's, and without any go by products",
          "[conv][cudnn]") {
  const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
  {
    const cudnn_stand_in::Offering fallback({{50, {cudnn::kNondeterministic}}}, {{1, {}, 0}});
    CHECK(engines_of({2, 4, 5, 7, 6, window}, DType::f32) == Engines(4, 1));
  }
  {
    const cudnn_stand_in::Offering none({{50, {cudnn::kNondeterministic}}}, {});
    CHECK(engines_of({2, 4, 5, 9, 6, window}, DType::f16) == Engines(4, -1));
    CHECK(engines_of({2, 4, 5, 9, 6, window}, DType::f32) == Engines(4, -1));
  }
  // That there was none is kept as well.
  cudnn_stand_in::heuristics_asked = 0;
  CHECK(engines_of({2, 4, 5, 9, 6, window}, DType::f16) == Engines(4, -1));
  CHECK(cudnn_stand_in::heuristics_asked == 0);
}

TEST_CASE("cuDNN adds the bias in the kernel that convolves, and a ReLU comes after it", "[conv][cudnn]") {
  const std::vector<ConvCase> cases = {
      {2, 4, 9, 12, 6, kOfNine},
      {3, 6, 7, 11, 4, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}}, 2},
      {1, 3, 8, 8, 5, {.kernel = {1, 1}, .stride = {2, 2}}},
      {2, 3, 7, 7, 1, kOfNine},
  };
  for (const ConvCase& c : cases)
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
      for (const Layout layout : {Layout::contiguous, Layout::channels_last})
        for (const bool relu : {false, true}) {
          CAPTURE(to_string(dtype), c.channels, c.outputs, name_of(layout), relu);
          ConvArrays a(c, dtype, layout, layout);
          a.y.fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
          const int groups = c.groups;
          CHECK(how({a.x.in(), a.w.in(), a.bias.in(), a.y.out(), c.window, groups, relu}, a.y) == "");
          CHECK(calls[0].bias.alignment == 16);
          CHECK(how({a.x.in(), a.w.in(), {}, a.y.out(), c.window, groups, relu}, a.y) == "plain");
        }
}

TEST_CASE("NaN and infinities come through a convolution with its bias, and through a ReLU", "[conv][cudnn]") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const bool relu : {false, true}) {
      CAPTURE(to_string(dtype), relu);
      ConvArrays a({1, 2, 6, 14, 5, kOfNine}, dtype);
      a.x.set(17, nan);
      a.bias.set(1, kInfinity), a.bias.set(2, -kInfinity), a.bias.set(3, nan), a.bias.set(4, -0.0);
      CHECK(how({a.x.in(), a.w.in(), a.bias.in(), a.y.out(), kOfNine, 1, relu}, a.y) == "");
      CHECK(std::isnan(a.y[17]));
      CHECK(a.y[6 * 14] == kInfinity);
      CHECK(a.y[2 * 6 * 14] == (relu ? 0 : -kInfinity));
      CHECK(std::isnan(a.y[3 * 6 * 14]));
    }
}

TEST_CASE("a convolution with a bias is rounded once, whoever adds it", "[conv][cudnn]") {
  const Window2d window{.kernel = {1, 1}, .stride = {1, 2}};
  TestTensor x(DType::f16, {1, 2, 1, 3}), w(DType::f16, {1, 2, 1, 1}), bias(DType::f16, {1}),
      y(DType::f16, {1, 1, 1, 2});
  x.fill([](std::int64_t i) { return i < 3 ? 2048 : 1; });  // 2049 lies between two numbers of the type
  w.fill([](std::int64_t) { return 1; }), bias.fill([](std::int64_t) { return 1; });
  const Conv2dArgs args{x.in(), w.in(), bias.in(), y.out(), window, 1};
  CHECK(how(args, y) == "");
  run(args);
  CHECK(y[1] == 2050);
  TestTensor elsewhere(DType::f16, {1}, Layout::shifted);
  elsewhere.set(0, 1);
  CHECK(how({x.in(), w.in(), elsewhere.in(), y.out(), window, 1}, y) == "added to the bias");
  run(args);
  CHECK(y[1] == 2050);
}

TEST_CASE("where cuDNN has no engine for both, the bias is there first, and it is not asked again", "[conv][cudnn]") {
  const auto asked = [](const ConvCase& c, DType dtype) {
    ConvArrays a(c, dtype);
    cudnn_stand_in::heuristics_asked = 0;
    std::string way = how({a.x.in(), a.w.in(), a.bias.in(), a.y.out(), c.window, 1, true}, a.y);
    return cat(way, ", asked ", cudnn_stand_in::heuristics_asked);
  };
  const ConvCase c{2, 4, 5, 15, 6, kOfNine}, of_both{2, 4, 5, 16, 6, kOfNine};
  {
    const cudnn_stand_in::Offering plain({{57, {cudnn::kTensorCore}}, {58, {}}}, {{1, {}, 0}});
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      CHECK(asked(c, dtype) == "added to the bias, asked 3");
      CHECK(asked(c, dtype) == "added to the bias, asked 0");
    }
  }
  CHECK(asked(c, DType::f16) == "added to the bias, asked 0");
  {
    // Also where the engine for both is without tensor cores that may be used, be there a later one with them.
    const cudnn_stand_in::Offering slow({{57, {cudnn::kTensorCore}}, {58, {}}}, {},
                                        {{34, {cudnn::kWinograd}}, {35, {}}, {36, {cudnn::kTensorCore}}});
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CHECK(asked(of_both, dtype) == "added to the bias, asked 2");
      CHECK(asked(of_both, dtype) == "added to the bias, asked 0");
    }
    CHECK(asked(of_both, DType::f32) == ", asked 1");
    CHECK(asked(of_both, DType::f32) == ", asked 0");
    CHECK(calls[0].engine == 35);
  }
}

TEST_CASE("cuDNN adds the bias of arrays that begin at 16 bytes", "[conv][cudnn]") {
  const ConvCase c{2, 4, 6, 18, 6, kOfNine};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    ConvArrays a(c, dtype);
    CHECK(how({a.x.in(), a.w.in(), a.bias.in(), a.y.out(), kOfNine, 1}, a.y) == "");
    TestTensor* const arrays[] = {&a.x, &a.w, &a.bias, &a.y};
    for (TestTensor* array : arrays) {
      TestTensor shifted(dtype, array->shape(), Layout::shifted);
      shifted.fill([&](std::int64_t i) { return (*array)[i]; });
      std::swap(*array, shifted);
      cudnn_stand_in::heuristics_asked = 0;
      CHECK(how({a.x.in(), a.w.in(), a.bias.in(), a.y.out(), kOfNine, 1}, a.y) == "added to the bias");
      CHECK(cudnn_stand_in::heuristics_asked <= 1);  // of the plain one; where the bias begins is nothing to that
      std::swap(*array, shifted);
    }
    // At 8 bytes.
    const auto more = 8 / static_cast<std::int64_t>(size_of(dtype));
    TestTensor longer(dtype, {c.outputs + more});
    longer.fill_random(5, -1, 1);
    View part = longer.view();
    part.shape = {c.outputs};
    part.data = static_cast<std::byte*>(part.data) + 8;
    CHECK(how({a.x.in(), a.w.in(), In{part}, a.y.out(), kOfNine, 1}, a.y) == "added to the bias");
  }
}

TEST_CASE("plans of convolutions differ by the bias and where it begins", "[conv][cudnn]") {
  const kernels::ConvSizes sizes({2, 4, 6, 15}, {2, 6, 6, 15}, kOfNine, 1);
  kernels::cuda::ConvProblem p{.kind = kernels::cuda::ConvKind::forward, .dtype = DType::f32, .sizes = sizes};
  const kernels::cuda::PlanKey plain = p.key();
  p.bias = true;
  const kernels::cuda::PlanKey with_bias = p.key();
  CHECK(with_bias != plain);
  CHECK_FALSE(p.request().only_tensor_cores);
  p.alignment[3] = 4;
  CHECK(p.key() != with_bias);
  p.tf32 = true;
  CHECK(p.request().only_tensor_cores);
  p.bias = false;
  CHECK_FALSE(p.request().only_tensor_cores);
  CHECK(p.request().tensor_cores);
}

TEST_CASE("a plan of cuDNN is kept for arrays of its sizes and alignment", "[conv][cudnn]") {
  const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
  ConvArrays a({2, 4, 6, 13, 6, window}, DType::bf16);
  const auto asked = [&](const View& x) {
    cudnn_stand_in::heuristics_asked = 0;
    run(Conv2dArgs{In{x}, a.w.in(), {}, a.y.out(), window, 1});
    return cudnn_stand_in::heuristics_asked;
  };
  CHECK(asked(a.x.view()) == 1);
  CHECK(asked(a.x.view()) == 0);
  std::vector<std::byte> moved(a.x.view().shape[0] * a.x.view().strides[0] * 2 + 64);
  View view = a.x.view();
  view.data = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(moved.data()) + 31) / 32 * 32 + 2);
  CHECK(asked(view) == 1);
  calls.clear();
  CHECK(asked(view) == 0);
  REQUIRE(calls.size() == 1);
  CHECK(calls[0].x.alignment == 2);
}

TEST_CASE("a full device makes plans of cuDNN anew, and keeps those in graphs", "[conv][cudnn]") {
  using kernels::cuda::most_cudnn_plans;
  const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
  const auto asked = [&](std::int64_t width, bool bias = false) {
    ConvArrays a({1, 2, 5, width, 3, window}, DType::f16);
    cudnn_stand_in::heuristics_asked = 0;
    CHECK(differs(Conv2dArgs{a.x.in(), a.w.in(), bias ? a.bias.in() : In(), a.y.out(), window, 1}, a.y) == "");
    return cudnn_stand_in::heuristics_asked;
  };
  const auto kept = [] { return kernels::cuda::retained_cudnn(test_device()); };
  asked(20);  // whatever earlier cases have left
  const std::size_t before = std::exchange(most_cudnn_plans, 0);
  asked(21), asked(22);  // full each time: only the last two are left
  CHECK(kept() == 1 + 2 * 8);
  most_cudnn_plans = 2;
  CHECK(asked(22) == 0);
  CHECK(asked(23) == 1);
  CHECK(asked(22) == 0);
  CHECK(asked(24) == 1);  // full
  CHECK(kept() == 1 + 3 * 8);
  CHECK(asked(24) == 0);
  CHECK(asked(22) == 1);
  CHECK(kept() == 1 + 4 * 8);
  CHECK(asked(23) == 1);  // full again
  CHECK(kept() == 1 + 3 * 8);
  most_cudnn_plans = 3;
  CHECK(asked(25, true) == 1);  // one with a bias counts as two
  CHECK(kept() == 1 + 3 * 8 + 12);
  CHECK(asked(26) == 1);  // full
  CHECK(kept() == 1 + 2 * 8 + 12);
  most_cudnn_plans = before;
}

TEST_CASE("an engine's scratch memory is bounded by sizes", "[conv][cudnn]") {
  const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
  const kernels::ConvSizes sizes({2, 4, 6, 15}, {2, 6, 6, 15}, window, 1);
  const kernels::cuda::ConvProblem problem{
      .kind = kernels::cuda::ConvKind::forward, .dtype = DType::f16, .sizes = sizes};
  const std::int64_t limit = problem.request().most_workspace;
  CHECK(limit == (32 << 20) + 2 * (2 * 4 * 90 + 2 * 6 * 90 + 6 * 4 * 9));
  const cudnn_stand_in::Offering offer({{60, {}, limit + 1}, {61, {}, limit}}, {});
  CHECK(engines_of({2, 4, 6, 15, 6, window}, DType::f16) == Engines(4, 61));
}

TEST_CASE("a convolution that cuDNN fails to run says so, and which call", "[conv][cudnn]") {
  const Window2d window{.kernel = {3, 3}, .padding = {1, 1}};
  ConvArrays a({2, 4, 6, 17, 6, window}, DType::f32);
  const Conv2dArgs args{a.x.in(), a.w.in(), {}, a.y.out(), window, 1};
  const auto before = cudnn_stand_in::hooks().execute;
  cudnn_stand_in::hooks().execute = [](cudnn::Handle, const cudnn_stand_in::Convolution&) {
    return cudnn::kExecutionFailed;
  };
  CHECK_THROWS_WITH(run(args), Catch::Matchers::Contains("[conv2d] expected success of cudnnBackendExecute, got "
                                                         "CUDNN_STATUS_EXECUTION_FAILED on"));
  cudnn_stand_in::hooks().execute = before;
  CHECK(differs(args, a.y) == "");
}

// In a process of its own: a refusal stays.
TEST_CASE("a GPU that cuDNN refuses convolves by products, and is told of once", "[.cudnn_refuses]") {
  const ConvCase c{2, 4, 6, 19, 6, {.kernel = {3, 3}, .padding = {1, 1}}};
  cudnn::Status answer = cudnn::kInternalError;
  cudnn_stand_in::hooks().create = [&](cudnn::Handle*) { return answer; };
  std::vector<std::string> told;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view message) { told.emplace_back(message); });
  ConvArrays a(c, DType::f32);
  const Conv2dArgs args{a.x.in(), a.w.in(), {}, a.y.out(), c.window, 1};
  CHECK_THROWS_WITH(run(args), Catch::Matchers::Contains("expected success of cudnnCreate, got"));
  CHECK_THROWS_AS(run(args), DeviceError);
  CHECK(told.empty());
  answer = static_cast<cudnn::Status>(cudnn::kNotSupported + 7);  // its architecture
  CHECK(engines_of(c, DType::f32) == Engines(4, -1));
  CHECK(engines_of(c, DType::bf16) == Engines(4, -1));
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Catch::Matchers::Contains("[conv2d] cuDNN 91900 refuses cpu") &&
                          Catch::Matchers::Contains("convolutions and attention are products there"));
  set_log_sink(before);
  cudnn_stand_in::hooks().create = nullptr;
}
