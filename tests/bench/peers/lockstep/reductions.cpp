// Reductions, scans and orders.
#include "work.h"

namespace peers {

namespace {

template <class F>
Call over_dims(const Arguments& make, F f) {
  return make([x = make.x[0], dims = make.dims("dims"), f] { return f(x, dims); });
}
template <class F>
Call over_dim(const Arguments& make, F f) {
  return make([x = make.x[0], dim = make.integer("dim"), f] { return f(x, dim); });
}

}  // namespace

Operations reductions() {
  using A = const Arguments&;
  using X = const Tensor&;
  using D = const Dims&;
  using I = std::int64_t;
  return {
      {"sum", [](A make) { return over_dims(make, [](X x, D dims) { return sum(x, dims); }); }},
      {"sum_transposed",
       [](A make) { return over_dims(make, [](X x, D dims) { return sum(x.transpose(0, 1), dims); }); }},
      {"mean", [](A make) { return over_dims(make, [](X x, D dims) { return mean(x, dims); }); }},
      {"var", [](A make) { return over_dims(make, [](X x, D dims) { return var(x, dims); }); }},
      {"norm", [](A make) { return over_dims(make, [](X x, D dims) { return norm(x, dims); }); }},
      {"logsumexp", [](A make) { return over_dims(make, [](X x, D dims) { return logsumexp(x, dims); }); }},
      {"amax", [](A make) { return over_dims(make, [](X x, D dims) { return amax(x, dims); }); }},
      {"any", [](A make) { return over_dims(make, [](X x, D dims) { return any(x, dims); }); }},
      {"sum_all", [](A make) { return make([x = make.x[0]] { return sum(x); }); }},
      {"mean_all", [](A make) { return make([x = make.x[0]] { return mean(x); }); }},
      {"norm_all", [](A make) { return make([x = make.x[0]] { return norm(x); }); }},
      {"max_all", [](A make) { return make([x = make.x[0]] { return max(x); }); }},
      {"max", [](A make) { return over_dim(make, [](X x, I dim) { return max(x, dim); }); }},
      {"argmax", [](A make) { return over_dim(make, [](X x, I dim) { return argmax(x, dim); }); }},
      {"prod", [](A make) { return over_dim(make, [](X x, I dim) { return prod(x, dim); }); }},
      {"cumsum", [](A make) { return over_dim(make, [](X x, I dim) { return cumsum(x, dim); }); }},
      {"sort", [](A make) { return over_dim(make, [](X x, I dim) { return sort(x, dim); }); }},
      {"topk", [](A make) { return over_dim(make, [](X x, I dim) { return topk(x, 10, dim); }); }},
      {"softmax", [](A make) { return over_dim(make, [](X x, I dim) { return softmax(x, dim); }); }},
      {"log_softmax", [](A make) { return over_dim(make, [](X x, I dim) { return log_softmax(x, dim); }); }},
  };
}

}  // namespace peers
