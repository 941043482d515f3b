#include "lockstep/tensor/nn/prepare.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "lockstep/kernels/host/onednn_version.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/io/dlpack.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/devices.h"
#include "tensor/nn/prepared_net.h"

using namespace lockstep;
using namespace prepare_tests;
using Catch::Matchers::Contains;

namespace {

// What another program has of a tensor of f64, and writes by itself.
struct Release {
  void operator()(dlpack::ManagedTensorVersioned* alias) const { alias->deleter(alias); }
};
using Alias = std::unique_ptr<dlpack::ManagedTensorVersioned, Release>;

template <class T = double>
void write(dlpack::ManagedTensorVersioned* alias, T value) {
  std::int64_t count = 1;
  for (int d = 0; d < alias->tensor.rank; ++d) count *= alias->tensor.shape[d];
  std::fill_n(static_cast<T*>(alias->tensor.data), count, value);
}

struct PreparedBlock : Module<PreparedBlock> {
  Conv2d conv1{4, 4, 3, {.padding = 1, .bias = false}}, conv2{4, 4, 3, {.padding = 1}};
  BatchNorm2d bn1{4}, bn2{4};
  Tensor forward(const Tensor& x) const {
    ++calls;
    return relu(bn2(conv2(relu(bn1(conv1(x))))) + x);
  }
  void members(Members& m) override { m("conv1", conv1), m("bn1", bn1), m("conv2", conv2), m("bn2", bn2); }
  mutable std::atomic<int> calls{0};
  PreparedBlock() = default;
  PreparedBlock(const PreparedBlock& other)
      : Module<PreparedBlock>(other), conv1(other.conv1), conv2(other.conv2), bn1(other.bn1), bn2(other.bn2) {}
};

// One convolution and two norms, used as `way` says.
struct OddNorm : Module<OddNorm> {
  Conv2d conv{3, 3, 3, {.padding = 1}};
  BatchNorm2d a{3}, b{3};
  std::function<Tensor(const OddNorm&, const Tensor&)> way;
  Tensor forward(const Tensor& x) const { return way(*this, x); }
  void members(Members& m) override { m("conv", conv), m("a", a), m("b", b); }
};

}  // namespace

TEST_CASE("a prepared chain gives what its evaluation gives, whatever mode it is in, and trains nothing") {
  auto net = used(Sequential(Conv2d(3, 8, 3, {.stride = 2, .groups = 1}), BatchNorm2d(8), ReLU(),
                             Conv2d(8, 8, 3, {.groups = 4, .bias = false}), BatchNorm2d(8, {.affine = false}),
                             Flatten(), Linear(8 * 5 * 5, 6), BatchNorm1d(6), Linear(6, 2)));
  const auto fast = prepare(net);
  const Tensor x = input({3, 3, 15, 15}), expected = evaluated(net, x);
  const auto mean = net.named_buffers()[0].parameter.tensor().to_vector<double>();
  const Tensor y = fast(x);
  CHECK_FALSE(y.requires_grad());
  CHECK(net.is_training());
  CHECK(net.named_buffers()[0].parameter.tensor().to_vector<double>() == mean);
  CHECK(relative_difference(y, expected) < 1e-12);
  CHECK(differs(y, expected));
  CHECK(fast(x).to_vector<double>() == y.to_vector<double>());
  CHECK(relative_difference(fast(x.narrow(0, 0, 1)), expected.narrow(0, 0, 1)) < 1e-12);  // another batch
}

TEST_CASE("a prepared chain in f32 is within 1e-5 of its evaluation") {
  const auto net =
      used(Sequential(Conv2d(3, 16, 3), BatchNorm2d(16), ReLU(), Conv2d(16, 16, 3), BatchNorm2d(16)), DType::f32);
  const Tensor x = input({2, 3, 12, 12}, DType::f32), expected = evaluated(net, x);
  CHECK(relative_difference(prepare(net)(x), expected) < 1e-5);
}

