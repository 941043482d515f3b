// What cuDNN itself answers, on a machine with or without a GPU: it makes plans for a GPU that is described to it (9.8
// and later). For an H200: that every convolution here has an engine which keeps what the library promises, on tensor
// cores where they are asked for, in the scratch memory that is allowed; and that what adds the bias too is no worse.
// Runs none of them.
#include <cstdio>
#include <memory>

#include "cudnn/described_gpu.h"
#include "lockstep/kernels/cuda/cudnn_conv.h"
#include "lockstep/runtime/error.h"

namespace {

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::kernels::cuda;

struct Layer {
  const char* name;
  std::int64_t batch, channels, size, outputs;
  int kernel, stride, padding, groups = 1;

  ConvSizes sizes(bool channels_last) const {
    const std::int64_t out = (size + 2 * padding - kernel) / stride + 1;
    const Window2d window{.kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}};
    ConvSizes sizes({batch, channels, size, size}, {batch, outputs, out, out}, window, groups);
    sizes.channels_last = channels_last;
    return sizes;
  }
};

// Of ResNet-50, ResNeXt, a vision transformer and small nets.
constexpr Layer kLayers[] = {
    {"first, 7x7", 32, 3, 224, 64, 7, 2, 3},
    {"3x3 of 64", 32, 64, 56, 64, 3, 1, 1},
    {"3x3 of 128, steps of 2", 32, 128, 56, 128, 3, 2, 1},
    {"3x3 of 512", 32, 512, 7, 512, 3, 1, 1},
    {"1x1, steps of 2", 32, 256, 56, 512, 1, 2, 0},
    {"1x1 of 49 pixels", 32, 2048, 7, 512, 1, 1, 0},
    {"3x3 in 32 groups", 32, 128, 56, 128, 3, 1, 1, 32},
    {"patches, 16x16", 32, 3, 224, 768, 16, 16, 0},
    {"first, 3x3", 32, 3, 32, 64, 3, 1, 1},
    {"odd", 3, 5, 13, 7, 3, 1, 1},
};

struct Kind {
  const char* name;
  ConvKind kind;
  bool bias = false;
};
constexpr Kind kKinds[] = {{"forward", ConvKind::forward},
                           {"with bias", ConvKind::forward, true},
                           {"grad input", ConvKind::grad_input},
                           {"grad weight", ConvKind::grad_weight}};
struct Type {
  const char* name;
  DType dtype;
  bool tf32;
};
constexpr Type kTypes[] = {
    {"f32", DType::f32, false}, {"TF32", DType::f32, true}, {"f16", DType::f16, false}, {"bf16", DType::bf16, false}};

ConvProblem problem_of(const Kind& kind, const Type& type, const ConvSizes& sizes, int alignment) {
  return {.kind = kind.kind,
          .dtype = type.dtype,
          .sizes = sizes,
          .bias = kind.bias,
          .tf32 = type.tf32,
          .alignment = {alignment, alignment, alignment, alignment}};
}

// Geometries at the edges of what a convolution may be.
struct Edge {
  const char* name;
  Shape x;
  std::int64_t outputs;
  Window2d window;
  int groups = 1;

  ConvSizes sizes(bool channels_last) const {
    const auto out = [&](int d) {
      const auto at = static_cast<std::size_t>(d);
      return (x[2 + d] + 2 * window.padding[at] - window.dilation[at] * (window.kernel[at] - 1) - 1) /
                 window.stride[at] +
             1;
    };
    ConvSizes sizes(x, {x[0], outputs, out(0), out(1)}, window, groups);
    sizes.channels_last = channels_last;
    return sizes;
  }
};
const Edge kEdges[] = {
    {"padding beyond the window", {2, 4, 5, 5}, 6, {.kernel = {3, 3}, .padding = {5, 5}}},
    {"a window as large as the image", {1, 4, 3, 3}, 8, {.kernel = {5, 5}, .padding = {1, 1}}},
    {"steps beyond the window", {2, 4, 9, 9}, 6, {.kernel = {2, 2}, .stride = {5, 5}}},
    {"dilated", {2, 4, 20, 20}, 6, {.kernel = {3, 3}, .dilation = {7, 6}}},
    {"images of one pixel", {3, 5, 1, 1}, 7, {.kernel = {3, 3}, .padding = {1, 1}}},
    {"pixels that no window has", {2, 4, 10, 10}, 6, {.kernel = {3, 3}, .stride = {4, 4}}},
    {"one row", {2, 8, 1, 100}, 6, {.kernel = {1, 5}, .padding = {0, 2}}},
    {"three groups of odd sizes", {2, 6, 9, 9}, 9, {.kernel = {3, 3}}, 3},
    {"a window of 101 pixels", {1, 3, 300, 300}, 4, {.kernel = {101, 101}}},
    {"steps of 1000", {1, 3, 2000, 7}, 4, {.kernel = {1, 3}, .stride = {1000, 1}}},
    {"a dilation of 1500", {1, 3, 2000, 7}, 4, {.kernel = {2, 3}, .dilation = {1500, 1}}},
    {"100,000 images", {100000, 2, 5, 5}, 3, {.kernel = {3, 3}}},
};

