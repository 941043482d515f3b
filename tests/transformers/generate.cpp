// Our side of scripts/compare_generation: greedy texts of a model that others have saved.
//
// usage: lockstep-model-generate <folder> <prompts> <outputs> <new tokens> <threads> <dtype> [rounds]
//
// dtype is f32, f16, bf16; or int8 or int4: linear layers and the output matrix in so many bits, all else in f32. Their
// folder is made beside the model's, once.
//
// prompts has "ids" [sequences, tokens]; outputs get "tokens" [sequences, new tokens], and "gaps": by how much the
// first logit was above the second, where each token was drawn. Prints a line of JSON: seconds of each round.
#include "lockstep/models/generation/generate.h"

#include <chrono>
#include <filesystem>
#include <iostream>

#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/language/quantize_language_model.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"

namespace {

using namespace lockstep;

// Keeps the gaps of each call's logits.
class Watched final : public LanguageModel {
 public:
  explicit Watched(const LanguageModel& model) : model_(model) {}
  LanguageModelShape shape() const override { return model_.shape(); }
  Device device() const override { return model_.device(); }
  DType dtype() const override { return model_.dtype(); }
  Tensor decode(const DecodeStep& step) const override {
    Tensor logits = model_.decode(step);
    if (logits.size(0) > 0) {
      const Tensor two = topk(logits.to(DType::f32), 2).values;
      gaps.push_back((two.select(1, 0) - two.select(1, 1)).contiguous());
    }
    return logits;
  }
  mutable std::vector<Tensor> gaps;

 private:
  const LanguageModel& model_;
};

int run(const std::vector<std::string>& arguments) {
  if (arguments.size() < 7) throw InvalidArgument("expected six arguments: see the beginning of generate.cpp");
  set_threads(std::stoi(arguments[5]));
  std::string folder = arguments[1];
  if (arguments[6].starts_with("int")) {
    folder += "-" + arguments[6];
    QuantizeLanguageModelOptions options;
    options.bits = arguments[6] == "int4" ? 4 : 8, options.output = true;
    if (!std::filesystem::exists(folder)) quantize_language_model(arguments[1], folder, options);
  }
  const auto model = load_language_model(folder, {.dtype = arguments[6] == "bf16"  ? DType::bf16
                                                           : arguments[6] == "f16" ? DType::f16
                                                                                   : DType::f32});
  const Tensor ids = load_safetensors(arguments[2]).tensors.at(0).tensor;
  const std::int64_t count = std::stoll(arguments[4]);
  std::vector<std::vector<std::int64_t>> prompts;
  for (std::int64_t i = 0; i < ids.size(0); ++i) prompts.push_back(ids.select(0, i).to_vector<std::int64_t>());

  const Watched watched(*model);
  std::vector<std::int64_t> tokens;
  for (const Generated& text : generate(watched, prompts, {.max_new_tokens = count}))
    tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
  const std::int64_t sequences = ids.size(0);
  save_safetensors(arguments[3],
                   {{"tokens", from_data(tokens, {sequences, count})},
                    {"gaps", watched.gaps.size() == static_cast<std::size_t>(count) ? stack(watched.gaps, 1)
                                                                                    : zeros({sequences, count})}});
  const int rounds = arguments.size() > 7 ? std::stoi(arguments[7]) : 0;
  std::cout << "{\"seconds\": [";
  for (int round = 0; round < rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    generate(*model, prompts, {.max_new_tokens = count});
    std::cout << (round ? ", " : "") << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::cout << "]}\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "lockstep-model-generate: " << error.what() << "\n";
    return 1;
  }
}
