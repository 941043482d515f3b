// Which dtype results have.
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"

using namespace lockstep;

namespace {
constexpr DType kAll[] = {DType::boolean, DType::u8,   DType::i8,  DType::i32, DType::i64,
                          DType::f16,     DType::bf16, DType::f32, DType::f64};

Tensor two(DType dtype) { return from_data({1, 0}, {2}, {.dtype = dtype}); }
}  // namespace

TEST_CASE("the dtype in which two meet") {
  // Rows and columns in the order of kAll.
  using enum DType;
  const DType expected[9][9] = {
      {boolean, u8, i8, i32, i64, f16, bf16, f32, f64},    {u8, u8, i32, i32, i64, f16, bf16, f32, f64},
      {i8, i32, i8, i32, i64, f16, bf16, f32, f64},        {i32, i32, i32, i32, i64, f16, bf16, f32, f64},
      {i64, i64, i64, i64, i64, f16, bf16, f32, f64},      {f16, f16, f16, f16, f16, f16, f32, f32, f64},
      {bf16, bf16, bf16, bf16, bf16, f32, bf16, f32, f64}, {f32, f32, f32, f32, f32, f32, f32, f32, f64},
      {f64, f64, f64, f64, f64, f64, f64, f64, f64},
  };
  for (int i = 0; i < 9; ++i) {
    for (int j = 0; j < 9; ++j) {
      const Tensor a = two(kAll[i]), b = two(kAll[j]);
      INFO(to_string(a.dtype()) << " and " << to_string(b.dtype()));
      CHECK(promote_types(a.dtype(), b.dtype()) == expected[i][j]);
      CHECK((a + b).dtype() == expected[i][j]);
      CHECK((a * b).dtype() == expected[i][j]);
      CHECK(maximum(a, b).dtype() == expected[i][j]);
      CHECK(where(two(boolean), a, b).dtype() == expected[i][j]);
      CHECK(cat({a, b}).dtype() == expected[i][j]);
      CHECK((a < b).dtype() == boolean);
      CHECK((a / b).dtype() == (is_floating(expected[i][j]) ? expected[i][j] : f32));
      CHECK((a + b).to_vector<int>() == std::vector<int>{expected[i][j] == boolean ? 1 : 2, 0});
    }
  }
}

TEST_CASE("a number does not promote a floating tensor") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    const Tensor x = two(dtype);
    for (const Tensor& y : {x + 0.5, 0.5 - x, x * 2, x / 3, 2 / x, pow(x, 0.5), pow(2, x), clamp(x, 0.1, 0.5),
                            where(x > 0.5, x, 0.25), exp(x), mean(x), var(x), softmax(x, 0)})
      CHECK(y.dtype() == dtype);
  }
}

TEST_CASE("an integer tensor becomes the default dtype where fractions come in") {
  const DefaultDType f64(DType::f64);
  for (const DType dtype : {DType::boolean, DType::u8, DType::i8, DType::i32, DType::i64}) {
    const Tensor x = two(dtype);
    const DType number = dtype == DType::boolean ? DType::i64 : dtype;
    INFO(to_string(dtype));
    CHECK((x + 1).dtype() == number);
    CHECK((x + 1).to_vector<int>() == std::vector<int>{2, 1});
    CHECK((1 - x).to_vector<int>() == std::vector<int>{0, 1});
    CHECK((x * 3).dtype() == number);
    CHECK(pow(x, 2).dtype() == number);
    for (const Tensor& y : {x + 0.5, x * 1.5, x - 0.5, x / 2, 2 / (x + 1), pow(x + 1, -1), exp(x), sqrt(x), mean(x),
                            norm(x), softmax(x, 0), x / x})
      CHECK(y.dtype() == DType::f64);
    CHECK((x + 0.5).to_vector<double>() == std::vector<double>{1.5, 0.5});
    CHECK(mean(x).item<double>() == 0.5);
    CHECK(sum(x).dtype() == DType::i64);
    CHECK(sum(x).item<int>() == 1);
  }
  CHECK((from_data({1, 3}, {2}) > 1.5).to_vector<int>() == std::vector<int>{0, 1});
  CHECK(clamp(from_data({1, 3}, {2}), 1.5).to_vector<double>() == std::vector<double>{1.5, 3});
  CHECK(clamp(from_data({1, 3}, {2}), 2).to_vector<double>() == std::vector<double>{2, 3});
}