TEST_CASE("a prepared module without norms gives the same bits from its first call on") {
  const auto bits_of = [](const auto& net, const Tensor& x) {
    const auto fast = prepare(net);
    const std::vector<float> first = fast(x).template to_vector<float>();
    for (int call = 0; call < 3; ++call) CHECK(fast(x).template to_vector<float>() == first);
    return first;
  };
  const Device device = support::device_at(0);
  const auto on_device = [&](auto net) {
    net.to(device);
    return net;
  };
  const auto images = [&](const Shape& shape) { return randn(shape).to(device); };
  const auto chain = on_device(Sequential(Linear(300, 200, {.activation = Activation::relu}), Linear(200, 10)));
  const auto layer = on_device(Linear(784, 33));
  const auto image_layer = on_device(Conv2d(20, 40, 3));
  for (const std::int64_t batch : {1, 5, 64, 256}) {
    CAPTURE(batch);
    (void)bits_of(chain, images({batch, 300}));
    (void)bits_of(layer, images({batch, 784}));
    if (batch <= 5) (void)bits_of(image_layer, images({batch, 20, 12, 12}));
  }
}

TEST_CASE("a prepared module that makes a layer anew in every call is called twice by each, not for ever") {
  struct Anew : Module<Anew> {
    Tensor forward(const Tensor& x) const {
      ++calls;
      made.push_back(std::make_shared<Conv2d>(3, 4, 3));  // each at another place
      return relu((*made.back())(x));
    }
    mutable std::vector<std::shared_ptr<Conv2d>> made;
    mutable int calls = 0;
  };
  const auto fast = prepare(Anew());
  for (int call = 1; call <= 3; ++call) {
    (void)fast(randn({2, 3, 6, 6}));
    CHECK(fast.module().calls == 2 * call);
  }
}

TEST_CASE("a prepared module of layers that compute alone, and in no other way later, is called once") {
  struct Counted : Module<Counted> {
    Linear layer{4, 3};
    Tensor forward(const Tensor& x) const {
      ++calls;
      return layer(x);
    }
    void members(Members& m) override { m("layer", layer); }
    mutable int calls = 0;
  };
  Counted net;
  net.to(DType::f64);  // whose weights are not packed
  const auto fast = prepare(net);
  for (int call = 1; call <= 3; ++call) {
    (void)fast(randn({2, 4}, {.dtype = DType::f64}));
    CHECK(fast.module().calls == call);
  }
}

TEST_CASE(
    "a layer whose weights change before its norm or relu has the result computes with those it was called with") {
  struct Changing : Module<Changing> {
    Conv2d conv{3, 4, 3};
    Linear linear{5, 4};
    BatchNorm2d a{4}, b{4};
    Parameter first{randn({4, 3, 3, 3})}, second{randn({4, 3, 3, 3})};
    int way = 0;
    void use(const Parameter& weight) const { conv.weight.tensor().copy_(weight.tensor()); }
    Tensor forward(const Tensor& x) const {
      use(first);
      const Tensor one = conv(x);
      use(second);
      const Tensor two = conv(x);
      linear.bias.tensor().fill_(1);
      const Tensor three = linear(x.select(3, 0).select(2, 0).narrow(1, 0, 1).expand({2, 5}));
      linear.bias.tensor().fill_(100);
      if (way == 0) return a(one) + b(two) + sum(relu(three));
      if (way == 1) return relu(a(one)) + relu(b(two));
      return relu(one) - relu(two);
    }
    void members(Members& m) override {
      m("conv", conv), m("linear", linear), m("a", a), m("b", b), m("first", first), m("second", second);
    }
  };
  const NoGrad no_grad;
  for (int way = 0; way < 3; ++way) {
    CAPTURE(way);
    manual_seed(4);
    Changing net;
    net.way = way;
    net.eval();
    const Tensor x = randn({2, 3, 6, 6}), expected = net(x);
    const auto fast = prepare(net);
    for (int call = 0; call < 3; ++call) CHECK(relative_difference(fast(x), expected) < 1e-5);
  }
}

TEST_CASE("layers that are gone, or others by then, are computed as they were when they were called") {
  struct ByValue : Module<ByValue> {
    std::vector<Conv2d> convs;
    ByValue() {
      for (const int reach : {1, 2, 3}) convs.emplace_back(4, 4, 3, Conv2dOptions{.padding = reach, .dilation = reach});
    }
    Tensor forward(const Tensor& x) const {
      Tensor h = x;
      for (auto conv : convs) h = conv(relu(h));
      return relu(h);
    }
    void members(Members& m) override { m("convs", convs); }
  };
  manual_seed(1);
  const NoGrad no_grad;
  const ByValue net;
  const Tensor x = randn({2, 4, 9, 9}), expected = net(x);
  const auto fast = prepare(net);
  for (int call = 0; call < 4; ++call) CHECK(relative_difference(fast(x), expected) < 1e-5);
}

