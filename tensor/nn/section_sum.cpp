#include "lockstep/tensor/nn/section_sum.h"

namespace lockstep::detail {

void sum_one(SectionSum& by, const std::vector<Tensor>& parts, const Tensor& sum) {
  try {
    by.add(parts, sum, {});
    by.end();
  } catch (...) {
    by.settle();
    throw;
  }
}

}  // namespace lockstep::detail
