// Graphs of tensors: a replayed step of training gives the bits of an eager one, and inference those of a call.
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/rmsprop.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

Device device() { return support::device_at(1); }

struct Net : Module<Net> {
  Linear a{6, 16}, b{16, 3};
  Dropout dropout{0.3};
  BatchNorm2d norm{4};
  bool checkpoints = false;

  Tensor middle(const Tensor& x) const { return dropout(relu(a(x))); }
  Tensor forward(const Tensor& x) const {
    Tensor y = checkpoints ? checkpoint([net = *this](const Tensor& z) { return net.middle(z); }, x) : middle(x);
    y = norm(y.reshape({x.size(0), 4, 2, 2})).reshape({x.size(0), 16});
    const Tensor heads = y.reshape({x.size(0), 2, 2, 4});
    y = scaled_dot_product_attention(heads, heads, heads, {.dropout = dropout.is_training() ? 0.2 : 0.0})
            .reshape({x.size(0), 16});
    return b(y);
  }
  void members(Members& m) override { m("a", a), m("b", b), m("norm", norm), m("dropout", dropout); }
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const Net&)>;

struct Batch {
  Tensor x, target;
};
Batch batch(int step) {
  manual_seed(static_cast<std::uint64_t>(100 + step));
  return {randn({5, 6}), randn({5, 3})};
}

// All of it after `steps` steps, and the losses on the way.
struct Outcome {
  std::vector<float> losses;
  std::vector<std::vector<float>> tensors;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome train(const MakeOptimizer& make, bool captured, bool checkpoints, int steps = 10) {
  manual_seed(3);
  const Stream stream(device());
  const StreamScope scope(stream);
  Net net;
  net.checkpoints = checkpoints;
  net.to(device());
  const std::unique_ptr<Optimizer> optimizer = make(net);
  const Tensor x = zeros({5, 6}, {.device = device()}), target = zeros({5, 3}, {.device = device()});
  Tensor loss;
  const auto step = [&] {
    optimizer->zero_grad();
    loss = mse_loss(net(x), target);
    loss.backward();
    (void)clip_grad_norm(net.parameters(), 0.5);
    optimizer->step();
  };
  Graph graph;
  Outcome outcome;
  for (int i = 0; i < steps; ++i) {
    const Batch next = batch(i);
    NoGrad no_grad;
    Tensor(x).copy_(next.x);
    Tensor(target).copy_(next.target);
    if (i == 4) optimizer->set_lr(optimizer->lr() * 0.5);
    if (i == 0) manual_seed(77);  // else the thread's numbers go on from the batch's
    const GradMode grad(true);
    if (i == 1 && captured) graph = capture(stream, step);
    if (graph)
      graph.replay(stream);
    else
      step();
    outcome.losses.push_back(loss.item<float>());
  }
  for (const NamedTensor& entry : optimizer->state_dict())
    outcome.tensors.push_back(entry.tensor.to(DType::f32).to_vector<float>());
  for (const Parameter& parameter : net.parameters()) outcome.tensors.push_back(parameter.tensor().to_vector<float>());
  for (const Parameter& buffer : net.buffers())
    outcome.tensors.push_back(buffer.tensor().to(DType::f32).to_vector<float>());
  outcome.tensors.push_back(rand({4}).to_vector<float>());  // where the thread's numbers are
  return outcome;
}

std::string broken_rules() {
  std::string text;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) text += to_string(failure) + '\n';
  return text;
}

}  // namespace

TEST_CASE("a replayed step of training gives the bits of an eager one") {
  const MakeOptimizer all[] = {
      [](const Net& net) { return std::make_unique<Adam>(net.parameters(), AdamOptions{.lr = 1e-2}); },
      [](const Net& net) {
        return std::make_unique<AdamW>(net.parameters(), AdamWOptions{.lr = 1e-2, .amsgrad = true});
      },
      [](const Net& net) { return std::make_unique<SGD>(net.parameters(), SgdOptions{.lr = 0.1}); },
      [](const Net& net) {
        return std::make_unique<SGD>(net.parameters(), SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-2});
      },
      [](const Net& net) {
        return std::make_unique<RMSprop>(net.parameters(), RMSpropOptions{.lr = 1e-2, .momentum = 0.5});
      },
  };
  for (const MakeOptimizer& make : all) {
    const Outcome eager = train(make, false, false), replayed = train(make, true, false);
    INFO(make(Net())->name());
    CHECK(eager.losses == replayed.losses);
    CHECK(eager.tensors == replayed.tensors);
    CHECK(eager.losses[3] != eager.losses[2]);
  }
  CHECK(train(all[0], false, true, 6) == train(all[0], true, true, 6));
  CHECK(broken_rules() == "");
}

