// Products, and the functions of neural networks.
#include "tensor/ops/table/table.h"

namespace op_tests {

namespace {

Tensor numbers(const Tensor& x, const Doubles& values) {
  return f64(values, {static_cast<std::int64_t>(values.size())}).to(x.dtype()).to(x.device());
}
// Shapes of operands between -2 and 2.
Operands shapes(std::initializer_list<Shape> each) {
  Operands operands;
  for (const Shape& shape : each) operands.push_back({shape});
  return operands;
}
// The same, the first without a gradient.
Operands with_constant(std::initializer_list<Shape> each) {
  Operands operands = shapes(each);
  operands[0].elements = Elements::constant;
  return operands;
}
Tensor third(Inputs in) { return in.size() > 2 ? in[2] : Tensor(); }

Tensor product(const Tensor& a, const Tensor& b) {
  const Doubles x = values(a), y = values(b);
  const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  Doubles z(static_cast<std::size_t>(m * n), 0.0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      for (std::int64_t l = 0; l < k; ++l)
        z[static_cast<std::size_t>(i * n + j)] +=
            x[static_cast<std::size_t>(i * k + l)] * y[static_cast<std::size_t>(l * n + j)];
  return f64(z, {m, n});
}

std::vector<Row> products() {
  const Function by_matmul = [](Inputs in) { return matmul(in[0], in[1]); };
  return {
      of_all("matmul", "matrices", by_matmul,
             {shapes({{2, 3}, {3, 4}}), shapes({{1, 3}, {3, 1}}), shapes({{2, 0}, {0, 3}}), shapes({{0, 3}, {3, 2}}),
              shapes({{1, 1}, {1, 1}}), shapes({{5, 1}, {1, 4}}), shapes({{17, 9}, {9, 5}})},
             [](Inputs in) { return product(in[0], in[1]); }),
      of_all("matmul", "vectors and stacks", by_matmul,
             {shapes({{3}, {3}}), shapes({{3}, {3, 2}}), shapes({{2, 3}, {3}}), shapes({{2, 2, 3}, {3, 4}}),
              shapes({{2, 2, 3}, {2, 3, 4}}), shapes({{1, 2, 3}, {2, 3, 2}}), shapes({{2, 2, 3}, {1, 3, 2}}),
              shapes({{2, 3}, {2, 3, 2}}), shapes({{2, 1, 2, 3}, {3, 3, 2}}), shapes({{3}, {2, 3, 2}}),
              shapes({{2, 2, 3}, {3}})}),
      of_all(
          "mm", "", [](Inputs in) { return mm(in[0], in[1]); }, {shapes({{2, 3}, {3, 4}})},
          [](Inputs in) { return product(in[0], in[1]); }),
      of_all(
          "bmm", "", [](Inputs in) { return bmm(in[0], in[1]); }, {shapes({{2, 2, 3}, {2, 3, 4}})},
          [](Inputs in) {
            return stack({product(in[0][0], in[1][0]), product(in[0][1], in[1][1])});
          }),
      of_all(
          "mv", "", [](Inputs in) { return mv(in[0], in[1]); }, {shapes({{2, 3}, {3}})},
          [](Inputs in) {
            return product(in[0], in[1].reshape({3, 1})).reshape({2});
          }),
      of_all(
          "dot", "", [](Inputs in) { return dot(in[0], in[1]); }, {shapes({{5}, {5}})},
          [](Inputs in) {
            return product(in[0].reshape({1, 5}), in[1].reshape({5, 1})).reshape({});
          }),
      of_all(
          "outer", "", [](Inputs in) { return outer(in[0], in[1]); }, {shapes({{3}, {2}})},
          [](Inputs in) {
            return product(in[0].reshape({3, 1}), in[1].reshape({1, 2}));
          }),
  };
}

Row activated(const char* form, Activation activation) {
  return of_all("linear", form, [=](Inputs in) { return linear(in[0], in[1], third(in), activation); },
                {shapes({{2, 2, 3}, {2, 3}, {2}}), shapes({{4, 3}, {2, 3}})});
}

// A constant [2, 3].
QuantizedWeight weight_of_bits(int bits) {
  return quantize(from_data(Doubles{0.5, -1.5, 1, 2, 0.25, -0.75}, {2, 3}, {.dtype = DType::f32}), {.bits = bits});
}

std::vector<Row> affine() {
  const Function plain = [](Inputs in) {
    const Tensor y = product(in[0].reshape({-1, 3}), in[1].t());
    Shape shape = in[0].shape();
    shape[shape.rank() - 1] = in[1].size(0);
    return (in.size() > 2 ? y + in[2] : y).reshape(shape);
  };
  return {
      of_all(
          "linear", "", [](Inputs in) { return linear(in[0], in[1], third(in)); },
          {shapes({{4, 3}, {2, 3}, {2}}), shapes({{4, 3}, {2, 3}}), shapes({{3}, {2, 3}, {2}}),
           shapes({{2, 2, 3}, {2, 3}, {2}}), shapes({{4, 3}, {1, 3}, {1}}), shapes({{5, 3}, {2, 3}, {2}})},
          plain),
      of_all("linear", "of nothing", [](Inputs in) { return linear(in[0], in[1], in[2]); },
             {shapes({{0, 3}, {2, 3}, {2}})}),
      activated("relu", Activation::relu),
      activated("gelu", Activation::gelu),
      activated("gelu tanh", Activation::gelu_tanh),
      of_all(
          "quantized_linear", "8 bits",
          [](Inputs in) {
            return quantized_linear(in[0], weight_of_bits(8).to(in[0].device()), in.size() > 1 ? in[1] : Tensor());
          },
          {shapes({{4, 3}, {2}}), shapes({{4, 3}}), shapes({{2, 2, 3}, {2}})},
          [](Inputs in) {
            const Tensor y = product(in[0].reshape({-1, 3}), weight_of_bits(8).dequantize(DType::f64).t());
            Shape shape = in[0].shape();
            shape[shape.rank() - 1] = 2;
            return (in.size() > 1 ? y + in[1] : y).reshape(shape);
          }),
      of_all("quantized_linear", "4 bits",
             [](Inputs in) {
               return quantized_linear(in[0], weight_of_bits(4).to(in[0].device()), in.size() > 1 ? in[1] : Tensor());
             },
             {shapes({{4, 3}, {2}}), shapes({{11, 3}, {2}})}),
      of_one("embedding", "",
             [](const Tensor& w) {
               return square(embedding(w, there(w, {1, 0, 1, 3}, {2, 2})));
             },
             {{4, 3}}),
  };
}

void convolutions(std::vector<Row>& rows) {
  struct Case {
    const char* form;
    Shape x, weight;
    ConvGeometry geometry;
  };
  for (const Case& c : {Case{"plain", {2, 2, 4, 5}, {3, 2, 3, 3}, {}}, Case{"1x1", {2, 3, 2, 2}, {2, 3, 1, 1}, {}},
                        Case{"padding and stride", {1, 2, 5, 4}, {2, 2, 3, 2}, {.stride = {2, 1}, .padding = {1, 0}}},
                        Case{"dilation", {1, 1, 6, 5}, {2, 1, 2, 3}, {.padding = 1, .dilation = 2}},
                        Case{"groups", {2, 4, 3, 3}, {4, 2, 2, 2}, {.groups = 2}},
                        Case{"depthwise", {1, 3, 4, 4}, {3, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 3}},
                        Case{"a stride that leaves a rest", {1, 1, 6, 6}, {1, 1, 3, 3}, {.stride = 2}}}) {
    const Shape y = conv2d(zeros(c.x), zeros(c.weight), {}, c.geometry).shape();
    rows.push_back(of_all("conv2d", c.form, [=](Inputs in) { return conv2d(in[0], in[1], in[2], c.geometry); },
                          {shapes({c.x, c.weight, {c.weight[0]}})}));
    rows.push_back(of_all("conv2d_grad_input", c.form,
                          [=](Inputs in) { return conv2d_grad_input(in[0], in[1], c.x, c.geometry); },
                          {shapes({y, c.weight})}));
    rows.push_back(of_all("conv2d_grad_weight", c.form,
                          [=](Inputs in) { return conv2d_grad_weight(in[0], in[1], c.weight, c.geometry); },
                          {shapes({y, c.x})}));
  }
  rows.push_back(of_all("conv2d", "without bias", [](Inputs in) { return conv2d(in[0], in[1]); },
                        {shapes({{2, 2, 3, 3}, {1, 2, 2, 2}})}));
  struct Transposed {
    const char* form;
    Shape x, weight;
    ConvTransposeGeometry geometry;
  };
  for (const Transposed& c :
       {Transposed{"plain", {2, 2, 3, 4}, {2, 3, 3, 2}, {}},
        Transposed{"stride and padding", {1, 2, 3, 3}, {2, 2, 3, 3}, {.stride = {2, 1}, .padding = {1, 0}}},
        Transposed{
            "output padding", {1, 2, 3, 2}, {2, 1, 3, 3}, {.stride = {2, 3}, .padding = 1, .output_padding = {1, 2}}},
        Transposed{"output padding beyond the stride",
                   {1, 1, 2, 3},
                   {1, 2, 2, 2},
                   {.padding = 1, .output_padding = 2, .dilation = 3}},
        Transposed{"groups", {2, 4, 2, 2}, {4, 3, 2, 2}, {.stride = 2, .groups = 2}}})
    rows.push_back(of_all("conv_transpose2d", c.form,
                          [=](Inputs in) { return conv_transpose2d(in[0], in[1], in[2], c.geometry); },
                          {shapes({c.x, c.weight, {c.weight[1] * c.geometry.groups}})}));
  rows.push_back(of_all("conv_transpose2d", "without bias", [](Inputs in) { return conv_transpose2d(in[0], in[1]); },
                        {shapes({{1, 2, 3, 3}, {2, 1, 2, 2}})}));
}

void windows(std::vector<Row>& rows) {
  const PoolGeometry geometries[] = {{}, {.stride = 1}, {.stride = Size2(2, 1), .padding = 1}};
  for (const PoolGeometry& g : geometries) {
    const std::string form = "stride " + (g.stride ? to_string(*g.stride) : "of the kernel");
    rows.push_back(of_all("max_pool2d", form,
                          [=](Inputs in) {
                            return square(max_pool2d(in[0], {2, 3}, g));
                          },
                          {shapes({{2, 2, 5, 6}})}));
    rows.push_back(of_all("avg_pool2d", form,
                          [=](Inputs in) {
                            return square(avg_pool2d(in[0], {2, 3}, g));
                          },
                          {shapes({{2, 2, 5, 6}})}));
  }
  rows.push_back(of_one("max_pool2d", "dilated",
                        [](const Tensor& x) { return square(max_pool2d(x, 2, {.stride = 1, .dilation = 2})); },
                        {{1, 2, 4, 4}}));
  for (const Size2 output : {Size2(2, 3), Size2(7, 1), Size2(5, 4)})
    rows.push_back(of_all("adaptive_avg_pool2d", to_string(output),
                          [=](Inputs in) { return square(adaptive_avg_pool2d(in[0], output)); },
                          {shapes({{2, 1, 5, 4}})}));
  using enum InterpolateMode;
  for (const auto& [form, options] : std::initializer_list<std::pair<const char*, InterpolateOptions>>{
           {"to a size", {.size = Size2(7, 2)}},
           {"by 2", {.scale_factor = 2}},
           {"bilinear", {.scale_factor = Scale2(1.5, 0.6), .mode = bilinear}},
           {"bilinear, corners aligned", {.size = Size2(3, 9), .mode = bilinear, .align_corners = true}}})
    rows.push_back(of_all("interpolate", form,
                          [options = options](Inputs in) { return square(interpolate(in[0], options)); },
                          {shapes({{1, 2, 4, 5}})}));
}

void norms(std::vector<Row>& rows) {
  for (const Shape& shape : {Shape{4, 3}, Shape{2, 3, 4}, Shape{2, 2, 2, 3}}) {
    const Operands all = shapes({shape, {shape[1]}, {shape[1]}});
    const std::string of = "of " + to_string(shape);
    rows.push_back(of_all("batch_norm", "in training " + of,
                          [](Inputs in) { return batch_norm(in[0], in[1], in[2], {}); }, {all}));
    rows.push_back(of_all(
        "batch_norm", "with a relu " + of,
        [](Inputs in) { return batch_norm(in[0], in[1], in[2], {}, Activation::relu); }, {all},
        [](Inputs in) { return relu(batch_norm(in[0], in[1], in[2], {})); }));
    rows.push_back(of_all("batch_norm", "without weight " + of, [](Inputs in) { return batch_norm(in[0], {}, {}, {}); },
                          {{all[0]}}));
    rows.push_back(of_all("batch_norm", "in evaluation " + of,
                          [](Inputs in) {
                            const std::int64_t channels = in[0].size(1);
                            const Tensor middle = (arange(channels).to(in[0].dtype()) * 0.3 - 0.4).to(in[0].device());
                            return batch_norm(
                                in[0], in[1], in[2],
                                {.running_mean = middle, .running_var = square(middle) + 0.3, .training = false});
                          },
                          {all}));
    rows.push_back(of_all("batch_norm", "in evaluation without running statistics " + of,
                          [](Inputs in) {
                            return batch_norm(in[0], in[1], in[2],
                                              {.running_mean = {}, .running_var = {}, .training = false});
                          },
                          {all}));
  }
  rows.push_back(of_all("batch_norm", "weight alone", [](Inputs in) { return batch_norm(in[0], in[1], {}, {}); },
                        {with_constant({{4, 3}, {3}})}));
  const auto normal = [](const Tensor& x, const Dims& dims, double eps) {
    return (x - mean(x, dims, true)) / sqrt(var(x, dims, 0, true) + eps);
  };
  rows.push_back(of_all(
      "layer_norm", "", [](Inputs in) { return layer_norm(in[0], {4}, in[1], in[2]); }, {shapes({{3, 4}, {4}, {4}})},
      [=](Inputs in) { return normal(in[0], {1}, 1e-5) * in[1] + in[2]; }));
  rows.push_back(of_all(
      "layer_norm", "over two",
      [](Inputs in) {
        return layer_norm(in[0], {2, 3}, in[1]);
      },
      {shapes({{2, 2, 3}, {2, 3}})},
      [=](Inputs in) {
        return normal(in[0], {1, 2}, 1e-5) * in[1];
      }));
  rows.push_back(of_all(
      "layer_norm", "bias alone", [](Inputs in) { return square(layer_norm(in[0], {4}, {}, in[1])); },
      {with_constant({{3, 4}, {4}})}, [=](Inputs in) { return square(normal(in[0], {1}, 1e-5) + in[1]); }));
  const auto by_size = [](const Tensor& x, Dims dims) { return x / sqrt(mean(square(x), dims, true) + 1e-5); };
  rows.push_back(of_all(
      "rms_norm", "", [](Inputs in) { return rms_norm(in[0], {4}, in[1], 1e-5); }, {shapes({{3, 4}, {4}})},
      [=](Inputs in) { return by_size(in[0], {1}) * in[1]; }));
  rows.push_back(of_all(
      "rms_norm", "over two, without weight",
      [](Inputs in) {
        return rms_norm(in[0], {2, 3}, {}, 1e-5);
      },
      {shapes({{2, 2, 3}})},
      [=](Inputs in) {
        return by_size(in[0], {1, 2});
      }));
  for (const std::int64_t groups : {1, 2}) {
    const std::vector<Operands> all{shapes({{3, 4}, {4}, {4}}), shapes({{2, 4, 3}, {4}, {4}}),
                                    shapes({{2, 4, 2, 3}, {4}, {4}})};
    const std::string of = std::to_string(groups) + " groups";
    rows.push_back(of_all(
        "group_norm", of, [=](Inputs in) { return group_norm(in[0], groups, in[1], in[2], 0.1); }, all));
    rows.push_back(of_all("group_norm", of + " without parameters",
                          [=](Inputs in) { return group_norm(in[0], groups); },
                          {shapes({{3, 4}}), shapes({{2, 4, 3}}), shapes({{2, 4, 2, 3}})}));
    rows.push_back(
        of_all("group_norm", of + ", weight alone", [=](Inputs in) { return group_norm(in[0], groups, in[1]); },
               {with_constant({{3, 4}, {4}}), with_constant({{2, 4, 3}, {4}}), with_constant({{2, 4, 2, 3}, {4}})}));
  }
}

void probabilities(std::vector<Row>& rows) {
  for (const std::int64_t dim : {0, 1, -1}) {
    const Dims dims{dim};
    const std::string along = "along " + std::to_string(dim);
    rows.push_back(of_all(
        "softmax", along, [=](Inputs in) { return softmax(in[0], dim); }, {shapes({{2, 3, 2}})},
        [=](Inputs in) { return exp(in[0]) / sum(exp(in[0]), dims, true); }));
    rows.push_back(of_all(
        "log_softmax", along, [=](Inputs in) { return log_softmax(in[0], dim); }, {shapes({{2, 3, 2}})},
        [=](Inputs in) { return in[0] - log(sum(exp(in[0]), dims, true)); }));
  }
  rows.push_back(of_one(
      "softmax", "of a number", [](const Tensor& x) { return softmax(x, 0) * x; }, {{}},
      [](Inputs in) { return in[0]; }));
  rows.push_back(of_one("dropout", "",
                        [](const Tensor& x) {
                          manual_seed(3);  // the same mask each time
                          return square(dropout(x, 0.4));
                        },
                        {{3, 4}}));
}

Tensor reduced(const Tensor& each, Reduction reduction) {
  return reduction == Reduction::none ? each : reduction == Reduction::sum ? sum(each) : mean(each);
}

void losses(std::vector<Row>& rows) {
  constexpr double kFrom = 0.1, kTo = 0.9;
  const Operands probabilities{{{2, 3}}, {{2, 3}, kFrom, kTo}};
  for (const auto& [form, reduction] : std::initializer_list<std::pair<std::string, Reduction>>{
           {"mean", Reduction::mean}, {"sum", Reduction::sum}, {"none", Reduction::none}}) {
    const Reduction r = reduction;
    rows.push_back(of_all("nll_loss", form,
                          [=](Inputs in) {
                            return square(nll_loss(in[0], there(in[0], {1, 0, 2, -100}, {4}),
                                                   {.weight = numbers(in[0], {0.5, 2.0, 1.5}), .reduction = r}));
                          },
                          {shapes({{4, 3}})}));
    rows.push_back(of_all("cross_entropy", form,
                          [=](Inputs in) {
                            return cross_entropy(in[0], there(in[0], {1, 0, 2, -100}, {4}), {.reduction = r});
                          },
                          {shapes({{4, 3}})}));
    rows.push_back(of_all("cross_entropy", "of images, smoothed and weighted, " + form,
                          [=](Inputs in) {
                            return cross_entropy(
                                in[0], there(in[0], {1, 0, 2, -100, 1, 1}, {2, 3}),
                                {.weight = numbers(in[0], {0.5, 2.0, 1.5}), .reduction = r, .label_smoothing = 0.2});
                          },
                          {shapes({{2, 3, 3}})}));
    rows.push_back(of_all("cross_entropy", "of probabilities, " + form,
                          [=](Inputs in) {
                            return cross_entropy(
                                in[0], in[1],
                                {.weight = numbers(in[0], {0.5, 2.0, 1.5}), .reduction = r, .label_smoothing = 0.1});
                          },
                          {probabilities}));
    rows.push_back(of_all(
        "mse_loss", form, [=](Inputs in) { return mse_loss(in[0], in[1], r); }, {shapes({{2, 3}, {2, 3}})},
        [=](Inputs in) { return reduced(square(in[0] - in[1]), r); }));
    rows.push_back(of_all(
        "l1_loss", form, [=](Inputs in) { return square(l1_loss(in[0], in[1], r)); }, {shapes({{2, 3}, {2, 3}})},
        [=](Inputs in) { return square(reduced(abs(in[0] - in[1]), r)); }));
    rows.push_back(of_all(
        "bce_with_logits", form, [=](Inputs in) { return bce_with_logits(in[0], in[1], r); }, {probabilities},
        [=](Inputs in) {
          const Tensor s = sigmoid(in[0]);
          return reduced(-(in[1] * log(s) + (1 - in[1]) * log(1 - s)), r);
        }));
    for (const double beta : {1.0, 0.3, 0.0})
      rows.push_back(of_all(
          "smooth_l1_loss", form + ", beta " + std::to_string(beta).substr(0, 3),
          [=](Inputs in) { return square(smooth_l1_loss(in[0], in[1], r, beta)); }, {shapes({{2, 3}, {2, 3}})},
          [=](Inputs in) {
            const Tensor d = abs(in[0] - in[1]);
            const Tensor near = beta == 0 ? d : square(d) / (2 * beta);
            return square(reduced(where(d < beta, near, d - beta / 2), r));
          }));
  }
  rows.push_back(of_all("bce_with_logits", "with weights",
                        [](Inputs in) { return bce_with_logits(in[0], in[1], {.weight = in[2], .pos_weight = in[3]}); },
                        {{{{2, 3}}, {{2, 3}, kFrom, kTo}, {{2, 1}}, {{3}, 1, 2}}}));
  for (const double smoothing : {0.0, 0.3})
    rows.push_back(of_all("cross_entropy",
                          "an ignored class of its own, smoothing " + std::to_string(smoothing).substr(0, 3),
                          [=](Inputs in) {
                            return square(cross_entropy(in[0], there(in[0], {1, 0, 7, 2, 7, 1}, {2, 3}),
                                                        {.ignore_index = 7, .label_smoothing = smoothing}));
                          },
                          {shapes({{2, 3, 3}})}));
}

std::vector<Row> sequences() {
  return {
      of_all(
          "scaled_dot_product_attention", "",
          [](Inputs in) { return scaled_dot_product_attention(in[0], in[1], in[2]); },
          {shapes({{2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 3}})},
          [](Inputs in) { return matmul(softmax(matmul(in[0], in[1].transpose(-1, -2)) / 2, -1), in[2]); }),
      of_all("scaled_dot_product_attention", "lower right, of fewer heads, with lengths",
             [](Inputs in) {
               const Tensor lengths = from_data({5, 2}, {2}, {.device = in[0].device()});
               return scaled_dot_product_attention(
                   in[0], in[1], in[2],
                   {.causal = true, .variant = CausalVariant::lower_right, .enable_gqa = true, .seqlens_k = lengths});
             },
             {shapes({{2, 4, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 3}})}),
      of_all("attention_with_weights", "",
             [](Inputs in) {
               const AttentionResult r = attention_with_weights(in[0], in[1], in[2], {.causal = true});
               return cat({r.output.flatten(), square(r.weights).flatten()});
             },
             {shapes({{1, 2, 3, 2}, {1, 2, 4, 2}, {1, 2, 4, 3}})}),
      of_all("lstm_cell", "",
             [](Inputs in) {
               const LstmState s = lstm_cell(in[0], in[1]);
               return cat({s.h, s.c});
             },
             {shapes({{2, 12}, {2, 3}})}),
      of_all("gru_cell", "", [](Inputs in) { return gru_cell(in[0], in[1], in[2]); },
             {shapes({{2, 9}, {2, 9}, {2, 3}})}),
  };
}

}  // namespace

std::vector<Row> nn_rows() {
  std::vector<Row> rows;
  for (std::vector<Row> more : {products(), affine(), sequences()})
    rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  convolutions(rows);
  windows(rows);
  norms(rows);
  probabilities(rows);
  losses(rows);
  return rows;
}

}  // namespace op_tests
