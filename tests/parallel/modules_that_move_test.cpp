// Modules that are moved, converted, wrapped anew or dropped while a graph of theirs is still to run: the gradients are
// whole, and where the parameters are.
#include <memory>
#include <optional>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

using Wrapped = DataParallel<Mlp>;

struct Expected {
  std::vector<Doubles> once;
  Tensor x = noise({13, 3}, 5), c = noise({13, 2}, 6);
  Expected() {
    Mlp module;
    (module(x) * c).sum().backward();
    for (const Parameter& parameter : module.parameters()) once.push_back(values(parameter.grad()));
  }
};
const Expected& expected() {
  static const Expected& made = *new Expected;
  return made;
}

Tensor loss_of(const Wrapped& net) { return (net(expected().x) * expected().c.to(net.output_device())).sum(); }

// Whether the gradients are `times` those of one forward, within `tolerance`, and where the parameters are.
bool whole(const std::vector<Parameter>& parameters, double times = 1, double tolerance = 1e-10) {
  bool right = true;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Tensor grad = parameters[p].grad();
    if (!grad.defined() || grad.device() != parameters[p].device() || grad.dtype() != parameters[p].dtype())
      return false;
    const Doubles got = values(grad);
    for (std::size_t i = 0; i < got.size(); ++i)
      right = right && std::abs(got[i] - times * expected().once[p][i]) < tolerance;
  }
  return right;
}

struct Change {
  const char* name;
  std::function<void(Mlp& module, Device home, Device other)> make;
  double tolerance = 1e-10;
};
const std::vector<Change>& changes() {
  static const auto& made = *new std::vector<Change>{
      {"moved", [](Mlp& m, Device, Device other) { m.to(other); }},
      {"moved to cpu", [](Mlp& m, Device, Device) { m.to(Device::cpu()); }},
      {"moved there and back",
       [](Mlp& m, Device home, Device other) {
         m.to(other);
         m.to(home);
       }},
      {"converted", [](Mlp& m, Device, Device) { m.to(DType::f32); }, 1e-5},
      {"converted there and back",
       [](Mlp& m, Device, Device) {
         m.to(DType::f32);
         m.to(DType::f64);
       },
       1e-5},
      {"moved and converted",
       [](Mlp& m, Device, Device other) {
         m.to(DType::f32);
         m.to(other);
       },
       1e-5},
      {"wrapped anew elsewhere",
       [](Mlp& m, Device home, Device other) {
         const auto again = DataParallel(m, {.devices = {other, home}});
         NoGrad no_grad;
         again(expected().x);
       }},
      {"replicated in another order",
       [](Mlp& m, Device home, Device other) {
         replicate(m, {home, support::device_at(7), other});
       }},
      {"copied deeply", [](Mlp& m, Device, Device) { deep_copy(m).to(Device::cpu()); }},
      {"frozen and thawed",
       [](Mlp& m, Device, Device) {
         m.set_requires_grad(false);
         m.set_requires_grad(true);
       }},
  };
  return made;
}

}  // namespace

TEST_CASE("a module that is moved between forward and backward gets whole gradients where it is") {
  support::needs_devices(5);
  for (const Change& change : changes()) {
    for (const auto& devices : {devices_at({0, 1, 2}), devices_at({2, 0, 1, 4, 3})}) {
      INFO(change.name << ", " << devices.size() << " devices");
      Mlp module;
      const Wrapped net(module, {.devices = devices});
      const Tensor loss = loss_of(net);
      change.make(module, devices[0], devices[2]);
      loss.backward();
      CHECK(whole(module.parameters(), 1, change.tolerance));
      // And it goes on: in the same gradients, through slots of its own again.
      if (module.first.weight.dtype() != DType::f64) continue;
      module.to(devices[0]);
      CHECK(whole(module.parameters(), 1, change.tolerance));
      loss_of(net).backward();
      CHECK(whole(module.parameters(), 2, change.tolerance));
    }
  }
}

TEST_CASE("one backward through graphs from before and after a move") {
  for (const Change& change : changes()) {
    INFO(change.name);
    Mlp module;
    const auto devices = first_devices(3);
    const Wrapped net(module, {.devices = devices});
    const Tensor before = loss_of(net);
    change.make(module, devices[0], devices[2]);
    if (module.first.weight.dtype() != DType::f64) continue;
    module.to(devices[0]);
    (before + loss_of(net)).backward();
    CHECK(whole(module.parameters(), 2, change.tolerance));
  }
}