TEST_CASE("a mask of dropout is another one at each replay, and depends on the seed alone") {
  const Stream stream(device());
  const StreamScope scope(stream);
  const Tensor x = ones({64}, {.device = device()});
  manual_seed(5);
  const Tensor first = dropout(x, 0.5), second = dropout(x, 0.5), third = dropout(x, 0.5), fourth = dropout(x, 0.5);
  manual_seed(5);
  auto [graph, masks] = capture(stream, [&] {
    const Tensor one = dropout(x, 0.5);
    return std::pair(one, dropout(x, 0.5));
  });
  for (int round = 0; round < 2; ++round) {
    graph.replay();
    CHECK(masks.first.to_vector<float>() == first.to_vector<float>());
    CHECK(masks.second.to_vector<float>() == second.to_vector<float>());
    graph.replay();
    CHECK(masks.first.to_vector<float>() == third.to_vector<float>());
    CHECK(masks.second.to_vector<float>() == fourth.to_vector<float>());
    manual_seed(5);
  }
  CHECK(first.to_vector<float>() != third.to_vector<float>());
}

TEST_CASE("replays that wait for each other have their own numbers") {
  const Stream stream(device());
  const StreamScope scope(stream);
  const Tensor x = ones({64}, {.device = device()});
  manual_seed(5);
  const Tensor first = dropout(x, 0.5), second = dropout(x, 0.5);
  const Tensor expected = first + 2 * second;
  Tensor y = zeros({64}, {.device = device()}), factor = ones({}, {.device = device()});
  Graph graph = capture(stream, [&] {
    y.add_(factor * dropout(x, 0.5));
    factor.add_(1);
  });
  manual_seed(5);
  std::promise<void> gate;
  stream.enqueue([opened = gate.get_future().share()] { opened.wait(); });
  graph.replay();
  graph.replay();
  gate.set_value();
  CHECK(y.to_vector<float>() == expected.to_vector<float>());
}

TEST_CASE("numbers for other devices are drawn once, and the thread's are left as they were") {
  const Stream stream(device());
  const StreamScope scope(stream);
  manual_seed(6);
  std::vector<float> drawn;
  auto [graph, y] = capture(stream, [&] {
    const Tensor made = rand({3}, {.device = device()});
    drawn = rand({3}).to_vector<float>();
    return made;
  });
  CHECK(thread_context().random_counter == 0);
  graph.replay();
  CHECK(thread_context().random_counter == 2);
  manual_seed(6);
  CHECK(y.to_vector<float>() == rand({3}).to_vector<float>());
  CHECK(drawn == rand({3}).to_vector<float>());
}

TEST_CASE("a backward is captured on its stream, wherever its leaves were made") {
  Linear net(4, 2);
  net.to(device());
  const Tensor x = ones({3, 4}, {.device = device()});
  net(x).sum().backward();
  const std::vector<float> expected = net.parameters()[0].grad().to_vector<float>();
  const Stream stream(device());
  stream.wait_for(default_stream(device()));
  const StreamScope scope(stream);
  Graph graph = capture(stream, [&] {
    for (const Parameter& parameter : net.parameters()) parameter.zero_grad();
    net(x).sum().backward();
  });
  graph.replay();
  CHECK(net.parameters()[0].grad().to_vector<float>() == expected);
  CHECK(broken_rules() == "");
  synchronize(device());
}

TEST_CASE("inference of a small model is one graph, with the bits of a call") {
  manual_seed(1);
  const Stream stream(device());
  const StreamScope scope(stream);
  Net net;
  net.to(device());
  net.eval();
  const InferenceMode inference;
  Tensor x = zeros({5, 6}, {.device = device()});
  auto [graph, y] = capture(stream, [&] { return net(x); });
  for (int i = 0; i < 3; ++i) {
    const Tensor next = batch(i).x;
    x.copy_(next);
    graph.replay();
    const std::vector<float> replayed = y.to_vector<float>();
    CHECK(replayed == net(next.to(device())).to_vector<float>());
  }
  CHECK(broken_rules() == "");
}

