#include "lockstep/tensor/nn/quantize_linears.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <unordered_map>

#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/shard.h"

namespace lockstep {
namespace {

// Whether whole parts of the name, between its points, are `part`.
bool has_part(const std::string& name, const std::string& part) {
  return !part.empty() && ('.' + name + '.').find('.' + part + '.') != std::string::npos;
}

template <class... Args>
void append(std::string& text, const char* format, Args... args) {
  char line[160];
  std::snprintf(line, sizeof line, format, args...);
  text += line;
}

std::string quoted(const std::string& name) {
  std::string text = "\"";
  for (const char c : name) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

}  // namespace

std::size_t QuantizationReport::bytes_before() const {
  std::size_t sum = 0;
  for (const QuantizedLayer& layer : layers) sum += layer.bytes_before;
  return sum;
}
std::size_t QuantizationReport::bytes_after() const {
  std::size_t sum = 0;
  for (const QuantizedLayer& layer : layers) sum += layer.bytes_after;
  return sum;
}

std::string QuantizationReport::to_table() const {
  std::string text;
  append(text, "%15s %4s %12s %12s %11s %11s  %s\n", "shape", "bits", "bytes", "then", "max error", "rel. error",
         "layer");
  for (const QuantizedLayer& l : layers) {
    append(text, "%7lld %7lld %4d %12zu %12zu %11.4g %11.4g  ", static_cast<long long>(l.shape[0]),
           static_cast<long long>(l.shape[1]), l.bits, l.bytes_before, l.bytes_after, l.max_error, l.relative_error);
    text += l.name + '\n';
  }
  append(text, "%15s %4s %12zu %12zu\n", "all", "", bytes_before(), bytes_after());
  return text;
}

std::string QuantizationReport::to_json() const {
  std::string text = "{\"layers\": [", comma;
  for (const QuantizedLayer& l : layers) {
    text += comma + "{\"name\": " + quoted(l.name);
    append(text, ", \"shape\": [%lld, %lld], \"bits\": %d", static_cast<long long>(l.shape[0]),
           static_cast<long long>(l.shape[1]), l.bits);
    append(text, ", \"bytes_before\": %zu, \"bytes_after\": %zu", l.bytes_before, l.bytes_after);
    append(text, ", \"max_error\": %.6g, \"relative_error\": %.6g}", l.max_error, l.relative_error);
    comma = ", ";
  }
  text += "], \"kept\": [", comma.clear();
  for (const std::string& name : kept) text += comma + quoted(name), comma = ", ";
  append(text, "], \"bytes_before\": %zu, \"bytes_after\": %zu}", bytes_before(), bytes_after());
  return text;
}

QuantizedLayer compare_quantized(const std::string& name, const Tensor& weight, const QuantizedWeight& quantized) {
  const auto numbers = [](const Tensor& x) { return x.detach().to(Device::cpu()).to(DType::f32).to_vector<float>(); };
  const std::vector<float> before = numbers(weight), after = numbers(quantized.dequantize());
  double largest = 0, errors = 0, squares = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double x = before[i], error = x - double{after[i]};
    largest = std::max(largest, std::abs(error));
    errors += error * error, squares += x * x;
  }
  return {.name = name,
          .shape = weight.shape(),
          .bits = quantized.bits(),
          .bytes_before = weight.bytes(),
          .bytes_after = quantized.bytes(),
          .max_error = largest,
          .relative_error = squares > 0 ? std::sqrt(errors / squares) : 0};
}

QuantizationReport quantize_linears(ModuleBase& module, const QuantizeLinearsOptions& options) {
  std::unordered_map<const ParameterBody*, int> uses;
  std::vector<std::pair<std::string, QuantizableLayer*>> layers;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view, Parameter& member, bool) { ++uses[member.body()]; };
  visitor.module = [&](ModuleBase& each) {
    if (auto* layer = dynamic_cast<QuantizableLayer*>(&each)) layers.emplace_back(visitor.path(), layer);
  };
  visitor.visit(module);
  QuantizationReport report;
  const auto stays = [&](const auto& each) {
    const auto& [name, layer] = each;
    const bool skipped = std::any_of(options.skip.begin(), options.skip.end(),
                                     [&name = name](const std::string& part) { return has_part(name, part); });
    if (!skipped && !layer->quantized() && uses[layer->parts().weight.body()] == 1) return false;
    report.kept.push_back(name);
    return true;
  };
  std::erase_if(layers, stays);
  for (const auto& [name, layer] : layers) {
    const QuantizableLayer::Parts parts = layer->parts();
    LOCKSTEP_CHECK(!shard_of(parts.weight), "[quantize_linears] ", name,
                   ": expected a whole weight, got one of which each of several ranks has a part");
    const Tensor own = parts.weight.tensor().detach(), weight = parts.is_transposed ? own.t() : own;
    try {
      const QuantizedWeight quantized = quantize(weight, options);
      report.layers.push_back(compare_quantized(name, weight, quantized));
      layer->set_quantized(quantized, options.int8_activations);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(cat("[quantize_linears] ", name, ": ", error.what()));
    }
    if (options.on_layer) options.on_layer(report.layers.back(), report.layers.size(), layers.size());
  }
  return report;
}

}  // namespace lockstep
