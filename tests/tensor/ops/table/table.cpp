#include "tensor/ops/table/table.h"

#include <algorithm>

namespace op_tests {

namespace {

Shape broadcast(const Shape& a, const Shape& b) {
  const int rank = std::max(a.rank(), b.rank());
  Shape result;
  for (int d = 0; d < rank; ++d) {
    const auto size = [&](const Shape& s) { return d < rank - s.rank() ? 1 : s[d - (rank - s.rank())]; };
    result.push_back(size(a) == 1 ? size(b) : size(a));
  }
  return result;
}

std::vector<Operands> of_shapes(const std::vector<std::vector<Shape>>& shapes, Range range) {
  std::vector<Operands> all;
  for (const std::vector<Shape>& each : shapes) {
    Operands operands;
    for (const Shape& shape : each) operands.push_back({shape, range.low, range.high});
    all.push_back(operands);
  }
  return all;
}

}  // namespace

Row unary(std::string op, std::string form, Tensor (*f)(const Tensor&), double (*reference)(double), Range range,
          std::string golden) {
  const Function formula = [reference](Inputs in) {
    Doubles y = values(in[0]);
    std::transform(y.begin(), y.end(), y.begin(), reference);
    return f64(y, in[0].shape());
  };
  return {.op = std::move(op),
          .form = std::move(form),
          .f = [f](Inputs in) { return f(in[0]); },
          .reference = reference ? formula : Function(),
          .operands = of_shapes({{{}}, {{1}}, {{5}}, {{0}}, {{3, 4}}, {{41}}, {{2, 1, 3}}}, range),
          .golden = std::move(golden)};
}

Row binary(std::string op, std::string form, Tensor (*f)(const Tensor&, const Tensor&),
           double (*reference)(double, double), Range range, std::string golden) {
  const Function formula = [reference](Inputs in) {
    const Shape shape = broadcast(in[0].shape(), in[1].shape());
    const Doubles a = values(in[0].expand(shape)), b = values(in[1].expand(shape));
    Doubles y;
    for (std::size_t i = 0; i < a.size(); ++i) y.push_back(reference(a[i], b[i]));
    return f64(y, shape);
  };
  return {.op = std::move(op),
          .form = std::move(form),
          .f = [f](Inputs in) { return f(in[0], in[1]); },
          .reference = reference ? formula : Function(),
          .operands = of_shapes({{{2, 3}, {2, 3}},
                                 {{2, 3}, {3}},
                                 {{3}, {2, 3}},
                                 {{2, 1}, {1, 3}},
                                 {{}, {2, 3}},
                                 {{2, 3}, {}},
                                 {{1}, {4}},
                                 {{4, 1, 2}, {3, 1}},
                                 {{0, 3}, {3}},
                                 {{1, 1}, {1}},
                                 {{37}, {37}}},
                                range),
          .golden = std::move(golden)};
}

Row of_one(std::string op, std::string form, Tensor (*f)(const Tensor&), std::vector<Shape> shapes,
           Function reference) {
  std::vector<std::vector<Shape>> each;
  for (const Shape& shape : shapes) each.push_back({shape});
  return {.op = std::move(op),
          .form = std::move(form),
          .f = [f](Inputs in) { return f(in[0]); },
          .reference = std::move(reference),
          .operands = of_shapes(each, {})};
}

Row of_all(std::string op, std::string form, Function f, std::vector<Operands> operands, Function reference) {
  return {.op = std::move(op),
          .form = std::move(form),
          .f = std::move(f),
          .reference = std::move(reference),
          .operands = std::move(operands)};
}

Row with(Gradient gradient, Row row) {
  row.gradient = gradient;
  return row;
}

Function over(Dims dims, bool keep_dims, std::function<double(const Doubles&)> f) {
  return [=](Inputs in) {
    const Shape& shape = in[0].shape();
    std::vector<bool> reduced(static_cast<std::size_t>(shape.rank()), false);
    for (const std::int64_t d : dims) reduced[static_cast<std::size_t>(d < 0 ? d + shape.rank() : d)] = true;
    Shape kept, result;
    for (int d = 0; d < shape.rank(); ++d) {
      const bool gone = reduced[static_cast<std::size_t>(d)];
      kept.push_back(gone ? 1 : shape[d]);
      if (!gone || keep_dims) result.push_back(kept[d]);
    }
    const Doubles x = values(in[0]);
    std::vector<Doubles> lines(static_cast<std::size_t>(element_count(kept)));
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::int64_t rest = static_cast<std::int64_t>(i), line = 0, step = 1;
      for (int d = shape.rank() - 1; d >= 0; --d) {
        if (kept[d] != 1) line += rest % shape[d] * step;
        step *= kept[d];
        rest /= shape[d];
      }
      lines[static_cast<std::size_t>(line)].push_back(x[i]);
    }
    Doubles y;
    for (const Doubles& line : lines) y.push_back(f(line));
    return f64(y, result);
  };
}

std::vector<Tensor> make(const Operands& operands, std::uint64_t seed, bool transposed) {
  std::vector<Tensor> made;
  for (const Operand& operand : operands) {
    const Tensor real = transposed ? random_transposed_leaf(operand.shape, ++seed, operand.low, operand.high)
                                   : random_leaf(operand.shape, ++seed, operand.low, operand.high);
    const NoGrad off;
    if (operand.elements == Elements::real) made.push_back(real);
    if (operand.elements == Elements::constant) made.push_back(real.detach());
    if (operand.elements == Elements::whole) made.push_back(floor(real.detach()).to(DType::i64));
    if (operand.elements == Elements::flag) made.push_back(real.detach() > 0.0);
  }
  return made;
}

}  // namespace op_tests
