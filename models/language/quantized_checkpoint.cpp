#include "lockstep/models/language/quantized_checkpoint.h"

#include <unordered_map>

#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/shard.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep::detail {
namespace {

constexpr const char* kField = "quantization_config";
constexpr std::string_view kScales = ".scales";

template <class M>
void untie(M& model, const Parameter& embedding) {
  if (model.lm_head) return;
  model.lm_head = first_linear(0, 0, false, FirstWeights::absent, 0);
  model.lm_head->weight = Parameter::uninitialized(embedding.shape(), embedding.dtype());
  if (const Shard* const shard = shard_of(embedding)) set_shard(model.lm_head->weight, *shard);
}

// What of whole codes and scales a rank has that has this part of the weight. `dim`: of the weight [outputs, inputs].
struct QuantizedShards {
  std::optional<Shard> codes, scales;
};
QuantizedShards quantized_shards(const std::string& name, Shard shard, int dim, bool is_nibbles, std::int64_t group) {
  shard.dim = dim;
  if (dim == 0) return {shard, shard};
  if (!is_nibbles) return {shard, {}};  // a row has one scale, which all need
  Shard codes = shard, scales = shard;
  for (std::size_t i = 0; i < shard.sections.size(); ++i) {
    const std::int64_t section = shard.sections[i];
    LOCKSTEP_CHECK(section % (group * shard.ranks) == 0, "[load_language_model] '", name,
                   "': expected whole groups of ", group, " inputs on each of ", shard.ranks, " ranks, got ", section,
                   " inputs in all");
    codes.sections[i] = section / 2, scales.sections[i] = section / group;
  }
  return {codes, scales};
}

// Of the checkpoint by the module's names.
using Found = std::unordered_map<std::string, const Tensor*>;

void expect(ModuleBase& module, const Found& found, std::int64_t group_size) {
  MemberVisitor visitor;
  std::vector<std::pair<std::string, QuantizableLayer*>> layers;
  visitor.module = [&](ModuleBase& each) {
    if (auto* layer = dynamic_cast<QuantizableLayer*>(&each)) layers.emplace_back(visitor.path(), layer);
  };
  visitor.visit(module);
  for (const auto& [name, layer] : layers) {
    const auto codes = found.find(name + ".weight");
    if (codes == found.end() || !found.contains(cat(name, kScales))) continue;
    const QuantizableLayer::Parts parts = layer->parts();
    const Shape& shape = parts.weight.shape();
    const bool is_nibbles = codes->second->dtype() == DType::u8;
    const std::int64_t outputs = shape[parts.is_transposed ? 1 : 0], inputs = shape[parts.is_transposed ? 0 : 1];
    const std::int64_t group = is_nibbles ? group_size : inputs;
    QuantizedShards shards;
    if (const Shard* const shard = shard_of(parts.weight))
      shards = quantized_shards(name, *shard, parts.is_transposed ? 1 - shard->dim : shard->dim, is_nibbles, group);
    layer->set_quantized(
        {empty({outputs, is_nibbles ? (inputs + 1) / 2 : inputs}, {.dtype = is_nibbles ? DType::u8 : DType::i8}),
         empty({outputs, (inputs + group - 1) / group}, {.dtype = DType::f32}), inputs, group});
    if (shards.codes) set_shard(layer->quantized()->weight, *shards.codes);
    if (shards.scales) set_shard(layer->quantized()->scales, *shards.scales);
  }
}

template <class M>
void expect_in(M& model, const Safetensors& checkpoint, std::int64_t group_size) {
  Found found;
  for (const NamedTensor& each : checkpoint.tensors)
    if (each.name == cat("lm_head", kScales)) untie_output(model);
  for (const NamedTensor& each : checkpoint.tensors)
    if (const std::optional<std::string> here = model.name_in_module(each.name)) found.emplace(*here, &each.tensor);
  expect(model, found, group_size);
}

}  // namespace

std::optional<std::int64_t> quantized_groups(const JsonFile& config) {
  const std::optional<JsonFile> ours = config.object(kField);
  if (!ours) return {};
  // Older files of bitsandbytes do not name it.
  const bool is_bitsandbytes = ours->has("load_in_8bit") || ours->has("load_in_4bit");
  const std::string method = ours->text("quant_method", is_bitsandbytes ? "bitsandbytes" : "without a name");
  if (method != "lockstep")
    config.refuse(kField, cat("weights of the format ", method, " are not read, but those that ",
                              "quantize_language_model writes: quant_method lockstep"));
  if (const std::int64_t version = ours->integer("version"); version != 1)
    config.refuse(kField, cat("version ", version, " is not known, but version 1"));
  const std::int64_t size = ours->size("group_size");
  if (size != 32 && size != 64 && size != 128) ours->fail("group_size", cat("expected 32, 64 or 128, got ", size));
  return size;
}

void untie_output(Gpt2& model) { untie(model, model.wte.weight); }
void untie_output(Llama& model) { untie(model, model.model.embed_tokens.weight); }

void expect_quantized(Gpt2& model, const Safetensors& checkpoint, std::int64_t group_size) {
  expect_in(model, checkpoint, group_size);
}
void expect_quantized(Llama& model, const Safetensors& checkpoint, std::int64_t group_size) {
  expect_in(model, checkpoint, group_size);
}

}  // namespace lockstep::detail