TEST_CASE("a prepared module sees that set_data has given a parameter other strides over the same storage") {
  const NoGrad no_grad;
  const auto same = [](const auto& net, const auto& fast, const Tensor& x) {
    const Tensor expected = net(x);
    for (int call = 0; call < 2; ++call) CHECK(relative_difference(fast(x), expected) < 1e-5);
  };
  Sequential lines(Linear(8, 8), BatchNorm1d(8), ReLU(), Linear(8, 8)), images(Conv2d(4, 4, 3), BatchNorm2d(4), ReLU());
  lines.eval(), images.eval();
  const auto fast_lines = prepare(lines);
  const auto fast_images = prepare(images);
  const Tensor x = randn({5, 8}), image = randn({2, 4, 8, 8});
  same(lines, fast_lines, x), same(images, fast_images, image);
  for (const std::size_t at : {0, 3}) {
    Tensor weight = lines.at<Linear>(at).weight.tensor();
    weight.set_data(weight.detach().t());
    same(lines, fast_lines, x);
  }
  Tensor weight = images.at<Conv2d>(0).weight.tensor();
  weight.set_data(weight.detach().transpose(2, 3));
  same(images, fast_images, image);
}

TEST_CASE("a norm on another stream than its layer's has the result that the layer computed on its own") {
  const Device device = support::device_at(0);
  struct TwoStreams : Module<TwoStreams> {
    Linear first{64, 64}, second{64, 64};
    BatchNorm1d norm{64};
    Stream side{support::device_at(0)};
    Tensor forward(const Tensor& x) const {
      const Stream main = current_stream(x.device());
      Tensor y;
      {
        const Tensor hidden = tanh(first(x));
        y = second(hidden);
      }
      side.wait_for(main);
      Tensor z;
      {
        const StreamScope scope(side);
        y.storage()->record_use(side);
        z = norm(y);
      }
      for (int taker = 0; taker < 4; ++taker) (void)full({x.size(0), 64}, 1e6, {.device = x.device()});
      main.wait_for(side);
      z.storage()->record_use(main);
      return z + 0.0;
    }
    void members(Members& m) override { m("first", first), m("second", second), m("norm", norm); }
  };
  const NoGrad no_grad;
  TwoStreams net;
  net.eval();
  net.to(device);
  const Tensor x = randn({256, 64}).to(device), expected = net(x);
  const auto fast = prepare(net);
  for (int call = 0; call < 5; ++call) CHECK(relative_difference(fast(x), expected) < 1e-5);
  synchronize(device);
}

TEST_CASE("what a hook around a layer of a prepared module keeps has its elements") {
  struct Block : Module<Block> {
    Conv2d conv{3, 4, 3};
    Tensor forward(const Tensor& x) const { return conv(x); }
    void members(Members& m) override { m("conv", conv); }
  };
  struct Around : Module<Around> {
    Block block;
    BatchNorm2d norm{4};
    Tensor forward(const Tensor& x) const { return relu(norm(block(x))); }
    void members(Members& m) override { m("block", block), m("norm", norm); }
  };
  Around net;
  net.eval();
  std::vector<Tensor> kept;
  net.block.register_forward_hook(
      [&](const ModuleBase&, std::span<const Tensor>, std::span<const Tensor> outputs) { kept.push_back(outputs[0]); });
  const auto fast = prepare(net);
  const NoGrad no_grad;
  const Tensor x = randn({1, 3, 6, 6}), expected = net.block(x);
  for (int call = 0; call < 3; ++call) {
    kept.clear();
    (void)fast(x);
    REQUIRE_FALSE(kept.empty());
    CHECK(relative_difference(kept.back(), expected) < 1e-5);
  }
}

TEST_CASE("a written forward is folded too, and called twice the first time alone") {
  const auto net = used(PreparedBlock());
  const auto fast = prepare(net);
  const Tensor x = input({2, 4, 6, 6}), expected = evaluated(net, x);
  const Tensor y = fast(x);
  CHECK(relative_difference(y, expected) < 1e-12);
  CHECK(differs(y, expected));
  CHECK(fast.module().calls == 2);
  fast(x);
  CHECK(fast.module().calls == 3);
}

