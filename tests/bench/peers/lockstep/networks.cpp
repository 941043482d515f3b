// The networks of scripts/compare_peers, trained and asked.
#include "../../networks.h"

#include "work.h"

namespace peers {

namespace {

using namespace bench::networks;

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
  const auto with = [&](const Tensor& images, MemoryFormat format) {
    return way([&, images, format]() -> std::function<Tensor()> {
      Net net = deep_copy(made_net);
      net.to(format);
      return prepared(DataParallel(std::move(net), {.devices = {all.begin(), all.begin() + devices}}),
                      [images, targets](const auto& of) { return of.reduce_with(loss_of, images, targets); });
    });
  };
  Ways ways{{"DataParallel", with(x, MemoryFormat::contiguous)}};
  if (x.rank() == 4)
    ways.emplace("DataParallel, channels_last", with(x.to(MemoryFormat::channels_last), MemoryFormat::channels_last));
  return ways;
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
  const std::vector<Device> some(all.begin(), all.begin() + devices);
  Ways ways{{"DataParallel", way(DataParallel(net, {.devices = some}))}};
  const auto prepared = [&](const std::string& name, const Net& module) {
    const DataParallel fast(module, {.devices = some, .prepared = true});
    LOCKSTEP_CHECK(allclose(fast(x), result, 1e-3, 1e-4), "expected what evaluation gives from ", name);
    ways.emplace(name, way(fast));
  };
  prepared("DataParallel, prepared", net);
  if (x.rank() == 4) {
    Net pixels = deep_copy(net);
    pixels.to(MemoryFormat::channels_last);
    prepared("DataParallel, prepared, channels_last", pixels);
  }
  return ways;
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
