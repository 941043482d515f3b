// DLPack with CUDA devices: no copy, and nothing but events between the streams of two libraries. The other library is
// these tests; the fake's order checker says what is not ordered.
#include <cuda_runtime_api.h>

#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/tensor/io/dlpack.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

constexpr std::int64_t kCount = 1000;
constexpr std::size_t kBytes = kCount * sizeof(float);
void check(cudaError_t result) { REQUIRE(result == cudaSuccess); }

// Not the first GPU where there are several. DLPack numbers GPUs: of the logical devices that share one it means the
// first.
Device the_device() {
  int gpus = 0;
  check(cudaGetDeviceCount(&gpus));
  return Device::cuda(gpus > 2 ? 2 : 0);
}

// The device of these tests, until the end of the scope.
class OnDevice {
 public:
  OnDevice() {
    check(cudaGetDevice(&before_));
    check(cudaSetDevice(native_ordinal(the_device())));
  }
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { check(cudaSetDevice(before_)); }

 private:
  int before_ = 0;
};

// The other library: a stream, and memory of its own.
class Library {
 public:
  Library() {
    const OnDevice here;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(cudaMalloc(&memory_, kBytes));
  }
  Library(const Library&) = delete;
  ~Library() {
    wait();
    const OnDevice here;
    check(cudaFree(memory_));
    check(cudaStreamDestroy(stream_));
  }
  cudaStream_t stream() const { return stream_; }
  void* memory() const { return memory_; }
  void write(void* to, int value) {
    const OnDevice here;
    check(cudaMemsetAsync(to, value, kBytes, stream_));
  }
  void read(const void* from) {
    const OnDevice here;
    check(cudaMemcpyAsync(memory_, from, kBytes, cudaMemcpyDeviceToDevice, stream_));
  }
  void wait() {
    const OnDevice here;
    while (cudaStreamQuery(stream_) == cudaErrorNotReady) {
      (void)cudaGetLastError();
      std::this_thread::yield();
    }
  }
  // What is in its memory now, by way of Lockstep.
  std::vector<float> contents() {
    wait();
    dlpack::ManagedTensorVersioned managed = lend([](dlpack::ManagedTensorVersioned*) {});
    return from_dlpack(&managed).to_vector<float>();
  }
  dlpack::ManagedTensorVersioned lend(void (*deleter)(dlpack::ManagedTensorVersioned*)) {
    return {.version = {1, 0},
            .manager_context = this,
            .deleter = deleter,
            .flags = 0,
            .tensor = {.data = memory_,
                       .device = {dlpack::kCuda, native_ordinal(the_device())},
                       .rank = 1,
                       .dtype = {dlpack::kFloat, 32, 1},
                       .shape = &shape_,
                       .strides = nullptr,
                       .byte_offset = 0}};
  }
  int deleted = 0;

 private:
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  std::int64_t shape_ = kCount;
};

// Gives the memory back, and the library writes to it at once.
void take_back(dlpack::ManagedTensorVersioned* self) {
  auto* library = static_cast<Library*>(self->manager_context);
  ++library->deleted;
  library->write(library->memory(), 0);
}

}  // namespace

TEST_CASE("dlpack out: a consumer's own stream comes after the tensor's work, and the memory's next user after both") {
  Library library;
  for (int round = 0; round < 5; ++round) {
    Stream producer(the_device());
    const StreamScope scope(producer);
    Tensor x = full({kCount}, 3, {.device = the_device()});
    const void* const data = x.data();
    auto* managed = to_dlpack(x, {.native_stream = library.stream()});
    CHECK(managed->tensor.data == data);
    CHECK(managed->tensor.device.type == dlpack::kCuda);
    CHECK(managed->tensor.device.id == native_ordinal(the_device()));
    x = {};
    library.read(managed->tensor.data);
    managed->deleter(managed);
    const Tensor y = full({kCount}, 4, {.device = the_device()}), z = full({kCount}, 5, {.device = the_device()});
    CHECK(library.contents() == std::vector<float>(kCount, 3));
    synchronize(the_device());
  }
}

TEST_CASE("dlpack out: without a stream a tensor on a GPU is computed when the call returns") {
  Library library;
  const Tensor x = full({kCount}, 6, {.device = the_device()});
  auto* managed = to_dlpack(x);
  library.read(managed->tensor.data);
  CHECK(library.contents() == std::vector<float>(kCount, 6));
  managed->deleter(managed);
  Stream own(the_device());
  CHECK_THROWS_AS(to_dlpack(x, {.stream = own, .native_stream = library.stream()}), InvalidArgument);
}

TEST_CASE("dlpack in: memory of a GPU goes back to its owner's stream after the last work on it") {
  Library library;
  for (const bool elsewhere : {false, true}) {
    Stream mine(the_device()), other(the_device());
    const StreamScope scope(mine);
    library.write(library.memory(), 0);
    library.deleted = 0;
    auto managed = library.lend(take_back);
    Tensor x = from_dlpack(&managed, {.native_stream = library.stream()});
    CHECK(x.data() == library.memory());
    CHECK(x.device() == the_device());
    x.add_(2.0);
    Tensor y;
    if (elsewhere) {
      other.wait_for(mine);
      const StreamScope there(other);
      y = x + 1.0;
      x.storage()->record_use(other);
    } else {
      y = x + 1.0;
    }
    CHECK(library.deleted == 0);
    x = {};
    CHECK(library.deleted == 1);
    mine.wait_for(other);
    CHECK(y.to_vector<float>() == std::vector<float>(kCount, 3));
    CHECK(library.contents() == std::vector<float>(kCount, 0));
  }
}

TEST_CASE("dlpack in: without the owner's stream the last tensor waits for the work on it") {
  Library library;
  library.write(library.memory(), 0);
  library.wait();
  Stream mine(the_device());
  const StreamScope scope(mine);
  auto managed = library.lend(take_back);
  Tensor x = from_dlpack(&managed);
  x.add_(2.0);
  const Tensor y = x + 1.0;
  x = {};  // the library writes, on a stream that knows nothing of ours
  CHECK(library.deleted == 1);
  CHECK(y.to_vector<float>() == std::vector<float>(kCount, 3));
  // What is read-only is copied first.
  library.wait();
  managed = library.lend(take_back);
  managed.flags = dlpack::kReadOnly;
  const Tensor copy = from_dlpack(&managed);
  CHECK(library.deleted == 2);
  CHECK(copy.data() != library.memory());
  CHECK(copy.to_vector<float>() == std::vector<float>(kCount, 0));
}

TEST_CASE("dlpack: out of Lockstep and in again, and GPUs that are not there") {
  Stream stream(the_device());
  const StreamScope scope(stream);
  const Tensor x = arange(kCount, {.dtype = DType::f32, .device = the_device()});
  const Tensor y = from_dlpack(to_dlpack(x, {.native_stream = native_stream(stream)}));
  CHECK(y.data() == x.data());
  CHECK(equal(y, x));
  Library library;
  auto managed = library.lend(take_back);
  managed.tensor.device.id = 99;
  CHECK_THROWS_WITH(from_dlpack(&managed), "[from_dlpack] expected a GPU that is a device here, got number 99");
  CHECK(library.deleted == 0);
  Stream host(Device::cpu());
  CHECK_THROWS_AS(native_stream(host), NotSupported);
}
