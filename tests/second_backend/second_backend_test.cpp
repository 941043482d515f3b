// What the layers above the seams do with a backend that they have never heard of (second_backend.cpp): the same as
// with host devices, bit for bit; and what they say about kernels that it lacks.
#include <cstdlib>
#include <functional>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/io/dlpack.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "runtime/gate.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using Doubles = std::vector<double>;
using support::message_of;

namespace {

constexpr Device kFirst = Device::cuda(0), kSecond = Device::cuda(1);

// first, first + 1, …, each divided by 8
Tensor eighths(const Shape& shape, Device device, DType dtype = DType::f64, double first = 1) {
  Doubles values(static_cast<std::size_t>(element_count(shape)));
  for (double& value : values) value = first++ / 8;
  return from_data(values, shape, {.dtype = dtype, .device = device});
}
Doubles values(const Tensor& x) { return x.to_vector<double>(); }

// Every kernel that the second backend has, on contiguous and other views.
Doubles program(DType dtype, std::int64_t rows, Device device) {
  const TensorOptions options{.dtype = dtype, .device = device};
  const Tensor x = eighths({rows, 3}, device, dtype), w = eighths({rows, 3}, device, dtype, -4);
  Tensor y = add(matmul(x, w.t()), full({rows, rows}, 0.75, options));
  y.add_(y.t().clone(), -0.5);
  const Tensor padded = cat({y, zeros({1, rows}, options), ones({1, rows}, options)});
  return values(padded.t().contiguous());
}

struct Sum : Module<Sum> {
  Parameter v{eighths({3, 2}, Device::cpu())}, w{eighths({3, 2}, Device::cpu(), DType::f64, -5)};
  Tensor forward(const Tensor& x) const { return matmul(x, v.on(x.device())) + matmul(x, w.on(x.device())); }
  void members(Members& m) override { m("v", v), m("w", w); }
};

// Three steps, the outputs and gradients of each, and the parameters at the end.
std::vector<Doubles> train(const std::vector<Device>& devices) {
  const DataParallel<Sum> net(Sum{}, {.devices = devices});
  std::vector<Doubles> seen;
  for (const std::int64_t batch : {5, 1, 4}) {
    const Tensor y = net(eighths({batch, 3}, Device::cpu(), DType::f64, static_cast<double>(batch)));
    y.backward(eighths({batch, 2}, devices[0], DType::f64, -2));
    seen.push_back(values(y));
    const NoGrad no_grad;
    for (const Parameter* parameter : {&net.module().v, &net.module().w}) {
      seen.push_back(values(parameter->grad()));
      parameter->tensor().add_(parameter->grad(), -0.125);
    }
  }
  seen.push_back(values(net.module().v.tensor()));
  seen.push_back(values(net.module().w.tensor()));
  return seen;
}

}  // namespace

TEST_CASE("second backend: what it has computes what the host does") {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    for (const std::int64_t rows : {0, 1, 7}) {
      CHECK(program(dtype, rows, kSecond) == program(dtype, rows, Device::host(1)));
    }
  }
}

TEST_CASE("second backend: elements move between devices of every kind") {
  const Tensor x = eighths({40, 50}, kFirst);
  const Doubles expected = values(eighths({40, 50}, Device::cpu()));
  for (const Device device : {kFirst, kSecond, Device::host(0), Device::cpu()}) {
    const Tensor moved = x.to(device);
    CHECK(moved.device() == device);
    CHECK(values(moved) == expected);
    CHECK(values(moved.to(kSecond).t().to(kFirst)) == values(eighths({40, 50}, Device::cpu()).t()));
  }
}