TEST_CASE("a graph keeps the memory of what it uses: the module may go before it") {
  const Stream stream(device());
  const StreamScope scope(stream);
  auto net = std::make_unique<Linear>(4, 4);
  net->to(device());
  auto x = std::make_unique<Tensor>(ones({2, 4}, {.device = device()}));
  const std::vector<float> expected = (*net)(*x).to_vector<float>();
  auto [graph, y] = capture(stream, [&] { return (*net)(*x); });
  net.reset();
  x.reset();
  std::vector<Tensor> others;
  for (int i = 0; i < 20; ++i) others.push_back(full({4, 4}, 9, {.device = device()}));
  empty_cache(device());
  graph.replay();
  CHECK(y.to_vector<float>() == expected);
  CHECK(broken_rules() == "");
}

TEST_CASE("a replay counts as a write to the tensors that it writes") {
  const Stream stream(device());
  const StreamScope scope(stream);
  Tensor x = ones({3}, {.device = device()}), read = ones({3}, {.device = device()});
  Graph graph = capture(stream, [&] { x.add_(read); });
  const std::uint64_t written = x.version(), kept = read.version();
  graph.replay();
  CHECK(x.version() > written);
  CHECK(read.version() == kept);
  Tensor w = ones({3}, {.device = device()});
  w.set_requires_grad();
  const Tensor product = (w * x).sum();
  graph.replay();
  CHECK_THROWS_AS(product.backward(), Error);
}

TEST_CASE("what a capture cannot record of tensors throws, and training goes on") {
  const Stream stream(device());
  const StreamScope scope(stream);
  Linear net(4, 2);
  net.to(device());
  const Tensor x = ones({3, 4}, {.device = device()});
  struct Wrong {
    const char* message;
    std::function<void()> f;
  };
  const Wrong all[] = {
      {"[copy] expected what a capture can record, got one into host memory",
       [&] { (void)net(x).sum().item<float>(); }},
      {"[copy] expected what a capture can record, got one into host memory", [&] { (void)net(x).to(Device::cpu()); }},
      {"[copy] expected what a capture can record, got one from host memory that is not pinned",
       [&] { (void)net(rand({4}).to(device())); }},
      {"a graph is of one device", [&] { (void)net(x).to(support::device_at(2)); }},
      {"[manual_seed] expected what a capture can record, got a seed", [] { manual_seed(1); }},
      {"got work on a stream of", [&] { (void)ones({3}, {.device = support::device_at(2)}); }},
  };
  for (const Wrong& wrong : all) {
    INFO(wrong.message);
    CHECK_THROWS_WITH(capture(stream, wrong.f), Contains(wrong.message));
    net(x).sum().backward();
    CHECK(net.parameters()[0].grad().to_vector<float>().size() == 8);
  }
  CHECK(broken_rules() == "");
}

TEST_CASE("an optimizer's first step is not captured, and its steps do not outlive it") {
  const Stream stream(device());
  const StreamScope scope(stream);
  Linear net(4, 2);
  net.to(device());
  const Tensor x = ones({3, 4}, {.device = device()});
  const auto step = [&](Optimizer& optimizer) {
    optimizer.zero_grad();
    net(x).sum().backward();
    optimizer.step();
  };
  Adam adam(net.parameters());
  SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  RMSprop rmsprop(net.parameters());
  for (Optimizer* optimizer : std::initializer_list<Optimizer*>{&adam, &sgd, &rmsprop}) {
    INFO(optimizer->name());
    CHECK_THROWS_WITH(capture(stream, [&] { step(*optimizer); }),
                      Contains("expected in a capture a parameter that has made a step, got parameter 'weight'"));
    step(*optimizer);
    CHECK_NOTHROW(capture(stream, [&] { step(*optimizer); }));
  }
  const auto steps_of = [](const Optimizer& optimizer) {
    for (const NamedTensor& entry : optimizer.state_dict())
      if (entry.name == "state.0.step") return entry.tensor.item<std::int64_t>();
    return std::int64_t{0};
  };
  auto moved = std::make_unique<Adam>(std::move(adam));
  CHECK(steps_of(*moved) == 1);
  Graph graph = capture(stream, [&] { step(*moved); });
  CHECK(steps_of(*moved) == 1);
  auto again = std::make_unique<Adam>(std::move(*moved));
  moved.reset();
  graph.replay();
  graph.replay();
  CHECK(steps_of(*again) == 3);
  again.reset();
  CHECK_THROWS_WITH(graph.replay(), Contains("[replay] expected the optimizer whose step is in the graph"));
  CHECK(broken_rules() == "");
}
