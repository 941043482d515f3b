// Our side of scripts/compare_transformers: logits of a model that others have saved, for inputs that they have chosen.
//
// usage: lockstep-model-logits language <folder> <inputs> <outputs> [dtype of f32, bf16, f16] [map]
//        lockstep-model-logits <resnet…> <file> <inputs> <outputs>
//
// Inputs have ids [B, T] or images; outputs get "forward", and of language models "decode" too: a prompt of half the
// text, then token by token. Prints a line of JSON: milliseconds to the model and to the first logits, and bytes.
#include <chrono>
#include <iostream>

#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/vision/resnet.h"
#include "lockstep/runtime/memory/allocator.h"
#include "models/support/joined_cache.h"

namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

Tensor input(const std::string& path, const std::string& name) {
  for (const NamedTensor& each : load_safetensors(path).tensors)
    if (each.name == name) return each.tensor;
  throw InvalidArgument(cat(path, ": expected a tensor '", name, "'"));
}

void language(const std::vector<std::string>& arguments) {
  LoadLanguageModelOptions options;
  for (std::size_t i = 4; i < arguments.size(); ++i) {
    if (arguments[i] == "map")
      options.map = true;
    else
      options.dtype = arguments[i] == "f32" ? DType::f32 : arguments[i] == "bf16" ? DType::bf16 : DType::f16;
  }
  const Tensor ids = input(arguments[2], "ids");
  reset_peak(Device::cpu());
  const auto begin = Clock::now();
  const auto model = load_language_model(arguments[1], options);
  const double loaded = milliseconds(begin);
  test::decode_all(*model, ids[0].narrow(0, 0, 1), 1);
  const double first = milliseconds(begin);
  const std::size_t bytes = memory_stats(Device::cpu()).peak_in_use_bytes;
  const auto* gpt2 = dynamic_cast<const Gpt2*>(model.get());
  const Tensor forward = gpt2 ? (*gpt2)(ids) : dynamic_cast<const Llama&>(*model)(ids);
  std::vector<Tensor> texts;
  const auto before_steps = Clock::now();
  for (std::int64_t text = 0; text < ids.size(0); ++text)
    texts.push_back(test::decode_all(*model, ids[text], (ids.size(1) + 1) / 2));
  std::cout << "{\"loaded\": " << loaded << ", \"first\": " << first << ", \"peak\": " << bytes
            << ", \"decode\": " << milliseconds(before_steps) << "}\n";
  save_safetensors(arguments[3], {{"forward", forward.to(DType::f32)}, {"decode", stack(texts).to(DType::f32)}});
}

void vision(const std::vector<std::string>& arguments) {
  ResNet model = ResNet::named(arguments[0]);
  load_checkpoint(model, arguments[1]);
  model.eval();
  const Tensor logits = model(input(arguments[2], "images"));
  std::cout << "{}\n";
  save_safetensors(arguments[3], {{"forward", logits}});
}

}  // namespace

int main(int count, char** values) try {
  const std::vector<std::string> arguments(values + 1, values + count);
  if (arguments.size() < 4) throw InvalidArgument("expected a kind of model, a checkpoint, inputs and outputs");
  const NoGrad no_grad;
  arguments[0] == "language" ? language(arguments) : vision(arguments);
  return 0;
} catch (const std::exception& error) {
  std::cerr << "lockstep-model-logits: " << error.what() << '\n';
  return 1;
}
