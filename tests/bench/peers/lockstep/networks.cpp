// The networks of scripts/compare_peers: each has the names and the layout of its like in torch_networks.py.
#include "work.h"

namespace peers {

namespace {

Sequential mlp() {
  return Sequential(Linear(784, 1024, {.activation = Activation::relu}),
                    Linear(1024, 1024, {.activation = Activation::relu}), Linear(1024, 10));
}

Sequential cnn() {
  return Sequential(Conv2d(3, 32, 3, {.padding = 1}), BatchNorm2d(32), ReLU(), MaxPool2d(2),
                    Conv2d(32, 64, 3, {.padding = 1}), BatchNorm2d(64), ReLU(), MaxPool2d(2), Flatten(),
                    Linear(64 * 8 * 8, 10));
}

// Two 3x3 convolutions with a way around them (He et al., 2016).
struct Basic : Module<Basic> {
  Basic(std::int64_t inputs, std::int64_t width, int stride)
      : conv1(inputs, width, 3, {.stride = stride, .padding = 1, .bias = false}),
        conv2(width, width, 3, {.padding = 1, .bias = false}),
        bn1(width),
        bn2(width) {
    if (stride == 1 && inputs == width) return;
    down.push_back(Conv2d(inputs, width, 1, {.stride = stride, .bias = false}));
    down.push_back(BatchNorm2d(width));
  }
  Tensor forward(const Tensor& x) const {
    return relu(bn2(conv2(relu(bn1(conv1(x))))) + (down.count() == 0 ? x : down(x)));
  }
  void members(Members& m) override {
    m("conv1", conv1), m("bn1", bn1), m("conv2", conv2), m("bn2", bn2), m("down", down);
  }

  Conv2d conv1, conv2;
  BatchNorm2d bn1, bn2;
  Sequential down;
};

// ResNet-18.
Sequential resnet() {
  Sequential net(Conv2d(3, 64, 7, {.stride = 2, .padding = 3, .bias = false}), BatchNorm2d(64), ReLU(),
                 MaxPool2d(3, {.stride = 2, .padding = 1}));
  std::int64_t inputs = 64;
  for (const std::int64_t width : {64, 128, 256, 512})
    for (int i = 0; i < 2; ++i) {
      net.push_back(Basic(inputs, width, i == 0 && width > 64 ? 2 : 1));
      inputs = width;
    }
  net.push_back(AdaptiveAvgPool2d(1));
  net.push_back(Flatten());
  net.push_back(Linear(512, 10));
  return net;
}

// Pairs of a depthwise and a pointwise convolution (Howard et al., 2017).
Sequential mobile() {
  Sequential net(Conv2d(3, 32, 3, {.stride = 2, .padding = 1, .bias = false}), BatchNorm2d(32), ReLU());
  std::int64_t inputs = 32;
  const auto pair = [&](std::int64_t width, int stride) {
    net.push_back(
        Conv2d(inputs, inputs, 3, {.stride = stride, .padding = 1, .groups = static_cast<int>(inputs), .bias = false}));
    net.push_back(BatchNorm2d(inputs));
    net.push_back(ReLU());
    net.push_back(Conv2d(inputs, width, 1, {.bias = false}));
    net.push_back(BatchNorm2d(width));
    net.push_back(ReLU());
    inputs = width;
  };
  pair(64, 1), pair(128, 2), pair(128, 1), pair(256, 2), pair(256, 1), pair(512, 2), pair(512, 1);
  net.push_back(AdaptiveAvgPool2d(1));
  net.push_back(Flatten());
  net.push_back(Linear(512, 10));
  return net;
}

// A decoder of 4 layers, 128 wide, with 4 heads, for bytes.
struct Gpt : Module<Gpt> {
  static constexpr std::int64_t kWidth = 128, kLength = 128, kWords = 256;
  Embedding words{kWords, kWidth}, positions{kLength, kWidth};
  TransformerEncoder blocks{TransformerEncoderLayer(kWidth, 4,
                                                    {.feedforward = 4 * kWidth,
                                                     .dropout = 0,
                                                     .activation = TransformerActivation::gelu,
                                                     .batch_first = true,
                                                     .norm_first = true}),
                            4, LayerNorm(kWidth)};
  Linear head{kWidth, kWords};