TEST_CASE("what else is done with the result of a layer before a norm is right") {
  using Way = std::function<Tensor(const OddNorm&, const Tensor&)>;
  static bool late;  // one for all rows, which are made once
  late = false;
  const auto [name, way] = GENERATE(table<std::string, Way>({
      {"used again", [](const OddNorm& m, const Tensor& x) { const Tensor y = m.conv(x); return m.a(y) + y; }},
      {"used before", [](const OddNorm& m, const Tensor& x) { const Tensor y = m.conv(x); return relu(y) + m.a(y); }},
      {"two norms", [](const OddNorm& m, const Tensor& x) { const Tensor y = m.conv(x); return m.a(y) + m.b(y); }},
      {"two calls", [](const OddNorm& m, const Tensor& x) { return m.a(m.conv(x)) + m.b(m.conv(x * 2)); }},
      {"norms of norms", [](const OddNorm& m, const Tensor& x) { return m.b(m.a(m.conv(x))); }},
      {"changed in place", [](const OddNorm& m, const Tensor& x) { Tensor y = m.conv(x); y.add_(1); return m.a(y); }},
      {"x changed between",
       [](const OddNorm& m, const Tensor& x) {
         Tensor z = x * 2;
         const Tensor y = m.conv(z);
         z.fill_(7);
         return m.a(y);
       }},
      {"a view of it", [](const OddNorm& m, const Tensor& x) { return m.a(m.conv(x).narrow(0, 0, 1)); }},
      {"read later on",
       [](const OddNorm& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = m.a(y);
         return late ? z + y : z;
       }},
      {"a second norm later on",
       [](const OddNorm& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = m.a(y);
         return late ? z + m.b(y) : z;
       }},
      {"read by a pointer",
       [](const OddNorm& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = m.a(y);
         return late ? z + (y.data<double>() != nullptr ? 1 : 0) : z;
       }},
      {"an error caught",
       [](const OddNorm& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = m.a(y);
         try {
           return late ? y.clone() : z;
         } catch (const Error&) {
           return z;
         }
       }},
      {"given back", [](const OddNorm& m, const Tensor& x) { Tensor y = m.conv(x), z = m.a(y); return late ? y : z; }},
      {"a norm in training",
       [](const OddNorm& m, const Tensor& x) {
         const Tensor y = m.conv(x);
         const TrainingScope training(true);
         return m.a(y);
       }},
  }));
  INFO(name);
  OddNorm odd;
  odd.way = way;
  const auto net = used(odd);
  const auto fast = prepare(net);
  const Tensor x = input({2, 3, 5, 5});
  for (const bool now : {false, true, false}) {
    late = now;
    const Tensor expected = evaluated(net, x);
    for (int i = 0; i < 2; ++i) CHECK(relative_difference(fast(x), expected) < 1e-12);
  }
}

TEST_CASE("layers and norms that cannot be folded compute as ever") {
  auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4, {.track_running_stats = false}), ReLU(),
                             ConvTranspose2d(4, 4, 3), BatchNorm2d(4)));
  const Tensor x = input({2, 3, 6, 6});
  CHECK(evaluated(net, x).to_vector<double>() == prepare(net)(x).to_vector<double>());
  const auto relu_before = used(Sequential(Linear(3, 4, {.activation = Activation::relu}), BatchNorm1d(4)));
  const Tensor rows = input({5, 3});
  CHECK(evaluated(relu_before, rows).to_vector<double>() == prepare(relu_before)(rows).to_vector<double>());
  // Dimension 1 are not the outputs of the layer here.
  const auto three = used(Sequential(Linear(3, 4), BatchNorm1d(4)));
  const Tensor lines = input({2, 4, 3});
  CHECK(evaluated(three, lines).to_vector<double>() == prepare(three)(lines).to_vector<double>());
}

TEST_CASE("hooks see the results of their layers in a prepared module") {
  auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)));
  const auto fast = prepare(net);
  const Tensor x = input({1, 3, 5, 5}), expected = evaluated(net, x);
  const Tensor folded = fast(x);
  const std::size_t hooked = GENERATE(0, 1);
  double seen = 0;
  net[hooked].register_forward_hook([&](const ModuleBase&, std::span<const Tensor> in, std::span<const Tensor> out) {
    seen = in[0].sum().item<double>() + out[0].sum().item<double>();
  });
  CHECK(relative_difference(evaluated(net, x), fast(x)) < 1e-12);
  CHECK(relative_difference(fast(x), expected) < 1e-12);
  const double by_fast = seen;
  evaluated(net, x);
  CHECK(std::abs(by_fast - seen) < 1e-9);
}

