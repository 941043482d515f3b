// Numbers and checks that the tests of operations share.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/gradcheck.h"
#include "support/tensors.h"

namespace op_tests {

using namespace lockstep;
using Catch::Matchers::Contains;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;
using support::values;

using Doubles = std::vector<double>;
using Integers = std::vector<std::int64_t>;
using Inputs = const std::vector<Tensor>&;
constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
inline const TensorOptions kF64{.dtype = DType::f64};

inline Tensor f64(const Doubles& values, const Shape& shape) { return from_data(values, shape); }
inline Tensor integers(const Integers& values, const Shape& shape) { return from_data(values, shape); }

inline std::vector<int> ints(const Tensor& x) { return x.to_vector<int>(); }

// The gradient of the sum.
inline Tensor sum_gradient(const Tensor& x, const Tensor& y) { return grad(sum(y), {x})[0]; }

inline Tensor reals(std::initializer_list<double> values, DType dtype = DType::f64) {
  return from_data(values, {static_cast<std::int64_t>(values.size())}, {.dtype = dtype});
}

// 0, 1, 2, … in row-major order.
inline Tensor numbered(const Shape& shape) { return arange(element_count(shape)).reshape(shape); }

inline bool shares(const Tensor& a, const Tensor& b) { return a.storage() == b.storage(); }

// First and second derivatives, with respect to the inputs that require one.
inline void check_gradients(const std::string& name, const Function& f, const std::vector<Tensor>& inputs) {
  INFO(name);
  CHECK(gradcheck(f, inputs) == "");
  CHECK(gradgradcheck(f, inputs) == "");
}

}  // namespace op_tests