TEST_CASE("second backend: an absent kernel is an error that names operation, dtype and device") {
  const Tensor x = eighths({1, 2, 4, 4}, kSecond), y = eighths({1, 2, 4, 4}, kSecond, DType::f32);
  synchronize(kSecond);
  const std::size_t before = memory_stats(kSecond).in_use_bytes;
  const auto refused = [&](const std::string& op, const std::string& dtype, const std::function<void()>& call) {
    CHECK(message_of<NotSupported>(call) ==
          "[" + op + "] expected an operation that cuda:1 has, got " + op + " of " + dtype);
    CHECK(memory_stats(kSecond).in_use_bytes == before);
  };
  refused("exp", "f64", [&] { exp(x); });
  refused("mul", "f32", [&] { y * 2; });
  refused("sub", "f32", [&] { sub(y, y); });  // of a kernel that is there, but not for this
  refused("sum", "f64", [&] { sum(x); });
  refused("softmax", "f32", [&] { softmax(y, -1); });
  refused("max_pool2d", "f64", [&] { max_pool2d(x, 2); });
  CHECK(values(y + y) == values(eighths({1, 2, 4, 4}, Device::cpu()) * 2));  // and it works on
}

TEST_CASE("second backend: streams, events and the allocator are those of every device") {
  const Stream main = current_stream(kFirst), side(kFirst);
  const Tensor x = eighths({64}, kFirst);
  backend_streams::Gate gate;
  side.enqueue(gate.waits());
  Tensor taken = eighths({64}, kFirst, DType::f64, 100), y;
  const void* const memory = taken.data();
  side.wait_for(main);
  {
    const StreamScope scope(side);
    y = taken + x;
  }
  taken.storage()->record_use(side);
  taken = {};
  CHECK(full({64}, 0, {.dtype = DType::f64, .device = kFirst}).data() != memory);  // side still reads it
  CHECK_FALSE(side.query());
  Event made;
  made.record(side);
  CHECK_FALSE(made.query());
  CHECK_THROWS_AS(wait(made, Deadline::after(Milliseconds(1))), TimeoutError);
  gate.open();
  main.wait(made);
  CHECK(values(y + y)[63] == 2 * (163 + 64) / 8.0);
  synchronize(kFirst);
  const std::uint64_t raw = memory_stats(kFirst).raw_allocations;
  for (int i = 0; i < 3; ++i) CHECK(values(eighths({64}, kFirst) + x)[0] == 0.25);
  CHECK(memory_stats(kFirst).raw_allocations == raw);
}

TEST_CASE("second backend: DataParallel trains on it as on host devices") {
  CHECK(train({kFirst}) == train({Device::host(0)}));
  const std::vector<Doubles> expected = train({Device::host(0), Device::host(1)});
  CHECK(train({kFirst, kSecond}) == expected);
  CHECK(train({kSecond, Device::cuda(3)}) == expected);
}

TEST_CASE("second backend: ranks on it reduce, and nobody asks which GPU it is") {
  setenv("LOCKSTEP_COMMUNICATOR", "peer", 1);  // some machines have NCCL
  const auto reduced = [](Communicator& comm) {
    const Tensor x = eighths({33}, comm.device(), DType::f64, comm.rank());
    comm.all_reduce(x);
    return values(x);
  };
  const std::vector<Doubles> sums = run_ranks(2, reduced, {.devices = {kFirst, kSecond}});
  unsetenv("LOCKSTEP_COMMUNICATOR");
  const Doubles expected = values(eighths({33}, Device::cpu()) + eighths({33}, Device::cpu(), DType::f64, 0));
  CHECK(sums == std::vector<Doubles>{expected, expected});
}

TEST_CASE("second backend: what is CUDA's alone is refused") {
  const Tensor x = eighths({3}, kFirst);
  CHECK(message_of<NotSupported>([&] { to_dlpack(x); }) == "[native_ordinal] expected a CUDA device, got cuda:0");
  CHECK(message_of<NotSupported>([&] { native_stream(current_stream(kFirst)); }) ==
        "[native_stream] expected a CUDA device, got cuda:0");
  CHECK(message_of<NotSupported>([&] { Stream::foreign(kFirst, nullptr); }) ==
        "[Stream::foreign] expected a device whose streams other libraries make too, got cuda:0");
}
