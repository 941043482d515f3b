#include "lockstep/tensor/ops/recurrent.h"

#include <vector>

#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/nn_ops.h"
#include "lockstep/tensor/ops/shape_ops.h"
#include "lockstep/tensor/ops/support.h"

namespace lockstep {
namespace {

using detail::RecurrentWalk;
using detail::RecurrentWeights;

// Where the rows of a time are. `States` are a buffer of times + 1 blocks of `batch` rows: the initial state, and
// beside it those after each time, in the order of time.
class Rows {
 public:
  explicit Rows(const RecurrentWalk& walk) : walk_(walk) {}
  std::int64_t time(std::int64_t step) const { return walk_.reverse ? walk_.times - 1 - step : step; }
  Tensor of_time(const Tensor& x, std::int64_t step) const { return blocks(x, time(step), 1); }
  // After so many steps.
  Tensor state(const Tensor& states, std::int64_t steps) const {
    return blocks(states, walk_.reverse ? walk_.times - steps : steps, 1);
  }
  Tensor outputs(const Tensor& states) const { return blocks(states, walk_.reverse ? 0 : 1, walk_.times); }
  Tensor befores(const Tensor& states) const { return blocks(states, walk_.reverse ? 1 : 0, walk_.times); }
  Tensor fresh_states(const Tensor& initial) const {
    Tensor states =
        detail::fresh({(walk_.times + 1) * walk_.batch, initial.size(1)}, initial.dtype(), initial.device());
    detail::copy_elements(state(states, 0), initial);
    return states;
  }

 private:
  Tensor blocks(const Tensor& x, std::int64_t first, std::int64_t count) const {
    const std::int64_t rows = walk_.batch, columns = x.size(1);
    return detail::alias(x, {count * rows, columns}, {columns, 1}, x.storage_offset() + first * rows * columns);
  }
  RecurrentWalk walk_;
};

View stacked(const View& matrix) {
  View view = matrix;
  view.shape.insert(0, 1);
  view.strides.insert(0, 0);
  return view;
}

// out = a @ right + beta * out, with one `right` at every step.
class StepProduct {
 public:
  StepProduct(const Tensor& right, std::int64_t steps) : right_(right) {
    // Where memory is the host's, kernels would bring `right` into the order in which they read it at every step.
    constexpr std::int64_t kStrip = 16, kFewSteps = 4;
    const std::int64_t rows = right.size(0), columns = right.size(1);
    if (right.dtype() != DType::f32 || columns % kStrip != 0 || steps < kFewSteps ||
        !properties(right.device()).host_memory)
      return;
    const std::int64_t row = right.strides()[0], column = right.strides()[1];
    strips_ =
        detail::alias(right, {columns / kStrip, rows, kStrip}, {kStrip * column, row, column}, right.storage_offset())
            .contiguous();
  }

  void operator()(const Tensor& a, const Tensor& out, double beta) const {
    View left = stacked(a.view()), right, result = stacked(out.in_out().view);
    if (strips_.defined()) {  // a batch of narrow products, which lie side by side in the result
      right = strips_.view();
      left.shape[0] = result.shape[0] = right.shape[0];
      result.shape[2] = right.shape[2];
      result.strides[0] = right.shape[2];
    } else {
      right = stacked(right_.view());
    }
    detail::launch(out.device(), MatmulArgs{.a = {left}, .b = {right}, .bias = {}, .out = {result}, .beta = beta});
  }

 private:
  Tensor right_, strips_;
};

void multiply(const Tensor& a, const Tensor& b, const Tensor& out) { StepProduct(b, 1)(a, out, 0); }
Tensor matrix_product(const Tensor& a, const Tensor& b) {
  Tensor y = detail::fresh({a.size(0), b.size(1)}, a.dtype(), a.device());
  multiply(a, b, y);
  return y;
}

Tensor sum_of(const Tensor& a, const Tensor& b) { return !a.defined() ? b : !b.defined() ? a : a + b; }

// The inputs of a sequence's node: 0 x, 1 weight_ih, 2 weight_hh, 3 bias_ih, 4 bias_hh, 5 h, and for an LSTM 6 c.
template <std::size_t Inputs>
class SequenceNode : public NodeOf<Inputs> {
 public:
  void save(const Tensor& input, const RecurrentWeights& w, const Tensor& states) {
    x_.save(input);
    weight_ih_.save(w.weight_ih), weight_hh_.save(w.weight_hh);
    if (w.bias_ih.defined()) bias_ih_.save(w.bias_ih), bias_hh_.save(w.bias_hh);
    h_.save(states);
    biased_ = w.bias_ih.defined();
  }

  RecurrentWalk walk{};

