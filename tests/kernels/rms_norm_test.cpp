// Normalisation by the root of the mean square, against plain loops and on a CUDA device (support/parity.h).
#include "support/parity.h"

using namespace lockstep;
using namespace support;
using Catch::Matchers::Contains;

namespace {

constexpr double kRmsEps = 1e-3;
// The operands of both directions, and their arguments.
struct RmsNormProblem {
  RmsNormProblem(DType dtype, Shape shape, bool affine)
      : x(dtype, shape),
        weight(dtype, {shape[1]}),
        y(dtype, shape),
        inv_rms(wide(dtype), {shape[0]}),
        dy(dtype, shape),
        dx(dtype, shape),
        dweight(dtype, {shape[1]}) {
    x.fill_random(1, -1, 4), weight.fill_random(2, 0.5, 1.5), dy.fill_random(3, -1, 1);
    if (affine) args.weight = grad.weight = weight.in();
  }
  RmsNormProblem(const RmsNormProblem&) = delete;
  RmsNormProblem& operator=(const RmsNormProblem&) = delete;

  TestTensor x, weight, y, inv_rms, dy, dx, dweight;
  RmsNormArgs args{.x = x.in(), .weight = {}, .y = y.out(), .inv_rms = inv_rms.out(), .eps = kRmsEps};
  RmsNormGradArgs grad{
      .dy = dy.in(), .x = x.in(), .weight = {}, .inv_rms = inv_rms.in(), .dx = dx.out(), .dweight = dweight.out()};
};

}  // namespace

TEST_CASE("rms_norm and its gradient", "[rms_norm]") {
  for (const Shape& shape :
       {Shape{1, 1}, Shape{40, 1}, Shape{2, 3}, Shape{3, 32}, Shape{50, 33}, Shape{2, 1100}, Shape{0, 4}, Shape{4, 0}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false}) {
        const std::int64_t rows = shape[0], size = shape[1];
        RmsNormProblem p(dtype, shape, affine);
        run(p.args);
        run(p.grad);
        const auto mean = [&](std::int64_t r, auto&& f) {
          long double sum = 0;  // more digits than the kernels have in f64
          for (std::int64_t i = r * size; i < (r + 1) * size; ++i) sum += f(i);
          return static_cast<double>(sum / static_cast<long double>(size));
        };
        const auto inverse = [&](std::int64_t r) {
          return 1 / std::sqrt(mean(r, [&](std::int64_t i) { return p.x[i] * p.x[i]; }) + kRmsEps);
        };
        std::vector<double> inverses, of_products;
        const auto at = [](const std::vector<double>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
        const auto normal = [&](std::int64_t i) { return p.x[i] * at(inverses, i / size); };
        const auto factor = [&](std::int64_t i) { return affine ? p.weight[i % size] : 1.0; };
        for (std::int64_t r = 0; r < rows && size > 0; ++r) {
          inverses.push_back(inverse(r));
          of_products.push_back(mean(r, [&](std::int64_t i) { return p.dy[i] * factor(i) * normal(i); }));
        }
        INFO(to_string(dtype) << " " << to_string(shape) << " " << affine);
        if (size > 0)
          CHECK(mismatch(
                    p.inv_rms, [&](std::int64_t r) { return at(inverses, r); }, 4) == "");
        CHECK(mismatch(
                  p.y, [&](std::int64_t i) { return normal(i) * factor(i); }, 8) == "");
        const auto want_dx = [&](std::int64_t i) {
          return at(inverses, i / size) * (p.dy[i] * factor(i) - normal(i) * at(of_products, i / size));
        };
        CHECK(mismatch(p.dx, want_dx, 8, 32) == "");
        const auto want_dweight = [&](std::int64_t c) {
          double sum = 0;
          for (std::int64_t r = 0; r < rows; ++r) sum += p.dy[r * size + c] * normal(r * size + c);
          return sum;
        };
        CHECK(mismatch(p.dweight, want_dweight, 8, 32) == "");
        // Without what is optional.
        const auto values = p.y.values(), gradients = p.dx.values();
        p.args.inv_rms = {}, p.grad.dweight = {};
        run(p.args);
        run(p.grad);
        CHECK(p.y.values() == values);
        CHECK(p.dx.values() == gradients);
      }
}

TEST_CASE("rms_norm adds many squares without losing digits", "[rms_norm]") {
  RmsNormProblem p(DType::f32, {1, 1 << 20}, false);
  p.x.fill([](std::int64_t i) { return i % 3 ? 0.1 : 0.3; });
  p.args.eps = 0;
  run(p.args);
  long double squares = 0;
  for (std::int64_t i = 0; i < p.x.count(); ++i) squares += p.x[i] * p.x[i];
  const double want = static_cast<double>(1 / std::sqrt(squares / static_cast<long double>(p.x.count())));
  CHECK(mismatch(
            p.inv_rms, [&](std::int64_t) { return want; }, 2) == "");
}

TEST_CASE("rms_norm of short rows has the range of double on the host", "[rms_norm]") {
  if (!test_device().is_cpu()) return;
  for (const std::int64_t size : {1, 8, 31})
    for (const double value : {1e25, 1e-25}) {
      RmsNormProblem p(DType::f32, {2, size}, false);
      p.x.fill([&](std::int64_t i) { return i % 2 ? -value : value; });
      p.args.eps = 0;
      run(p.args);
      CAPTURE(size, value);
      for (std::int64_t i = 0; i < p.y.count(); ++i) CHECK(std::fabs(p.y[i]) == Approx(1));
    }
}

TEST_CASE("rms_norm refuses integers", "[rms_norm]") {
  TestTensor i(DType::i64, {2, 3});
  const auto refuses = [](const auto& args, const char* op) {
    CHECK_THROWS_AS(run(args), NotSupported);
    CHECK_THROWS_WITH(run(args), Contains(op) && Contains("i64") && Contains(to_string(test_device())));
  };
  refuses(RmsNormArgs{.x = i.in(), .weight = {}, .y = i.out(), .inv_rms = {}, .eps = 0}, "[rms_norm]");
  refuses(RmsNormGradArgs{.dy = i.in(), .x = i.in(), .weight = {}, .inv_rms = {}, .dx = i.out(), .dweight = {}},
          "[rms_norm_grad]");
}

namespace {
void compare(RmsNormProblem& p, const std::string& what) {
  check_parity(compare_with_host(p.args, {&p.x, &p.weight, &p.y, &p.inv_rms}, 8, 8), what);
  check_parity(compare_with_host(p.grad, {&p.dy, &p.x, &p.weight, &p.inv_rms, &p.dx, &p.dweight}, 8, 16),
               what + " grad");
}
}  // namespace

TEST_CASE("CUDA parity: rms_norm", "[cuda][parity][rms_norm]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 3}, Shape{70, 10}, Shape{300, 33}, Shape{5, 1500}, Shape{3, 6000},
                             Shape{2000, 1}, Shape{0, 4}, Shape{4, 0}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false}) {
        RmsNormProblem p(dtype, shape, affine);
        const std::string what = cat(dtype, " ", shape, " ", affine);
        compare(p, what);
        p.args.inv_rms = {}, p.grad.dweight = {};
        compare(p, what + " without what is optional");
      }
}

TEST_CASE("CUDA, small: rms_norm", "[.sanitize][shared]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{5, 1500}, Shape{40, 33}}) {
    RmsNormProblem p(DType::f32, shape, true);
    compare(p, cat(shape));
  }
}
