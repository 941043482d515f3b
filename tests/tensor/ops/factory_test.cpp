// Making tensors.
#include "support/devices.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;

TEST_CASE("tensors filled with a value") {
  support::needs_devices(3);
  CHECK(values(zeros({2, 2})) == Doubles{0, 0, 0, 0});
  CHECK(values(ones({2})) == Doubles{1, 1});
  CHECK(values(full({2}, 2.5)) == Doubles{2.5, 2.5});
  CHECK(values(full({1}, -3, {.dtype = DType::i64})) == Doubles{-3});
  CHECK(full({}, 1).shape() == Shape{});
  CHECK(zeros({0, 3}).count() == 0);
  CHECK(values(eye(2)) == Doubles{1, 0, 0, 1});
  CHECK(eye(0).shape() == Shape{0, 0});
  CHECK(values(eye(3, {.dtype = DType::i32, .device = device_at(1)})) == Doubles{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(empty({3}, {.dtype = DType::f16}).dtype() == DType::f16);
  CHECK(zeros({1}).dtype() == DType::f32);
  CHECK(zeros({1}).device() == Device::cpu());
  {
    const DefaultDType f64(DType::f64);
    CHECK(zeros({1}).dtype() == DType::f64);
    CHECK(randn({1}).dtype() == DType::f64);
    CHECK(tensor(1.5).dtype() == DType::f64);
  }
  const Tensor x = zeros({2}, {.device = device_at(2), .requires_grad = true});
  CHECK(x.requires_grad());
  CHECK(x.is_leaf());
  CHECK(x.device() == device_at(2));
  const Tensor like = ones_like(x, DType::i64);
  CHECK(like.device() == device_at(2));
  CHECK(like.dtype() == DType::i64);
  CHECK_FALSE(like.requires_grad());
  CHECK(values(full_like(x, 3)) == Doubles{3, 3});
  CHECK(zeros_like(x.expand({3, 2})).contiguous_layout());
  CHECK_THROWS_AS(zeros({-1}), InvalidArgument);
  CHECK_THROWS_AS(zeros({std::int64_t{1} << 40, std::int64_t{1} << 40}), InvalidArgument);
  CHECK_THROWS_AS(zeros({std::int64_t{1} << 62}), InvalidArgument);
}

TEST_CASE("ranges") {
  support::needs_devices(2);
  CHECK(values(arange(4)) == Doubles{0, 1, 2, 3});
  CHECK(arange(4).dtype() == DType::i64);
  CHECK(values(arange(2, 7, 2)) == Doubles{2, 4, 6});
  CHECK(values(arange(3, 0, -1)) == Doubles{3, 2, 1});
  CHECK(values(arange(0.0, 1.0, 0.25)) == Doubles{0, 0.25, 0.5, 0.75});
  CHECK(arange(0, 1, 0.5).dtype() == DType::f32);
  CHECK(arange(0).count() == 0);
  CHECK(arange(5, 2).count() == 0);
  CHECK(arange(3, {.dtype = DType::f64, .device = device_at(1)}).dtype() == DType::f64);
  CHECK_THROWS_AS(arange(0, 3, 0), InvalidArgument);
  CHECK_THROWS_AS(arange(0.0, INFINITY), InvalidArgument);
}

TEST_CASE("tensors from values in memory") {
  std::vector<float> source{1, 2, 3, 4};
  for (const Device device : {Device::cpu(), device_at(3)}) {
    Tensor x = from_data(source, {2, 2}, {.device = device});
    source[0] = 9;  // a copy
    CHECK(values(x) == Doubles{1, 2, 3, 4});
    CHECK(x.dtype() == DType::f32);
    source[0] = 1;
  }
  CHECK(from_data(std::span<float>(source), {4}).dtype() == DType::f32);
  CHECK(from_data(std::span<const float>(source).subspan(2), {2}).to_vector<float>() == std::vector<float>{3, 4});
  CHECK(from_data(std::vector<bool>{true, false}, {2}).dtype() == DType::boolean);
  CHECK(from_data(std::vector<std::int32_t>{1}, {1}).dtype() == DType::i32);
  CHECK(from_data({1.5, 2.5}, {2}).dtype() == DType::f32);
  CHECK(from_data({1, 2}, {2}).dtype() == DType::i64);
  CHECK(from_data({true, false}, {2}).to_vector<int>() == std::vector<int>{1, 0});
  CHECK(from_data({1.5, 2.5}, {2}, {.dtype = DType::f64, .requires_grad = true}).requires_grad());
  CHECK(tensor(2.5).item<double>() == 2.5);
  CHECK(tensor(7).dtype() == DType::i64);
  CHECK(tensor(true).dtype() == DType::boolean);
  CHECK(tensor(std::int64_t{1} << 60).item<std::int64_t>() == std::int64_t{1} << 60);
  CHECK_THROWS_WITH(from_data(source, {3}), Contains("[from_data]") && Contains("3 elements") && Contains("got 4"));
}

TEST_CASE("item() gives numbers that the type has, and names those that it has not") {
  const TensorOptions f64{.dtype = DType::f64};
  CHECK(tensor(std::int64_t{1} << 40).item<std::int64_t>() == std::int64_t{1} << 40);
  CHECK(tensor(2147483647.9, f64).item<int>() == 2147483647);
  CHECK(tensor(-0.5, f64).item<std::uint8_t>() == 0);
  CHECK(tensor(255.0, f64).item<std::uint8_t>() == 255);
  CHECK(tensor(1e300, f64).item<float>() == std::numeric_limits<float>::infinity());
  CHECK(tensor(2).item<bool>());
  const auto refuses = [](auto value, const TensorOptions& options, auto type, const char* got) {
    const Tensor x = tensor(value, options);
    CHECK_THROWS_WITH(x.item<decltype(type)>(), Contains("[item]") && Contains("from") && Contains(got));
    CHECK_THROWS_AS(x.item<decltype(type)>(), InvalidArgument);
  };
  refuses(std::int64_t{1} << 40, {}, 0, "1099511627776");
  refuses(1e20, f64, 0, "1e+20");
  refuses(9223372036854775808.0, f64, std::int64_t{0}, "9223372036854775808");
  refuses(300.0, f64, std::uint8_t{0}, "300");
  refuses(-1, {}, std::uint8_t{0}, "-1");
  refuses(std::numeric_limits<double>::quiet_NaN(), f64, 0, "nan");
}
