// Copies, conversions of dtype, moves between devices.
#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

namespace {}  // namespace

TEST_CASE("copies") {
  support::needs_devices(6);
  const Tensor x = numbered({2, 3});
  CHECK(x.contiguous().identity() == x.identity());
  CHECK(x.t().contiguous().contiguous_layout());
  CHECK(ints(x.t().contiguous()) == ints(x.t()));
  CHECK_FALSE(shares(x.clone(), x));
  CHECK(ints(x.t().clone()) == ints(x.t()));
  CHECK(x.to(DType::i64).identity() == x.identity());
  CHECK(x.to(Device::cpu()).identity() == x.identity());
  CHECK(from_data({1.9, -1.9, 0.0}, {3}).to(DType::i32).to_vector<int>() == std::vector<int>{1, -1, 0});
  CHECK(from_data({1.9, -1.9, 0.0}, {3}).to(DType::boolean).to_vector<int>() == std::vector<int>{1, 1, 0});
  const Tensor there = x.t().to(device_at(3));
  CHECK(there.device() == device_at(3));
  CHECK(ints(there) == ints(x.t()));
  CHECK(ints(there.to(device_at(5)).t()) == ints(x));
  CHECK(zeros({0}).to(device_at(0)).shape() == Shape{0});
}

TEST_CASE("copies of rows that lie anywhere in their cache lines") {
  const Tensor x = numbered({5, 700});
  for (const std::int64_t length : {1, 7, 8, 9, 33, 600})
    for (const std::int64_t shift : {0, 1, 8, 16, 31}) {
      INFO(length << " elements by " << shift);
      Tensor y = zeros({5, 700}, {.dtype = x.dtype()});
      y.narrow(1, shift + 3, length).copy_(x.narrow(1, 3, length));
      CHECK(ints(y.narrow(1, shift + 3, length)) == ints(x.narrow(1, 3, length)));
      CHECK(sum(y).item<std::int64_t>() == sum(x.narrow(1, 3, length)).item<std::int64_t>());
      // Onto itself, what is not yet copied included.
      Tensor line = numbered({700});
      line.narrow(0, shift, length).copy_(line.narrow(0, 0, length));
      CHECK(ints(line.narrow(0, shift, length)) == ints(numbered({length})));
    }
}
