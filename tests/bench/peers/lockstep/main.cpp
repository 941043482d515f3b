// The side of Lockstep in scripts/compare_peers: makes the inputs, computes, writes both into the work's folder.
#include <algorithm>
#include <cstring>

#include "lockstep/parallel/build_info.h"
#include "work.h"

namespace peers {

DType dtype_named(const std::string& name) {
  for (int i = 0; i < kDTypeCount; ++i)
    if (to_string(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  throw Unsupported("there is no dtype " + name);
}

Tensor made(const Json& input, Device device) {
  const auto sizes = input.at("shape").get<std::vector<std::int64_t>>();
  const Shape shape{std::span<const std::int64_t>(sizes)};
  const std::string fill = input.value("fill", "normal");
  const double low = input.value("low", 0.0), high = input.value("high", 1.0);
  if (fill == "index") return randint(0, static_cast<std::int64_t>(high), shape, {.device = device});
  if (fill == "mask") return lt(rand(shape, {.device = device}), 0.5);
  const Tensor values =
      fill == "uniform" ? add(mul(rand(shape, {.device = device}), high - low), low) : randn(shape, {.device = device});
  return values.to(dtype_named(input.value("dtype", "f32")));
}

void check_results(const Tensors& results, const Tensors& again) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Tensor a = results[i].to(Device::cpu()).contiguous(), b = again[i].to(Device::cpu()).contiguous();
    LOCKSTEP_CHECK(a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0,
                   "expected the same bits from the same work, got others in result ", i);
    LOCKSTEP_CHECK(!is_floating(a.dtype()) || all(isfinite(a)).item<bool>(), "expected finite results, got others");
  }
}

namespace {

const Operations& operations() {
  static const Operations all = [] {
    Operations found = element_operations();
    for (Operations more : {shape_operations(), reductions(), layer_operations()}) found.merge(more);
    return found;
  }();
  return all;
}

Ways operation(const Json& work, const std::string& file) {
  const auto entry = operations().find(work.at("op"));
  if (entry == operations().end()) throw Unsupported("there is no operation " + work.at("op").get<std::string>());
  const Device device = Device::host(0);
  const bool backward = work.at("kind") == "grad";
  Tensors inputs;
  for (const Json& input : work.at("inputs")) inputs.push_back(made(input, device));
  for (Tensor& input : inputs)
    if (backward && is_floating(input.dtype())) input.set_requires_grad();
  const Json args = work.value("args", Json::object());
  if (backward) {  // the shape of the output's gradient
    const Tensor output = entry->second({args, inputs, false}).once().at(0);
    inputs.push_back(randn(output.shape(), {.device = device}).to(output.dtype()));
  }
  const auto call_with = [&](const Tensors& of) {
    const GradMode mode(backward);
    return entry->second({args, of, backward});
  };
  const auto once = [&](const Call& call) {
    const GradMode mode(backward);
    return call.once();
  };
  const Call call = call_with(inputs);
  const Tensors results = once(call);
  if (!work.value("random", false) && !work.value("stateful", false)) check_results(results, once(call));
  std::size_t bytes = 0;  // read and written, if each element is touched once
  for (const Tensor& input : inputs) bytes += input.bytes();
  for (const Tensor& result : results) bytes += result.bytes();
  std::vector<NamedTensor> saved;
  for (std::size_t i = 0; i < inputs.size(); ++i) saved.push_back({cat("in.", i), inputs[i].detach()});
  for (std::size_t i = 0; i < results.size(); ++i) saved.push_back({cat("out.", i), results[i].detach()});
  save_safetensors(file, saved);
  const auto way = [&](const Call& of) -> Way {
    return {.repeat =
                [of, backward](std::int64_t times) {
                  const GradMode mode(backward);
                  of.repeat(times);
                },
            .report = {{"bytes", bytes}}};
  };
  Ways ways{{"plain", way(call)}};
  if (work.at("group") == "conv" && inputs[0].rank() == 4) {
    Tensors pixels;
    for (const Tensor& input : inputs)
      pixels.push_back(input.rank() == 4 ? input.detach().to(MemoryFormat::channels_last) : input.detach());
    for (std::size_t i = 0; i < inputs.size(); ++i) pixels[i].set_requires_grad(inputs[i].requires_grad());
    const Call in_pixels = call_with(pixels);
    const Tensors same = once(in_pixels);
    for (std::size_t i = 0; i < same.size(); ++i)
      LOCKSTEP_CHECK(allclose(same[i], results[i], 1e-3, 1e-3), "expected the same in channels_last, got others in ",
                     i);
    ways.emplace("channels_last", way(in_pixels));
  }
  return ways;
}

Ways prepare_work(const Json& work, const std::string& folder) {
  manual_seed(work.at("seed").get<std::uint64_t>());
  const std::string file = folder + "/work.safetensors";
  const std::string kind = work.at("kind");
  return kind == "train" || kind == "infer" ? network(work, file) : operation(work, file);
}

}  // namespace
}  // namespace peers

int main() {
  try {
    return peers::serve({{"name", "lockstep"}, {"version", lockstep::version()}}, peers::prepare_work);
  } catch (const std::exception& error) {
    std::cerr << "lockstep-works: " << error.what() << '\n';
    return 1;
  }
}
