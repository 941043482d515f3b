// Indices that are out of range, as kernels report them.
#include "lockstep/kernels/cuda/launch.cuh"
#include "lockstep/runtime/error.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

TEST_CASE("of many bad indices one is reported, by one atomic") {
  TestTensor in(DType::f32, {10}), index(DType::i64, {5000}), out(DType::f32, {5000});
  in.fill_random(1), index.fill([](std::int64_t i) { return static_cast<double>(10 + i); });
  const int before = emulation::system_atomics;
  CHECK_THROWS_AS(run(IndexSelectArgs{.in = in.in(), .index = index.in(), .out = out.out(), .dim = 0}),
                  InvalidArgument);
  CHECK(emulation::system_atomics - before == 1);
}
