// Recurrent layers over sequences of one length, which are one node of the graph, against the same layers a step at a
// time.
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/gradcheck.h"

using namespace lockstep;
using support::difference;
using support::gradcheck;
using support::random_leaf;

namespace {

struct Result {
  Tensor output, h, c;
};

// One layer in one direction. x [T, B, I].
Result by_steps(const std::vector<Tensor>& p, bool biased, bool gru, const Tensor& x, Tensor h, Tensor c,
                bool reverse) {
  const std::int64_t times = x.size(0);
  const Tensor bias_ih = biased ? p[2] : Tensor(), bias_hh = biased ? p[3] : Tensor();
  std::vector<Tensor> outputs(static_cast<std::size_t>(times));
  for (std::int64_t step = 0; step < times; ++step) {
    const std::int64_t t = reverse ? times - 1 - step : step;
    const Tensor input = linear(x[t], p[0], bias_ih), hidden = linear(h, p[1], bias_hh);
    if (gru) {
      h = gru_cell(input, hidden, h);
    } else {
      const LstmState next = lstm_cell(input + hidden, c);
      h = next.h, c = next.c;
    }
    outputs[static_cast<std::size_t>(t)] = h;
  }
  return {stack(outputs), h, c};
}

std::vector<Tensor> tensors_of(const ModuleBase& module) {
  std::vector<Tensor> tensors;
  for (const Parameter& p : module.parameters()) tensors.push_back(p.tensor());
  return tensors;
}

Result run_layer(const LSTM& layer, const Tensor& x, const Tensor& h, const Tensor& c) {
  const LstmResult r = layer(x, LstmState{h, c});
  return {r.output, r.h, r.c};
}
Result run_layer(const GRU& layer, const Tensor& x, const Tensor& h, const Tensor&) {
  const GruResult r = layer(x, h);
  return {r.output, r.h, {}};
}

// Both directions of one layer.
template <class Layer>
Result naive(const Layer& layer, bool gru, const Tensor& x, const Tensor& h, const Tensor& c) {
  const std::vector<Tensor> p = tensors_of(layer);
  const bool biased = layer.options().bias;
  const std::size_t each = biased ? 4 : 2;
  std::vector<Tensor> outputs, hs, cs;
  for (std::size_t d = 0; d < p.size() / each; ++d) {
    const auto which = static_cast<std::int64_t>(d);
    const Result r = by_steps({p.begin() + static_cast<std::ptrdiff_t>(each * d), p.end()}, biased, gru, x, h[which],
                              gru ? Tensor() : c[which], d == 1);
    outputs.push_back(r.output), hs.push_back(r.h), cs.push_back(r.c);
  }
  return {cat(outputs, 2), stack(hs), gru ? Tensor() : stack(cs)};
}

enum class Wanted { all, output, h, c };

Tensor loss_of(const Result& r, Wanted wanted, const Result& weights) {
  const Tensor output = (r.output * weights.output).sum(), h = (r.h * weights.h).sum();
  if (wanted == Wanted::output) return output;
  if (wanted == Wanted::h || (wanted == Wanted::c && !r.c.defined())) return h;
  const Tensor c = r.c.defined() ? (r.c * weights.c).sum() : Tensor();
  if (wanted == Wanted::c) return c;
  return c.defined() ? output + h + c : output + h;
}

struct Size {
  std::int64_t times, batch, inputs, hidden;
};

template <class Layer>
void compare(const Size& s, DType dtype, const RnnOptions& options, Wanted wanted) {
  const DefaultDType as_default(dtype);
  constexpr bool kGru = std::is_same_v<Layer, GRU>;
  INFO((kGru ? "GRU" : "LSTM") << " T " << s.times << " B " << s.batch << " I " << s.inputs << " H " << s.hidden << " "
                               << to_string(dtype) << " bias " << options.bias << " both directions "
                               << options.bidirectional << " wanted " << static_cast<int>(wanted));
  manual_seed(3);
  const Layer layer(s.inputs, s.hidden, options);
  const std::int64_t directions = options.bidirectional ? 2 : 1;
  Tensor x = randn({s.times, s.batch, s.inputs}), h = randn({directions, s.batch, s.hidden}),
         c = randn({directions, s.batch, s.hidden});
  for (Tensor* leaf : {&x, &h, &c}) leaf->set_requires_grad();
  const Result weights{randn({s.times, s.batch, directions * s.hidden}), randn({directions, s.batch, s.hidden}),
                       randn({directions, s.batch, s.hidden})};
  const Result got = run_layer(layer, x, h, c), want = naive(layer, kGru, x, h, c);
  const double tolerance = dtype == DType::f32 ? 2e-5 : 1e-12;
  CHECK(difference(got.output, want.output) < tolerance);
  CHECK(difference(got.h, want.h) < tolerance);
  if (!kGru) CHECK(difference(got.c, want.c) < tolerance);
  {
    const NoGrad without_graph;
    CHECK(difference(run_layer(layer, x, h, c).output, got.output.detach()) == 0);
  }
  std::vector<Tensor> leaves = tensors_of(layer);
  leaves.insert(leaves.end(), {x, h});
  if (!kGru) leaves.push_back(c);
  const std::vector<Tensor> have = grad(loss_of(got, wanted, weights), leaves),
                            same = grad(loss_of(run_layer(layer, x, h, c), wanted, weights), leaves),
                            right = grad(loss_of(want, wanted, weights), leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    INFO("gradient " << i);
    const double scale = 1 + max(abs(right[i].detach())).item<double>();
    CHECK(difference(have[i], right[i]) < 10 * tolerance * scale);
    CHECK(difference(have[i], same[i]) == 0);
  }
}

}  // namespace

