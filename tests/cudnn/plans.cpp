// What cuDNN itself answers, on a machine with or without a GPU: it makes plans for a GPU that is described to it (9.8
// and later). For an H200: that every convolution here has an engine which keeps what the library promises, on tensor
// cores where they are asked for, in the scratch memory that is allowed. Runs none of them.
#include <cstdio>

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

// Of ResNet-50, ResNeXt and a small net.
constexpr Layer kLayers[] = {
    {"first, 7x7", 32, 3, 224, 64, 7, 2, 3},
    {"3x3 of 64", 32, 64, 56, 64, 3, 1, 1},
    {"3x3 of 128, steps of 2", 32, 128, 56, 128, 3, 2, 1},
    {"3x3 of 512", 32, 512, 7, 512, 3, 1, 1},
    {"1x1, steps of 2", 32, 256, 56, 512, 1, 2, 0},
    {"1x1 of 49 pixels", 32, 2048, 7, 512, 1, 1, 0},
    {"3x3 in 32 groups", 32, 128, 56, 128, 3, 1, 1, 32},
    {"odd", 3, 5, 13, 7, 3, 1, 1},
};

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

void expect(bool holds, const Layer& layer, const char* kind, const char* type, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("failed: %s, %s, %s: %s\n", layer.name, kind, type, what);
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
  const struct {
    const char* name;
    DType dtype;
    bool tf32;
  } types[] = {
      {"f32", DType::f32, false}, {"TF32", DType::f32, true}, {"f16", DType::f16, false}, {"bf16", DType::bf16, false}};
  const std::pair<const char*, ConvKind> kinds[] = {
      {"forward", ConvKind::forward}, {"grad input", ConvKind::grad_input}, {"grad weight", ConvKind::grad_weight}};
  std::printf("%-24s %-11s %-5s %-9s %6s  %-12s %12s\n", "convolution", "", "dtype", "channels", "engine", "",
              "scratch, KiB");
  for (const Layer& layer : kLayers)
    for (const auto& [kind_name, kind] : kinds)
      for (const auto& type : types)
        for (const bool last : {false, true}) {
          const ConvSizes sizes = layer.sizes(last);
          if (!goes_to_cudnn(sizes, type.dtype)) {
            expect(false, layer, kind_name, type.name, "does not go to cuDNN");
            continue;
          }
          const ConvProblem problem{.kind = kind,
                                    .dtype = type.dtype,
                                    .sizes = sizes,
                                    .adds = kind == ConvKind::forward,
                                    .tf32 = type.tf32,
                                    .alignment = {16, 16, 16}};
          const auto plan =
              cudnn::Plan::make(*library, {.device_properties = gpu}, Device::cpu(), "plan", problem.request());
          expect(plan != nullptr, layer, kind_name, type.name, "no engine");
          if (!plan) continue;
          std::printf("%-24s %-11s %-5s %-9s %6lld  %-12s %12.1f\n", layer.name, kind_name, type.name,
                      last ? "last" : "in planes", static_cast<long long>(plan->engine()),
                      plan->tensor_cores() ? "tensor cores" : "", static_cast<double>(plan->workspace_bytes()) / 1024);
          expect(plan->workspace_bytes() <= static_cast<std::size_t>(problem.request().most_workspace), layer,
                 kind_name, type.name, "more scratch memory than allowed");
          const bool wide = layer.channels >= 64 && !(type.tf32 && layer.groups > 1);
          if (type.dtype == DType::f32 && !type.tf32)
            expect(!plan->tensor_cores(), layer, kind_name, type.name, "f32 on tensor cores");
          else if (wide)
            expect(plan->tensor_cores(), layer, kind_name, type.name, "not on tensor cores");
          if (wide && last && size_of(type.dtype) == 2)
            expect(plan->workspace_bytes() < static_cast<std::size_t>(2 * layer.batch * layer.channels * sizes.plane()),
                   layer, kind_name, type.name, "turns arrays around that lie as tensor cores want them");
        }
  for (const Edge& edge : kEdges)
    for (const auto& [kind_name, kind] : kinds)
      for (const auto& type : types)
        for (const bool last : {false, true})
          for (const int alignment : {static_cast<int>(size_of(type.dtype)), 16}) {
            const ConvProblem problem{.kind = kind,
                                      .dtype = type.dtype,
                                      .sizes = edge.sizes(last),
                                      .tf32 = type.tf32,
                                      .alignment = {alignment, alignment, alignment}};
            if (cudnn::Plan::make(*library, {.device_properties = gpu}, Device::cpu(), "plan", problem.request()))
              continue;
            ++failures;
            std::printf("failed: %s, %s, %s: no engine\n", edge.name, kind_name, type.name);
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