TEST_CASE("a prepared module sees every change of its parameters and buffers") {
  using Change = std::function<void(Sequential&, const Conv2d&, const BatchNorm2d&)>;
  const Tensor x = input({2, 3, 5, 5});
  const auto small_net = [] { return used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4))); };
  Alias alias;  // that lives on
  const std::vector<std::pair<std::string, Change>> changes{
      {"an optimizer's step",
       [&](Sequential& net, const Conv2d&, const BatchNorm2d&) {
         SGD optimizer(net.parameters(), {.lr = 0.1});
         net.eval();
         net(x).sum().backward();
         optimizer.step();
       }},
      {"a step of training, which changes buffers",
       [&](Sequential& net, const Conv2d&, const BatchNorm2d&) { net(x); }},
      {"load_state_dict",
       [&](Sequential& net, const Conv2d&, const BatchNorm2d&) { net.load_state_dict(small_net().state_dict()); }},
      {"a load of buffers alone",
       [](Sequential& net, const Conv2d&, const BatchNorm2d&) {
         net.load_state_dict({{"1.running_var", input({4}).fill_(3)}}, false);
       }},
      {"assign", [](Sequential&, const Conv2d&,
                    const BatchNorm2d& norm) { norm.running_var.assign(norm.running_var.tensor() * 2); }},
      {"set_data",
       [](Sequential&, const Conv2d& conv, const BatchNorm2d&) { conv.bias.tensor().set_data(input({4})); }},
      {"in place",
       [](Sequential&, const Conv2d&, const BatchNorm2d& norm) {
         const NoGrad no_grad;
         norm.weight.tensor().add_(1);
       }},
      {"DLPack",
       [](Sequential&, const Conv2d& conv, const BatchNorm2d&) {
         const Alias released(to_dlpack(conv.weight.tensor()));
         write(released.get(), 0.5);
       }},
      {"DLPack that is alive, and told",
       [&](Sequential&, const Conv2d& conv, const BatchNorm2d&) {
         alias.reset(to_dlpack(conv.weight.tensor()));
         write(alias.get(), 0.25);
         conv.weight.tensor().mark_changed();
       }},
      {"the mean", [](Sequential&, const Conv2d&, const BatchNorm2d& norm) { norm.running_mean.tensor().add_(3); }},
      {"the bias of the norm",
       [](Sequential&, const Conv2d&, const BatchNorm2d& norm) { norm.bias.assign(norm.bias.tensor() * 2 + 1); }},
  };
  for (const auto& [name, change] : changes) {
    INFO(name);
    auto net = small_net();
    const auto fast = prepare(net);
    const Tensor before = fast(x);
    CHECK(differs(before, evaluated(net, x)));
    change(net, net.at<Conv2d>(0), net.at<BatchNorm2d>(1));
    const Tensor expected = evaluated(net, x);
    CHECK(relative_difference(expected, before) > 1e-6);
    for (int i = 0; i < 2; ++i) CHECK(relative_difference(fast(x), expected) < 1e-12);
  }
}

