#include "phases.h"

namespace memory_drill {
namespace {

Tensor loss_of(const State& s) { return ((*s.net)(s.ids) * 0.5).sum(); }

// Phases may leave gradients behind, never a state that zero_grad() does not mend.
void forward_again(State& s) {
  s.loss = Tensor();
  s.net->zero_grad();
  s.loss = loss_of(s);
}

void append(Doubles& all, const Tensor& x) {
  const Doubles more = values(x);
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

void make(State& s) {
  s.optimizer.reset();
  s.net.reset();
  Net net = deep_copy(s.source);
  net.to(s.devices[0]);
  // Parts that were replicated by themselves keep slots, and a gate, of their own: a reader of the whole has several.
  (void)replicate(net.hidden, s.devices);
  (void)replicate(net.out, s.devices);
  s.net.emplace(net, DataParallelOptions{.devices = s.devices});
  s.optimizer.emplace(s.net->parameters(), SgdOptions{.lr = 0.125});
}

const std::vector<Phase>& phases() {
  static const auto& made = *new std::vector<Phase>{
      {"make", make, [](State&) {}},
      {"forward", [](State& s) { s.loss = loss_of(s); }, [](State&) {}},
      {"second",
       [](State& s) {
         std::vector<Tensor> handles;
         for (const Parameter& parameter : s.parameters()) handles.push_back(parameter.tensor());
         Tensor sum;
         for (const Tensor& g : grad(s.loss, handles, {.create_graph = true}))
           sum = sum.defined() ? sum + (g * g).sum() : (g * g).sum();
         sum.backward();
       },
       forward_again},
      {"backward", [](State& s) { s.loss.backward(); }, forward_again},
      {"step", [](State& s) { s.optimizer->step(); }, [](State&) {}},
      {"refresh", [](State& s) { s.refreshed = (*s.net)(s.ids).detach(); }, [](State&) {}},
      {"replica",
       [](State& s) {
         const NoGrad no_grad;
         for (const Parameter& parameter : s.parameters())
           parameter.tensor().mul_(1);  // to be refreshed; the same values
         const auto replicas = replicate(s.net->module(), s.devices);
         s.answer = replicas.back()(s.ids.to(s.devices.back()));
       },
       [](State&) {}},
      {"drop graph", [](State& s) { s.loss = Tensor(); }, forward_again},
      {"drop all",
       [](State& s) {
         s.refreshed = s.answer = Tensor();
         s.optimizer.reset();
         s.net.reset();
       },
       [](State&) {}},
  };
  return made;
}

Doubles values(const Tensor& x) { return x.to_vector<double>(); }

Doubles gradients(State& s) {
  Doubles all;
  for (const Parameter& parameter : s.parameters())
    append(all, parameter.body() == s.net->module().words.weight.body() ? parameter.sparse_grad().to_dense()
                                                                        : parameter.grad());
  return all;
}
Doubles second_gradients(State& s) {
  Doubles all;
  for (const Parameter& parameter : s.parameters())
    if (!parameter.sparse_grad().defined() && parameter.grad().defined()) append(all, parameter.grad());
  return all;
}
Doubles weights(State& s) {
  Doubles all;
  for (const Parameter& parameter : s.parameters()) append(all, parameter.tensor().detach());
  return all;
}

}  // namespace memory_drill