TEST_CASE("i8 wraps, keeps its sign and sorts by it") {
  const Tensor x = from_data({3, -120, 127, -1, 0}, {5}, {.dtype = DType::i8});
  CHECK(x.to_vector<int>() == std::vector<int>{3, -120, 127, -1, 0});
  CHECK((x + 10).to_vector<int>() == std::vector<int>{13, -110, -119, 9, 10});
  CHECK((x - 200).to_vector<int>() == std::vector<int>{59, -64, -73, 55, 56});
  CHECK((-x).to_vector<int>() == std::vector<int>{-3, 120, -127, 1, 0});
  CHECK((x * x).to_vector<int>() == std::vector<int>{9, 64, 1, 1, 0});
  CHECK((x < 0).to_vector<int>() == std::vector<int>{0, 1, 0, 1, 0});
  CHECK(sort(x, 0).values.to_vector<int>() == std::vector<int>{-120, -1, 0, 3, 127});
  CHECK(argmax(x, 0).item<int>() == 2);
  CHECK(sum(x).item<int>() == 9);
  CHECK(from_data({-129.5, 128.0, -0.9, 300.0}, {4}).to(DType::i8).to_vector<int>() ==
        std::vector<int>{-128, 127, 0, 127});
  CHECK(from_data({200, 255}, {2}, {.dtype = DType::u8}).to(DType::i8).to_vector<int>() == std::vector<int>{-56, -1});
  CHECK((x + from_data({255, 255, 255, 255, 255}, {5}, {.dtype = DType::u8})).to_vector<int>() ==
        std::vector<int>{258, 135, 382, 254, 255});
}

TEST_CASE("u8 wraps") {
  const Tensor x = from_data({3, 250}, {2}, {.dtype = DType::u8});
  CHECK((x - 5).to_vector<int>() == std::vector<int>{254, 245});
  CHECK((x + 10).to_vector<int>() == std::vector<int>{13, 4});
  CHECK((5 - x).to_vector<int>() == std::vector<int>{2, 11});
  CHECK((-x).to_vector<int>() == std::vector<int>{253, 6});
  Tensor y = x.clone();
  y.add_(-5);
  CHECK(y.to_vector<int>() == std::vector<int>{254, 245});
}

TEST_CASE("gradients have the dtype of their tensor") {
  Tensor a = ones({2}, {.dtype = DType::f32, .requires_grad = true});
  Tensor b = ones({2}, {.dtype = DType::f64, .requires_grad = true});
  Tensor c = ones({2}, {.dtype = DType::bf16, .requires_grad = true});
  const Tensor y = a * b + c * from_data({2, 3}, {2});
  CHECK(y.dtype() == DType::f64);
  y.sum().backward();
  CHECK(a.grad().dtype() == DType::f32);
  CHECK(b.grad().dtype() == DType::f64);
  CHECK(c.grad().dtype() == DType::bf16);
  CHECK(c.grad().to_vector<double>() == std::vector<double>{2, 3});
  // Integers carry none.
  CHECK_FALSE(a.to(DType::i64).requires_grad());
  CHECK_FALSE(argmax(a).requires_grad());
}

TEST_CASE("a tensor of rank 0 promotes others only to another kind") {
  using enum DType;
  const DType expected[9][9] = {
      // Rows: the dtype of a vector; columns: of a tensor of rank 0.
      {boolean, u8, i8, i32, i64, f16, bf16, f32, f64},
      {u8, u8, u8, u8, u8, f16, bf16, f32, f64},
      {i8, i8, i8, i8, i8, f16, bf16, f32, f64},
      {i32, i32, i32, i32, i32, f16, bf16, f32, f64},
      {i64, i64, i64, i64, i64, f16, bf16, f32, f64},
      {f16, f16, f16, f16, f16, f16, f16, f16, f16},
      {bf16, bf16, bf16, bf16, bf16, bf16, bf16, bf16, bf16},
      {f32, f32, f32, f32, f32, f32, f32, f32, f32},
      {f64, f64, f64, f64, f64, f64, f64, f64, f64},
  };
  for (int i = 0; i < 9; ++i) {
    for (int j = 0; j < 9; ++j) {
      const Tensor a = two(kAll[i]), b = two(kAll[j])[0];
      INFO(to_string(a.dtype()) << " and " << to_string(b.dtype()));
      CHECK(result_type(a, b) == expected[i][j]);
      CHECK(result_type(b, a) == expected[i][j]);
      CHECK((a + b).dtype() == expected[i][j]);
      CHECK((b * a).dtype() == expected[i][j]);
      CHECK(where(two(boolean), b, a).dtype() == expected[i][j]);
      CHECK((b / a).dtype() == (is_floating(expected[i][j]) ? expected[i][j] : f32));
      CHECK((a[0] + b).dtype() == promote_types(kAll[i], kAll[j]));
    }
  }
  // Compared in that dtype, too.
  CHECK((from_data({0.1}, {1}, {.dtype = f32}) == tensor(0.1, {.dtype = f64})).to_vector<int>() == std::vector<int>{1});
  Tensor scale = tensor(2.0, {.dtype = f64, .requires_grad = true});
  Tensor x = ones({3}, {.dtype = bf16, .requires_grad = true});
  const Tensor y = x * scale;
  CHECK(y.dtype() == bf16);
  y.sum().backward();
  CHECK(scale.grad().dtype() == f64);
  CHECK(scale.grad().item<double>() == 3);
  CHECK(x.grad().dtype() == bf16);
}