TEST_CASE("prepared convolutions keep packed weights until they change, with a norm and without") {
  const bool with_norm = GENERATE(false, true);
  const double tolerance = with_norm ? 1e-5 : 0;
  const bool packs = !kernels::host::onednn_version().found.empty();
  using Change = std::function<void(Sequential&, const Conv2d&)>;
  const Tensor x = input({2, 16, 9, 9}, DType::f32);
  const auto new_net = [&] {
    Sequential net(Conv2d(16, 32, 3));
    if (with_norm) net.push_back(BatchNorm2d(32));
    return used(net, DType::f32);
  };
  Alias alias;  // that lives on
  const std::vector<std::pair<std::string, Change>> changes{
      {"an optimizer's step",
       [&](Sequential& net, const Conv2d&) {
         SGD optimizer(net.parameters(), {.lr = 0.1});
         net.eval();
         net(x).sum().backward();
         optimizer.step();
       }},
      {"load_state_dict", [&](Sequential& net, const Conv2d&) { net.load_state_dict(new_net().state_dict()); }},
      {"set_data",
       [](Sequential&, const Conv2d& conv) {
         conv.weight.tensor().set_data(input({32, 16, 3, 3}, DType::f32));
       }},
      {"in place",
       [](Sequential&, const Conv2d& conv) {
         const NoGrad no_grad;
         conv.weight.tensor().add_(1);
       }},
      {"DLPack",
       [](Sequential&, const Conv2d& conv) {
         const Alias released(to_dlpack(conv.weight.tensor()));
         write<float>(released.get(), 0.5F);
       }},
      {"DLPack that is alive, and told",
       [&](Sequential& net, const Conv2d& conv) {
         alias.reset(to_dlpack(conv.weight.tensor()));
         const auto fast = prepare(net);
         fast(x);
         const auto before = fast(x).to_vector<double>();  // waits: what is in flight would read what is written
         write<float>(alias.get(), 0.25F);
         CHECK((fast(x).to_vector<double>() == before) == (packs || with_norm));
         conv.weight.tensor().mark_changed();
       }},
      {"a move to another dtype and back",
       [](Sequential& net, const Conv2d& conv) {
         net.to(DType::f64);
         conv.weight.assign(conv.weight.tensor() * 2);
         net.to(DType::f32);
       }},
  };
  for (const auto& [name, change] : changes) {
    INFO(name);
    auto net = new_net();
    const auto& conv = net.at<Conv2d>(0);
    const auto fast = prepare(net);
    const Tensor expected = evaluated(net, x);
    for (int i = 0; i < 3; ++i) CHECK(relative_difference(fast(x), expected) <= tolerance);
    change(net, conv);
    CHECK(relative_difference(evaluated(net, x), expected) > 1e-3);
    for (int i = 0; i < 2; ++i) CHECK(relative_difference(fast(x), evaluated(net, x)) <= tolerance);
  }
}

TEST_CASE("linear layers of a prepared module keep their weights in strips, by version") {
  if (support::device_type() != DeviceType::host) return;  // strips are the host's
  auto net = used(Sequential(Linear(40, 70, {.activation = Activation::relu}), Linear(70, 33)), DType::f32);
  const auto fast = prepare(net);
  const Tensor x = input({4, 5, 40}, DType::f32);
  CHECK(relative_difference(fast(x), evaluated(net, x)) < 1e-5);
  CHECK(relative_difference(fast(x.narrow(0, 0, 1)), evaluated(net, x.narrow(0, 0, 1))) < 1e-5);
  const Tensor weight = net.at<Linear>(1).weight.tensor();
  const Alias alias(to_dlpack(weight));
  const auto before = fast(x).to_vector<double>();
  write<float>(alias.get(), 0.25F);
  CHECK(fast(x).to_vector<double>() == before);
  weight.mark_changed();
  CHECK(relative_difference(fast(x), evaluated(net, x)) < 1e-5);
  CHECK(fast(x).to_vector<double>() != before);
  SGD optimizer(net.parameters(), {.lr = 0.1});
  net(x).sum().backward();
  optimizer.step();
  CHECK(relative_difference(fast(x), evaluated(net, x)) < 1e-5);
}

TEST_CASE("a prepared module sees what others have written through DLPack, once they say so") {
  auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)));
  net.to(Device::cpu());
  const auto fast = prepare(net);
  const Tensor x = randn({2, 3, 5, 5}).to(DType::f64);
  fast(x);
  const Tensor weight = net.at<Conv2d>(0).weight.tensor();
  Alias alias(to_dlpack(weight));
  write(alias.get(), 0.25);
  weight.mark_changed();
  CHECK(relative_difference(fast(x), evaluated(net, x)) < 1e-12);
  write(alias.get(), 0.5);
  alias.reset();
  CHECK(relative_difference(fast(x), evaluated(net, x)) < 1e-12);
}

TEST_CASE("a prepared module in channels_last gives the values and the format of its evaluation") {
  const DType dtype = GENERATE(DType::f32, DType::f64);
  const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-12;
  auto net = used(Sequential(Conv2d(3, 16, 3), BatchNorm2d(16), ReLU(), Conv2d(16, 16, 3, {.groups = 16}), ReLU(),
                             Conv2d(16, 8, 1), BatchNorm2d(8)),
                  dtype);
  net.to(MemoryFormat::channels_last);
  const auto fast = prepare(net);
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = input({2, 3, 9, 8}, dtype).to(format);
    for (int i = 0; i < 3; ++i) {
      const Tensor y = fast(x), expected = evaluated(net, x);
      CHECK(relative_difference(y, expected) < tolerance);
      CHECK(y.memory_format() == MemoryFormat::channels_last);
      CHECK(y.strides() == expected.strides());
      net.at<Conv2d>(3).weight.assign(net.at<Conv2d>(3).weight.tensor() * -0.5);
      net.at<Conv2d>(5).weight.assign(net.at<Conv2d>(5).weight.tensor() * 1.5);
    }
  }
  net.to(MemoryFormat::contiguous);
  const Tensor x = input({2, 3, 9, 8}, dtype);
  CHECK(relative_difference(fast(x), evaluated(net, x)) < tolerance);
  CHECK(fast(x).memory_format() == MemoryFormat::contiguous);
}