TEST_CASE("a module that is moved between forward and backward: grad, create_graph and their graphs") {
  for (const Change& change : changes()) {
    if (change.tolerance > 1e-10) continue;  // the second derivative would need what the conversion has taken away
    INFO(change.name);
    Mlp module, plain;
    const Wrapped net(module, {.devices = first_devices(3)});
    const auto handles = [](const Mlp& m) {
      std::vector<Tensor> tensors;
      for (const Parameter& parameter : m.parameters()) tensors.push_back(parameter.tensor());
      return tensors;
    };
    const Tensor loss = loss_of(net), plain_loss = (plain(expected().x) * expected().c).sum();
    change.make(module, device_at(0), device_at(2));
    const auto got = grad(loss, handles(module), {.create_graph = true}),
               wanted = grad(plain_loss, handles(plain), {.create_graph = true});
    Tensor got_sum, wanted_sum;
    for (std::size_t p = 0; p < got.size(); ++p) {
      CHECK(got[p].device() == module.parameters()[p].device());
      CHECK(largest_difference(got[p], wanted[p]) < 1e-10);
      const auto add = [](Tensor& sum, const Tensor& g) { sum = sum.defined() ? sum + (g * g).sum() : (g * g).sum(); };
      add(got_sum, got[p]);
      add(wanted_sum, wanted[p]);
    }
    got_sum.backward({}, {.retain_graph = true});
    wanted_sum.backward();
    int compared = 0;
    for (std::size_t p = 0; p < got.size(); ++p) {
      if (!plain.parameters()[p].grad().defined()) continue;  // the bias of the last layer
      ++compared;
      CHECK(largest_difference(module.parameters()[p].grad(), plain.parameters()[p].grad()) < 1e-8);
    }
    CHECK(compared == 3);
    module.zero_grad();
    loss.backward({}, {.create_graph = true});
    CHECK(whole(module.parameters()));
    module.zero_grad();  // which hold the graph that holds the parameters
  }
}

TEST_CASE("after a module is gone: backward, with and without create_graph, and grad for who holds a parameter") {
  for (const int kind : {0, 1, 2}) {
    INFO("kind " << kind);
    Tensor loss;
    std::vector<Tensor> handles;
    std::optional<Parameter> kept;
    {
      auto net = std::make_unique<Wrapped>(Mlp(), DataParallelOptions{.devices = first_devices(3)});
      loss = loss_of(*net);
      for (const Parameter& parameter : net->parameters()) handles.push_back(parameter.tensor());
      if (kind == 2) kept = net->module().second.bias;
      net.reset();
    }
    const auto right = [](const Tensor& gradient, std::size_t p) {
      const Doubles got = values(gradient);
      bool same = got.size() == expected().once[p].size();
      for (std::size_t i = 0; same && i < got.size(); ++i) same = std::abs(got[i] - expected().once[p][i]) < 1e-10;
      return same;
    };
    const auto found = grad(loss, handles, {.retain_graph = true});
    for (std::size_t p = 0; p < found.size(); ++p) CHECK(right(found[p], p));
    if (kind == 1) {
      loss.backward({}, {.create_graph = true});
    } else {
      loss.backward();
    }
    for (std::size_t p = 0; p < found.size(); ++p) CHECK(right(handles[p].grad(), p));
    if (kept) CHECK(right(kept->grad(), 3));
    for (Tensor& handle : handles) handle.zero_grad();
  }
  Tensor loss;
  loss = loss_of(Wrapped(Mlp(), {.devices = first_devices(3)}));
  loss.backward();  // gradients for nobody
}

TEST_CASE("values that are loaded between forward and backward are an error, not a mixture of gradients") {
  Mlp module;
  const Mlp other = deep_copy(module);
  const Wrapped net(module, {.devices = first_devices(3)});
  const Tensor loss = loss_of(net);
  module.load_state_dict(other.state_dict());
  CHECK_THROWS_WITH(loss.backward(), Catch::Matchers::Contains("changed in place"));
  module.zero_grad();
  loss_of(net).backward();
  CHECK(whole(module.parameters()));
}

TEST_CASE("a layer that leaves its list before backward has its gradients still") {
  struct Growing : Module<Growing> {
    std::vector<Affine> layers;
    Growing() {
      layers.emplace_back(3, 3, 1);
      layers.emplace_back(3, 3, 2);
    }
    Tensor forward(Tensor x) const {
      for (const Affine& layer : layers) x = layer(x);
      return x;
    }
    void members(Members& m) override { m("layers", layers); }
  };
  Growing plain, module;
  const Tensor x = noise({7, 3}, 4);
  plain(x).sum().backward();
  auto net = DataParallel(module, {.devices = first_devices(3)});
  const Tensor loss = net(x).sum();
  const Affine last = module.layers.back();
  module.layers.pop_back();
  net.module().layers.pop_back();
  loss.backward();
  CHECK(largest_difference(last.weight.grad(), plain.layers[1].weight.grad()) < 1e-10);
  CHECK(largest_difference(module.layers[0].weight.grad(), plain.layers[0].weight.grad()) < 1e-10);
}

