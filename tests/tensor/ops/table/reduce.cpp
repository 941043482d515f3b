// Reductions.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/ops/table/table.h"

namespace op_tests {

namespace {

double sum_of(const Doubles& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double mean_of(const Doubles& x) { return sum_of(x) / static_cast<double>(x.size()); }
double prod_of(const Doubles& x) { return std::accumulate(x.begin(), x.end(), 1.0, std::multiplies<>()); }
double norm_of(const Doubles& x) { return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0)); }
double max_of(const Doubles& x) { return *std::max_element(x.begin(), x.end()); }
double min_of(const Doubles& x) { return *std::min_element(x.begin(), x.end()); }
double argmax_of(const Doubles& x) { return static_cast<double>(std::max_element(x.begin(), x.end()) - x.begin()); }
double argmin_of(const Doubles& x) { return static_cast<double>(std::min_element(x.begin(), x.end()) - x.begin()); }
double any_of(const Doubles& x) {
  return std::any_of(x.begin(), x.end(), [](double v) { return v > 0.5; }) ? 1 : 0;
}
double all_of(const Doubles& x) {
  return std::all_of(x.begin(), x.end(), [](double v) { return v > 0.5; }) ? 1 : 0;
}

std::function<double(const Doubles&)> var_of(double correction) {
  return [=](const Doubles& x) {
    double squares = 0;
    for (const double v : x) squares += (v - mean_of(x)) * (v - mean_of(x));
    return squares / (static_cast<double>(x.size()) - correction);
  };
}
double logsumexp_of(const Doubles& x) {
  double total = 0;
  for (const double v : x) total += std::exp(v);
  return std::log(total);
}
std::function<double(const Doubles&)> power_norm_of(double p) {
  return [=](const Doubles& x) {
    Doubles sizes;
    for (const double v : x) sizes.push_back(std::fabs(v));
    if (p == kInf) return max_of(sizes);
    if (p == -kInf) return min_of(sizes);
    double total = 0;
    for (const double v : sizes) total += std::pow(v, p);
    return std::pow(total, 1 / p);
  };
}

// Over all dimensions, whatever the rank.
Function over_all(double (*f)(const Doubles&)) {
  return [=](Inputs in) { return f64({f(values(in[0]))}, {}); };
}

const std::vector<Shape> kSome{{2, 3}, {1, 4}, {2, 1, 3}, {33, 5}};

template <double P>
Row power_norm(const char* form) {
  return of_one(
      "vector_norm", form,
      [](const Tensor& x) {
        return vector_norm(x, P, {0, 2}, true);
      },
      {{2, 3, 2}}, over({0, 2}, true, power_norm_of(P)));
}

}  // namespace

