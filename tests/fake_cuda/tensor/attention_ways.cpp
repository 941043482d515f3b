// Every launch, product and call of cuDNN of the ways to compute attention, and of a copy that transposes, is one that
// CUDA takes.
#include <algorithm>
#include <string_view>
#include <utility>

#include "cudnn/stand_in.h"
#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/tensor/ways.h"
#include "lockstep/kernels/cuda/cudnn_attention.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

std::vector<std::string> ways() { return traced_ways(support::device_at(1), {"attention ", "attention_grad "}); }

}  // namespace

TEST_CASE("a trace names the way that attention took on CUDA") {
  const Device device = support::device_at(1);
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const std::int64_t kv_heads : {1, 4})
      for (const bool causal : {false, true}) {
        const TensorOptions options{.dtype = dtype, .device = device};
        const Tensor lengths = from_data({30, 0}, {2}, {.device = device});
        const auto attend = [&](std::int64_t queries, std::int64_t keys) {
          Tensor q = ones({2, 4, queries, 24}, options), k = ones({2, kv_heads, keys, 24}, options);
          Tensor v = ones({2, keys, kv_heads, 16}, options);
          for (Tensor* t : {&q, &k, &v}) t->set_requires_grad(true);
          trace::start();
          sum(scaled_dot_product_attention(
                  q, k, v.transpose(1, 2),
                  {.causal = causal, .variant = CausalVariant::lower_right, .enable_gqa = true, .seqlens_k = lengths}))
              .backward();
          return ways();
        };
        CAPTURE(to_string(dtype), kv_heads, causal);
        CHECK(attend(300, 130) == std::vector<std::string>{"attention by products", "attention_grad by products"});
        CHECK(attend(2, 700) == std::vector<std::string>{"attention of few queries", "attention_grad by tiles"});
        CHECK(attend(12, 40) == std::vector<std::string>{"attention by tiles", "attention_grad by tiles"});
        CHECK(ones({3, 70, 90}, options).transpose(1, 2).contiguous().shape() == Shape{3, 90, 70});
      }
}

TEST_CASE("a trace names the attention that goes to cuDNN, in parts where its slopes are many") {
  const Device device = support::device_at(1);
  using Ways = std::vector<std::string>;
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const std::int64_t kv_heads : {1, 4})
      for (const bool causal : {false, true}) {
        const TensorOptions options{.dtype = dtype, .device = device};
        const auto attend = [&](std::int64_t keys) {
          Tensor q = ones({3, 4, 100, 24}, options), k = ones({3, kv_heads, keys, 24}, options);
          Tensor v = ones({3, keys, kv_heads, 16}, options);
          for (Tensor* t : {&q, &k, &v}) t->set_requires_grad(true);
          trace::start();
          const Tensor out = scaled_dot_product_attention(
              q, k, v.transpose(1, 2), {.causal = causal, .variant = CausalVariant::lower_right, .enable_gqa = true});
          sum(out * out).backward();
          return ways();
        };
        CAPTURE(to_string(dtype), kv_heads, causal);
        const bool takes = size_of(dtype) == 2;
        Ways expected{takes ? "attention by cuDNN" : "attention by products"};
        expected.emplace_back(dtype == DType::bf16 ? "attention_grad by cuDNN" : "attention_grad by products");
        CHECK(attend(130) == expected);
        CHECK(attend(130) == expected);
        // Queries without a key.
        if (causal) CHECK(attend(90) == Ways{"attention by products", "attention_grad by products"});
        const std::int64_t before = std::exchange(kernels::cuda::most_slope_bytes, std::int64_t{1} << 19);
        if (dtype == DType::bf16) expected.insert(expected.end(), 2, "attention_grad by cuDNN");
        CHECK(attend(130) == expected);
        kernels::cuda::most_slope_bytes = before;
      }
  CHECK(fake_cuda::take_failures().empty());
}

TEST_CASE("an attention that cuDNN has not planned before is captured, and replayed with new queries") {
  const Device device = support::device_at(1);
  const Stream stream(device);
  const StreamScope scope(stream);
  const InferenceMode inference;
  manual_seed(5);
  const TensorOptions options{.dtype = DType::bf16, .device = device};
  Tensor q = zeros({1, 2, 77, 8}, options);
  const Tensor k = randn({1, 2, 91, 8}).to(device).to(DType::bf16), v = randn({1, 2, 91, 8}).to(device).to(DType::bf16);
  const auto attend = [&] { return scaled_dot_product_attention(q, k, v, {.causal = true}); };
  cudnn_stand_in::heuristics_asked = 0;
  auto [graph, y] = capture(stream, attend);
  CHECK(cudnn_stand_in::heuristics_asked == 1);
  for (int i = 0; i < 3; ++i) {
    q.copy_(randn({1, 2, 77, 8}).to(DType::bf16));
    graph.replay();
    const std::vector<float> replayed = y.to(DType::f32).to_vector<float>();
    CHECK(replayed == attend().to(DType::f32).to_vector<float>());
  }
  CHECK(cudnn_stand_in::heuristics_asked == 1);  // the plan that the graph holds is the one that calls take
  CHECK(fake_cuda::take_failures().empty());
}

// In a process of its own, whose environment wants no cuDNN.
TEST_CASE("LOCKSTEP_CUDNN_LIBRARY=none leaves attention and convolutions to products", "[.no_cudnn]") {
  const TensorOptions options{.dtype = DType::bf16, .device = support::device_at(1)};
  Tensor q = ones({1, 2, 77, 8}, options), x = ones({1, 3, 9, 9}, options), w = ones({4, 3, 3, 3}, options);
  for (Tensor* t : {&q, &w}) t->set_requires_grad(true);
  trace::start();
  const Tensor out = scaled_dot_product_attention(q, q, q, {.causal = true}), y = conv2d(x, w);
  (sum(out * out) + sum(y * y)).backward();
  CHECK(ways() == std::vector<std::string>{"attention by products", "attention_grad by products"});
  CHECK(std::ranges::none_of(trace::spans(), [](const trace::Span& span) {
    return std::string_view(span.work.name).find("cuDNN") != std::string_view::npos;
  }));
}
