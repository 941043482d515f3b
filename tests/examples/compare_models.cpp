// compare_models <a.safetensors> <b.safetensors> <tolerance>: exits with 0 when both files hold the same tensors and,
// in each, the largest difference is at most `tolerance` times the largest value.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const double tolerance = std::atof(argv[3]);
  const Safetensors a = load_safetensors(argv[1]), b = load_safetensors(argv[2]);
  bool same = !a.tensors.empty() && a.tensors.size() == b.tensors.size();
  double worst = 0;
  for (std::size_t i = 0; same && i < a.tensors.size(); ++i) {
    const Tensor &x = a.tensors[i].tensor, &y = b.tensors[i].tensor;
    same = a.tensors[i].name == b.tensors[i].name && x.dtype() == y.dtype() && x.shape() == y.shape();
    if (!same) break;
    const auto values = x.to_vector<double>(), others = y.to_vector<double>();
    double difference = 0, largest = 0;
    for (std::size_t k = 0; k < values.size(); ++k) {
      difference = std::max(difference, std::abs(values[k] - others[k]));
      largest = std::max(largest, std::abs(values[k]));
      same = same && std::isfinite(values[k]) && std::isfinite(others[k]);
    }
    const double relative = difference == 0 ? 0 : difference / largest;
    worst = std::max(worst, relative);
    std::printf("%-16s %g\n", a.tensors[i].name.c_str(), relative);
  }
  std::printf("worst %g, allowed %g%s\n", worst, tolerance, same ? "" : "; the files hold different things");
  return same && worst <= tolerance ? 0 : 1;
}
