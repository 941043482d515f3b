// Elementwise operations, products, and what gradients and optimizers do with them.
#include "work.h"

namespace peers {

namespace {

template <Tensor (*kFunction)(const Tensor&)>
Call unary(const Arguments& make) {
  return make([x = make.x[0]] { return kFunction(x); });
}
template <Tensor (*kFunction)(const Tensor&, const Tensor&)>
Call binary(const Arguments& make) {
  return make([a = make.x[0], b = make.x[1]] { return kFunction(a, b); });
}

Call converted(const Arguments& make) {
  const DType dtype = dtype_named(make.args.at("dtype"));
  return make([x = make.x[0], dtype] { return x.to(dtype); });
}

// x + b, so many times in a row.
Call chain(const Arguments& make) {
  return make([a = make.x[0], b = make.x[1], length = make.integer("length")] {
    Tensor x = a;
    for (std::int64_t i = 0; i < length; ++i) x = x + b;
    return x;
  });
}

// x @ a seen through transposed views, as gradients of affine maps are.
Call product(const Arguments& make) {
  const bool left = make.args.value("transpose_a", false), right = make.args.value("transpose_b", false);
  const auto turned = [](const Tensor& x, bool turn) { return turn ? x.transpose(-2, -1) : x; };
  return make(
      [a = make.x[0], b = make.x[1], left, right, turned] { return matmul(turned(a, left), turned(b, right)); });
}

}  // namespace

Operations element_operations() {
  return {
      {"empty", [](const Arguments& make) { return make([like = make.x[0]] { return empty_like(like); }); }},
      {"zeros", [](const Arguments& make) { return make([like = make.x[0]] { return zeros_like(like); }); }},
      {"clone", [](const Arguments& make) { return make([x = make.x[0]] { return x.clone(); }); }},
      {"rand", [](const Arguments& make) { return make([like = make.x[0]] { return rand_like(like); }); }},
      {"randn", [](const Arguments& make) { return make([like = make.x[0]] { return randn_like(like); }); }},
      {"randperm",
       [](const Arguments& make) {
         return make([count = make.integer("count")] { return randperm(count, Device::host(0)); });
       }},
      {"dropout", [](const Arguments& make) { return make([x = make.x[0]] { return dropout(x, 0.1); }); }},
      {"add", [](const Arguments& make) { return make([a = make.x[0], b = make.x[1]] { return add(a, b); }); }},
      {"add_",
       [](const Arguments& make) {
         return make([a = make.x[0].clone(), b = make.x[1]] {
           Tensor sum = a;
           return sum.add_(b, 1e-3);
         });
       }},
      {"mul", binary<mul>},
      {"div", binary<div>},
      {"maximum", binary<maximum>},
      {"lt", binary<lt>},
      {"mul_scalar", [](const Arguments& make) { return make([x = make.x[0]] { return mul(x, 1.5); }); }},
      {"pow2.5", [](const Arguments& make) { return make([x = make.x[0]] { return pow(x, 2.5); }); }},
      {"clamp", [](const Arguments& make) { return make([x = make.x[0]] { return clamp(x, -0.5, 0.5); }); }},
      {"gelu", [](const Arguments& make) { return make([x = make.x[0]] { return gelu(x); }); }},
      {"relu", unary<relu>},
      {"exp", unary<exp>},
      {"log", unary<log>},
      {"tanh", unary<tanh>},
      {"sigmoid", unary<sigmoid>},
      {"silu", unary<silu>},
      {"sin", unary<sin>},
      {"erf", unary<erf>},
      {"sqrt", unary<sqrt>},
      {"where",
       [](const Arguments& make) {
         return make([c = make.x[0], a = make.x[1], b = make.x[2]] { return where(c, a, b); });
       }},
      {"masked_fill",
       [](const Arguments& make) {
         return make([x = make.x[0], mask = make.x[1]] { return masked_fill(x, mask, -1); });
       }},
      {"to", converted},
      {"chain", chain},
      {"matmul", product},
      {"linear",
       [](const Arguments& make) {
         return make([x = make.x[0], weight = make.x[1], bias = make.x[2]] { return linear(x, weight, bias); });
       }},
      {"sum_item",
       [](const Arguments& make) {
         return make([x = make.x[0]] { return full({1}, sum(x).item<float>(), {.device = x.device()}); });
       }},
  };
}

}  // namespace peers
