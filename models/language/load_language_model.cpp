#include "lockstep/models/language/load_language_model.h"

#include <filesystem>
#include <map>

#include "lockstep/models/checkpoint/json_file.h"
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/quantized_checkpoint.h"

namespace lockstep {
namespace {

DType widespread_dtype(const Safetensors& checkpoint) {
  std::map<DType, std::size_t> bytes;
  for (const NamedTensor& each : checkpoint.tensors)
    if (is_floating(each.tensor.dtype()) && !each.name.ends_with(".scales"))
      bytes[each.tensor.dtype()] += each.tensor.bytes();
  DType most = DType::f32;
  std::size_t largest = 0;
  for (const auto& [dtype, count] : bytes)
    if (count > largest) most = dtype, largest = count;
  return most;
}

template <class M>
std::unique_ptr<LanguageModel> filled(std::unique_ptr<M> model, const detail::JsonFile& config,
                                      const std::string& folder, const LoadLanguageModelOptions& options) {
  const std::optional<std::int64_t> group_size = detail::quantized_groups(config);
  const Device device = options.ranks ? options.ranks->device() : options.device;
  LOCKSTEP_CHECK(options.device.is_cpu() || options.device == device, "[load_language_model] expected the device of ",
                 "the ranks' communicator, ", device, ", or none, got ", options.device);
  Safetensors checkpoint = read_checkpoint(folder, {.map = options.map || options.ranks});
  model->to(options.dtype.value_or(widespread_dtype(checkpoint)));
  if (group_size) detail::expect_quantized(*model, checkpoint, *group_size);
  model->to(device);
  detail::load_checkpoint(*model, std::move(checkpoint), folder, true, options.map);
  model->eval();
  return model;
}

}  // namespace

std::unique_ptr<LanguageModel> load_language_model(const std::string& folder, const LoadLanguageModelOptions& options) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const detail::JsonFile json = detail::JsonFile::read(path);
  const std::string type = json.text("model_type");
  if (type == "gpt2")
    return filled(std::make_unique<Gpt2>(GptConfig::from_file(path), FirstWeights::absent, options.ranks), json, folder,
                  options);
  if (type == "llama" || type == "qwen2" || type == "mistral")
    return filled(std::make_unique<Llama>(LlamaConfig::from_file(path), FirstWeights::absent, options.ranks), json,
                  folder, options);
  json.refuse("model_type", "the types that are known are gpt2, llama, qwen2 and mistral");
}

}  // namespace lockstep
