// Language models in fewer bits: folders, logits, texts, losses.
#include <filesystem>
#include <fstream>

#include "lockstep/models/generation/generate.h"
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/language/quantize_language_model.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/optim/adam.h"
#include "models/support/forward.h"
#include "models/support/joined_cache.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
namespace fs = std::filesystem;

Tensor ids_of(std::int64_t words) {
  std::vector<std::int64_t> ids{1, 5, 2, 9, 9, 3, 0, 4, 10, 2, 7, 6};
  for (std::int64_t& id : ids) id %= words;
  return from_data(ids, {2, 6});
}

// Root of the differences' squares' sum over that of the squares.
double relative(const Tensor& a, const Tensor& b) {
  const Tensor want = b.to(Device::cpu()).to(DType::f32), error = a.to(Device::cpu()).to(DType::f32) - want;
  return sqrt(sum(square(error)) / sum(square(want))).item<double>();
}
double size(const Tensor& a) { return max(abs(a.to(Device::cpu()).to(DType::f32))).item<double>(); }

using Layers = std::vector<QuantizableLayer*>;
Layers layers_of(LanguageModel& model) {
  Layers layers;
  MemberVisitor visitor;
  visitor.module = [&](ModuleBase& each) {
    if (auto* layer = dynamic_cast<QuantizableLayer*>(&each)) layers.push_back(layer);
  };
  visitor.visit(dynamic_cast<ModuleBase&>(model));
  return layers;
}

QuantizeLanguageModelOptions bits_of(int bits, bool output = false) {
  QuantizeLanguageModelOptions options;
  options.bits = bits, options.group_size = 32, options.output = output;
  return options;
}

void write_config(const fs::path& folder, const std::string& quantization) {
  std::ifstream in(fs::path(golden_model("gpt2")) / "config.json");
  std::string text{std::istreambuf_iterator<char>(in), {}};
  text.insert(text.find('{') + 1, "\"quantization_config\": " + quantization + ",");
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << text;
}

}  // namespace

TEST_CASE("a language model in fewer bits is a folder whose logits are near those of the model it was") {
  const std::string name = GENERATE("gpt2", "llama", "qwen2");
  const auto [bits, bound] = GENERATE(std::pair{8, 0.03}, std::pair{4, 0.5});
  const bool output = GENERATE(false, true);
  CAPTURE(name, bits, output);
  const TemporaryFolder folder;
  const QuantizationReport report =
      quantize_language_model(golden_model(name), folder.path().string(), bits_of(bits, output));
  CHECK(report.layers.size() == (name == "gpt2" ? 8U : 14U) + (output ? 1U : 0U));
  CHECK(report.bytes_after() < report.bytes_before());
  const auto whole = load_language_model(golden_model(name), {.dtype = DType::f32});
  const Tensor ids = ids_of(whole->shape().vocabulary), want = forward(*whole, ids);
  for (const bool map : {false, true}) {
    const Device device = map ? support::device_at(0) : Device::cpu();
    const auto model = load_language_model(folder.path().string(), {.device = device, .dtype = DType::f32, .map = map});
    const Tensor logits = forward(*model, ids.to(device));
    CHECK(relative(logits, want) < bound);
    CHECK(relative(logits, want) > 0);
    for (std::int64_t text = 0; text < 2; ++text)
      CHECK(distance(decode_all(*model, ids[text].to(device), 2), logits[text]) < 1e-4 * size(want));
    CHECK(generate(*model, {1, 2, 3}, {.max_new_tokens = 5}).tokens.size() == 5);
  }
  const auto half = load_language_model(folder.path().string(), {.dtype = DType::bf16});
  CHECK(half->dtype() == DType::bf16);
  CHECK(relative(forward(*half, ids), want) < bound + 0.05);
  CHECK_THROWS_WITH(quantize_language_model(folder.path().string(), folder / "again"), Contains("that is quantised"));
}

TEST_CASE("a quantised folder has the model's bits: what is loaded is what was computed") {
  const std::string name = GENERATE("gpt2", "llama");
  const TemporaryFolder folder;
  quantize_language_model(golden_model(name), folder.path().string(), bits_of(4));
  const auto model = load_language_model(golden_model(name)), loaded = load_language_model(folder.path().string());
  QuantizeLinearsOptions options;
  options.bits = 4, options.group_size = 32;
  quantize_linears(dynamic_cast<ModuleBase&>(*model), options);
  const Tensor ids = ids_of(model->shape().vocabulary);
  CHECK(loaded->dtype() == model->dtype());
  CHECK(distance(forward(*model, ids), forward(*loaded, ids)) == 0);
}

TEST_CASE("a language model in fewer bits computes with the dequantised weights, and nothing else is changed") {
  const std::string name = GENERATE("gpt2", "llama", "qwen2");
  const int bits = GENERATE(8, 4);
  CAPTURE(name, bits);
  const TemporaryFolder folder;
  quantize_language_model(golden_model(name), folder.path().string(), bits_of(bits));
  const auto model = load_language_model(folder.path().string(), {.dtype = DType::f32});
  const auto whole = load_language_model(golden_model(name), {.dtype = DType::f32});
  const Layers fewer = layers_of(*model), all = layers_of(*whole);
  REQUIRE(fewer.size() == all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!fewer[i]->quantized()) continue;
    const Tensor weight = fewer[i]->quantized()->quantized_weight(Device::cpu()).dequantize();
    const QuantizableLayer::Parts parts = all[i]->parts();
    parts.weight.assign(parts.is_transposed ? weight.t() : weight);
  }
  const Tensor ids = ids_of(whole->shape().vocabulary), want = forward(*whole, ids);
  CHECK(distance(forward(*model, ids), want) < 1e-4 * size(want));
}

