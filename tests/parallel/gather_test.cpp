// gather: tensors.
#include "parallel/support.h"

using namespace parallel_test;

TEST_CASE("tensors are concatenated along dim on the device, in replica order") {
  for (const auto& devices : device_sets()) {
    std::vector<Tensor> outputs;
    Doubles expected;
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const auto count = static_cast<std::int64_t>(i % 3);  // some are empty
      outputs.push_back(counting({count, 2}, devices[i], 100.0 * static_cast<double>(i)));
      const Doubles part = values(outputs.back());
      expected.insert(expected.end(), part.begin(), part.end());
      rows += count;
    }
    for (const Device target : {devices[0], device_at(6), Device::cpu()}) {
      const Tensor joined = gather(outputs, target);
      CHECK(joined.device() == target);
      CHECK(joined.shape() == Shape{rows, 2});
      CHECK(values(joined) == expected);
    }
  }
}

TEST_CASE("any dimension, also from the end, from tensors that are not contiguous") {
  const std::vector<Tensor> outputs{counting({2, 3}, device_at(1)), counting({4, 2}, device_at(0), 50).t()};
  for (const std::int64_t dim : {1, -1}) {
    const Tensor joined = gather(outputs, device_at(0), dim);
    CHECK(joined.shape() == Shape{2, 7});
    CHECK(values(joined) == Doubles{1, 2, 3, 50, 52, 54, 56, 4, 5, 6, 51, 53, 55, 57});
  }
  const std::vector<Tensor> rows{counting({2, 3}, device_at(1)).t(), counting({1, 2}, device_at(0), 50)};
  CHECK(values(gather(rows, device_at(0))) == Doubles{1, 4, 2, 5, 3, 6, 50, 51});
}

TEST_CASE("pieces that are at home already and not contiguous are gathered in their own order") {
  const Device home = device_at(0);
  const Tensor turned = counting({2, 3}, home).t();                  // 1 4, 2 5, 3 6
  const Tensor column = counting({4, 3}, home, 20).narrow(1, 1, 2);  // 21 22, 24 25, …
  const Tensor spread = counting({1, 2}, home, 90).expand({2, 2});
  CHECK(values(gather(std::vector{turned, column, spread}, home)) ==
        Doubles{1, 4, 2, 5, 3, 6, 21, 22, 24, 25, 27, 28, 30, 31, 90, 91, 90, 91});
}

TEST_CASE("all dtypes keep their bits") {
  support::needs_devices(3);
  for (const DType dtype :
       {DType::f32, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::i8, DType::boolean}) {
    const Tensor x = counting({5}, device_at(0)).to(dtype);
    const Tensor back = gather(scatter(x, first_devices(3)), device_at(0));
    CHECK(back.dtype() == dtype);
    CHECK(values(back) == values(x));
  }
}

TEST_CASE("a single output is taken to the device; at home it is itself") {
  const Tensor x = counting({3}, device_at(1));
  CHECK(gather(std::vector{x}, device_at(1)).data() == x.data());
  CHECK(gather(std::vector{x}, Device::cpu()).device() == Device::cpu());
  CHECK(gather(std::vector{full({}, 4, {.device = device_at(1)})}, device_at(1)).shape() == Shape{1});
}

TEST_CASE("scalars become a vector with one element per replica, and one warning per process") {
  support::needs_devices(3);
  detail::scalar_warning_given() = false;
  CapturedLog log;
  for (int i = 0; i < 3; ++i) {
    const std::vector<Tensor> losses{full({}, 4, {.device = device_at(0)}), full({}, 5, {.device = device_at(2)})};
    const Tensor joined = gather(losses, device_at(1));
    CHECK(joined.shape() == Shape{2});
    CHECK(values(joined) == Doubles{4, 5});
  }
  REQUIRE(log.messages.size() == 1);
  CHECK(missing(log.messages[0], {"scalars", "vector"}) == "");
}

TEST_CASE("scalars with another dim are an error") {
  const std::vector<Tensor> losses{full({}, 4), full({}, 5)};
  for (const std::int64_t dim : {1, -1}) {
    CHECK(missing(message_of<InvalidArgument>([&] { gather(losses, Device::cpu(), dim); }),
                  {"dim 0", std::to_string(dim)}) == "");
  }
}

TEST_CASE("outputs that do not fit are an error that names the replica and both sides") {
  support::needs_devices(3);
  const auto message = [](const Tensor& second, std::int64_t dim = 0) {
    return message_of<InvalidArgument>([&] {
      gather(std::vector{counting({2, 3}, device_at(0)), counting({1, 3}, device_at(1)), second}, device_at(0), dim);
    });
  };
  const std::string first = "f64[2, 3] on " + device_name(0);
  CHECK(missing(message(counting({4}, device_at(2))), {first, "f64[4] on " + device_name(2), "replica 2"}) == "");
  CHECK(missing(message(counting({2, 4}, device_at(2))), {first, "f64[2, 4] on " + device_name(2), "replica 2"}) == "");
  CHECK(missing(message(counting({2, 3}).to(DType::f32)), {first, "f32[2, 3] on cpu", "replica 2"}) == "");
  CHECK(missing(message(counting({2, 3}), 1), {first, "f64[1, 3] on " + device_name(1), "replica 1"}) == "");
  CHECK(missing(message(Tensor()), {first, "undefined", "replica 2"}) == "");
  CHECK_THROWS_AS(gather(std::vector{full({}, 1), counting({1}).to(DType::f32)}, Device::cpu()), InvalidArgument);
  CHECK_THROWS_AS(gather(std::vector{counting({1})}, Device::cpu(), 1), InvalidArgument);
}

TEST_CASE("no outputs are an error, undefined ones stay undefined") {
  CHECK_THROWS_AS(gather(std::vector<Tensor>{}, Device::cpu()), InvalidArgument);
  CHECK_FALSE(gather(std::vector<Tensor>(3), Device::cpu()).defined());
}

TEST_CASE("steady-state gathering allocates no raw memory") {
  support::needs_devices(4);
  const std::vector<Tensor> pieces = scatter(counting({8, 4}, device_at(0)), first_devices(4));
  for (int i = 0; i < 3; ++i) gather(pieces, device_at(0));
  const std::uint64_t before = memory_stats(device_at(0)).raw_allocations;
  for (int i = 0; i < 20; ++i) gather(pieces, device_at(0));
  CHECK(memory_stats(device_at(0)).raw_allocations == before);
}
