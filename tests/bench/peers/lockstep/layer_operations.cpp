// What layers are made of: norms, convolutions, pooling, attention, losses; and a step of an optimizer.
#include <memory>

#include "work.h"

namespace peers {

namespace {

Call convolved(const Arguments& make) {
  const ConvGeometry geometry{.stride = make.size("stride", 1),
                              .padding = make.size("padding", 0),
                              .dilation = make.size("dilation", 1),
                              .groups = make.args.value("groups", 1)};
  return make([x = make.x[0], weight = make.x[1], geometry] { return conv2d(x, weight, {}, geometry); });
}

Call convolved_transposed(const Arguments& make) {
  const ConvTransposeGeometry geometry{
      .stride = make.size("stride", 1), .padding = make.size("padding", 0), .groups = make.args.value("groups", 1)};
  return make([x = make.x[0], weight = make.x[1], geometry] { return conv_transpose2d(x, weight, {}, geometry); });
}

Call pooled(const Arguments& make, bool of_max) {
  const PoolGeometry geometry{.stride = make.size("stride", 2), .padding = make.size("padding", 0)};
  return make([x = make.x[0], kernel = make.size("kernel", 2), geometry, of_max] {
    return of_max ? max_pool2d(x, kernel, geometry) : avg_pool2d(x, kernel, geometry);
  });
}

Call normalized(const Arguments& make) {
  return make(
      [x = make.x[0], weight = make.x[1], bias = make.x[2]] { return layer_norm(x, {x.size(-1)}, weight, bias); });
}

// Inputs: x, weight, bias, and in evaluation the running mean and variance.
Call batch_normalized(const Arguments& make) {
  BatchNormState state{.training = make.args.value("training", false)};
  if (!state.training) state.running_mean = make.x[3], state.running_var = make.x[4];
  return make(
      [x = make.x[0], weight = make.x[1], bias = make.x[2], state] { return batch_norm(x, weight, bias, state); });
}

Call attended(const Arguments& make) {
  const bool causal = make.args.value("causal", false);
  return make([q = make.x[0], k = make.x[1], v = make.x[2], causal] {
    return scaled_dot_product_attention(q, k, v, {.causal = causal});
  });
}

Call upsampled(const Arguments& make) {
  const InterpolateOptions options{.scale_factor = 2.0,
                                   .mode = make.args.value("mode", std::string("nearest")) == "nearest"
                                               ? InterpolateMode::nearest
                                               : InterpolateMode::bilinear};
  return make([x = make.x[0], options] { return interpolate(x, options); });
}

// So many parameters of the input's shape, which is also their gradient.
Call stepped(const Arguments& make) {
  std::vector<Parameter> parameters;
  for (std::int64_t i = 0; i < make.integer("count"); ++i) {
    parameters.emplace_back(make.x[0].clone());
    parameters.back().set_grad(make.x[1].clone());
  }
  const auto over = [&](auto optimizer) {
    const auto shared = std::make_shared<decltype(optimizer)>(std::move(optimizer));
    return make([shared, first = parameters[0]] {
      shared->step();
      return first.tensor().detach();
    });
  };
  const std::string name = make.args.at("optimizer");
  if (name == "sgd") return over(SGD(parameters, {.lr = 1e-3}));
  if (name == "sgd_momentum") return over(SGD(parameters, {.lr = 1e-3, .momentum = 0.9}));
  if (name == "adam") return over(Adam(parameters, {.lr = 1e-3}));
  if (name == "adamw") return over(AdamW(parameters, {.lr = 1e-3}));
  throw Unsupported("there is no optimizer " + name);
}

}  // namespace

Operations layer_operations() {
  using A = const Arguments&;
  return {
      {"conv2d", convolved},
      {"conv_transpose2d", convolved_transposed},
      {"max_pool2d", [](A make) { return pooled(make, true); }},
      {"avg_pool2d", [](A make) { return pooled(make, false); }},
      {"adaptive_avg_pool2d", [](A make) { return make([x = make.x[0]] { return adaptive_avg_pool2d(x, 1); }); }},
      {"interpolate", upsampled},
      {"layer_norm", normalized},
      {"batch_norm", batch_normalized},
      {"group_norm",
       [](A make) {
         return make([x = make.x[0], weight = make.x[1], bias = make.x[2]] { return group_norm(x, 8, weight, bias); });
       }},
      {"cross_entropy",
       [](A make) { return make([x = make.x[0], targets = make.x[1]] { return cross_entropy(x, targets); }); }},
      {"attention", attended},
      {"embedding",
       [](A make) { return make([weight = make.x[0], at = make.x[1]] { return embedding(weight, at); }); }},
      {"step", stepped},
  };
}

}  // namespace peers