 protected:
  // From what the cells' backward gave for all times: the gradients of the gates as far as they come from the input,
  // and from the state.
  void products_backward(const Tensor& dinput, const Tensor& dhidden, std::span<Tensor> grad_inputs) {
    if (this->needs(0)) grad_inputs[0] = matrix_product(dinput, weight_ih_.get(*this));
    if (this->needs(1)) grad_inputs[1] = matrix_product(dinput.t(), x_.get(*this));
    if (this->needs(2)) grad_inputs[2] = matrix_product(dhidden.t(), Rows(walk).befores(h_.get(*this)));
    if (this->needs(3)) grad_inputs[3] = dinput.sum({0});
    if (this->needs(4))
      grad_inputs[4] = this->needs(3) && dhidden.identity() == dinput.identity() ? grad_inputs[3] : dhidden.sum({0});
  }
  void products_differentiably(const Tensor& dinput, const Tensor& dhidden, const Tensor& befores,
                               std::span<Tensor> grad_inputs) {
    if (this->needs(0)) grad_inputs[0] = matmul(dinput, weight_ih_.get(*this));
    if (this->needs(1)) grad_inputs[1] = matmul(dinput.t(), x_.get(*this));
    if (this->needs(2)) grad_inputs[2] = matmul(dhidden.t(), befores);
    if (this->needs(3)) grad_inputs[3] = dinput.sum({0});
    if (this->needs(4)) grad_inputs[4] = dhidden.sum({0});
  }
  // The gradient of h after each time: at first what arrives from outside, to which the steps add.
  Tensor state_gradients(const Tensor& doutput, const Tensor& dlast) const {
    const Tensor like = h_.get(*const_cast<SequenceNode*>(this));
    const Shape shape{walk.times * walk.batch, like.size(1)};
    Tensor dh = doutput.defined() ? detail::fresh(shape, like.dtype(), like.device())
                                  : detail::fresh_zeros(shape, like.dtype(), like.device());
    if (doutput.defined()) detail::copy_elements(dh, doutput);
    if (dlast.defined()) Rows(walk).of_time(dh, walk.times - 1).add_(dlast);
    return dh;
  }
  RecurrentWeights weights() {
    RecurrentWeights w{weight_ih_.get(*this), weight_hh_.get(*this), {}, {}};
    if (biased_) w.bias_ih = bias_ih_.get(*this), w.bias_hh = bias_hh_.get(*this);
    return w;
  }
  std::vector<Tensor> by_time(const Tensor& x) const {
    return split_lengths(x, std::vector<std::int64_t>(static_cast<std::size_t>(walk.times), walk.batch));
  }
  std::size_t time(std::int64_t step) const { return static_cast<std::size_t>(Rows(walk).time(step)); }

  Saved x_{*this}, weight_ih_{*this}, weight_hh_{*this}, bias_ih_{*this}, bias_hh_{*this};
  Saved h_{*this};  // the states: before and after each time

 private:
  bool biased_ = false;
};

class LstmNode final : public SequenceNode<7> {
 public:
  const char* name() const override { return "lstm"; }

  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs, grad_inputs);
    const Rows rows(walk);
    const Tensor activated = activated_.get(*this), cs = c_.get(*this), dgates = detail::fresh_like(activated);
    const Tensor dhs = state_gradients(grad_outputs[0], grad_outputs[1]);
    const Tensor dh0 = needs(5) ? detail::fresh_like(rows.state(cs, 0)) : Tensor();
    Tensor dc = grad_outputs[2].defined() ? grad_outputs[2].contiguous() : Tensor();
    const StepProduct into_state(weight_hh_.get(*this), walk.times);
    for (std::int64_t step = walk.times; step-- > 0;) {
      const Tensor dgates_now = rows.of_time(dgates, step);
      const Tensor dbefore = step > 0 || needs(6) ? detail::fresh_like(rows.state(cs, step)) : Tensor();
      detail::launch(cs.device(), LstmCellGradArgs{rows.of_time(dhs, step).in(), dc.in(),
                                                   rows.of_time(activated, step).in(), rows.state(cs, step).in(),
                                                   rows.state(cs, step + 1).in(), dgates_now.out(), dbefore.out()});
      dc = dbefore;
      if (step > 0)
        into_state(dgates_now, rows.of_time(dhs, step - 1), 1);
      else if (dh0.defined())
        into_state(dgates_now, dh0, 0);
    }
    products_backward(dgates, dgates, grad_inputs);
    grad_inputs[5] = dh0;
    if (needs(6)) grad_inputs[6] = dc;
  }

  Saved activated_{*this}, c_{*this}, h0_{*this}, c0_{*this};

