// Every launch and product of the ways to compute attention, and of a copy that transposes, is one that CUDA takes.
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

std::vector<std::string> ways() {
  synchronize(support::device_at(1));
  trace::stop();
  std::vector<std::string> found;
  for (const trace::Span& span : trace::spans()) {
    const std::string name = span.work.name;
    if (name.starts_with("attention ") || name.starts_with("attention_grad ")) found.push_back(name);
  }
  return found;
}

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
