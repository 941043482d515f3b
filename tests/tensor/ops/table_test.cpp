// What holds for every operation: the rows of table/.
#include "tensor/ops/table/table.h"

#include <cmath>
#include <set>

#include "lockstep/kernels/op_names.h"
#include "lockstep/runtime/trace/trace.h"
#include "support/devices.h"
#include "support/watched.h"

using namespace op_tests;
using support::device_at;

namespace {

// What rounding may do to a result of about 1: of a few roundings, or of a sum.
double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-13;
    case DType::f32:
      return 2e-6;
    case DType::f16:
      return 1e-2;
    default:
      return 6e-2;
  }
}

bool is_real(const Tensor& x) { return x.dtype() == DType::f64; }

// Without gradients, the real ones in another dtype.
std::vector<Tensor> in_dtype(const std::vector<Tensor>& operands, DType dtype) {
  std::vector<Tensor> result;
  for (const Tensor& x : operands) result.push_back(is_real(x) ? x.detach().to(dtype) : x);
  return result;
}

bool close(const Tensor& a, const Tensor& b, double tolerance) {
  return a.shape() == b.shape() &&
         allclose(a.to(Device::cpu()).to(DType::f64), b.to(Device::cpu()).to(DType::f64), tolerance, tolerance);
}

std::int64_t elements(const Operands& operands) {
  std::int64_t count = 0;
  for (const Operand& operand : operands) count += element_count(operand.shape);
  return count;
}

std::string text(const Row& row, const Operands& operands) {
  std::string result = row.name() + " of";
  for (const Operand& operand : operands) result += " " + to_string(operand.shape);
  return result;
}

void check_values(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (!row.reference) continue;
    for (const Operands& operands : row.operands) {
      const std::vector<Tensor> made = make(operands, 1);
      for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
        const std::vector<Tensor> in = in_dtype(made, dtype);
        std::vector<Tensor> wide;
        for (const Tensor& x : in) wide.push_back(x.dtype() == dtype ? x.to(DType::f64) : x);
        INFO(text(row, operands) << " in " << to_string(dtype));
        CHECK(close(row.f(in), row.reference(wide), row.loose * tolerance_of(dtype)));
      }
      const std::vector<Tensor> transposed = in_dtype(make(operands, 2, true), DType::f64);
      INFO(text(row, operands) << ", not contiguous");
      CHECK(close(row.f(transposed), row.reference(transposed), row.loose * tolerance_of(DType::f64)));
    }
  }
}

// `around`: what the result goes through for the second derivative, so that there is one.
void check_derivatives(const std::vector<Row>& rows, Tensor (*around)(const Tensor&)) {
  constexpr std::int64_t kMost = 150;  // elements: each of them is moved
  for (const Row& row : rows) {
    if (row.gradient == Gradient::none) {
      const std::vector<Tensor> in = make(row.operands.back(), 1);
      INFO(row.name());
      CHECK_FALSE(row.f(in).requires_grad());
      continue;
    }
    const Function twice = [&](Inputs in) { return around(row.f(in)); };
    for (const Operands& operands : row.operands) {
      if (elements(operands) > kMost || (support::watched() && &operands != &row.operands.back())) continue;
      INFO(text(row, operands));
      const std::vector<Tensor> in = make(operands, 3);
      CHECK(gradcheck(row.f, in) == "");
      CHECK(gradcheck(row.f, make(operands, 4, true)) == "");
      if (row.gradient == Gradient::some) CHECK(gradgradcheck(twice, make(operands, 5)) == "");
      for (std::size_t i = 0; in.size() > 1 && i < in.size(); ++i) {  // without a gradient for one of them
        std::vector<Tensor> others = in;
        others[i] = others[i].detach();
        if (row.f(others).requires_grad()) CHECK(gradcheck(row.f, others) == "");
      }
    }
  }
}

// A result and the gradients of its sum.
std::vector<Tensor> with_gradients(const Row& row, std::vector<Tensor> in, Device device, DType dtype) {
  std::vector<Tensor> wanted;
  for (Tensor& x : in) {
    const bool real = is_real(x), wants = x.requires_grad() && row.gradient != Gradient::none;
    x = real ? x.detach().to(device).to(dtype) : x.to(device);
    if (wants) wanted.push_back(x.set_requires_grad());
  }
  const Tensor y = row.f(in);
  CHECK(y.device() == device);
  std::vector<Tensor> found{y.detach()};
  if (wanted.empty()) return found;
  const Tensor total = sum(y);
  for (const Tensor& gradient : grad(std::span(&total, 1), wanted, {}, {.allow_unused = true}))
    if (gradient.defined()) found.push_back(gradient);
  return found;
}

