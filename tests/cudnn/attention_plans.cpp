// What cuDNN itself answers about attention, on a machine with or without a GPU: it makes plans for a GPU that is
// described to it, and compiles their kernels; a driver that runs nothing takes them. That every graph here is one that
// it knows, on which kernel it goes, and that other sizes need no other kernel. Runs none of them.
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <string>

#include "cudnn/described_gpu.h"
#include "lockstep/kernels/cuda/cudnn_attention.h"
#include "lockstep/runtime/error.h"

namespace {

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::kernels::cuda;

struct Case {
  const char* name;
  std::int64_t batch, heads, kv_heads, queries, keys, key_size, value_size;
  bool causal = false;
  CausalVariant variant = CausalVariant::upper_left;
  bool heads_within_rows = true;  // [B, T, H, D], as projections leave them
  bool compiles = true;           // of the first sizes of its kind, forward
};

constexpr CausalVariant kLowerRight = CausalVariant::lower_right;
const Case kCases[] = {
    {"GPT-2, 1024 tokens", 8, 12, 12, 1024, 1024, 64, 64, true},
    {"GPT-2, 700 tokens", 1, 12, 12, 700, 700, 64, 64, true, {}, true, false},
    {"GPT-2, 65 tokens", 3, 12, 12, 65, 65, 64, 64, true, {}, true, false},
    {"Llama, 8 heads of keys", 2, 32, 8, 2048, 2048, 128, 128, true, {}, false},
    {"Llama, a prompt goes on", 1, 32, 8, 100, 1333, 128, 128, true, kLowerRight},
    {"Llama, a longer one", 2, 32, 8, 301, 4096, 128, 128, true, kLowerRight, true, false},
    {"ViT, 197 patches", 64, 16, 16, 197, 197, 64, 64},
    {"one head of keys", 2, 8, 1, 333, 512, 64, 64},
    {"heads of 256", 1, 8, 4, 512, 512, 256, 256, true},
    {"odd sizes", 3, 5, 5, 99, 77, 72, 40},
    {"16 queries", 3, 5, 5, 16, 770, 72, 40, false, {}, true, false},
    {"more than 2^31 scores", 4, 32, 32, 8192, 8192, 64, 64, true},
};

CudnnAttention attention_of(const Case& c, DType dtype, bool backward) {
  const auto lie = [&](std::int64_t heads, std::int64_t rows, std::int64_t size) -> cudnn::Dims {
    if (c.heads_within_rows) return {heads * rows * size, size, heads * size, 1};
    return cudnn::row_major({c.batch, heads, rows, size});
  };
  const cudnn::Dims out = cudnn::row_major({c.batch, c.heads, c.queries, c.value_size});
  return {.backward = backward,
          .dtype = dtype,
          .sizes = {.batch = c.batch,
                    .heads = c.heads,
                    .kv_heads = c.kv_heads,
                    .queries = c.queries,
                    .keys = c.keys,
                    .key_size = c.key_size,
                    .value_size = c.value_size,
                    .page = 0},
          .causal = c.causal,
          .variant = c.variant,
          .strides = {lie(c.heads, c.queries, c.key_size), lie(c.kv_heads, c.keys, c.key_size),
                      lie(c.kv_heads, c.keys, c.value_size), out,
                      backward ? lie(c.heads, c.queries, c.value_size) : cudnn::Dims{}}};
}

// What the cache holds, as cuDNN writes it down: code that was compiled makes it longer.
std::int64_t length(const cudnn::Library& library, const cudnn::KernelCache& cache) {
  constexpr auto kText = static_cast<cudnn::Attribute>(2402);  // CUDNN_ATTR_KERNEL_CACHE_JSON_REPRESENTATION, 9.10
  std::int64_t found = 0;
  if (cache.descriptor() && library.get(cache.descriptor(), kText, cudnn::kTypeChar, 0, &found, nullptr)) return -1;
  return found;
}

int failures = 0;

void expect(bool holds, const char* name, const char* what) {
  if (holds) return;
  ++failures;
  std::printf("failed: %s: %s\n", name, what);
}

// What every plan is held to.
void check_plan(const cudnn::Plan& plan, const CudnnAttention& a, const char* name, const std::string& kernel,
                const char* architecture) {
  expect(plan.tensor_cores(), name, "not on tensor cores");
  expect(plan.workspace_bytes() <= static_cast<std::size_t>(a.request().most_workspace), name,
         "more scratch memory than allowed");
  expect(kernel.find(a.backward ? "flash_bprop" : "flash_fprop") != std::string::npos &&
             kernel.find(architecture) != std::string::npos,
         name, "not by the kernel that is meant");
  // The order of a gradient's sums is that of stored slopes: they are in the scratch memory.
  const AttentionSizes& s = a.sizes;
  if (a.backward)
    expect(static_cast<std::int64_t>(plan.workspace_bytes()) >=
               s.batch * s.heads * s.queries * s.keys * static_cast<std::int64_t>(size_of(a.dtype)),
           name, "does not store its slopes");
}

int make_plans() {
  const cudnn::Library* library = described_gpu::library_since(kOldestAttention);
  if (!library) return described_gpu::kSkipped;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto loaded = driver ? reinterpret_cast<int (*)()>(dlsym(driver, "lockstep_loaded_code")) : nullptr;
  const auto kernel = driver ? reinterpret_cast<const char* (*)()>(dlsym(driver, "lockstep_last_kernel")) : nullptr;
  if (!loaded || !kernel) {
    std::printf("skipped: expected the driver of the tests as libcuda.so.1, got another one\n");
    return described_gpu::kSkipped;
  }
  std::printf("cuDNN %zu, for an H200\n\n%-26s %-9s %-5s %6s %14s  %s\n", library->version(), "attention", "", "dtype",
              "engine", "scratch, KiB", "kernel");
  const cudnn::Descriptor gpu = described_gpu::describe(*library);
  std::map<PlanKey, std::unique_ptr<cudnn::KernelCache>> caches;
  for (const bool backward : {false, true})
    for (const Case& c : kCases) {
      if (backward && !c.compiles) continue;  // the same graph
      const DType dtype = backward || &c - kCases < 6 ? DType::bf16 : DType::f16;
      const CudnnAttention a = attention_of(c, dtype, backward);
      std::unique_ptr<cudnn::KernelCache>& cache = caches[a.family()];
      if (!cache && !backward) cache = std::make_unique<cudnn::KernelCache>(*library);
      const int before = loaded();
      const std::int64_t held = cache ? length(*library, *cache) : 0;
      const auto plan = cudnn::Plan::make(*library, {.device_properties = gpu}, Device::cpu(), "plan", a.request(),
                                          backward ? nullptr : cache.get());
      expect(plan != nullptr, c.name, "no engine");
      if (!plan) continue;
      const std::string name = kernel();
      const char* direction = backward ? "gradients" : "forward";
      std::printf("%-26s %-9s %-5s %6lld %14.1f  %s\n", c.name, direction, to_string(dtype).data(),
                  static_cast<long long>(plan->engine()), static_cast<double>(plan->workspace_bytes()) / 1024,
                  name.c_str());
      check_plan(*plan, a, c.name, name, "sm90");
      expect(loaded() > before, c.name, "no kernel");
      if (!backward)
        expect((length(*library, *cache) > held) == c.compiles, c.name,
               c.compiles ? "did not compile" : "compiled again for other sizes");
      if (!c.compiles) {  // the same as if it were the first one
        cudnn::KernelCache fresh(*library);
        const auto alone =
            cudnn::Plan::make(*library, {.device_properties = gpu}, Device::cpu(), "plan", a.request(), &fresh);
        expect(alone && alone->engine() == plan->engine() && alone->workspace_bytes() == plan->workspace_bytes() &&
                   kernel() == name,
               c.name, "another kernel than without those before it");
      }
    }
  caches.clear();
  library->descriptor_destroy(gpu);

  std::printf("\nOther compute capabilities, %s\n", kCases[0].name);
  for (const int capability : {800, 890, 1000, 1200}) {
    const cudnn::Descriptor other = described_gpu::describe(*library, capability);
    for (const bool backward : {false, true}) {
      if (backward && capability == 1000) continue;  // see attention_grad_by_cudnn
      cudnn::KernelCache cache(*library);
      const CudnnAttention a = attention_of(kCases[0], DType::bf16, backward);
      const auto plan = cudnn::Plan::make(*library, {.device_properties = other}, Device::cpu(), "plan", a.request(),
                                          backward ? nullptr : &cache);
      const std::string name = cat(capability / 100, ".", capability / 10 % 10, backward ? ", gradients" : ", forward");
      expect(plan != nullptr, name.c_str(), "no engine");
      if (!plan) continue;
      std::printf("%-26s engine %lld  %s\n", name.c_str(), static_cast<long long>(plan->engine()), kernel());
      check_plan(*plan, a, name.c_str(), kernel(), capability == 1000 ? "sm100" : "sm80");
    }
    library->descriptor_destroy(other);
  }
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
