// Checkpointing: the same numbers as without, less memory, and errors where the second run is not like the first.
#include "lockstep/tensor/autograd/checkpoint.h"

#include <functional>
#include <tuple>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/gradcheck.h"
#include "support/tensors.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::values;

namespace {

using Doubles = std::vector<double>;

struct Counted {
  std::shared_ptr<int> calls = std::make_shared<int>(0);
  Tensor operator()(const Tensor& x) const {
    ++*calls;
    return tanh(x * x) + exp(x);
  }
};

}  // namespace

TEST_CASE("a checkpointed function gives the same, and runs again when backward needs it") {
  const Tensor x = random_leaf({3, 4}, 1);
  const Counted f;
  const Tensor want = f(x);
  const Doubles gradient = values(grad(want.sum(), {x})[0]);
  *f.calls = 0;
  const Tensor y = checkpoint(f, x);
  CHECK(*f.calls == 1);
  CHECK(values(y) == values(want));
  CHECK(values(grad(y.sum(), {x}, {.retain_graph = true})[0]) == gradient);
  CHECK(*f.calls == 2);
  CHECK(values(grad(y.sum(), {x})[0]) == gradient);
  CHECK(*f.calls == 2);  // retained
  CHECK_THROWS_WITH(y.sum().backward(), Contains("a second time"));
  {
    const NoGrad no_grad;
    checkpoint(f, x);
  }
  CHECK(*f.calls == 3);
  CHECK_THROWS_AS(checkpoint(std::function<Tensor(const Tensor&)>(), x), InvalidArgument);
}

TEST_CASE("derivatives of checkpointed functions, of any order") {
  const auto f = [](const Tensor& a, const Tensor& b) { return softmax(matmul(tanh(a), b) * a.sum(), 1); };
  const support::Function checkpointed = [&](const std::vector<Tensor>& in) { return checkpoint(f, in[0], in[1]); };
  const std::vector<Tensor> inputs{random_leaf({2, 3}, 1, -1, 1), random_leaf({3, 2}, 2, -1, 1)};
  CHECK(gradcheck(checkpointed, inputs) == "");
  CHECK(gradgradcheck(checkpointed, inputs) == "");
  const support::Function nested = [&](const std::vector<Tensor>& in) {
    return checkpoint([f, b = in[1]](const Tensor& a) { return sigmoid(checkpoint(f, square(a), b)); }, in[0]);
  };
  CHECK(gradcheck(nested, inputs) == "");
  CHECK(gradgradcheck(nested, inputs) == "");
}

TEST_CASE("what a checkpointed function reads besides its inputs gets its gradient too") {
  Linear layer(3, 3);
  const Tensor x = randn({2, 3}), extra = randn({3}).set_requires_grad();
  const auto f = [&](const Tensor& in) { return tanh(layer(tanh(layer(in)))) * extra; };
  f(x).sum().backward();
  const std::vector<float> weight = layer.weight.grad().to_vector<float>(), other = extra.grad().to_vector<float>();
  layer.zero_grad();
  extra.identity();
  Tensor(extra).zero_grad();
  checkpoint(f, x).sum().backward();  // no input wants a gradient
  CHECK(layer.weight.grad().to_vector<float>() == weight);
  CHECK(extra.grad().to_vector<float>() == other);
}

TEST_CASE("inputs and results of a checkpointed function may be of any type") {
  const std::vector<Tensor> inputs{random_leaf({2}, 1), random_leaf({2}, 2)};
  const auto f = [](const std::vector<Tensor>& in, double factor, const std::string& mode) {
    return std::tuple{exp(in[0]) * factor, mode == "both" ? square(in[1]) : in[1]};
  };
  const auto [a, b] = checkpoint(f, inputs, 2.0, std::string("both"));
  const std::vector<Tensor> got = grad((a * b).sum(), inputs);
  const auto [c, d] = f(inputs, 2.0, "both");
  const std::vector<Tensor> want = grad((c * d).sum(), inputs);
  for (std::size_t i = 0; i < 2; ++i) CHECK(values(got[i]) == values(want[i]));
}

