// Every call of cuDNN is one that it takes, with the device of its handle, and in a capture.
#include <utility>

#include "cudnn/stand_in.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/tensor/ways.h"
#include "lockstep/kernels/cuda/cudnn_conv.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/prepare.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

std::vector<std::string> convolution_ways() { return traced_ways(support::device_at(1), {"convolution "}); }

}  // namespace

TEST_CASE("a trace names the way that a convolution took on CUDA") {
  const Device device = support::device_at(1);
  const std::string plain = "convolution by cuDNN", with_bias = "convolution and bias by cuDNN";
  const std::string products = "convolution by products", wide = ", tensor cores";
  const std::vector<std::string> of_f32{with_bias, plain, plain};
  const std::vector<std::string> of_halves{with_bias + wide, plain + wide, plain + wide};
  const std::pair<DType, std::vector<std::string>> ways[] = {
      {DType::f32, of_f32}, {DType::f16, of_halves}, {DType::bf16, of_halves}, {DType::f64, {3, products}}};
  for (const auto& [dtype, way] : ways) {
    CAPTURE(to_string(dtype));
    const TensorOptions options{.dtype = dtype, .device = device};
    const auto convolve = [&](const Shape& images, const Shape& windows, int groups = 1,
                              MemoryFormat format = MemoryFormat::contiguous) {
      Tensor x = ones(images, options).to(format), w = ones(windows, options), bias = ones({windows[0]}, options);
      for (Tensor* t : {&x, &w, &bias}) t->set_requires_grad(true);
      trace::start();
      sum(conv2d(x, w, bias, {.padding = 1, .groups = groups})).backward();
      return convolution_ways();
    };
    CHECK(convolve({2, 4, 9, 7}, {6, 4, 3, 3}) == way);
    CHECK(convolve({2, 4, 9, 7}, {6, 4, 3, 3}) == way);
    CHECK(convolve({2, 4, 9, 7}, {6, 4, 3, 3}, 1, MemoryFormat::channels_last) == way);
    CHECK(convolve({2, 4, 9, 7}, {4, 1, 3, 3}, 4).empty());  // by kernels of its own
  }
}

TEST_CASE("a norm and a relu that are folded into a convolution are its bias, for cuDNN, and part of its call") {
  const Device device = support::device_at(1);
  Sequential net(Conv2d(4, 6, 3, {.bias = false}), BatchNorm2d(6), ReLU());
  net.to(device);
  const auto prepared = prepare(net);
  const Tensor x = ones({2, 4, 9, 7}, {.device = device});
  prepared(x);  // learns what folds
  trace::start();
  prepared(x);
  synchronize(device);
  trace::stop();
  std::vector<std::string> kernels;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel) kernels.emplace_back(span.work.name);
  CHECK(kernels == std::vector<std::string>{"conv2d", "convolution and bias by cuDNN"});
}

TEST_CASE("a convolution that cuDNN has not planned before is captured, and replayed with new images") {
  const Device device = support::device_at(1);
  const Stream stream(device);
  const StreamScope scope(stream);
  const InferenceMode inference;
  manual_seed(5);
  Tensor x = zeros({1, 3, 11, 5}, {.device = device});
  const Tensor w = randn({4, 3, 3, 3}).to(device);
  auto [graph, y] = capture(stream, [&] { return conv2d(x, w, {}, {.padding = 1}); });
  const std::size_t before = std::exchange(kernels::cuda::most_cudnn_plans, 0);
  for (const std::int64_t width : {6, 7}) conv2d(zeros({1, 3, 11, width}, {.device = device}), w);
  kernels::cuda::most_cudnn_plans = before;
  cudnn_stand_in::heuristics_asked = 0;
  for (int i = 0; i < 3; ++i) {
    x.copy_(randn({1, 3, 11, 5}));
    graph.replay();
    const std::vector<float> replayed = y.to_vector<float>();
    CHECK(replayed == conv2d(x, w, {}, {.padding = 1}).to_vector<float>());
  }
  CHECK(cudnn_stand_in::heuristics_asked == 0);  // the plan that the graph holds is still there
  CHECK(fake_cuda::take_failures().empty());
}
