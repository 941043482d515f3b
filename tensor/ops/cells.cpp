// The cells of recurrent networks: one kernel forward and one backward; under create_graph the derivative is built from
// differentiable operations instead.
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/recurrent.h"
#include "lockstep/tensor/ops/sequence_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

// Column block `k` of rows of `size` columns each.
Tensor part(const Tensor& x, int k, std::int64_t size) { return x.narrow(1, k * size, size); }

Tensor zeros_if_undefined(const Tensor& x, const Tensor& like) {
  return x.defined() ? x : detail::fresh_zeros(like.shape(), like.dtype(), like.device());
}

class LstmCellNode final : public NodeOf<2> {
 public:
  const char* name() const override { return "lstm_cell"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs, grad_inputs);
    const Tensor dh = detail::contiguous_or_undefined(grad_outputs[0]),
                 dc = detail::contiguous_or_undefined(grad_outputs[1]);
    const Tensor x = activated.get(*this), before = c_before.get(*this);
    Tensor dgates = detail::fresh_like(x), dbefore;
    if (needs(1)) dbefore = detail::fresh_like(before);
    detail::launch(x.device(), LstmCellGradArgs{dh.in(), dc.in(), x.in(), before.in(), c.get(*this).in(), dgates.out(),
                                                dbefore.out()});
    grad_inputs[0] = dgates, grad_inputs[1] = dbefore;
  }

  void backward_differentiably(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) {
    const Tensor before = c_before.get(*this);
    const auto d = detail::lstm_cell_derivative(gates.get(*this), before, zeros_if_undefined(grad_outputs[0], before),
                                                zeros_if_undefined(grad_outputs[1], before));
    grad_inputs[0] = d.gates;
    if (needs(1)) grad_inputs[1] = d.c_before;
  }

  Saved gates{*this}, activated{*this}, c_before{*this}, c{*this};
};

class GruCellNode final : public NodeOf<3> {
 public:
  const char* name() const override { return "gru_cell"; }
  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs[0], grad_inputs);
    const Tensor dh = grad_outputs[0].contiguous(), x = activated.get(*this), before = h_before.get(*this);
    Tensor dinput = detail::fresh_like(x), dhidden = detail::fresh_like(x), dbefore;
    if (needs(2)) dbefore = detail::fresh_like(before);
    detail::launch(x.device(), GruCellGradArgs{dh.in(), x.in(), hidden.get(*this).in(), before.in(), dinput.out(),
                                               dhidden.out(), dbefore.out()});
    grad_inputs[0] = dinput, grad_inputs[1] = dhidden, grad_inputs[2] = dbefore;
  }

  void backward_differentiably(const Tensor& dh, std::span<Tensor> grad_inputs) {
    const auto d = detail::gru_cell_derivative(input.get(*this), hidden.get(*this), h_before.get(*this), dh);
    grad_inputs[0] = d.input, grad_inputs[1] = d.hidden;
    if (needs(2)) grad_inputs[2] = d.h_before;
  }

  Saved input{*this}, hidden{*this}, activated{*this}, h_before{*this};
};

void check_gates(const char* op, const Tensor& gates, const Tensor& state, int count) {
  detail::check_floating_alike(op, gates, state);
  LOCKSTEP_CHECK(state.rank() == 2 && gates.rank() == 2 && gates.shape()[0] == state.shape()[0] &&
                     gates.shape()[1] == count * state.shape()[1],
                 "[", op, "] expected gates [N, ", count, " H] and a state [N, H], got ", gates, " and ", state);
}

}  // namespace

namespace detail {

LstmCellDerivative lstm_cell_derivative(const Tensor& gates, const Tensor& c_before, const Tensor& dh,
                                        const Tensor& dc) {
  const std::int64_t size = c_before.size(1);
  const Tensor i = sigmoid(part(gates, 0, size)), f = sigmoid(part(gates, 1, size)), g = tanh(part(gates, 2, size)),
               o = sigmoid(part(gates, 3, size));
  const Tensor squashed = tanh(f * c_before + i * g);
  const Tensor total = dc + dh * o * (1 - square(squashed));
  return {cat({total * g * i * (1 - i), total * c_before * f * (1 - f), total * i * (1 - square(g)),
               dh * squashed * o * (1 - o)},
              1),
          total * f};
}

GruCellDerivative gru_cell_derivative(const Tensor& input, const Tensor& hidden, const Tensor& h_before,
                                      const Tensor& dh) {
  const std::int64_t size = h_before.size(1);
  const Tensor hidden_n = part(hidden, 2, size);
  const Tensor r = sigmoid(part(input, 0, size) + part(hidden, 0, size)),
               z = sigmoid(part(input, 1, size) + part(hidden, 1, size)), n = tanh(part(input, 2, size) + r * hidden_n);
  const Tensor dn = dh * (1 - z) * (1 - square(n));
  const Tensor dr = dn * hidden_n * r * (1 - r), dz = dh * (h_before - n) * z * (1 - z);
  return {cat({dr, dz, dn}, 1), cat({dr, dz, dn * r}, 1), dh * z};
}

}  // namespace detail

LstmState lstm_cell(const Tensor& gates, const Tensor& c_before) {
  if (detail::narrows(gates, c_before)) [[unlikely]]
    return lstm_cell(detail::narrowed(gates), detail::narrowed(c_before));
  check_gates("lstm_cell", gates, c_before, 4);
  const Tensor x = gates.contiguous(), before = c_before.contiguous();
  Tensor h = detail::fresh_like(before), c = detail::fresh_like(before), activated;
  const bool graph = detail::wants_graph({&x, &before});
  if (graph) activated = detail::fresh_like(x);
  detail::launch(x.device(), LstmCellArgs{x.in(), before.in(), activated.out(), h.out(), c.out()});
  if (!graph) return {h, c};
  auto* node = record<LstmCellNode>(h, x, before);
  node->output_count = 2;
  detail::attach(*node, c, 1);
  node->gates.save(x);
  node->activated.save(activated);
  node->c_before.save(before);
  node->c.save_output(c, 1);
  return {h, c};
}

Tensor gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& h_before) {
  if (detail::narrows(input, hidden, h_before)) [[unlikely]]
    return gru_cell(detail::narrowed(input), detail::narrowed(hidden), detail::narrowed(h_before));
  check_gates("gru_cell", input, h_before, 3);
  check_gates("gru_cell", hidden, h_before, 3);
  const Tensor x = input.contiguous(), y = hidden.contiguous(), before = h_before.contiguous();
  Tensor h = detail::fresh_like(before), activated;
  const bool graph = detail::wants_graph({&x, &y, &before});
  if (graph) activated = detail::fresh_like(x);
  detail::launch(x.device(), GruCellArgs{x.in(), y.in(), before.in(), activated.out(), h.out()});
  if (!graph) return h;
  auto* node = record<GruCellNode>(h, x, y, before);
  node->input.save(x);
  node->hidden.save(y);
  node->activated.save(activated);
  node->h_before.save(before);
  return h;
}

}  // namespace lockstep