TEST_CASE("the second run has the random numbers, modes, substitutes and autocast of the first") {
  const Tensor x = random_leaf({50}, 1);
  const auto f = [](const Tensor& in) { return dropout(exp(in), 0.5, true) * randn({50}, {.dtype = DType::f64}); };
  manual_seed(5);
  const Tensor want = f(x), next = randn({3});
  manual_seed(5);
  const Tensor y = checkpoint(f, x);
  CHECK(values(y) == values(want));
  CHECK(values(randn({3})) == values(next));
  const Doubles gradient = values(grad(want.sum(), {x})[0]);
  manual_seed(99);
  CHECK(values(grad(y.sum(), {x})[0]) == gradient);
  manual_seed(99);
  const Doubles after = values(randn({3}));
  manual_seed(99);
  {
    const Tensor again = checkpoint(f, x);
    manual_seed(99);
    again.sum().backward();
  }
  CHECK(values(randn({3})) == after);  // backward draws nothing of its own

  Sequential net(Linear(4, 4), Dropout(0.5), Linear(4, 4));
  const Tensor in = randn({3, 4}).set_requires_grad();
  const std::vector<Tensor> others{randn({4, 4}), randn({4}), randn({4, 4}), randn({4})};
  const auto run = [&](bool with_checkpoint) {
    manual_seed(1);
    Tensor out;
    {
      const TrainingScope training(true);
      const Autocast autocast(DType::bf16);
      const SubstituteScope instead = substitute(net, others);
      out = with_checkpoint ? checkpoint(net, in) : net(in);
    }
    net.eval();
    const std::vector<double> result = values(grad(out.sum(), {in})[0]);
    net.train();
    return std::pair{out.dtype(), result};
  };
  const auto plain = run(false), checkpointed = run(true);
  CHECK(plain == checkpointed);
  CHECK(plain.first == DType::bf16);
}

TEST_CASE("a checkpointed function's results in between are not kept") {
  const auto f = [](Tensor x) {
    for (int i = 0; i < 10; ++i) x = exp(x * 0.1);
    return x;
  };
  const Device device = device_at(0);
  Tensor x = randn({100000}, {.device = device});
  x.set_requires_grad();
  const auto used = [&] { return memory_stats(device).in_use_bytes; };
  const std::size_t before = used();
  const Tensor plain = f(x);
  const std::size_t with_all = used() - before;
  const Tensor lean = checkpoint(f, x);
  const std::size_t with_checkpoint = used() - before - with_all;
  CHECK(with_all > 9 * x.bytes());
  CHECK(with_checkpoint < 2 * x.bytes());
  lean.sum().backward();
  CHECK(used() - before - with_all < 3 * x.bytes());  // the result, and the gradient of x
}

TEST_CASE("checkpointing tells when the second run is not like the first") {
  const Tensor x = random_leaf({3}, 1);
  int calls = 0;
  const auto more = [&calls](const Tensor& in) { return ++calls == 1 ? exp(in) : exp(exp(in)); };
  CHECK_THROWS_WITH(checkpoint(more, x).sum().backward(),
                    Contains("[checkpoint]") && Contains("1 tensors at first and 2"));
  calls = 0;
  const auto wider = [&calls](const Tensor& in) { return ++calls == 1 ? exp(in) : exp(cat({in, in})); };
  CHECK_THROWS_WITH(checkpoint(wider, x).sum().backward(), Contains("f64[3] at first and f64[6]"));
  const auto fails = [&calls](const Tensor& in) {
    if (++calls > 1) throw std::runtime_error("not twice");
    return exp(in);
  };
  calls = 0;
  CHECK_THROWS_WITH(checkpoint(fails, x).sum().backward(), Contains("not twice"));

  const auto penalty = [](const Tensor& in) { return grad(exp(in).sum(), {in}, {.create_graph = true})[0]; };
  CHECK_THROWS_WITH(checkpoint(penalty, x), Contains("calls no backward"));

  Tensor changed = random_leaf({3}, 2).detach();
  const Tensor y = checkpoint([](const Tensor& a, const Tensor& b) { return exp(a * b); }, x, changed);
  changed.add_(1);
  CHECK_THROWS_WITH(y.sum().backward(), Contains("input 1") && Contains("changed in place"));

  Linear layer(3, 3);
  const Tensor z = checkpoint(layer, randn({2, 3}).set_requires_grad());
  layer.weight.assign(ones({3, 3}));
  CHECK_THROWS_WITH(z.sum().backward(), Contains("changed in place"));
}
