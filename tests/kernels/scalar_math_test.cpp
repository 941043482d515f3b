// The float functions of kernels/scalar_math.h against double, over floats of every magnitude.
#include <bit>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/error_function.h"
#include "lockstep/kernels/host/exponentials.h"
#include "lockstep/kernels/host/powers.h"
#include "lockstep/kernels/host/trigonometry.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

// Units in the last place of `got` that lie between it and `want`.
double ulps(float got, double want) {
  const auto nearest = static_cast<float>(want);
  if (std::isnan(want) || std::isinf(nearest)) {
    if (std::isnan(want) ? std::isnan(got) : got == nearest) return 0;
    // The largest float instead of infinity is one step away.
    return std::isinf(nearest) && std::fabs(got) == std::numeric_limits<float>::max() ? 1 : 1e9;
  }
  if (std::isnan(got) || std::isinf(got)) return 1e9;
  const int exponent = std::max(std::ilogb(nearest == 0 ? 0x1p-149f : nearest), -126);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

struct Worst {
  double error = 0;
  float at = 0;
};

template <class F, class Reference>
Worst worst(F&& f, Reference&& reference, float low, float high) {
  Worst found;
  // A prime step through the bit patterns visits every exponent.
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    const double error = ulps(f(x), reference(static_cast<double>(x)));
    if (error > found.error) found = {error, x};
  }
  return found;
}

constexpr float kFloatInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("float functions are accurate to a few units in the last place", "[scalar_math]") {
  const auto check = [](const char* name, const Worst& found, double limit) {
    INFO(name << ": " << found.error << " ulp at " << found.at);
    CHECK(found.error <= limit);
  };
  using functors::unary;
  const auto apply = []<UnaryOp op>() { return [](float x) { return unary<op>(x, 0.0f, 0.0f); }; };
  check("exp",
        worst(
            apply.operator()<UnaryOp::exp>(), [](double x) { return std::exp(x); }, -kFloatInf, kFloatInf),
        1.5);
  check("log",
        worst(
            apply.operator()<UnaryOp::log>(), [](double x) { return std::log(x); }, 0, kFloatInf),
        1.5);
  check("tanh",
        worst(
            apply.operator()<UnaryOp::tanh>(), [](double x) { return std::tanh(x); }, -kFloatInf, kFloatInf),
        2);
  using kernels::host::error_function;
  check("erf",
        worst(
            error_function, [](double x) { return std::erf(x); }, -kFloatInf, kFloatInf),
        1.5);
  CHECK(std::isnan(error_function(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::signbit(error_function(-0.0f)));
  check("log1p",
        worst(
            kernels::host::log1p, [](double x) { return std::log1p(x); }, -kFloatInf, kFloatInf),
        1.5);
  check("expm1",
        worst(
            kernels::host::expm1, [](double x) { return std::expm1(x); }, -kFloatInf, kFloatInf),
        1.5);
  for (const auto f : {kernels::host::log1p, kernels::host::expm1}) {
    CHECK(std::isnan(f(std::numeric_limits<float>::quiet_NaN())));
    CHECK(std::signbit(f(-0.0f)));
    for (const float least : {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min()})
      CHECK(f(-least) == -least);
  }
  check("sigmoid",
        worst(
            apply.operator()<UnaryOp::sigmoid>(), [](double x) { return 1 / (1 + std::exp(-x)); }, -87, kFloatInf),
        2.5);
  check("softplus",
        worst(
            apply.operator()<UnaryOp::softplus>(), [](double x) { return x > 30 ? x : std::log1p(std::exp(x)); }, -87,
            kFloatInf),
        2.5);
  check("silu",
        worst(
            apply.operator()<UnaryOp::silu>(), [](double x) { return x / (1 + std::exp(-x)); }, -80, 1e30f),
        3);
  check("normal_cdf",
        worst([](float x) { return math::normal_cdf(x); },
              [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }, -12.5f, kFloatInf),
        7);
  check("gelu_exact",
        worst(
            apply.operator()<UnaryOp::gelu_exact>(), [](double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); },
            -12.5f, 1e30f),
        7);
}

TEST_CASE("powers of floats are rounded from the right value, of every base and exponent", "[scalar_math]") {
  using kernels::host::power;
  std::vector<float> bases, exponents;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4'999'999)
    bases.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 29'999'999)
    exponents.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (int i = 1; i <= 100; ++i)  // near 1, where the logarithm is small
    for (const float sign : {1.0f, -1.0f}) bases.push_back(1.0f + sign * 3e-6f * static_cast<float>(i));
  for (int i = -60; i <= 60; ++i)
    exponents.insert(exponents.end(), {static_cast<float>(i), 0.37f * static_cast<float>(i)});
  const float nan = std::numeric_limits<float>::quiet_NaN(), least = std::numeric_limits<float>::denorm_min();
  for (const float x :
       {0.0f, 1.0f, 2.0f, 3.0f, 0.5f, 2.5f, 16777215.0f, 16777216.0f, 8388607.5f, least, kFloatInf, nan})
    for (const float sign : {1.0f, -1.0f}) bases.push_back(sign * x), exponents.push_back(sign * x);
  Worst found;
  std::vector<std::pair<float, float>> wrong_signs;
  for (const float x : bases)
    for (const float y : exponents) {
      const float got = power(x, y);
      const double want = std::pow(static_cast<double>(x), static_cast<double>(y));
      if (const double error = ulps(got, want); error > found.error) found = {error, x};
      if (!std::isnan(want) && std::signbit(got) != std::signbit(want)) wrong_signs.emplace_back(x, y);
    }
  INFO(found.error << " ulp at " << found.at);
  CHECK(found.error <= 0.51);
  CHECK(wrong_signs.empty());
}

