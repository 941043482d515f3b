// One row per operation, or per form of one: what it is called with, what it computes by its formula, whether it has
// derivatives. table_test.cpp takes the rows through what holds for every operation: values in all floating dtypes and
// layouts, first and second derivatives, the same results on every device, refusals, golden values. A function of
// tensor/ops/*_ops.h without a row is a failure (layering/operations.py), and so is a kernel that no row runs.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "tensor/ops/support.h"

namespace op_tests {

enum class Elements { real, constant, whole, flag };  // constant: real, without a gradient

struct Operand {
  Shape shape;
  double low = -2, high = 2;  // whole ones are below `high`
  Elements elements = Elements::real;
};
using Operands = std::vector<Operand>;

// zero: of a function with steps, between them. none: the result requires none.
enum class Gradient { some, zero, none };

struct Row {
  std::string op;    // the function, as tensor/ops/*_ops.h declares it
  std::string form;  // which of its forms, where it has several rows
  Function f;
  Function reference;              // the formula, of f64 tensors on the CPU, as plain as it can be; or none
  std::vector<Operands> operands;  // each of these is tried
  Gradient gradient = Gradient::some;
  double loose = 1;         // times what rounding allows in a dtype
  std::string golden = {};  // the cases of tests/golden that it computes by itself

  std::string name() const { return form.empty() ? op : op + ", " + form; }
};

// A function of one tensor, element by element, in a range.
struct Range {
  double low = -2, high = 2;
};
Row unary(std::string op, std::string form, Tensor (*f)(const Tensor&), double (*reference)(double), Range range = {},
          std::string golden = {});
// A function of two, which broadcast.
Row binary(std::string op, std::string form, Tensor (*f)(const Tensor&, const Tensor&),
           double (*reference)(double, double), Range range = {}, std::string golden = {});
// A function of one tensor that is no function of the elements.
Row of_one(std::string op, std::string form, Tensor (*f)(const Tensor&), std::vector<Shape> shapes,
           Function reference = nullptr);
// Of any number.
Row of_all(std::string op, std::string form, Function f, std::vector<Operands> operands, Function reference = nullptr);
// With another gradient than some.
Row with(Gradient gradient, Row row);

// f of the elements that go into one: `dims` are reduced.
Function over(Dims dims, bool keep_dims, std::function<double(const Doubles&)> f);

std::vector<Row> elementwise_rows();  // of one tensor, of two, of a tensor and a number
std::vector<Row> reduce_rows();
std::vector<Row> arrange_rows();  // views, copies, joining, splitting, indexing, order
std::vector<Row> nn_rows();       // products, and the functions of neural networks

// The operands of the row, in f64 where they are real or constant; `transposed` ones are not contiguous. Only real ones
// require a gradient.
std::vector<Tensor> make(const Operands& operands, std::uint64_t seed, bool transposed = false);

// Indices beside x.
inline Tensor there(const Tensor& x, const Integers& values, const Shape& shape) {
  return integers(values, shape).to(x.device());
}

}  // namespace op_tests
