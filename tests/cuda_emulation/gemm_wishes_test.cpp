// Products for which cuBLASLt has no algorithm, until it is asked for less.
#include <algorithm>

#include "cuda_emulation/cublas_lt.h"
#include "lockstep/runtime/error.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// For as long as one lives.
struct Refusing {
  explicit Refusing(std::function<bool(const emulation::Asked&)> what) {
    emulation::refuses = std::move(what);
    emulation::asked.clear();
  }
  Refusing(const Refusing&) = delete;
  Refusing& operator=(const Refusing&) = delete;
  ~Refusing() { emulation::refuses = nullptr; }
};

std::uint32_t most_aligned(const emulation::Asked& asked) {
  return *std::max_element(std::begin(asked.alignment), std::end(asked.alignment));
}

}  // namespace

TEST_CASE("a product that cuBLASLt has no algorithm for is made of less", "[matmul][wishes]") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
    for (const int granted : {0, 1, 2, 3})
      for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh})
        for (const bool with_bias : {false, true})
          for (const std::int64_t batch : {1, 2}) {
            const auto bytes = static_cast<std::uint32_t>(size_of(dtype));
            const Refusing refusing([&](const emulation::Asked& asked) {
              return (granted > 0 && asked.epilogue) || (granted > 1 && most_aligned(asked) > bytes) ||
                     (granted > 2 && asked.exact_sums);
            });
            // Sizes that no other case has: a plan is made once.
            const std::int64_t m = 5, k = 9, n = 100 + granted;
            TestTensor a(dtype, {batch, m, k}), b(dtype, {batch, k, n}), bias(dtype, {n}), out(dtype, {batch, m, n});
            a.fill_random(1, -1, 1), b.fill_random(2, -1, 1), bias.fill_random(3, -1, 1), out.fill_random(4, -1, 1);
            const TestTensor before = out;
            MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout(), .beta = 0.5, .activation = activation};
            if (with_bias) args.bias = bias.in();
            CAPTURE(to_string(dtype), granted, static_cast<int>(activation), with_bias, batch);
            run(args);
            const TestTensor got = out;
            const auto wishes = emulation::asked;
            if (!wishes.empty()) {  // else the plan of another case is the same
              const emulation::Asked& last = wishes.back();
              const bool fused = with_bias || activation == Activation::gelu_tanh;
              CHECK(last.epilogue == (fused && granted == 0));
              CHECK((most_aligned(last) > bytes) == (granted < 2));
              CHECK(last.exact_sums == (granted < 3));
            } else {
              CHECK((activation == Activation::relu));
            }
            out = before;
            kernels::table(DeviceType::host).entry<MatmulArgs>()(current_stream(Device::cpu()), args);
            CHECK(mismatch(
                      got, [&](std::int64_t i) { return out[i]; }, 16, 16) == "");
            // The plan is kept, and so is what it leaves to do.
            emulation::asked.clear();
            out = before;
            run(args);
            CHECK(emulation::asked.empty());
            CHECK(mismatch(
                      out, [&](std::int64_t i) { return got[i]; }, 0, 0) == "");
          }
}

TEST_CASE("a product that cuBLASLt never has an algorithm for says so", "[matmul][wishes]") {
  const Refusing refusing([](const emulation::Asked&) { return true; });
  TestTensor a(DType::bf16, {1, 3, 7}), b(DType::bf16, {1, 7, 111}), out(DType::bf16, {1, 3, 111});
  const MatmulArgs args{.a = a.in(), .b = b.in(), .out = out.inout()};
  CHECK_THROWS_WITH(run(args), Catch::Matchers::Contains("expected a product that cuBLASLt has an algorithm for, got 1 "
                                                         "of 3 x 7 by 7 x 111 in bf16"));
  CHECK_THROWS_AS(run(args), NotSupported);
}