TEST_CASE("a module that a hook moves while its gradients are summed") {
  // In the thread of the backward, when the sum over the replicas is there.
  for (const bool after : {false, true}) {
    Mlp module;
    const Wrapped net(module, {.devices = first_devices(3)});
    const Tensor loss = loss_of(net);
    int calls = 0;
    const auto move = [&] {
      ++calls;
      CHECK(net.stats().calls == 1);  // a figure is no reason to wait either
      module.to(device_at(2));
    };
    Tensor first = module.first.weight.tensor();
    if (after)
      first.register_post_accumulate_hook(move);
    else
      first.register_hook([&](Tensor&) { move(); });
    loss.backward();
    CHECK(calls == 1);
    CHECK(whole(module.parameters()));
  }
}

TEST_CASE("rows of a weight that has moved since forward arrive as rows") {
  struct Words : Module<Words> {
    Embedding words{11, 2, {.sparse = true}};
    Tensor forward(const Tensor& ids) const { return words(ids); }
    void members(Members& m) override { m("words", words); }
  };
  const std::vector<std::int64_t> ids{1, 4, 1, 9, 0, 4, 4};
  const auto input = from_data(ids, {7});
  Words first;
  first.to(DType::f64);
  const Tensor c = noise({7, 2}, 3);
  Words plain = deep_copy(first);
  (plain(input) * c).sum().backward();
  const Doubles wanted = values(plain.words.weight.sparse_grad().to_dense());
  for (const int kind : {0, 1, 2}) {
    INFO("kind " << kind);
    Words module = deep_copy(first);
    auto net = std::make_unique<DataParallel<Words>>(module, DataParallelOptions{.devices = first_devices(3)});
    const Tensor loss = ((*net)(input)*c.to(first_devices(1)[0])).sum();
    Tensor handle = module.words.weight.tensor();
    if (kind == 0) module.to(device_at(1));
    if (kind == 1) module.to(Device::cpu());
    if (kind == 2) net.reset(), module = Words();
    loss.backward();
    REQUIRE(handle.sparse_grad().defined());
    CHECK(handle.sparse_grad().values.device() == handle.device());
    CHECK(values(handle.sparse_grad().to_dense()) == wanted);
  }
}

TEST_CASE("the gradient of a moved parameter can be clipped and stepped") {
  support::needs_devices(2);
  for (const bool wrapped : {false, true}) {
    Mlp module;
    module.to(device_at(0));
    Tensor loss;
    if (wrapped)
      loss = loss_of(Wrapped(module, {.devices = first_devices(2)}));
    else
      loss = (module(expected().x.to(device_at(0))) * expected().c.to(device_at(0))).sum();
    module.to(device_at(1));
    loss.backward();
    CHECK(whole(module.parameters()));
    clip_grad_norm(module.parameters(), 1e-3);
    SGD optimizer(module.parameters(), {.lr = 0.5});
    optimizer.step();
    CHECK(module.first.weight.device() == device_at(1));
  }
}

TEST_CASE("an uninitialised parameter remembers where its module was moved to") {
  support::needs_devices(3);
  struct Lazy : Module<Lazy> {
    Parameter ready{counting({2})}, later = Parameter::uninitialized({2}, DType::f64);
    void members(Members& m) override { m("ready", ready), m("later", later); }
  };
  Lazy module;
  module.to(device_at(1));
  Lazy copy = deep_copy(module), elsewhere = deep_copy(module);
  module.later.assign(counting({2}));
  CHECK(module.later.device() == device_at(1));
  copy.load_state_dict({{"ready", counting({2})}, {"later", counting({2})}});
  CHECK(copy.later.device() == device_at(1));
  CHECK(values(copy.later.tensor().detach()) == Doubles{1, 2});
  elsewhere.to(Device::cpu());
  elsewhere.later.assign(counting({2}, device_at(2)));
  CHECK(elsewhere.later.device() == Device::cpu());
  Lazy never;
  never.later.assign(counting({2}, device_at(2)));
  CHECK(never.later.device() == device_at(2));
}