TEST_CASE("conversion is defined for every number", "[scalar_math]") {
  using functors::convert;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(convert<std::int32_t>(nan) == 0);
  CHECK(convert<std::int32_t>(kFloatInf) == std::numeric_limits<std::int32_t>::max());
  CHECK(convert<std::int32_t>(-kFloatInf) == std::numeric_limits<std::int32_t>::min());
  CHECK(convert<std::int32_t>(2147483647.0) == 2147483647);
  CHECK(convert<std::int32_t>(2147483647.9) == 2147483647);
  CHECK(convert<std::int32_t>(-2147483648.9) == std::numeric_limits<std::int32_t>::min());
  CHECK(convert<std::int64_t>(9.3e18) == std::numeric_limits<std::int64_t>::max());
  CHECK(convert<std::int64_t>(-9.3e18) == std::numeric_limits<std::int64_t>::min());
  CHECK(convert<std::uint8_t>(-3.0f) == 0);
  CHECK(convert<std::uint8_t>(-0.5f) == 0);
  CHECK(convert<std::uint8_t>(255.9f) == 255);
  CHECK(convert<std::uint8_t>(256.0f) == 255);
  CHECK(convert<std::int32_t>(-1.9f) == -1);
  CHECK(convert<std::uint8_t>(std::int32_t{257}) == 1);  // integers wrap
  CHECK(convert<std::int32_t>(Half(70000.0f)) == std::numeric_limits<std::int32_t>::max());
  CHECK(convert<bool>(0.25));
  CHECK(convert<bool>(nan));
  CHECK_FALSE(convert<bool>(-0.0f));
  CHECK(static_cast<float>(convert<Half>(true)) == 1.0f);
}

TEST_CASE("exp is 0 where it rounds to 0, and the least number above", "[scalar_math]") {
  using functors::unary;
  const auto exp = [](float x) { return unary<UnaryOp::exp>(x, 0.0f, 0.0f); };
  const float last = -103.972077f, least = std::numeric_limits<float>::denorm_min();
  CHECK(exp(-103.9f) == least);
  CHECK(math::exp_of_negative(-103.9f) == least);
  for (const float x : {std::nextafter(last, -kFloatInf), -104.0f, -104.5f, -104.6f, -104.7f, -1000.0f,
                        -std::numeric_limits<float>::max(), -kFloatInf}) {
    CAPTURE(x);
    CHECK(std::bit_cast<std::uint32_t>(exp(x)) == 0);
    CHECK(std::bit_cast<std::uint32_t>(math::exp_of_negative(x)) == 0);
  }
  CHECK(std::isnan(exp(std::numeric_limits<float>::quiet_NaN())));
  CHECK(std::isnan(math::exp_of_negative(std::numeric_limits<float>::quiet_NaN())));
}