std::vector<Row> reduce_rows() {
  std::vector<Shape> and_nothing = kSome;
  and_nothing.insert(and_nothing.end(), {Shape{}, Shape{0, 2}});
  return {
      of_one(
          "sum", "", [](const Tensor& x) { return sum(x); }, and_nothing, over_all(sum_of)),
      of_one(
          "sum", "0", [](const Tensor& x) { return sum(x, {0}); }, kSome, over({0}, false, sum_of)),
      of_one(
          "sum", "-1 kept", [](const Tensor& x) { return sum(x, {-1}, true); }, kSome, over({-1}, true, sum_of)),
      of_one(
          "sum", "0 and 1",
          [](const Tensor& x) {
            return sum(x, Dims{1, 0});
          },
          kSome, over({0, 1}, false, sum_of)),
      of_one(
          "sum", "over nothing", [](const Tensor& x) { return sum(x, {}); }, kSome, over({}, false, sum_of)),
      of_one(
          "mean", "", [](const Tensor& x) { return mean(x); }, kSome, over_all(mean_of)),
      of_one(
          "mean", "1", [](const Tensor& x) { return mean(x, {1}); }, kSome, over({1}, false, mean_of)),
      of_one(
          "prod", "", [](const Tensor& x) { return prod(x); }, {{2, 3}, {1, 4}, {2, 1, 3}}, over_all(prod_of)),
      of_one(
          "prod", "1", [](const Tensor& x) { return prod(x, 1); }, kSome, over({1}, false, prod_of)),
      of_one(
          "prod", "0 kept", [](const Tensor& x) { return prod(x, 0, true); }, {{2, 3}, {1, 4}, {2, 1, 3}},
          over({0}, true, prod_of)),
      of_one(
          "norm", "", [](const Tensor& x) { return norm(x); }, kSome, over_all(norm_of)),
      of_one(
          "norm", "1", [](const Tensor& x) { return norm(x, {1}); }, kSome, over({1}, false, norm_of)),
      power_norm<0.5>("1/2"),
      power_norm<1.0>("1"),
      power_norm<2.0>("2"),
      power_norm<3.0>("3"),
      power_norm<kInf>("infinity"),
      power_norm<-kInf>("-infinity"),
      of_one(
          "max", "", [](const Tensor& x) { return max(x); }, kSome, over_all(max_of)),
      of_one(
          "min", "", [](const Tensor& x) { return min(x); }, kSome, over_all(min_of)),
      of_one(
          "max", "1", [](const Tensor& x) { return max(x, 1).values; }, kSome, over({1}, false, max_of)),
      of_one(
          "min", "0 kept", [](const Tensor& x) { return min(x, 0, true).values; }, kSome, over({0}, true, min_of)),
      with(Gradient::none,
           of_one(
               "max", "where", [](const Tensor& x) { return max(x, 0).indices; }, kSome, over({0}, false, argmax_of))),
      with(Gradient::none, of_one(
                               "argmax", "", [](const Tensor& x) { return argmax(x); }, kSome, over_all(argmax_of))),
      with(Gradient::none, of_one(
                               "argmin", "", [](const Tensor& x) { return argmin(x); }, kSome, over_all(argmin_of))),
      with(Gradient::none,
           of_one(
               "argmax", "1", [](const Tensor& x) { return argmax(x, 1); }, kSome, over({1}, false, argmax_of))),
      with(Gradient::none, of_one(
                               "argmin", "-1 kept", [](const Tensor& x) { return argmin(x, -1, true); }, kSome,
                               over({-1}, true, argmin_of))),
      of_one(
          "amax", "",
          [](const Tensor& x) {
            return amax(x, {0, 2});
          },
          {{3, 2, 2}}, over({0, 2}, false, max_of)),
      of_one(
          "amin", "kept", [](const Tensor& x) { return amin(x, {-1}, true); }, kSome, over({-1}, true, min_of)),
      with(Gradient::none, of_one(
                               "any", "", [](const Tensor& x) { return any(x > 0.5); }, and_nothing, over_all(any_of))),
      with(Gradient::none, of_one(
                               "all", "", [](const Tensor& x) { return all(x > 0.5); }, and_nothing, over_all(all_of))),
      with(Gradient::none,
           of_one(
               "any", "1", [](const Tensor& x) { return any(x > 0.5, {1}); }, kSome, over({1}, false, any_of))),
      with(Gradient::none, of_one(
                               "all", "0 kept", [](const Tensor& x) { return all(x > 0.5, {0}, true); }, kSome,
                               over({0}, true, all_of))),
      of_one(
          "var", "", [](const Tensor& x) { return var(x); }, {{2, 3}},
          [](Inputs in) { return f64({var_of(1)(values(in[0]))}, {}); }),
      of_one(
          "var", "1", [](const Tensor& x) { return var(x, {1}, 0, true); }, {{2, 3}}, over({1}, true, var_of(0))),
      of_one(
          "stddev", "", [](const Tensor& x) { return stddev(x); }, {{2, 3}},
          [](Inputs in) { return f64({std::sqrt(var_of(1)(values(in[0])))}, {}); }),
      of_one(
          "stddev", "0", [](const Tensor& x) { return stddev(x, {0}, 0); }, {{3, 2}},
          over({0}, false, [](const Doubles& x) { return std::sqrt(var_of(0)(x)); })),
      of_one(
          "logsumexp", "",
          [](const Tensor& x) {
            return logsumexp(x, {0, 2});
          },
          {{3, 2, 2}}, over({0, 2}, false, logsumexp_of)),
      of_one(
          "logsumexp", "among others",
          [](const Tensor& x) {
            return logsumexp(x, {2, 0}, true);
          },
          {{2, 3, 2, 2}}, over({0, 2}, true, logsumexp_of)),
      of_one(
          "logsumexp", "kept", [](const Tensor& x) { return logsumexp(x, {1}, true); }, {{3, 2}},
          over({1}, true, logsumexp_of)),
      of_one(
          "sum_to", "",
          [](const Tensor& x) {
            return sum_to(x, {3, 1});
          },
          {{2, 3, 4}},
          [](Inputs in) {
            return over({0, 2}, true, sum_of)(in).reshape({3, 1});
          }),
  };
}

}  // namespace op_tests
