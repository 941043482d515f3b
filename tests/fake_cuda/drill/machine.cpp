// CUDA devices on the fake runtime: the machine of lockstep-fake-drill.
#include <cuda_runtime_api.h>

#include <cstdlib>

#include "drill/judge.h"
#include "drill/plan.h"
#include "fake_cuda/checked_table.h"
#include "fake_cuda/fake_cuda.h"
#include "lockstep/kernels/api.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/memory/allocator.h"

namespace drill {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

struct Machinery {
  fake_cuda::Options options;
  int logical_devices;
  std::vector<fake_cuda::Injection> late;  // calls, of a machine without a fault
};

std::vector<std::pair<int, int>> draw_links(Draw& draw, int devices, int percent) {
  std::vector<std::pair<int, int>> links;
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b) {
      if (a != b && draw.chance(percent)) links.emplace_back(a, b);
    }
  }
  return links;
}

Machinery draw_machinery(std::uint64_t seed, Draw& draw) {
  const int devices = draw.one_of<int>({1, 2, 3, 4, 5, 6, 7, 8, 8});
  Machinery drawn{.options = {.devices = devices, .seed = seed + 1, .memory_bytes = {512 * kMegabyte}},
                  .logical_devices = devices,
                  .late = {}};
  fake_cuda::Options& options = drawn.options;
  if (draw.chance(50)) {  // unequal devices
    options.memory_bytes.clear(), options.multiprocessors.clear();
    for (int i = 0; i < devices; ++i) {
      options.memory_bytes.push_back((512 << draw.below(3)) * kMegabyte);
      options.multiprocessors.push_back(draw.between(1, 132));
    }
  }
  if (draw.chance(60)) options.order = draw.shuffled(devices);
  if (draw.chance(40)) options.no_peer = draw_links(draw, devices, draw.one_of<int>({10, 30, 100}));
  if (draw.chance(40)) options.lossy_peer = draw_links(draw, devices, draw.one_of<int>({10, 30, 100}));
  if (draw.chance(20)) drawn.logical_devices = std::min(8, devices + draw.between(1, 4));
  if (draw.chance(40)) {
    for (const char* call : {"cudaMemcpyAsync", "cudaLaunchHostFunc", "cudaEventRecord", "cudaEventQuery"}) {
      drawn.late.push_back({.call = call,
                            .nth = draw.between(1, 60),
                            .error = 0,
                            .times = 3,
                            .delay_microseconds = draw.between(50, 2000)});
    }
  }
  return drawn;
}

// A function that the library calls, and about how often in a run.
struct Site {
  const char* call;
  int often;
};
// With a context, from which a sticky error may come.
const std::vector<Site> kWorking = {
    {"cudaMalloc", 4},           {"cudaFree", 3},        {"cudaHostAlloc", 3},    {"cudaStreamCreateWithFlags", 4},
    {"cudaStreamWaitEvent", 80}, {"cudaEventQuery", 60}, {"cudaEventRecord", 90}, {"cudaEventCreateWithFlags", 20},
    {"cudaMemcpyPeerAsync", 12}, {"cudaMemsetAsync", 3}, {"cudaMemcpyAsync", 40}, {"cudaLaunchHostFunc", 60},
    {"cudaLaunchKernel", 60}};
// At the beginning.
const std::vector<Site> kStarting = {{"cudaHostGetDevicePointer", 3},
                                     {"cudaFuncGetAttributes", 900},
                                     {"cudaDeviceCanAccessPeer", 4},
                                     {"cudaDeviceEnablePeerAccess", 4},
                                     {"cudaStreamCreateWithFlags", 9},
                                     {"cudaHostAlloc", 8},
                                     {"cublasLtCreate", 3},
                                     {"cudaGetDriverEntryPointByVersion", 1},
                                     {"cudaMalloc", 6},
                                     {"cudaMemsetAsync", 6}};