TEST_CASE("a recurrent layer over sequences of one length computes what its steps do") {
  const Size sizes[] = {{1, 1, 1, 1},  {2, 1, 3, 7},   {5, 3, 2, 33}, {6, 1, 5, 16},
                        {4, 5, 3, 32}, {7, 13, 4, 48}, {3, 2, 2, 16}, {5, 2, 17, 80}};
  for (const Size& size : sizes)
    for (const DType dtype : {DType::f32, DType::f64})
      for (const bool bias : {true, false})
        for (const bool bidirectional : {false, true}) {
          const RnnOptions options{.bias = bias, .bidirectional = bidirectional};
          compare<LSTM>(size, dtype, options, Wanted::all);
          compare<GRU>(size, dtype, options, Wanted::all);
        }
}

TEST_CASE("gradients of a recurrent layer come from whichever of its results is used") {
  for (const Wanted wanted : {Wanted::output, Wanted::h, Wanted::c})
    for (const bool bidirectional : {false, true}) {
      compare<LSTM>({5, 3, 2, 16}, DType::f32, {.bidirectional = bidirectional}, wanted);
      compare<GRU>({5, 3, 2, 16}, DType::f32, {.bidirectional = bidirectional}, wanted);
    }
}

TEST_CASE("gradients of a recurrent layer are made for what wants them alone") {
  const LSTM lstm(2, 16);
  const GRU gru(2, 16);
  const Tensor x = random_leaf({5, 3, 2}, 1, -1, 1).to(DType::f32).detach();
  const auto check = [&](const ModuleBase& module, const auto& loss) {
    const std::vector<Tensor> all = tensors_of(module), want = grad(loss(), all);
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(difference(grad(loss(), {all[i]})[0], want[i]) == 0);
  };
  check(lstm, [&] { return lstm(x).output.sum() + lstm(x).c.sum(); });
  check(gru, [&] { return gru(x).output.sum(); });
}

TEST_CASE("second derivatives of recurrent layers, of each of their results") {
  const DefaultDType f64(DType::f64);
  const RnnOptions options{.bidirectional = true};
  const LSTM lstm(2, 2, options);
  const GRU gru(2, 2, options);
  const Tensor x = random_leaf({3, 2, 2}, 1, -1, 1), h = random_leaf({2, 2, 2}, 2, -1, 1),
               c = random_leaf({2, 2, 2}, 3, -1, 1);
  for (const Wanted wanted : {Wanted::output, Wanted::h, Wanted::c, Wanted::all}) {
    const auto first = [&](const Tensor& loss, const std::vector<Tensor>& of) {
      Tensor sum;
      for (const Tensor& g : grad(loss, of, {.create_graph = true})) {
        const Tensor part = (g * g).sum();
        sum = sum.defined() ? sum + part : part;
      }
      return sum;
    };
    const Result weights{random_leaf({3, 2, 4}, 4, -1, 1).detach(), random_leaf({2, 2, 2}, 5, -1, 1).detach(),
                         random_leaf({2, 2, 2}, 6, -1, 1).detach()};
    const auto check = [&](const auto& layer, bool is_gru) {
      std::vector<Tensor> of = tensors_of(layer);
      of.insert(of.end(), {x, h});
      if (!is_gru) of.push_back(c);
      const std::vector<Tensor> have = grad(first(loss_of(run_layer(layer, x, h, c), wanted, weights), of), of),
                                want = grad(first(loss_of(naive(layer, is_gru, x, h, c), wanted, weights), of), of);
      for (std::size_t i = 0; i < of.size(); ++i) {
        INFO((is_gru ? "GRU " : "LSTM ") << i << " wanted " << static_cast<int>(wanted));
        CHECK(difference(have[i], want[i]) < 1e-12);
      }
    };
    check(lstm, false);
    check(gru, true);
  }
}

