#include "support/gradcheck.h"

#include <cmath>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace support {

using namespace lockstep;  // NOLINT: test support is written as if it were inside

namespace {

double fraction(std::uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<double>(state >> 40) * 0x1p-24;
}

std::vector<double> random_values(std::int64_t count, std::uint64_t seed, double low, double high) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 12345;
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) {
    do {
      value = low + (high - low) * fraction(state);
    } while (std::fabs(value * 2 - std::round(value * 2)) < 0.1);
  }
  return values;
}

// The memory of the element at a row-major position.
double* element(const Tensor& x, std::int64_t position) {
  std::int64_t offset = 0;
  for (int d = x.rank() - 1; d >= 0; --d) {
    offset += position % x.shape()[d] * x.strides()[d];
    position /= x.shape()[d];
  }
  return const_cast<double*>(x.data<double>()) + offset;
}

double along(const Tensor& result, const std::vector<double>& direction) {
  const std::vector<double> values = result.to_vector<double>();
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * direction[i];
  return total;
}

}  // namespace

Tensor random_leaf(const Shape& shape, std::uint64_t seed, double low, double high) {
  return from_data(random_values(element_count(shape), seed, low, high), shape, {.requires_grad = true});
}

Tensor random_transposed_leaf(const Shape& shape, std::uint64_t seed, double low, double high) {
  Shape reversed;
  Dims order;
  for (int i = shape.rank() - 1; i >= 0; --i) reversed.push_back(shape[i]), order.push_back(i);
  NoGrad no_grad;
  Tensor x = random_leaf(reversed, seed, low, high).detach().permute(order);
  return x.set_requires_grad();
}

std::string gradcheck(const Function& f, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  const Tensor y = f(inputs);
  if (y.dtype() != DType::f64) return cat("expected a result in f64, got ", y);
  const std::vector<double> direction = random_values(y.count(), 99, -1, 1);
  std::vector<Tensor> wanted;
  for (const Tensor& input : inputs)
    if (input.requires_grad()) wanted.push_back(input);
  if (!y.requires_grad()) return "the result carries no gradient";
  const Tensor cotangent = from_data(direction, y.shape()).to(y.device());
  const std::vector<Tensor> gradients =
      grad(std::span(&y, 1), wanted, std::span(&cotangent, 1), {.allow_unused = true});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Tensor& x = wanted[i];
    std::vector<double> analytic(static_cast<std::size_t>(x.count()), 0.0);
    if (gradients[i].defined()) {
      if (gradients[i].shape() != x.shape() || gradients[i].dtype() != x.dtype() || gradients[i].device() != x.device())
        return cat("input ", i, " is ", x, ", but its gradient ", gradients[i]);
      analytic = gradients[i].to_vector<double>();
    }
    for (std::int64_t at = 0; at < x.count(); ++at) {
      double* value = element(x, at);
      const double before = *value;
      *value = before + options.step;
      const double up = along(f(inputs), direction);
      *value = before - options.step;
      const double down = along(f(inputs), direction);
      *value = before;
      const double numeric = (up - down) / (2 * options.step);
      const double got = analytic[static_cast<std::size_t>(at)];
      if (!(std::fabs(got - numeric) <= options.tolerance * (1 + std::fabs(numeric))))
        return cat("input ", i, ", element ", at, " of ", x, ": expected about ", numeric, ", got ", got);
    }
  }
  return {};
}

std::string gradgradcheck(const Function& f, const std::vector<Tensor>& inputs, GradcheckOptions options) {
  const Tensor y = f(inputs);
  std::vector<Tensor> extended = inputs;
  extended.push_back(from_data(random_values(y.count(), 7, -1, 1), y.shape()).to(y.device()));
  extended.back().set_requires_grad();
  const Function gradient_of = [&](const std::vector<Tensor>& at) {
    const std::vector<Tensor> own(at.begin(), at.end() - 1);
    std::vector<Tensor> wanted;
    for (const Tensor& input : own)
      if (input.requires_grad()) wanted.push_back(input);
    const Tensor result = f(own);
    const std::vector<Tensor> gradients =
        grad(std::span(&result, 1), wanted, std::span(&at.back(), 1), {.create_graph = true, .allow_unused = true});
    std::vector<Tensor> parts;
    for (const Tensor& gradient : gradients)
      if (gradient.defined()) parts.push_back(gradient.reshape({gradient.count()}));
    return cat(parts);
  };
  // Under create_graph the derivative may be computed in another way than without: it must be the same derivative.
  std::vector<Tensor> wanted;
  for (const Tensor& input : inputs)
    if (input.requires_grad()) wanted.push_back(input);
  const std::vector<double> differentiable = gradient_of(extended).to_vector<double>();
  std::size_t at = 0;
  for (const Tensor& gradient :
       grad(std::span(&y, 1), wanted, std::span(&extended.back(), 1), {.allow_unused = true})) {
    if (!gradient.defined()) continue;
    for (const double value : gradient.to_vector<double>())
      if (const double other = differentiable.at(at++); !(std::fabs(value - other) <= 1e-9 * (1 + std::fabs(value))))
        return cat("the gradient is ", value, " without and ", other, " with create_graph");
  }
  return gradcheck(gradient_of, extended, options);
}

}  // namespace support