const std::vector<Site> kElsewhere = {{"cudaSetDevice", 120},
                                      {"cudaGetDevice", 400},
                                      {"cublasLtMatmul", 20},
                                      {"cublasLtMatmulDescCreate", 6},
                                      {"cublasLtMatrixLayoutCreate", 12},
                                      {"cublasLtMatmulPreferenceCreate", 6},
                                      {"cublasLtMatmulAlgoGetHeuristic", 6}};

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(Machinery drawn)
      : Machine(DeviceType::cuda, drawn.logical_devices), options_(drawn.options), late_(std::move(drawn.late)) {}

  FaultTime draw_fault(Draw& draw, int steps) override {
    const int kind = draw.below(100);
    kind_ = kind < 50   ? Kind::error
            : kind < 65 ? Kind::allocation
            : kind < 80 ? Kind::sticky
            : kind < 90 ? Kind::broken
                        : Kind::late;
    FaultTime time{.step = static_cast<std::size_t>(draw.below(steps)), .from_empty_caches = draw.chance(70)};
    const bool starting = kind_ != Kind::late && draw.chance(30);
    if (starting) time.step = 0;
    const bool sticky = kind_ == Kind::sticky || kind_ == Kind::broken;
    const Site& site = draw.one_of<Site>(starting && !sticky                       ? kStarting
                                         : kind_ == Kind::error && draw.chance(30) ? kElsewhere
                                                                                   : kWorking);
    fault_ = {.call = site.call, .nth = draw.between(1, draw.chance(50) ? std::min(site.often, 5) : site.often)};
    switch (kind_) {
      case Kind::allocation:
        fault_.call = draw.chance(70) ? "cudaMalloc" : "cudaHostAlloc";
        fault_.nth = draw.between(1, starting ? 8 : 3);
        fault_.times = draw.one_of<int>({1, 2, 8, 8, 8});
        fault_.error = cudaErrorMemoryAllocation;
        break;
      case Kind::sticky:
      case Kind::broken:
        fault_.breaks_device = draw.one_of<int>(
            {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorECCUncorrectable, cudaErrorMisalignedAddress});
        fault_.error = kind_ == Kind::sticky ? fault_.breaks_device : cudaSuccess;
        break;
      case Kind::late:
        fault_.error = cudaSuccess;
        fault_.times = draw.one_of<int>({1, 4, 20});
        fault_.delay_microseconds = draw.between(100, 5000);
        if (fault_.call == "cudaEventQuery" && draw.chance(50)) fault_.error = cudaErrorNotReady;
        break;
      default:
        fault_.error = draw.one_of<int>({cudaErrorInvalidValue, cudaErrorInvalidResourceHandle, cudaErrorNotPermitted,
                                         cudaErrorLaunchOutOfResources, cudaErrorNotSupported});
    }
    return time;
  }
  std::string fault() const override {
    constexpr const char* kNames[] = {"", "error", "allocation", "sticky", "broken", "late"};
    return kNames[static_cast<int>(kind_)];
  }
  std::string text() const override {
    std::string text = cat(options_.devices, " GPUs as ", devices, " CUDA devices");
    if (!options_.order.empty()) text += ", permuted";
    for (const auto& [a, b] : options_.no_peer) text += cat(", ", a, " does not reach ", b);
    for (const auto& [a, b] : options_.lossy_peer) text += cat(", ", a, " to ", b, " loses writes");
    if (kind_ == Kind::none) return text;
    return cat(text, "; fault ", fault(), ": ", fault_.call, " number ", fault_.nth, ", ", fault_.times,
               " times, error ", fault_.error, fault_.breaks_device ? ", then broken" : "");
  }

  void start(const Plan& plan, int) override {
    if (devices != options_.devices) setenv("LOCKSTEP_CUDA_DEVICES", std::to_string(devices).c_str(), 1);
    for (const Device device : plan.used()) options_.only.push_back(gpu_of(device));
    fake_cuda::reset(options_);
    for (const fake_cuda::Injection& each : late_) fake_cuda::inject(each);
    configure_host({.devices = 1});
    kernels::detail::install_table(DeviceType::cuda, fake_cuda::checked_table());
  }
  void arm() override {
    fake_cuda::forget_injections();
    earlier_ = fake_cuda::strikes().size();
    fake_cuda::inject(fault_);
  }
  bool struck() const override { return !strikes().empty(); }
  void clear() override { fake_cuda::forget_injections(); }
  std::vector<Device> lost() const override {
    std::vector<Device> lost;
    if (fault_.breaks_device == 0) return lost;
    for (int i = 0; i < devices; ++i) {
      for (const fake_cuda::Strike& strike : strikes()) {
        if (strike.device == gpu_of(Device::cuda(i))) lost.push_back(Device::cuda(i));
      }
    }
    return lost;
  }

  std::string judge(const OutOfMemory& failed, const Plan&) const override {
    if (kind_ != Kind::allocation) return cat("OutOfMemory: ", failed.what());
    // Pinned memory is the host's.
    const bool right = fault_.call == "cudaHostAlloc" ? failed.device.is_cpu() : was_struck(failed.device);
    if (!right) return cat("OutOfMemory names ", failed.device, ", which was not struck: ", failed.what());
    return contains(failed.what(), to_string(failed.device)) ? "" : cat("no device in: ", failed.what());
  }
  std::string judge(const DeviceError& failed, const Plan&) const override {
    const std::string text = failed.what();
    if (kind_ != Kind::error && fault_.breaks_device == 0) return cat("DeviceError: ", text);
    if (!was_struck(failed.device)) return cat("DeviceError names ", failed.device, ", which was not struck: ", text);
    if (!contains(text, to_string(failed.device))) return cat("no device in: ", text);
    const int expected = fault_.breaks_device ? fault_.breaks_device : fault_.error;
    const auto error = static_cast<cudaError_t>(expected);
    // cublasLt has codes of its own, and says nothing of its device.
    if (contains(text, "cublasLt")) {
      return fault_.breaks_device || contains(text, fault_.call) ? "" : cat("not of ", fault_.call, ": ", text);
    }
    const bool again = failed.code == 0 && fault_.breaks_device != 0 && contains(text, "earlier");
    if (failed.code != expected && !again) return cat("code ", failed.code, " for ", expected, ": ", text);
    if (!contains(text, cudaGetErrorName(error))) return cat("no ", cudaGetErrorName(error), " in: ", text);
    // A device that is broken tells so at any call.
    return fault_.breaks_device || contains(text, fault_.call) ? "" : cat("not of ", fault_.call, ": ", text);
  }
  std::string judge(const TimeoutError& failed, const Plan&) const override {
    return cat("TimeoutError: ", failed.what());
  }

  std::string broken_rules() override {
    fake_cuda::end_test();  // looks at what this thread has left
    const std::vector<fake_cuda::Failure> failures = fake_cuda::take_failures();
    return failures.empty() ? "" : cat(failures.size(), " broken rules: ", to_string(failures[0]));
  }
  // Of memory of the devices, once the allocators have given back what they keep.
  std::string left_over() override {
    const std::vector<Device> ruined = lost();
    for (int i = 0; i < devices; ++i) {
      const Device device = Device::cuda(i);
      if (std::find(ruined.begin(), ruined.end(), device) != ruined.end()) continue;
      try {
        empty_cache(device);
      } catch (const Error& error) {
        return cat("what ", device, " keeps cannot be given back: ", error.what());
      }
    }
    for (int gpu = 0; gpu < options_.devices; ++gpu) {
      const bool failed_to_free = fault_.call == "cudaFree" && struck();
      const std::size_t bytes = fake_cuda::used_bytes(gpu);
      if (bytes != 0 && !failed_to_free && std::find(ruined.begin(), ruined.end(), Device::cuda(gpu)) == ruined.end())
        return cat(bytes, " bytes left on GPU ", gpu);
    }
    return {};
  }

 private:
  enum class Kind { none, error, allocation, sticky, broken, late };

  int gpu_of(Device device) const { return device.index() % options_.devices; }
  // By the fault.
  std::vector<fake_cuda::Strike> strikes() const {
    std::vector<fake_cuda::Strike> all = fake_cuda::strikes();
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(earlier_, all.size())));
    return all;
  }
  // Its GPU was: which one a call without a device is about, only the library knows.
  bool was_struck(Device device) const {
    if (device.type() != DeviceType::cuda) return false;
    const auto all = strikes();
    return std::any_of(all.begin(), all.end(), [&](const fake_cuda::Strike& strike) {
      return strike.device < 0 || strike.device == gpu_of(device);
    });
  }

  fake_cuda::Options options_;
  std::vector<fake_cuda::Injection> late_;
  Kind kind_ = Kind::none;
  fake_cuda::Injection fault_;
  std::size_t earlier_ = ~std::size_t{0};  // strikes before the fault was armed
};

}  // namespace

std::shared_ptr<Machine> draw_machine(std::uint64_t seed, Draw& draw) {
  return std::make_shared<CudaMachine>(draw_machinery(seed, draw));
}

}  // namespace drill
