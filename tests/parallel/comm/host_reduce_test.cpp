#include "lockstep/parallel/comm/host_reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/catch.h"

using namespace lockstep;

namespace {

template <class T>
std::vector<T> reduce(RedOp reduction, const std::vector<std::vector<T>>& inputs) {
  std::vector<const void*> from;
  for (const std::vector<T>& input : inputs) from.push_back(input.data());
  std::vector<T> result(inputs[0].size());
  void* to = result.data();
  host_reduce(reduction, dtype_of<T>(), from, {&to, 1}, static_cast<std::int64_t>(result.size()));
  return result;
}

float uneven_number(std::uint32_t i) {
  i = i * 747796405u + 2891336453u;
  i = ((i >> ((i >> 28) + 4)) ^ i) * 277803737u;
  return std::ldexp(static_cast<float>(i % 4096) - 2048, static_cast<int>(i >> 12) % 40 - 20);
}

}  // namespace

TEST_CASE("host_reduce: any number of inputs, in their order") {
  for (std::uint32_t inputs = 1; inputs <= 20; ++inputs) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{31}, std::size_t{2048}, std::size_t{5003}}) {
      std::vector<std::vector<float>> values(inputs, std::vector<float>(count));
      std::vector<float> sum(count), average(count);
      for (std::uint32_t k = 0; k < inputs; ++k)
        for (std::uint32_t i = 0; i < count; ++i) {
          values[k][i] = uneven_number(i * 64 + k);
          sum[i] = k == 0 ? values[k][i] : sum[i] + values[k][i];
        }
      for (std::size_t i = 0; i < count; ++i) average[i] = sum[i] / static_cast<float>(inputs);
      INFO(inputs << " inputs of " << count);
      REQUIRE(reduce(RedOp::sum, values) == sum);
      REQUIRE(reduce(RedOp::avg, values) == average);
    }
  }
}

TEMPLATE_TEST_CASE("host_reduce: floating dtypes are what one element after the other is", "", float, double, Half,
                   BFloat16) {
  using W = std::conditional_t<std::is_same_v<TestType, double>, double, float>;
  constexpr std::size_t kCount = 2048 + 21;
  const auto larger = [](W a, W b) { return a >= b || std::isnan(a) ? a : b; };
  for (const std::size_t inputs : {1u, 2u, 3u, 4u, 5u, 8u})
    for (const RedOp op : {RedOp::sum, RedOp::avg, RedOp::product, RedOp::max, RedOp::min}) {
      std::vector<std::vector<TestType>> values(inputs, std::vector<TestType>(kCount));
      for (std::uint32_t k = 0; k < inputs; ++k)
        for (std::uint32_t i = 0; i < kCount; ++i) values[k][i] = TestType(uneven_number(i * 64 + k));
      for (std::size_t k = 0; k < inputs; ++k) {
        values[k][100 + k] = TestType(std::numeric_limits<float>::quiet_NaN());
        values[k][2060 + k] = TestType(std::numeric_limits<float>::infinity());
      }
      const std::vector<TestType> got = reduce(op, values);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < kCount; ++i) {
        W want = W(values[0][i]);
        for (std::size_t k = 1; k < inputs; ++k) {
          const W next = W(values[k][i]);
          if (op == RedOp::sum || op == RedOp::avg) want += next;
          if (op == RedOp::product) want *= next;
          if (op == RedOp::max) want = larger(want, next);
          if (op == RedOp::min) want = -larger(-want, -next);
        }
        if (op == RedOp::avg) want /= static_cast<W>(inputs);
        const W have = W(got[i]), rounded = W(TestType(want));
        wrong += !(have == rounded || (std::isnan(have) && std::isnan(rounded)));
      }
      INFO(inputs << " inputs, reduction " << static_cast<int>(op));
      CHECK(wrong == 0);
    }
}

TEMPLATE_TEST_CASE("host_reduce: how a message is cut, and which output is an input, make no difference", "", Half,
                   BFloat16) {
  constexpr std::size_t kCount = 7001;
  for (const std::size_t inputs : {2u, 3u, 4u, 5u, 9u}) {
    std::vector<std::vector<TestType>> values(inputs, std::vector<TestType>(kCount));
    for (std::uint32_t k = 0; k < inputs; ++k)
      for (std::uint32_t i = 0; i < kCount; ++i) values[k][i] = TestType(uneven_number(i * 64 + k));
    const auto bits = [](const std::vector<TestType>& of) {
      std::vector<std::uint16_t> all;
      for (const TestType x : of) all.push_back(x.bits);
      return all;
    };
    const std::vector<std::uint16_t> whole = bits(reduce(RedOp::sum, values));
    // In pieces of odd lengths, into all inputs and one more.
    std::vector<TestType> apart(kCount);
    for (std::size_t begin = 0, length = 1; begin < kCount; begin += length, length = length * 3 + 1) {
      length = std::min(length, kCount - begin);
      std::vector<const void*> from;
      std::vector<void*> to;
      for (std::vector<TestType>& input : values) {
        from.push_back(input.data() + begin);
        to.push_back(input.data() + begin);
      }
      to.push_back(apart.data() + begin);
      host_reduce(RedOp::sum, dtype_of<TestType>(), from, to, static_cast<std::int64_t>(length));
    }
    CHECK(bits(apart) == whole);
    for (const std::vector<TestType>& input : values) CHECK(bits(input) == whole);
  }
}

TEST_CASE("host_reduce: a NaN stays, integers wrap, bools are true or not") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const RedOp reduction : {RedOp::max, RedOp::min}) {
    const std::vector<float> got = reduce<float>(reduction, {{nan, 1, 2}, {1, nan, 3}, {2, 2, nan}});
    for (const float x : got) CHECK(std::isnan(x));
  }
  for (const RedOp reduction : {RedOp::max, RedOp::min}) {  // of equal ones the first
    CHECK(!std::signbit(reduce<float>(reduction, {{0.0f}, {-0.0f}, {-0.0f}})[0]));
    CHECK(std::signbit(reduce<float>(reduction, {{-0.0f}, {0.0f}})[0]));
  }
  CHECK(reduce<std::uint8_t>(RedOp::sum, {{200, 1}, {100, 2}}) == std::vector<std::uint8_t>{44, 3});
  CHECK(reduce<std::int32_t>(RedOp::sum, {{2'147'483'647}, {1}}) == std::vector<std::int32_t>{-2'147'483'647 - 1});
  CHECK(reduce<std::int64_t>(RedOp::product, {{3}, {-4}, {5}}) == std::vector<std::int64_t>{-60});

  const std::vector<std::uint8_t> a{0, 1, 0, 7}, b{0, 0, 2, 1};
  std::vector<std::uint8_t> to(4);
  const void* from[] = {a.data(), b.data()};
  void* output = to.data();
  for (const RedOp reduction : {RedOp::sum, RedOp::max}) {
    host_reduce(reduction, DType::boolean, from, {&output, 1}, 4);
    CHECK(to == std::vector<std::uint8_t>{0, 1, 1, 1});
  }
  for (const RedOp reduction : {RedOp::product, RedOp::min}) {
    host_reduce(reduction, DType::boolean, from, {&output, 1}, 4);
    CHECK(to == std::vector<std::uint8_t>{0, 0, 0, 1});
  }
  host_reduce(RedOp::sum, DType::boolean, {from + 1, 1}, {&output, 1}, 4);
  CHECK(to == std::vector<std::uint8_t>{0, 0, 1, 1});
}
