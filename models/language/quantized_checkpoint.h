// What config.json and a checkpoint say of weights in fewer bits. Private to the library.
#pragma once

#include <optional>

#include "lockstep/models/checkpoint/json_file.h"
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"

namespace lockstep::detail {

// What `quantization_config` says: the size of groups of 4 bits; none where there is no such field. Throws
// NotSupported, naming the method, for the formats of others.
std::optional<std::int64_t> quantized_groups(const JsonFile& config);

// Layers whose scales the checkpoint has get codes and scales without values, for load_checkpoint to fill.
void expect_quantized(Gpt2& model, const Safetensors& checkpoint, std::int64_t group_size);
void expect_quantized(Llama& model, const Safetensors& checkpoint, std::int64_t group_size);

// The output matrix apart from the embedding, where they are tied: a layer without elements.
void untie_output(Gpt2& model);
void untie_output(Llama& model);

}  // namespace lockstep::detail
