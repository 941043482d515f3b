// Sorting and running sums by CUB, whose calls and launches go to the fake.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "fake_cuda/fake_cuda.h"
#include "fake_cuda/tensor/ways.h"
#include "lockstep/kernels/api.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

template <class F>
std::vector<std::string> ways_of(Device device, F&& f) {
  trace::start();
  f();
  return traced_ways(device, {"argsort ", "additions ", "running sums "});
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a trace names the way that sorting and additions took on CUDA") {
  const Device device = support::device_at(1);
  const auto sorted = [&](const Shape& shape) {
    const Tensor x = ones(shape, {.device = device});
    return ways_of(device, [&] { argsort(x, -1); });
  };
  CHECK(sorted({4, 256}) == Names{"argsort by ranks"});
  CHECK(sorted({4, 257}) == Names{"argsort by blocks"});
  CHECK(sorted({4, 2048}) == Names{"argsort by blocks"});
  CHECK(sorted({4, 2049}) == Names{"argsort by radix"});
  const Tensor integers = zeros({3000}, {.dtype = DType::i64, .device = device});
  CHECK(ways_of(device, [&] { cumsum(integers, 0); }) == Names{"running sums by CUB"});
  const auto added = [&](std::int64_t count) {
    const Tensor rows = ones({count, 4}, {.device = device}), index = integers.slice(0, 0, count);
    return ways_of(device, [&] { index_add(zeros({5, 4}, {.device = device}), 0, index, rows); });
  };
  CHECK(added(17) == Names{"additions by sorted indices"});
  CHECK(added(16) == Names{"additions by lines"});
  CHECK(fake_cuda::take_failures().empty());
}

// CUDA loads a kernel when it is first used, which waits for a collective; and that for later work.
TEST_CASE("sorting beside a collective loads no code") {
  const Device device = support::device_at(1);
  kernels::prepare(device);
  const Tensor x = ones({3, 40'000}, {.device = device}), few = ones({3, 3000}, {.device = device});
  const Tensor integers = zeros({300'000}, {.dtype = DType::i64, .device = device});
  synchronize(device);
  {
    const fake_cuda::SpinningCollective collective;
    argsort(x, -1);
    argsort(few, -1);
    argsort(few.slice(1, 0, 1000), -1);
    cumsum(integers, 0);
    index_add(zeros({5}, {.device = device}), 0, integers.slice(0, 0, 1000), ones({1000}, {.device = device}));
  }
  synchronize(device);
  for (const auto& failure : fake_cuda::take_failures())  // memory is taken, which is none of this case's
    if (failure.call != "cudaMalloc") FAIL_CHECK(to_string(failure));
}

TEST_CASE("an error that the program around has left is none of the sort's") {
  const Device device = support::device_at(1);
  const Tensor x = randn({5000}).to(device);
  std::vector<float> values = x.to_vector<float>();
  REQUIRE(cudaSetDevice(12345) == cudaErrorInvalidDevice);
  REQUIRE(cudaPeekAtLastError() == cudaErrorInvalidDevice);  // and nobody takes it
  (void)fake_cuda::take_failures();
  const Tensor order = argsort(x, 0);
  std::ranges::sort(values);
  CHECK(index_select(x, 0, order).to_vector<float>() == values);
  for (const auto& failure : fake_cuda::take_failures()) FAIL_CHECK(to_string(failure));
}

TEST_CASE("sorting is captured, and replayed with new numbers") {
  const Device device = support::device_at(1);
  const Stream stream(device);
  const StreamScope scope(stream);
  const InferenceMode inference;
  manual_seed(7);
  Tensor x = zeros({2, 5000}, {.device = device});
  Tensor integers = zeros({5000}, {.dtype = DType::i64, .device = device});
  auto [graph, results] = capture(stream, [&] { return std::pair{argsort(x, -1), cumsum(integers, 0)}; });
  for (int i = 0; i < 2; ++i) {
    x.copy_(randn({2, 5000}));
    integers.copy_(randint(-9, 9, {5000}));
    graph.replay();
    const auto order = results.first.to_vector<std::int64_t>(), sums = results.second.to_vector<std::int64_t>();
    CHECK(order == argsort(x, -1).to_vector<std::int64_t>());
    CHECK(sums == cumsum(integers, 0).to_vector<std::int64_t>());
  }
  CHECK(fake_cuda::take_failures().empty());
}
