// Language models from folders as they are published.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lockstep/models/generation/language_model.h"
#include "lockstep/parallel/comm/communicator.h"

namespace lockstep {

struct LoadLanguageModelOptions {
  Device device = Device::cpu();
  std::optional<DType> dtype = std::nullopt;  // none: the one that most bytes of the checkpoint have
  bool map = false;                           // see LoadCheckpointOptions
  // Borrowed. The model is one that these ranks have together, on their devices: `device` stays cpu.
  Communicator* ranks = nullptr;
};

// The model of a folder with config.json and a checkpoint (load_checkpoint), in evaluation mode: Gpt2 for model_type
// gpt2, Llama for llama, qwen2 and mistral. It is a ModuleBase too (dynamic_cast). Weights that quantize_language_model
// wrote stay in fewer bits. Throws what from_file of its config throws, NotSupported for other model types and for a
// quantization_config of another format (gptq, awq, bitsandbytes, …), and what load_checkpoint throws. Blocks.
LOCKSTEP_API std::unique_ptr<LanguageModel> load_language_model(const std::string& folder,
                                                                const LoadLanguageModelOptions& options = {});

}  // namespace lockstep