TEST_CASE("what quantize_language_model writes is read, also from a config that says it has no quantisation") {
  const TemporaryFolder folder;
  const fs::path source = folder.path() / "source", target = folder.path() / "target";
  write_config(source, "null");
  fs::copy(fs::path(golden_model("gpt2")) / "model.safetensors", source / "model.safetensors");
  QuantizeLanguageModelOptions options = bits_of(8);
  options.group_size = 7;  // of 4 bits alone
  quantize_language_model(source.string(), target.string(), options);
  CHECK(layers_of(*load_language_model(target.string()))[0]->quantized());
}

TEST_CASE("quantize_language_model leaves a folder as it was where it cannot write all of it") {
  const TemporaryFolder folder;
  const fs::path source = folder.path() / "source", target = folder.path() / "target";
  fs::create_directories(source);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(fs::path(golden_model("gpt2")) / name, source / name);
  write_bytes(source / "words.txt", "new");
  fs::create_directories(target / "model.safetensors");  // no file can take its place
  for (const char* name : {"config.json", "words.txt"}) write_bytes(target / name, "old");
  CHECK_THROWS_WITH(quantize_language_model(source.string(), target.string()),
                    Contains("[quantize_language_model]") && Contains("model.safetensors"));
  for (const char* name : {"config.json", "words.txt"}) CHECK(read_bytes(target / name) == "old");
  CHECK(std::distance(fs::directory_iterator(target), fs::directory_iterator()) == 3);
  fs::remove(target / "model.safetensors");
  quantize_language_model(source.string(), target.string());
  CHECK(read_bytes(target / "words.txt") == "new");
  CHECK(layers_of(*load_language_model(target.string()))[0]->quantized());
  CHECK(std::distance(fs::directory_iterator(target), fs::directory_iterator()) == 3);
}

TEST_CASE("quantised weights in other formats are refused by their names") {
  const TemporaryFolder folder;
  const std::pair<const char*, const char*> kCases[] = {
      {R"({"quant_method": "gptq", "bits": 4})", "gptq"},
      {R"({"quant_method": "awq", "bits": 4})", "awq"},
      {R"({"load_in_8bit": true})", "bitsandbytes"},
      {R"({"quant_method": "lockstep", "version": 2, "group_size": 64})", "version 2"},
  };
  for (const auto& [text, why] : kCases) {
    write_config(folder.path(), text);
    CHECK_THROWS_AS(load_language_model(folder.path().string()), NotSupported);
    CHECK_THROWS_WITH(load_language_model(folder.path().string()), Contains("quantization_config") && Contains(why));
  }
  write_config(folder.path(), R"({"quant_method": "lockstep", "version": 1, "group_size": 48})");
  CHECK_THROWS_WITH(load_language_model(folder.path().string()), Contains("expected 32, 64 or 128, got 48"));
}

TEST_CASE("a language model that has learned loses little of it by fewer bits") {
  manual_seed(4);
  GptConfig config;
  config.vocab_size = 13, config.n_positions = 24, config.n_embd = 32, config.n_layer = 2, config.n_head = 4;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  Gpt2 model(config);
  // What follows is a function of the two words before, but for noise.
  std::vector<std::int64_t> words{1, 2};
  std::uint64_t state = 7;
  for (int i = 0; i < 24 * 16; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto n = words.size();
    words.push_back(state >> 60 == 0 ? static_cast<std::int64_t>(state >> 32) % 13
                                     : (words[n - 1] * 3 + words[n - 2] + 1) % 13);
  }
  words.resize(24 * 16);
  const Tensor ids = from_data(words, {16, 24});
  const auto loss_of = [&](const Gpt2& each) {
    return cross_entropy(each(ids).narrow(1, 0, 23).reshape({-1, 13}), ids.narrow(1, 1, 23).reshape({-1}));
  };
  AdamW adam(model.parameters(), {.lr = 0.01});
  const double first = loss_of(model).item<double>();
  for (int step = 0; step < 60; ++step) {
    model.zero_grad();
    loss_of(model).backward();
    adam.step();
  }
  const NoGrad no_grad;
  model.eval();
  const double learned = loss_of(model).item<double>();
  REQUIRE(learned < 0.6 * first);
  for (const bool rounds : {false, true}) {
    Gpt2 fewer = deep_copy(model);
    QuantizeLinearsOptions options;
    options.int8_activations = rounds;
    quantize_linears(fewer, options);
    CHECK(loss_of(fewer).item<double>() < 1.01 * learned);
  }
  Gpt2 least = deep_copy(model);
  quantize_linears(least, {{.bits = 4, .group_size = 32}});
  CHECK(loss_of(least).item<double>() < 1.25 * learned);
}

}  // namespace lockstep::test