 private:
  void backward_differentiably(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) {
    const RecurrentWeights w = weights();
    const auto count = static_cast<std::size_t>(walk.times);
    const std::vector<Tensor> inputs = by_time(linear(x_.get(*this), w.weight_ih, detail::lstm_bias(w)));
    std::vector<Tensor> gates(count), befores(count), c_befores(count), dgates(count), doutputs(count);
    if (grad_outputs[0].defined()) doutputs = by_time(grad_outputs[0]);
    LstmState state{h0_.get(*this), c0_.get(*this)};
    for (std::int64_t step = 0; step < walk.times; ++step) {
      const std::size_t t = time(step);
      gates[t] = inputs[t] + linear(state.h, w.weight_hh);
      befores[t] = state.h, c_befores[t] = state.c;
      state = lstm_cell(gates[t], state.c);
    }
    const Tensor zeros = detail::fresh_zeros(state.c.shape(), state.c.dtype(), state.c.device());
    Tensor dh = grad_outputs[1], dc = grad_outputs[2].defined() ? grad_outputs[2] : zeros;
    for (std::int64_t step = walk.times; step-- > 0;) {
      const std::size_t t = time(step);
      dh = sum_of(doutputs[t], dh);
      const auto d = detail::lstm_cell_derivative(gates[t], c_befores[t], dh.defined() ? dh : zeros, dc);
      dgates[t] = d.gates, dc = d.c_before;
      dh = matmul(d.gates, w.weight_hh);
    }
    const Tensor all = cat(dgates);
    products_differentiably(all, all, cat(befores), grad_inputs);
    if (needs(5)) grad_inputs[5] = dh;
    if (needs(6)) grad_inputs[6] = dc;
  }
};

class GruNode final : public SequenceNode<6> {
 public:
  const char* name() const override { return "gru"; }

  void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
    if (GradMode::enabled()) return backward_differentiably(grad_outputs, grad_inputs);
    const Rows rows(walk);
    const Tensor activated = activated_.get(*this), hidden = hidden_.get(*this), hs = h_.get(*this);
    const Tensor dinput = detail::fresh_like(activated), dhidden = detail::fresh_like(activated);
    const Tensor dhs = state_gradients(grad_outputs[0], grad_outputs[1]);
    const Tensor dbefore = detail::fresh_like(rows.state(hs, 0));
    const StepProduct into_state(weight_hh_.get(*this), walk.times);
    for (std::int64_t step = walk.times; step-- > 0;) {
      const bool further = step > 0 || needs(5);
      const Tensor dhidden_now = rows.of_time(dhidden, step);
      detail::launch(hs.device(), GruCellGradArgs{rows.of_time(dhs, step).in(), rows.of_time(activated, step).in(),
                                                  rows.of_time(hidden, step).in(), rows.state(hs, step).in(),
                                                  rows.of_time(dinput, step).out(), dhidden_now.out(),
                                                  further ? dbefore.out() : Out()});
      if (further) into_state(dhidden_now, dbefore, 1);
      if (step > 0) rows.of_time(dhs, step - 1).add_(dbefore);
    }
    products_backward(dinput, dhidden, grad_inputs);
    if (needs(5)) grad_inputs[5] = dbefore;
  }

  Saved activated_{*this}, hidden_{*this}, h0_{*this};

 private:
  void backward_differentiably(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) {
    const RecurrentWeights w = weights();
    const auto count = static_cast<std::size_t>(walk.times);
    const std::vector<Tensor> inputs = by_time(linear(x_.get(*this), w.weight_ih, w.bias_ih));
    std::vector<Tensor> hidden(count), befores(count), dinputs(count), dhiddens(count), doutputs(count);
    if (grad_outputs[0].defined()) doutputs = by_time(grad_outputs[0]);
    Tensor h = h0_.get(*this);
    for (std::int64_t step = 0; step < walk.times; ++step) {
      const std::size_t t = time(step);
      hidden[t] = linear(h, w.weight_hh, w.bias_hh);
      befores[t] = h;
      h = gru_cell(inputs[t], hidden[t], h);
    }
    const Tensor zeros = detail::fresh_zeros(h.shape(), h.dtype(), h.device());
    Tensor dh = grad_outputs[1];
    for (std::int64_t step = walk.times; step-- > 0;) {
      const std::size_t t = time(step);
      dh = sum_of(doutputs[t], dh);
      const auto d = detail::gru_cell_derivative(inputs[t], hidden[t], befores[t], dh.defined() ? dh : zeros);
      dinputs[t] = d.input, dhiddens[t] = d.hidden;
      dh = d.h_before + matmul(d.hidden, w.weight_hh);
    }
    products_differentiably(cat(dinputs), cat(dhiddens), cat(befores), grad_inputs);
    if (needs(5)) grad_inputs[5] = dh;
  }
};

RecurrentWeights narrowed(const RecurrentWeights& w) {
  return {detail::narrowed(w.weight_ih), detail::narrowed(w.weight_hh), detail::narrowed(w.bias_ih),
          detail::narrowed(w.bias_hh)};
}

}  // namespace

