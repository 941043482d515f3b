#include "lockstep/tensor/nn/add_in_order.h"

#include <utility>

#include "lockstep/kernels/api.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep::detail {

void add_in_order(std::vector<Tensor> terms, Tensor out) {
  if (kernels::table(out.device().type()).entry<OrderedSumArgs>()) {
    OrderedSumArgs args;
    for (const Tensor& term : terms) args.terms.push_back(term.in());
    args.out = out.out();
    return launch(out.device(), args);
  }
  Tensor& sum = terms[0];
  for (std::size_t i = 1; i < terms.size(); ++i) sum.add_(terms[i]);
  if (sum.data() != out.data()) out.copy_(sum);
}

}  // namespace lockstep::detail
