// First values that are computed on the host: truncated and orthogonal ones, and those with a pattern of zeros.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lockstep/tensor/nn/init.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::init {
namespace {

std::vector<double> uniforms(std::int64_t count) { return rand({count}, {.dtype = DType::f64}).to_vector<double>(); }

void write(const Tensor& tensor, const std::vector<double>& values) {
  const NoGrad no_grad;
  detail::copy_elements(tensor,
                        from_data(values, tensor.shape(), {.dtype = tensor.dtype(), .device = tensor.device()}));
  tensor.mark_changed();
}

double distribution(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double ratio(const double (&p)[8], const double (&q)[8], double r) {
  double above = p[7], below = q[7];
  for (int i = 6; i >= 0; --i) above = above * r + p[i], below = below * r + q[i];
  return above / below;
}

// The inverse of the standard normal distribution function (Wichura, 1988, algorithm AS 241), to about 1e-16.
double quantile(double u) {
  static constexpr double kA[8] = {3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427,
                                   13731.693765509461125, 45921.953931549871457, 67265.770927008700853,
                                   33430.575583588128105, 2509.0809287301226727};
  static constexpr double kB[8] = {1,
                                   42.313330701600911252,
                                   687.18700749205790830,
                                   5394.1960214247511077,
                                   21213.794301586595867,
                                   39307.895800092710610,
                                   28729.085735721942674,
                                   5226.4952788528545610};
  static constexpr double kC[8] = {1.42343711074968357734,   4.63033784615654529590,   5.76949722146069140550,
                                   3.64784832476320460504,   1.27045825245236838258,   0.241780725177450611770,
                                   0.0227238449892691845833, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1,
                                   2.05319162663775882187,
                                   1.67638483018380384940,
                                   0.689767334985100004550,
                                   0.148103976427480074590,
                                   0.0151986665636164571966,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  static constexpr double kE[8] = {6.65790464350110377720,    5.46378491116411436990,   1.78482653991729133580,
                                   0.296560571828504891230,   0.0265321895265761230930, 0.00124266094738807843860,
                                   2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static constexpr double kF[8] = {1,
                                   0.599832206555887937690,
                                   0.136929880922735805310,
                                   0.0148753612908506148525,
                                   7.86869131145613259100e-4,
                                   1.84631831751005468180e-5,
                                   1.42151175831644588870e-7,
                                   2.04426310338993978564e-15};
  const double q = u - 0.5;
  if (std::fabs(q) <= 0.425) return q * ratio(kA, kB, 0.180625 - q * q);
  const double r = std::sqrt(-std::log(q < 0 ? u : 1 - u));
  const double x = r <= 5 ? ratio(kC, kD, r - 1.6) : ratio(kE, kF, r - 5);
  return q < 0 ? -x : x;
}

void check_matrix(const char* name, const Tensor& matrix) {
  LOCKSTEP_CHECK(matrix.defined() && matrix.rank() == 2, "[init.", name, "] expected a matrix, got ", matrix);
  detail::check_floating("init", matrix);
}

}  // namespace

void trunc_normal(const Tensor& tensor, double mean, double deviation, double low, double high) {
  detail::check_floating("init.trunc_normal", tensor);
  LOCKSTEP_CHECK(low < high && deviation > 0, "[init.trunc_normal] expected a deviation above 0 and low < high, got ",
                 deviation, ", ", low, " and ", high);
  // In the upper tail the distribution function has no digits left: there the mirror image is drawn.
  const bool mirrored = low > mean;
  const double from = mirrored ? 2 * mean - high : low, to = mirrored ? 2 * mean - low : high;
  const double first = distribution((from - mean) / deviation), last = distribution((to - mean) / deviation);
  std::vector<double> values = uniforms(tensor.count());
  for (double& value : values) {
    const double u = std::clamp(first + (last - first) * value, 1e-300, 1 - 0x1p-53);  // where the quantile is finite
    const double x = std::clamp(mean + deviation * quantile(u), from, to);
    value = mirrored ? 2 * mean - x : x;
  }
  write(tensor, values);
}

void eye(const Tensor& matrix) {
  check_matrix("eye", matrix);
  std::vector<double> values(static_cast<std::size_t>(matrix.count()));
  for (std::int64_t i = 0; i < std::min(matrix.size(0), matrix.size(1)); ++i)
    values[static_cast<std::size_t>(i * matrix.size(1) + i)] = 1;
  write(matrix, values);
}

void dirac(const Tensor& weight, std::int64_t groups) {
  detail::check_floating("init.dirac", weight);
  LOCKSTEP_CHECK(weight.rank() >= 3 && weight.rank() <= 5 && groups > 0 && weight.size(0) % groups == 0,
                 "[init.dirac] expected a weight [out, in, ..] of rank 3 to 5 with out a multiple of ", groups,
                 " groups, got ", weight);
  const std::int64_t inputs = weight.size(1), outputs = weight.size(0) / groups;
  const std::int64_t field = weight.size(0) * inputs == 0 ? 0 : weight.count() / (weight.size(0) * inputs);
  std::int64_t middle = 0;
  for (int d = 2; d < weight.rank(); ++d) middle = middle * weight.shape()[d] + weight.shape()[d] / 2;
  std::vector<double> values(static_cast<std::size_t>(weight.count()));
  for (std::int64_t g = 0; field > 0 && g < groups; ++g)
    for (std::int64_t i = 0; i < std::min(inputs, outputs); ++i)
      values[static_cast<std::size_t>(((g * outputs + i) * inputs + i) * field + middle)] = 1;
  write(weight, values);
}

void orthogonal(const Tensor& weight, double gain) {
  LOCKSTEP_CHECK(weight.defined() && weight.rank() >= 2, "[init.orthogonal] expected a weight [out, in, ..], got ",
                 weight);
  detail::check_floating("init.orthogonal", weight);
  if (weight.count() == 0) return;
  const std::int64_t rows = weight.size(0), columns = weight.count() / rows;
  // Vectors are the rows or the columns, whichever are fewer.
  const std::int64_t count = std::min(rows, columns), length = std::max(rows, columns);
  std::vector<double> v = randn({count, length}, {.dtype = DType::f64}).to_vector<double>();
  const auto vector = [&](std::int64_t i) { return v.data() + i * length; };
  // Gram-Schmidt, twice (which is enough: Giraud et al., 2005). Its triangle has a positive diagonal.
  for (std::int64_t i = 0; i < count; ++i) {
    double* x = vector(i);
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t k = 0; k < i; ++k) {
        const double along = std::inner_product(x, x + length, vector(k), 0.0);
        for (std::int64_t c = 0; c < length; ++c) x[c] -= along * vector(k)[c];
      }
    const double norm = std::sqrt(std::inner_product(x, x + length, x, 0.0));
    for (std::int64_t c = 0; c < length; ++c) x[c] /= norm;
  }
  std::vector<double> values(v.size());
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      values[static_cast<std::size_t>(r * columns + c)] = gain * (rows <= columns ? vector(r)[c] : vector(c)[r]);
  write(weight, values);
}

void sparse(const Tensor& matrix, double sparsity, double deviation) {
  check_matrix("sparse", matrix);
  LOCKSTEP_CHECK(sparsity >= 0 && sparsity <= 1 && deviation >= 0,
                 "[init.sparse] expected a sparsity in [0, 1] and a deviation of at least 0, got ", sparsity, " and ",
                 deviation);
  const std::int64_t rows = matrix.size(0), columns = matrix.size(1);
  const auto zeros_of_column = static_cast<std::int64_t>(std::ceil(sparsity * static_cast<double>(rows)));
  std::vector<double> values = randn({rows, columns}, {.dtype = DType::f64}).to_vector<double>();
  for (double& value : values) value *= deviation;
  const std::vector<double> order = uniforms(rows * columns);
  std::vector<std::int64_t> places(static_cast<std::size_t>(rows));
  for (std::int64_t c = 0; c < columns; ++c) {
    const auto key = [&](std::int64_t r) { return order[static_cast<std::size_t>(r * columns + c)]; };
    std::iota(places.begin(), places.end(), 0);
    std::sort(places.begin(), places.end(), [&](std::int64_t a, std::int64_t b) { return key(a) < key(b); });
    for (std::int64_t i = 0; i < zeros_of_column; ++i)
      values[static_cast<std::size_t>(places[static_cast<std::size_t>(i)] * columns + c)] = 0;
  }
  write(matrix, values);
}

}  // namespace lockstep::init