namespace detail {

Tensor lstm_bias(const RecurrentWeights& w) { return w.bias_ih.defined() ? w.bias_ih + w.bias_hh : Tensor(); }

LstmState lstm_step(const Tensor& input_gates, const LstmState& state, const RecurrentWeights& w) {
  return lstm_cell(input_gates + linear(state.h, w.weight_hh), state.c);
}
Tensor gru_step(const Tensor& input_gates, const Tensor& h, const RecurrentWeights& w) {
  return gru_cell(input_gates, linear(h, w.weight_hh, w.bias_hh), h);
}

LstmOutputs lstm_sequence(const Tensor& x, const LstmState& state, const RecurrentWeights& w,
                          const RecurrentWalk& walk) {
  if (narrows(x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, state.h, state.c)) [[unlikely]]
    return lstm_sequence(narrowed(x), {narrowed(state.h), narrowed(state.c)}, lockstep::narrowed(w), walk);
  check_floating_alike("lstm", x, w.weight_ih);
  check_floating_alike("lstm", x, w.weight_hh);
  check_floating_alike("lstm", x, state.h);
  check_floating_alike("lstm", x, state.c);
  const bool graph = detail::wants_graph({&x, &w.weight_ih, &w.weight_hh, &w.bias_ih, &w.bias_hh, &state.h, &state.c});
  const Rows rows(walk);
  Tensor gates, hs, cs;
  {
    const NoGrad without_graph;
    gates = linear(x, w.weight_ih, lstm_bias(w));
    hs = rows.fresh_states(state.h), cs = rows.fresh_states(state.c);
    const StepProduct into_gates(w.weight_hh.t(), walk.times);
    for (std::int64_t step = 0; step < walk.times; ++step) {
      const Tensor now = rows.of_time(gates, step);
      into_gates(rows.state(hs, step), now, 1);
      // The activated gates take the place of the gates.
      launch(x.device(), LstmCellArgs{now.in(), rows.state(cs, step).in(), graph ? now.out() : Out(),
                                      rows.state(hs, step + 1).out(), rows.state(cs, step + 1).out()});
    }
  }
  LstmOutputs result{rows.outputs(hs), rows.state(hs, walk.times), rows.state(cs, walk.times)};
  if (!graph) return {result.output, result.h.clone(), result.c.clone()};  // which do not keep those of all times
  auto* node = record<LstmNode>(result.output, x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, state.h, state.c);
  node->output_count = 3;
  attach(*node, result.h, 1);
  attach(*node, result.c, 2);
  node->walk = walk;
  node->save(x, w, hs);
  node->activated_.save(gates);
  node->c_.save(cs);
  node->h0_.save(state.h), node->c0_.save(state.c);
  return result;
}

GruOutputs gru_sequence(const Tensor& x, const Tensor& h, const RecurrentWeights& w, const RecurrentWalk& walk) {
  if (narrows(x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, h)) [[unlikely]]
    return gru_sequence(narrowed(x), narrowed(h), lockstep::narrowed(w), walk);
  check_floating_alike("gru", x, w.weight_ih);
  check_floating_alike("gru", x, w.weight_hh);
  if (w.bias_hh.defined()) check_floating_alike("gru", x, w.bias_hh);
  check_floating_alike("gru", x, h);
  const bool graph = detail::wants_graph({&x, &w.weight_ih, &w.weight_hh, &w.bias_ih, &w.bias_hh, &h});
  const Rows rows(walk);
  Tensor input, hidden, hs;
  {
    const NoGrad without_graph;
    input = linear(x, w.weight_ih, w.bias_ih);
    hidden = fresh_like(input);
    if (w.bias_hh.defined()) copy_elements(hidden, w.bias_hh);
    hs = rows.fresh_states(h);
    const StepProduct into_hidden(w.weight_hh.t(), walk.times);
    for (std::int64_t step = 0; step < walk.times; ++step) {
      const Tensor now = rows.of_time(input, step), hidden_now = rows.of_time(hidden, step);
      into_hidden(rows.state(hs, step), hidden_now, w.bias_hh.defined() ? 1 : 0);
      launch(x.device(), GruCellArgs{now.in(), hidden_now.in(), rows.state(hs, step).in(), graph ? now.out() : Out(),
                                     rows.state(hs, step + 1).out()});
    }
  }
  GruOutputs result{rows.outputs(hs), rows.state(hs, walk.times)};
  if (!graph) return {result.output, result.h.clone()};
  auto* node = record<GruNode>(result.output, x, w.weight_ih, w.weight_hh, w.bias_ih, w.bias_hh, h);
  node->output_count = 2;
  attach(*node, result.h, 1);
  node->walk = walk;
  node->save(x, w, hs);
  node->activated_.save(input);
  node->hidden_.save(hidden);
  node->h0_.save(h);
  return result;
}

}  // namespace detail
}  // namespace lockstep