TEST_CASE("what a recurrent layer saved may not be changed before the backward") {
  const LSTM lstm(2, 16);
  const Tensor x = random_leaf({5, 3, 2}, 1, -1, 1).to(DType::f32).detach();
  Tensor state = zeros({1, 3, 16}, {.dtype = DType::f32});
  const Tensor loss = lstm(x, LstmState{state, state}).output.sum();
  lstm.parameters()[1].tensor().detach().mul_(2.0);
  CHECK_THROWS(loss.backward());
}

TEST_CASE("a recurrent layer trains alike a step at a time and at once") {
  manual_seed(5);
  const LSTM at_once(3, 32);
  const LSTM stepwise = deep_copy(at_once);
  SGD one(at_once.parameters(), {.lr = 0.1}), other(stepwise.parameters(), {.lr = 0.1});
  const Tensor x = randn({6, 4, 3}), zero = zeros({1, 4, 32}), target = randn({6, 4, 32});
  for (int i = 0; i < 5; ++i) {
    one.zero_grad(), other.zero_grad();
    const Tensor a = square(at_once(x).output - target).mean();
    const Tensor b = square(naive(stepwise, false, x, zero, zero).output - target).mean();
    CHECK(difference(a, b) < 1e-5);
    a.backward(), b.backward();
    one.step(), other.step();
  }
  const std::vector<Tensor> have = tensors_of(at_once), want = tensors_of(stepwise);
  for (std::size_t i = 0; i < have.size(); ++i) CHECK(difference(have[i], want[i]) < 1e-5);
}

TEST_CASE("recurrent weights of another dtype than the input are refused") {
  const Tensor x = ones({3, 2, 16});
  const auto refuses = [&](const auto& layer,
                           std::size_t count) {  // the first of weight_ih, weight_hh, bias_ih, bias_hh
    const std::vector<Parameter> parameters = layer.parameters();
    for (const Parameter& parameter : std::span(parameters).first(count))
      for (const DType other : {DType::bf16, DType::f64}) {
        const SubstituteScope scope(std::vector{parameter}, std::vector{parameter.tensor().to(other)});
        CHECK_THROWS_AS(layer(x), InvalidArgument);
      }
    CHECK_NOTHROW(layer(x));
  };
  refuses(LSTM(16, 64), 2);  // its biases are added first, to the wider dtype
  refuses(GRU(16, 64), 4);
}

TEST_CASE("without a graph the last states of a layer keep nothing of the others") {
  const Device device = Device::cpu();
  const auto peak_of = [&](std::int64_t layers, auto layer_of) {
    const auto layer = layer_of(layers);
    const Tensor x = ones({64, 4, 16});
    const NoGrad without_graph;
    layer(x);
    reset_peak(device);
    const std::size_t before = memory_stats(device).in_use_bytes;
    layer(x);
    return static_cast<std::int64_t>(memory_stats(device).peak_in_use_bytes - before);
  };
  const std::int64_t all_times = 64 * 4 * 16 * 4;  // bytes of the states of a layer
  const auto lstm = [](std::int64_t layers) { return LSTM(16, 16, {.layers = layers}); };
  const auto gru = [](std::int64_t layers) { return GRU(16, 16, {.layers = layers}); };
  CHECK(peak_of(4, lstm) > all_times);
  CHECK(peak_of(12, lstm) < peak_of(4, lstm) + all_times);
  CHECK(peak_of(12, gru) < peak_of(4, gru) + all_times);
}