void check_parity(const std::vector<Row>& rows) {
  const Device device = device_at(0);
  for (const Row& row : rows)
    for (const DType dtype : {DType::f64, DType::f32}) {
      const std::vector<Tensor> in = make(row.operands.back(), 6);
      const std::vector<Tensor> here = with_gradients(row, in, Device::cpu(), dtype),
                                there = with_gradients(row, in, device, dtype);
      INFO(text(row, row.operands.back()) << " in " << to_string(dtype));
      REQUIRE(there.size() == here.size());
      for (std::size_t i = 0; i < here.size(); ++i) {
        INFO((i == 0 ? "result" : "gradient"));
        CHECK(there[i].dtype() == here[i].dtype());
        CHECK(there[i].device() == device);
        CHECK(close(there[i], here[i], 10 * row.loose * tolerance_of(dtype)));
      }
    }
}

// Empty, or what it threw.
std::string refusal(const Row& row, const std::vector<Tensor>& in) {
  try {
    row.f(in);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void check_refusals(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    std::vector<Tensor> in = in_dtype(make(row.operands.front(), 7), DType::f32);
    INFO(row.name());
    if (in.size() > 1) {
      std::vector<Tensor> apart;
      for (std::size_t i = 0; i < in.size(); ++i) apart.push_back(in[i].to(device_at(i == 0 ? 0 : 1)));
      const std::string message = refusal(row, apart);
      CHECK_THAT(message, Contains(support::device_name(0)) && Contains(support::device_name(1)));
    }
    in[0] = Tensor();
    CHECK_THAT(refusal(row, in), Contains("undefined"));
  }
}

template <class Op>
void expect_all(const std::set<std::string>& ran) {
  for (std::size_t i = 0; i < kCountOf<Op>; ++i) {
    const std::string name = op_name(static_cast<Op>(i));
    INFO(name);
    CHECK(ran.count(name) == 1);
  }
}

Tensor itself(const Tensor& x) { return x; }

}  // namespace

TEST_CASE("every function of the elements computes its formula") { check_values(elementwise_rows()); }
TEST_CASE("every reduction computes its formula") { check_values(reduce_rows()); }
TEST_CASE("every function of neural networks that has a plain formula computes it") { check_values(nn_rows()); }

TEST_CASE("derivatives of the functions of the elements") { check_derivatives(elementwise_rows(), itself); }
TEST_CASE("derivatives of every reduction") { check_derivatives(reduce_rows(), square); }
TEST_CASE("derivatives of what arranges elements") {
  support::needs_devices(2);
  check_derivatives(arrange_rows(), square);
}
TEST_CASE("derivatives of products and of the functions of neural networks") { check_derivatives(nn_rows(), itself); }

TEST_CASE("every operation gives the same on a device, and so do its gradients") {
  support::needs_devices(2);  // some rows move between two
  for (const auto& rows : {elementwise_rows(), reduce_rows(), arrange_rows(), nn_rows()}) check_parity(rows);
}

TEST_CASE("every operation refuses what is undefined, and operands on two devices") {
  support::needs_devices(2);
  for (const auto& rows : {elementwise_rows(), reduce_rows(), arrange_rows(), nn_rows()}) check_refusals(rows);
}

TEST_CASE("every kernel that operations share is run by one of them") {
  trace::start();
  for (const auto& rows : {elementwise_rows(), reduce_rows(), nn_rows()})
    for (const Row& row : rows) with_gradients(row, make(row.operands.back(), 8), Device::cpu(), DType::f64);
  trace::stop();
  std::set<std::string> ran;
  for (const trace::Span& span : trace::spans())
    if (span.work.name) ran.insert(span.work.name);
  expect_all<UnaryOp>(ran);
  expect_all<BinaryOp>(ran);
  expect_all<ReduceOp>(ran);
  expect_all<ArgReduceOp>(ran);
}
