#include "lockstep/c/lockstep.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/c/guarded.h"
#include "lockstep/c/network.h"
#include "lockstep/models/checkpoint/checkpoint.h"
#include "lockstep/models/vision/resnet.h"
#include "lockstep/runtime/check_function.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/nn/prepare.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/version.h"

using namespace lockstep;
using detail::guarded;
using detail::needed;

struct lockstep_tensor {
  Tensor tensor;
};
struct lockstep_network {
  Device device;
  std::function<std::vector<Tensor>(std::span<const Tensor>)> run;
};

namespace {

DType dtype_of(int dtype) {
  LOCKSTEP_CHECK(dtype >= LOCKSTEP_F32 && dtype <= LOCKSTEP_I8, "[C] expected a dtype from 0 to ",
                 static_cast<int>(LOCKSTEP_I8), ", got ", dtype);
  return static_cast<DType>(dtype);
}
static_assert(static_cast<int>(DType::f32) == LOCKSTEP_F32 && static_cast<int>(DType::f64) == LOCKSTEP_F64 &&
              static_cast<int>(DType::f16) == LOCKSTEP_F16 && static_cast<int>(DType::bf16) == LOCKSTEP_BF16 &&
              static_cast<int>(DType::i32) == LOCKSTEP_I32 && static_cast<int>(DType::i64) == LOCKSTEP_I64 &&
              static_cast<int>(DType::u8) == LOCKSTEP_U8 && static_cast<int>(DType::boolean) == LOCKSTEP_BOOL &&
              static_cast<int>(DType::i8) == LOCKSTEP_I8);
static_assert(kMaxRank == LOCKSTEP_MAX_RANK);

// The classes are those of the file's last layer.
ResNet resnet(const std::string& kind, const std::string& path) {
  Safetensors file = read_checkpoint(path, {.map = true});
  std::int64_t classes = 0;
  for (const NamedTensor& named : file.tensors)
    if (named.name == "fc.bias") classes = named.tensor.count();
  LOCKSTEP_CHECK(classes > 0, "[C] expected a checkpoint of ", kind, " with fc.bias, got ", path, " without");
  ResNet net = ResNet::named(kind, classes);
  load_checkpoint(net, std::move(file), path);
  return net;
}

}  // namespace

namespace lockstep {

lockstep_network* network_for_c(Device device, std::function<std::vector<Tensor>(std::span<const Tensor>)> run) {
  detail::check_function("network_for_c", run);
  return new lockstep_network{device, std::move(run)};
}

}  // namespace lockstep

extern "C" {

int lockstep_c_version() { return LOCKSTEP_C_VERSION; }
const char* lockstep_version() { return LOCKSTEP_VERSION_STRING; }

// ---- tensors

lockstep_status lockstep_tensor_create(int dtype, int rank, const int64_t* shape, const void* data, const char* device,
                                       lockstep_tensor** tensor) {
  return guarded(tensor, [&] {
    LOCKSTEP_CHECK(rank >= 0 && rank <= kMaxRank, "[C] expected a rank from 0 to ", kMaxRank, ", got ", rank);
    if (rank > 0) needed(shape, "shape");
    Shape sizes;
    for (int i = 0; i < rank; ++i) {
      LOCKSTEP_CHECK(shape[i] >= 0, "[C] expected sizes of 0 or more, got ", shape[i]);
      sizes.push_back(shape[i]);
    }
    const DType of = dtype_of(dtype);
    const Device on = detail::device_of(device);
    if (!data) return new lockstep_tensor{zeros(sizes, {.dtype = of, .device = on})};
    const auto count = static_cast<std::size_t>(element_count(sizes));
    if (of == DType::boolean) {
      const auto* bytes = static_cast<const std::uint8_t*>(data);
      LOCKSTEP_CHECK(std::all_of(bytes, bytes + count, [](std::uint8_t byte) { return byte <= 1; }),
                     "[C] expected 0 and 1 for bool, got another byte");
    }
    return new lockstep_tensor{detail::from_memory(data, count, of, sizes, {.dtype = of, .device = on})};
  });
}

lockstep_status lockstep_tensor_info(const lockstep_tensor* tensor, lockstep_dtype* dtype, int* rank, int64_t* shape) {
  return guarded([&] {
    const Tensor& of = needed(tensor, "tensor").tensor;
    if (dtype) *dtype = static_cast<lockstep_dtype>(of.dtype());
    if (rank) *rank = of.rank();
    if (shape) std::copy(of.shape().begin(), of.shape().end(), shape);
  });
}

lockstep_status lockstep_tensor_read(const lockstep_tensor* tensor, void* data, size_t bytes) {
  return guarded([&] {
    const NoGrad no_grad;
    const Tensor& of = needed(tensor, "tensor").tensor;
    if (bytes > 0) detail::check_given(data, "data");
    LOCKSTEP_CHECK(bytes == of.bytes(), "[C] expected room for the ", of.bytes(), " bytes of ", of, ", got ", bytes);
    const Tensor here = of.detach().to(Device::cpu()).contiguous();
    if (bytes > 0) std::memcpy(data, here.view().data, bytes);
  });
}

void lockstep_tensor_free(lockstep_tensor* tensor) { delete tensor; }

// ---- networks

lockstep_status lockstep_network_load(const char* kind, const char* path, const char* device,
                                      lockstep_network** network) {
  return guarded(network, [&] {
    const Device on = detail::device_of(device);
    ResNet net = resnet(&needed(kind, "kind"), &needed(path, "path"));
    net.to(on);
    net.eval();
    const auto prepared = std::make_shared<const Prepared<ResNet>>(prepare(net));
    return network_for_c(on, [prepared](std::span<const Tensor> inputs) {
      LOCKSTEP_CHECK(inputs.size() == 1, "[C] expected one input, images [B, 3, H, W], got ", inputs.size());
      return std::vector<Tensor>{(*prepared)(inputs[0])};
    });
  });
}

lockstep_status lockstep_network_run(const lockstep_network* network, const lockstep_tensor* const* inputs,
                                     size_t input_count, lockstep_tensor** outputs, size_t capacity, size_t* count) {
  return guarded([&] {
    const NoGrad no_grad;
    needed(network, "network");
    needed(count, "count") = 0;
    if (input_count > 0) needed(inputs, "inputs");
    if (capacity > 0) needed(outputs, "outputs");
    for (std::size_t i = 0; i < capacity; ++i) outputs[i] = nullptr;
    std::vector<Tensor> given;
    for (std::size_t i = 0; i < input_count; ++i)
      given.push_back(needed(inputs[i], "an input").tensor.to(network->device));
    std::vector<Tensor> results = network->run(given);
    *count = results.size();
    LOCKSTEP_CHECK(results.size() <= capacity, "[C] expected room for ", results.size(), " results, got ", capacity);
    std::vector<std::unique_ptr<lockstep_tensor>> made;
    for (Tensor& result : results) made.emplace_back(new lockstep_tensor{std::move(result)});
    for (std::size_t i = 0; i < made.size(); ++i) outputs[i] = made[i].release();
  });
}

void lockstep_network_free(lockstep_network* network) { delete network; }

}  // extern "C"