TEST_CASE("exp and log of rows have the bits of one number, beside whatever others", "[scalar_math]") {
  const float max = std::numeric_limits<float>::max(), least = std::numeric_limits<float>::denorm_min();
  const float normal = std::numeric_limits<float>::min();
  std::vector<float> ordinary[2], others = {-103.9f,
                                            -88.0f,
                                            88.5f,
                                            max,
                                            -max,
                                            kFloatInf,
                                            -kFloatInf,
                                            0.0f,
                                            -0.0f,
                                            -1.5f,
                                            least,
                                            std::nextafter(normal, 0.0f),
                                            std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 1000; ++i) {
    ordinary[0].push_back(-87.0f + 0.174174f * static_cast<float>(i));
    ordinary[1].push_back(std::ldexp(1.0f + static_cast<float>(i) / 1000, i % 254 - 126));
  }
  ordinary[0].insert(ordinary[0].end(), {87.0f, -87.0f, 0.0f, -0.0f});
  ordinary[1].insert(ordinary[1].end(), {normal, max});
  const auto check = [](const std::vector<float>& x, bool log) {
    std::vector<float> y = x;  // in place
    (log ? kernels::host::logarithms : kernels::host::exponentials)(y.data(), y.data(), std::ssize(y));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float want = log ? math::log(x[i]) : math::exp(x[i]);
      if (std::isnan(want) ? std::isnan(y[i])
                           : std::bit_cast<std::uint32_t>(y[i]) == std::bit_cast<std::uint32_t>(want))
        continue;
      FAIL_CHECK((log ? "log of " : "exp of ") << x[i] << ": " << y[i] << ", by itself " << want);
    }
  };
  for (const bool log : {false, true}) {
    check(ordinary[log ? 1 : 0], log);
    for (const float other : others)
      for (const std::size_t place : {0, 255, 256, 300, 999}) {
        std::vector<float> x = ordinary[log ? 1 : 0];
        x[place] = other;
        check(x, log);
      }
  }
}

TEST_CASE("sine and cosine of rows are right at every size and length", "[scalar_math]") {
  using kernels::host::sines;
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099)
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  for (int k = -40'000; k <= 40'000; ++k)
    x.push_back(static_cast<float>(k * 1.5707963267948966));  // where one is near 0
  for (const float edge : {kernels::host::kOrdinaryAngle, kernels::host::kSmallAngle, 0.0f})
    for (const float angle : {std::nextafter(edge, kFloatInf), edge}) x.insert(x.end(), {-angle, angle});
  std::vector<float> sine(x.size()), cosine(x.size());
  sines<UnaryOp::sin>(x.data(), sine.data(), std::ssize(x));
  sines<UnaryOp::cos>(x.data(), cosine.data(), std::ssize(x));
  Worst of_sine, of_cosine;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double wide = x[i];
    if (std::fabs(x[i]) > kernels::host::kOrdinaryAngle) {  // the C library's
      CHECK_FALSE(ulps(sine[i], std::sin(wide)) > 1);
      CHECK_FALSE(ulps(cosine[i], std::cos(wide)) > 1);
      continue;
    }
    if (const double e = ulps(sine[i], std::sin(wide)); e > of_sine.error) of_sine = {e, x[i]};
    if (const double e = ulps(cosine[i], std::cos(wide)); e > of_cosine.error) of_cosine = {e, x[i]};
  }
  INFO(of_sine.error << " ulp at " << of_sine.at << ", " << of_cosine.error << " ulp at " << of_cosine.at);
  CHECK(of_sine.error <= 0.85);
  CHECK(of_cosine.error <= 0.85);
  CHECK(std::signbit(sine.back()) != std::signbit(sine[sine.size() - 2]));  // of 0 and -0
  // In place, in pieces of any length: the same bits.
  for (const std::int64_t length : {1, 7, 255, 256, 257, 1000}) {
    std::vector<float> part(x.end() - 1000, x.end());
    for (std::int64_t at = 0; at < 1000; at += length)
      sines<UnaryOp::sin>(part.data() + at, part.data() + at, std::min<std::int64_t>(length, 1000 - at));
    CHECK(std::equal(part.begin(), part.end(), sine.end() - 1000, [](float a, float b) {
      return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
    }));
  }
}
