#include "lockstep/models/language/quantize_language_model.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lockstep/models/checkpoint/staged_folder.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/language/quantized_checkpoint.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

template <class M>
QuantizationReport quantize_model(M& model, const Parameter& embedding, const QuantizeLanguageModelOptions& options) {
  auto layers = static_cast<const QuantizeLinearsOptions&>(options);  // without what is of whole models
  if (options.output) std::erase(layers.skip, "lm_head");
  const bool tied = options.output && !model.lm_head;
  if (options.on_layer && tied)
    layers.on_layer = [&](const QuantizedLayer& layer, std::size_t done, std::size_t all) {
      options.on_layer(layer, done, all + 1);
    };
  QuantizationReport report = quantize_linears(model, layers);
  if (!tied) return report;
  const Tensor weight = embedding.tensor().detach();
  const QuantizedWeight quantized = quantize(weight, options);
  report.layers.push_back(compare_quantized("lm_head", weight, quantized));
  detail::untie_output(model);
  model.lm_head->set_quantized(quantized, options.int8_activations);
  if (options.on_layer) options.on_layer(report.layers.back(), report.layers.size(), report.layers.size());
  return report;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Error(cat("[quantize_language_model] cannot read '", path.string(), "'"));
  return text;
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) throw Error(cat("[quantize_language_model] cannot write '", path.string(), "'"));
}

// Small files beside the weights.
bool is_to_copy(const fs::path& path) {
  const std::string name = path.filename().string(), end = path.extension().string();
  return name != "config.json" && !name.ends_with(".index.json") &&
         (end == ".json" || end == ".txt" || end == ".model");
}

}  // namespace

QuantizationReport quantize_language_model(const std::string& from, const std::string& to,
                                           const QuantizeLanguageModelOptions& options) {
  const fs::path source(from), target(to), config = source / "config.json";
  LOCKSTEP_CHECK(!detail::quantized_groups(detail::JsonFile::read(config.string())), "[quantize_language_model] ",
                 "expected a model with weights in a floating dtype in '", from, "', got one that is quantised");
  std::error_code ignored;
  LOCKSTEP_CHECK(!fs::equivalent(source, target, ignored), "[quantize_language_model] expected two folders, got '",
                 from, "' twice");
  const std::unique_ptr<LanguageModel> model = load_language_model(from);
  auto* const gpt2 = dynamic_cast<Gpt2*>(model.get());
  const auto quantized = [&] {
    if (gpt2) return quantize_model(*gpt2, gpt2->wte.weight, options);
    auto& llama = dynamic_cast<Llama&>(*model);
    return quantize_model(llama, llama.model.embed_tokens.weight, options);
  };
  QuantizationReport report = quantized();
  detail::StagedFolder files("quantize_language_model", to);
  try {
    for (const fs::directory_entry& each : fs::directory_iterator(source))
      if (each.is_regular_file() && is_to_copy(each.path()))
        fs::copy_file(each.path(), files.path() / each.path().filename());
  } catch (const fs::filesystem_error& error) {
    throw Error(cat("[quantize_language_model] ", error.what()));
  }
  save_model(dynamic_cast<ModuleBase&>(*model), (files.path() / "model.safetensors").string(), {{"format", "pt"}});
  std::string text = text_of(config);
  const std::int64_t group = options.bits == 4 ? options.group_size : QuantizeOptions{}.group_size;  // 8 bits have none
  // At the end: where the field is there already as null, the last of the two counts.
  text.insert(text.rfind('}'), cat(",\n  \"quantization_config\": {\"quant_method\": \"lockstep\", \"version\": 1, ",
                                   "\"bits\": ", options.bits, ", \"group_size\": ", group, "}\n"));
  write(files.path() / "config.json", text);
  files.publish("config.json");
  return report;
}

}  // namespace lockstep