  Tensor forward(const Tensor& text) const {
    const Tensor places = arange(text.size(1), {.dtype = DType::i64, .device = text.device()});
    return head(blocks(words(text) + positions(places), {.causal = true}));
  }
  void members(Members& m) override {
    m("words", words), m("positions", positions), m("blocks", blocks), m("head", head);
  }
};

struct Lstm : Module<Lstm> {
  LSTM lstm{128, 256, {.layers = 2, .batch_first = true}};
  Linear head{256, 10};
  Tensor forward(const Tensor& x) const { return head(lstm(x).output.select(1, -1)); }
  void members(Members& m) override { m("lstm", lstm), m("head", head); }
};

Tensor loss_of(const Tensor& scores, const Tensor& targets) {
  return cross_entropy(scores.reshape({-1, scores.size(-1)}), targets.reshape({-1}));
}

void save(const std::string& file, ModuleBase& net, const Tensors& inputs, const Tensors& results) {
  std::vector<NamedTensor> tensors;
  for (const NamedTensor& state : net.state_dict()) tensors.push_back({"state." + state.name, state.tensor.clone()});
  for (std::size_t i = 0; i < inputs.size(); ++i) tensors.push_back({cat("in.", i), inputs[i]});
  for (std::size_t i = 0; i < results.size(); ++i) tensors.push_back({cat("out.", i), results[i].detach()});
  save_safetensors(file, tensors);
}

// The losses of the first steps are the results.
template <class Net, class Optimizer, class Options>
Ways training(const Net& made_net, const Options& options, const Json& work, const Tensors& inputs,
              const std::string& file) {
  constexpr int kSteps = 4;
  const auto prepared = [&](auto net, auto loss) {
    const auto shared = std::make_shared<decltype(net)>(std::move(net));
    const auto optimizer = std::make_shared<Optimizer>(shared->parameters(), options);
    return [shared, optimizer, loss] {
      optimizer->zero_grad();
      Tensor value = loss(*shared);
      value.backward();
      optimizer->step();
      return value.detach();
    };
  };
  const auto way = [&](const std::function<std::function<Tensor()>()>& make) -> Way {
    Tensors losses, again;
    const auto step = make(), same = make();
    for (int i = 0; i < kSteps; ++i) losses.push_back(step()), again.push_back(same());
    check_results(losses, again);
    LOCKSTEP_CHECK(losses.back().item<float>() < losses.front().item<float>(), "expected the loss to fall, got ",
                   losses.front().item<float>(), ", then ", losses.back().item<float>());
    Net first = deep_copy(made_net);
    save(file, first, inputs, losses);
    return {.repeat = [step](std::int64_t times) {
      for (std::int64_t i = 0; i < times; ++i) step();
    }};
  };
  const int devices = work.value("devices", 1);
  const Tensor x = inputs[0], targets = inputs[1];
  if (devices == 1) {
    const auto with = [&](const Tensor& images, MemoryFormat format) {
      return way([&, images, format]() -> std::function<Tensor()> {
        Net net = deep_copy(made_net);
        net.to(format);
        return prepared(std::move(net), [images, targets](const Net& of) { return loss_of(of(images), targets); });
      });
    };
    Ways ways{{"one device", with(x, MemoryFormat::contiguous)}};
    if (x.rank() == 4)
      ways.emplace("channels_last", with(x.to(MemoryFormat::channels_last), MemoryFormat::channels_last));
    return ways;
  }
  const auto all = accelerators();
  if (static_cast<int>(all.size()) < devices) throw Unsupported(cat("needs ", devices, " devices"));
  return {{"DataParallel", way([&]() -> std::function<Tensor()> {
             return prepared(DataParallel(deep_copy(made_net), {.devices = {all.begin(), all.begin() + devices}}),
                             [x, targets](const auto& net) { return net.reduce_with(loss_of, x, targets); });
           })}};
}

template <class Net>
Ways inference(const Net& made_net, const Json& work, const Tensors& inputs, const std::string& file) {
  const InferenceMode mode;
  Net net = deep_copy(made_net);
  net.eval();
  const Tensor x = inputs[0];
  const Tensor result = net(x);
  check_results({result}, {net(x)});
  save(file, net, {x}, {result});
  const int devices = work.value("devices", 1);
  const auto way = [x](auto module) -> Way {
    return {.repeat = [module, x](std::int64_t times) {
      const InferenceMode inside;
      for (std::int64_t i = 0; i < times; ++i) module(x);
    }};
  };
  if (devices == 1) {
    const auto fast = lockstep::prepare(net);
    const Tensor folded = fast(x);
    check_results({folded}, {fast(x)});
    LOCKSTEP_CHECK(allclose(folded, result, 1e-3, 1e-4), "expected what evaluation gives from a prepared network");
    Ways ways{{"one device", way(net)}, {"prepared", way(fast)}};
    if (x.rank() == 4) {
      Net pixels = deep_copy(net);
      pixels.to(MemoryFormat::channels_last);
      const auto fast_pixels = lockstep::prepare(pixels);
      LOCKSTEP_CHECK(allclose(fast_pixels(x), result, 1e-3, 1e-4), "expected the same in channels_last");
      ways.emplace("prepared, channels_last", way(fast_pixels));
    }
    return ways;
  }
  const auto all = accelerators();
  if (static_cast<int>(all.size()) < devices) throw Unsupported(cat("needs ", devices, " devices"));
  return {{"DataParallel", way(DataParallel(net, {.devices = {all.begin(), all.begin() + devices}}))}};
}

template <class Net>
Ways ways_of(Net net, bool adaptive, const Json& work, const std::string& file) {
  const Device device = Device::host(0);
  net.to(device);
  Tensors inputs;
  for (const Json& input : work.at("inputs")) inputs.push_back(made(input, device));
  if (work.at("kind") == "infer") return inference(net, work, inputs, file);
  if (adaptive) return training<Net, AdamW, AdamWOptions>(net, {.lr = 1e-4}, work, inputs, file);
  return training<Net, SGD, SgdOptions>(net, {.lr = 1e-3, .momentum = 0.9}, work, inputs, file);
}

}  // namespace

Ways network(const Json& work, const std::string& file) {
  const std::string name = work.at("op");
  if (name == "mlp") return ways_of(mlp(), false, work, file);
  if (name == "cnn") return ways_of(cnn(), false, work, file);
  if (name == "resnet") return ways_of(resnet(), false, work, file);
  if (name == "mobile") return ways_of(mobile(), false, work, file);
  if (name == "gpt") return ways_of(Gpt{}, true, work, file);
  if (name == "lstm") return ways_of(Lstm{}, true, work, file);
  throw Unsupported("there is no network " + name);
}

}  // namespace peers
