#include "lockstep/kernels/dtype.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"
#include "tensor/ops/table/table.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

GoldenCase::Function unary(Tensor (*function)(const Tensor&)) {
  return [function](GoldenCase& c) { return Results{function(c[0])}; };
}
GoldenCase::Function binary(Tensor (*function)(const Tensor&, const Tensor&)) {
  return [function](GoldenCase& c) { return Results{function(c[0], c[1])}; };
}

DType dtype_named(const std::string& name) {
  for (DType dtype :
       {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::i8, DType::boolean})
    if (to_string(dtype) == name) return dtype;
  throw std::invalid_argument("no dtype is called " + name);
}

}  // namespace

TEST_CASE("golden: functions of the elements") {
  std::map<std::string, GoldenCase::Function> functions{
      {"isnan", unary(isnan)},
      {"isinf", unary(isinf)},
      {"isfinite", unary(isfinite)},
      {"masked_fill", [](GoldenCase& c) { return Results{masked_fill(c[0], c[1], c.get("number"))}; }},
      {"clamp", [](GoldenCase& c) { return Results{clamp(c[0], c.get("low"), c.get("high"))}; }},
      {"pow_scalar", [](GoldenCase& c) { return Results{pow(c[0], c.get("exponent"))}; }},
      {"scalar_pow", [](GoldenCase& c) { return Results{pow(c.get("base"), c[0])}; }},
      {"add", [](GoldenCase& c) { return Results{add(c[0], c[1], c.get("alpha", 1.0))}; }},
      {"add_scalar", [](GoldenCase& c) { return Results{c[0] + c.get("scalar")}; }},
      {"mul_scalar", [](GoldenCase& c) { return Results{c[0] * c.get("scalar")}; }},
      {"div_scalar", [](GoldenCase& c) { return Results{c[0] / c.get("scalar")}; }},
      {"rsub_scalar", [](GoldenCase& c) { return Results{c.get("scalar") - c[0]}; }},
      {"rdiv_scalar", [](GoldenCase& c) { return Results{c.get("scalar") / c[0]}; }},
      {"logical_and", binary(logical_and)},
      {"logical_or", binary(logical_or)},
      {"logical_xor", binary(logical_xor)},
      {"logical_not", unary(logical_not)},
      {"floor_divide", binary(floor_divide)},
      {"remainder", binary(remainder)},
      {"where", [](GoldenCase& c) { return Results{where(c[0], c[1], c[2])}; }},
      {"cast", [](GoldenCase& c) { return Results{c[0].to(dtype_named(c.text("dtype")))}; }}};
  for (const op_tests::Row& row : op_tests::elementwise_rows()) {
    if (row.golden.empty()) continue;
    functions[row.golden] = [f = row.f](GoldenCase& c) {
      std::vector<Tensor> in;
      for (std::size_t i = 0; i < c.operands(); ++i) in.push_back(c[i]);
      return Results{f(in)};
    };
  }
  test::check_golden("elementwise", device_at(0), functions);
}