int failures = 0;

void expect(bool holds, const char* name, const Kind& kind, const Type& type, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("failed: %s, %s, %s: %s\n", name, kind.name, type.name, what);
}

void print(const Layer& layer, const Kind& kind, const Type& type, bool last, const cudnn::Plan* plan) {
  std::printf("%-24s %-11s %-5s %-9s ", layer.name, kind.name, type.name, last ? "last" : "in planes");
  if (plan)
    std::printf("%6lld  %-12s %12.1f\n", static_cast<long long>(plan->engine()),
                plan->tensor_cores() ? "tensor cores" : "", static_cast<double>(plan->workspace_bytes()) / 1024);
  else
    std::printf("%6s\n", "none");
}

// With a bias: there is none, and a kernel of the library's adds it, or it is at least as good as the plain one.
void check_bias(const Layer& layer, const Type& type, const cudnn::Plan& plain, const cudnn::Plan* plan) {
  constexpr std::size_t kLittle = 1 << 20;
  const Kind& kind = kKinds[1];
  const bool tensor_cores = type.dtype != DType::f32 || type.tf32;
  if (!tensor_cores || layer.channels >= 64) expect(plan != nullptr, layer.name, kind, type, "no engine");
  if (!plan) return;
  expect(plan->tensor_cores() == tensor_cores, layer.name, kind, type, "the wrong cores");
  expect(plan->workspace_bytes() <= plain.workspace_bytes() + kLittle, layer.name, kind, type,
         "more scratch memory than without the bias");
}

int make_plans() {
  const cudnn::Library* library = described_gpu::library_since(90800);
  if (!library) return described_gpu::kSkipped;
  std::printf("cuDNN %zu, for an H200\n\n", library->version());
  const cudnn::Descriptor gpu = described_gpu::describe(*library);
  if (!gpu) {
    std::printf("failed: cuDNN takes no such description of a GPU\n");
    return 1;
  }
  const auto plan_of = [&](const ConvProblem& problem) {
    return cudnn::Plan::make(*library, {.device_properties = gpu}, Device::cpu(), "plan", problem.request());
  };
  std::printf("%-24s %-11s %-5s %-9s %6s  %-12s %12s\n", "convolution", "", "dtype", "channels", "engine", "",
              "scratch, KiB");
  for (const Layer& layer : kLayers)
    for (const Kind& kind : kKinds)
      for (const Type& type : kTypes)
        for (const bool last : {false, true}) {
          const ConvSizes sizes = layer.sizes(last);
          if (!goes_to_cudnn(sizes, type.dtype)) {
            expect(false, layer.name, kind, type, "does not go to cuDNN");
            continue;
          }
          ConvProblem problem = problem_of(kind, type, sizes, 16);
          problem.adds = kind.kind == ConvKind::forward && !kind.bias;
          const auto plan = plan_of(problem);
          if (!kind.bias) expect(plan != nullptr, layer.name, kind, type, "no engine");
          print(layer, kind, type, last, plan.get());
          if (kind.bias)
            if (const auto plain = plan_of(problem_of(kKinds[0], type, sizes, 16)))
              check_bias(layer, type, *plain, plan.get());
          if (!plan) continue;
          expect(plan->workspace_bytes() <= static_cast<std::size_t>(problem.request().most_workspace), layer.name,
                 kind, type, "more scratch memory than allowed");
          const bool wide = layer.channels >= 64 && !(type.tf32 && layer.groups > 1);
          if (type.dtype == DType::f32 && !type.tf32)
            expect(!plan->tensor_cores(), layer.name, kind, type, "f32 on tensor cores");
          else if (wide)
            expect(plan->tensor_cores(), layer.name, kind, type, "not on tensor cores");
          if (wide && last && size_of(type.dtype) == 2)
            expect(plan->workspace_bytes() < static_cast<std::size_t>(2 * layer.batch * layer.channels * sizes.plane()),
                   layer.name, kind, type, "turns arrays around that lie as tensor cores want them");
        }
  for (const Edge& edge : kEdges)
    for (const Kind& kind : kKinds)
      for (const Type& type : kTypes)
        for (const bool last : {false, true})
          for (const int alignment : {static_cast<int>(size_of(type.dtype)), 16}) {
            if (kind.bias && (alignment < 16 || type.dtype != DType::f32 || type.tf32)) continue;  // or added before
            expect(plan_of(problem_of(kind, type, edge.sizes(last), alignment)) != nullptr, edge.name, kind, type,
                   "no engine");
          }
  library->descriptor_destroy(gpu);
  std::printf("\n%d failures\n", failures);
  return failures > 0;
}

}  // namespace

int main() {
  try {
    return make_plans();
  } catch (const Error& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
