// Language models in fewer bits, as folders that load_language_model reads.
#pragma once

#include <string>

#include "lockstep/tensor/nn/quantize_linears.h"

namespace lockstep {

struct QuantizeLanguageModelOptions : QuantizeLinearsOptions {
  // The output matrix too, which else stays: lm_head, or where it is tied to the embedding a matrix of its own, beside
  // the embedding as it is.
  bool output = false;
};

// Reads the model of the folder `from` (load_language_model) and writes it, with its linear layers in fewer bits, to
// the folder `to`, which is made if need be: one model.safetensors; config.json with `quantization_config`; and the
// other files of `from` that end with .json, .txt and .model, such as those of a tokenizer. A layer's names in the file
// are those of QuantizedLinear; weights of GPT-2 are [outputs, inputs] there. Throws what load_language_model,
// quantize_linears and save_model throw; InvalidArgument for `to` being `from`, and where the model is quantised
// already. Blocks; has the weights in memory.
//
// The files take their places at the end, all of them: what fails leaves `to` as it was. A process that is killed
// leaves the old files, the new ones or, between the two, no config.json, beside a folder `.lockstep-XXXXXX`. Nobody
// may read `to` meanwhile.
LOCKSTEP_API QuantizationReport quantize_language_model(const std::string& from, const std::string& to,
                                                        const QuantizeLanguageModelOptions& options = {});

}  // namespace lockstep