TEST_CASE("a prepared module follows its module to another dtype and device") {
  auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)));
  const auto fast = prepare(net);
  const Tensor x = input({2, 3, 5, 5}), y = fast(x);
  net.to(DType::f32);
  CHECK(relative_difference(fast(x.to(DType::f32)), y) < 1e-5);
  net.to(DType::f64);
  net.to(Device::cpu());
  CHECK(fast(x.to(Device::cpu())).device() == Device::cpu());
  CHECK(relative_difference(fast(x.to(Device::cpu())), y.to(Device::cpu())) < 1e-5);
}

TEST_CASE("a prepared module computes on every device that has its parameters, also after they have changed") {
  auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)));
  const auto fast = prepare(net);
  const std::vector<Device> devices{support::device_at(0), support::device_at(1)};
  const ModuleSlots slots(net);
  const Tensor x = input({2, 3, 5, 5});
  CHECK_THROWS_AS(fast(x.to(devices[1])), InvalidArgument);
  for (int i = 0; i < 2; ++i) {
    slots.refresh(devices);
    const Tensor expected = evaluated(net, x);
    for (const Device device : devices) CHECK(relative_difference(fast(x.to(device)).to(devices[0]), expected) < 1e-12);
    net.at<Conv2d>(0).weight.assign(randn({4, 3, 3, 3}));
  }
}

TEST_CASE("a prepared module in the scope of a substitute or of an autocast computes as ever") {
  auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)));
  const auto fast = prepare(net);
  const Tensor x = input({2, 3, 5, 5});
  const Tensor y = fast(x);
  std::vector<Tensor> others;
  for (const Parameter& parameter : net.parameters()) others.push_back(input(parameter.shape()));
  {
    const auto scope = substitute(net, others);
    CHECK(evaluated(net, x).to_vector<double>() == fast(x).to_vector<double>());
  }
  CHECK(fast(x).to_vector<double>() == y.to_vector<double>());
  net.to(DType::f32);
  const Tensor single = x.to(DType::f32);
  fast(single);
  const Autocast scope(DType::bf16);
  const Tensor narrow = fast(single), expected = evaluated(net, single);
  CHECK(narrow.dtype() == expected.dtype());
  CHECK(narrow.to(DType::f32).to_vector<float>() == expected.to(DType::f32).to_vector<float>());
}

TEST_CASE("threads call a prepared module at once, while its parameters are loaded anew") {
  auto net = used(PreparedBlock());
  const auto fast = prepare(net);
  const Tensor x = input({2, 4, 6, 6});
  const auto first = net.state_dict();
  std::vector<NamedTensor> states[2];
  Tensor expected[2];
  for (int k = 0; k < 2; ++k) {
    for (const auto& [name, tensor] : first)
      states[k].push_back({name, k == 0 || !is_floating(tensor.dtype()) ? tensor.clone() : tensor * 0.5});
    net.load_state_dict(states[k]);
    expected[k] = evaluated(net, x);
  }
  fast(x);  // a norm by itself counts as a writer of its statistics, on whatever stream
  synchronize(x.device());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      const Stream own(x.device());
      const StreamScope scope(own);
      for (int i = 0; i < 40; ++i) {
        const Tensor y = fast(x.clone());
        if (relative_difference(y, expected[0]) > 1e-12 && relative_difference(y, expected[1]) > 1e-12) ++wrong;
      }
    });
  for (int i = 0; i < 20; ++i) net.load_state_dict(states[i % 2]);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("errors of a prepared module are those of its module") {
  const auto net = used(Sequential(Conv2d(3, 4, 3), BatchNorm2d(4)));
  const auto fast = prepare(net);
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH(fast(input({1, 2, 5, 5})), Contains("[conv2d]"));
    CHECK_THROWS_WITH(fast(input({1, 3, 2, 2})), Contains("[conv2d]"));
    fast(input({1, 3, 5, 5}));
  }
}
