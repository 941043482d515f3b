// Language models and ResNets, tokenizers, generation: what lockstep/models.h includes.
#pragma once

#include "lockstep/models/checkpoint/checkpoint.h"
#include "lockstep/models/generation/generator.h"
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/language/quantize_language_model.h"
#include "lockstep/models/text/stream_decoder.h"
#include "lockstep/models/text/tokenizer.h"
#include "lockstep/models/vision/resnet.h"
