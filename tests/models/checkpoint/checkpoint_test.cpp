// Checkpoints of one file and of several, mapped and read, into modules with elements and without.
#include "lockstep/models/checkpoint/checkpoint.h"

#include <cstring>
#include <filesystem>

#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/runtime/memory/allocator.h"
#include "models/support/joined_cache.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;

struct Pair : Module<Pair> {
  explicit Pair(FirstWeights first = FirstWeights::random)
      : a(detail_parameter({3, 2}, first)), b(detail_parameter({4}, first)) {}
  static Parameter detail_parameter(const Shape& shape, FirstWeights first) {
    return first == FirstWeights::absent ? Parameter::uninitialized(shape, DType::f32) : Parameter(zeros(shape));
  }
  Tensor forward(const Tensor& x) const { return x + b.on(x.device()); }
  void members(Members& m) override { m("a", a), m("b", b); }
  Parameter a, b;
};

Tensor a_values() { return from_data({1., 2., 3., 4., 5., 6.}, {3, 2}); }
Tensor b_values() { return from_data({7., 8., 9., 10.}, {4}); }

void write_index(const TemporaryFolder& folder, const std::string& map) {
  write_bytes(folder / "model.safetensors.index.json",
              "{\"metadata\": {\"total_size\": 40}, \"weight_map\": " + map + "}");
}

void write_shards(const TemporaryFolder& folder) {
  save_safetensors(folder / "x.safetensors", {{"b", b_values()}});
  save_safetensors(folder / "y.safetensors", {{"a", a_values()}, {"stray", a_values()}});
  write_index(folder, R"({"a": "y.safetensors", "b": "x.safetensors"})");
}

bool lies_in(const Tensor& tensor, const Safetensors& file) {
  for (const NamedTensor& each : file.tensors)
    if (tensor.data() == each.tensor.data()) return true;
  return false;
}

}  // namespace

TEST_CASE("a checkpoint is a file, an index with shards, or a folder with either") {
  const TemporaryFolder folder;
  const bool map = GENERATE(false, true);
  const FirstWeights first = GENERATE(FirstWeights::random, FirstWeights::absent);
  std::string path = folder.path().string();
  SECTION("shards") {
    write_shards(folder);
    if (GENERATE(false, true)) path = folder / "model.safetensors.index.json";
  }
  SECTION("one file") {
    save_safetensors(folder / "model.safetensors", {{"a", a_values()}, {"b", b_values()}});
    // Goes before shards.
    if (GENERATE(false, true)) write_index(folder, R"({"a": "missing.safetensors"})");
    if (GENERATE(false, true)) path = folder / "model.safetensors";
  }
  Pair pair(first);
  CHECK(load_checkpoint(pair, path, {.map = map}).complete());
  CHECK(equal(pair.a.tensor().detach(), a_values()));
  CHECK(equal(pair.b.tensor().detach(), b_values()));
  CHECK(pair.a.requires_grad());
  pair(b_values()).sum().backward();
  CHECK(equal(pair.b.grad(), ones({4})));
}

TEST_CASE("an index is read with suspicion") {
  const TemporaryFolder folder;
  write_shards(folder);
  Pair pair;
  const std::string path = folder.path().string();
  const auto check = [&](const std::string& map, const std::string& words) {
    write_index(folder, map);
    CAPTURE(map);
    CHECK_THROWS_AS(load_checkpoint(pair, path), FormatError);
    CHECK_THROWS_WITH(load_checkpoint(pair, path), Contains(words) && Contains("index.json"));
    CHECK(equal(pair.a.tensor().detach(), zeros({3, 2})));
  };
  std::filesystem::create_directory(folder.path() / "sub");
  save_safetensors(folder / "sub/x.safetensors", {{"b", b_values()}});
  check(R"({"a": "y.safetensors", "b": "sub/x.safetensors"})", "beside the index for 'b', got 'sub/x.safetensors'");
  check(R"({"a": "y.safetensors", "b": ".."})", "beside the index");
  check(R"({"a": "y.safetensors", "b": "/etc/passwd"})", "beside the index");
  check(R"({"a": "y.safetensors", "b": ""})", "beside the index");
  check(R"({"a": "y.safetensors", "b": "x\\x.safetensors"})", "beside the index");
  check(R"({"a": "y.safetensors", "b": "y.safetensors"})", "expected 'b' in 'y.safetensors', which does not have it");
  check(R"({"a": "y.safetensors", "b": 3})", "expected a text for \"b\"");
  check(R"(["a"])", "expected an object");
  write_bytes(folder / "model.safetensors.index.json", "{}");
  CHECK_THROWS_WITH(load_checkpoint(pair, path), Contains("\"weight_map\": expected a value"));
  write_bytes(folder / "model.safetensors.index.json", "{\"weight_map\": ");
  CHECK_THROWS_AS(load_checkpoint(pair, path), FormatError);
  write_index(folder, R"({"a": "y.safetensors", "b": "gone.safetensors"})");
  CHECK_THROWS_WITH(load_checkpoint(pair, path), Contains("gone.safetensors"));
  const TemporaryFolder empty;
  CHECK_THROWS_WITH(load_checkpoint(pair, empty.path().string()), Contains("found neither"));
}

TEST_CASE("what does not fit is reported before anything changes") {
  const TemporaryFolder folder;
  save_safetensors(folder / "model.safetensors", {{"a", a_values()}, {"c", b_values()}});
  Pair pair;
  CHECK_THROWS_WITH(load_checkpoint(pair, folder.path().string()), Contains("missing: b") && Contains("unexpected: c"));
  CHECK(equal(pair.a.tensor().detach(), zeros({3, 2})));
  const LoadReport report = load_checkpoint(pair, folder.path().string(), {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"b"});
  CHECK(report.unexpected == std::vector<std::string>{"c"});
  CHECK(equal(pair.a.tensor().detach(), a_values()));
}

TEST_CASE("adopted tensors are the parameters, without a copy where they fit") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  save_safetensors(path, {{"a", a_values()}, {"b", b_values()}});
  const bool map = GENERATE(false, true);
  const FirstWeights first = GENERATE(FirstWeights::random, FirstWeights::absent);
  const Safetensors file = load_safetensors(path, {.map = map});
  Pair pair(first);
  load_model(pair, file, path, {.adopt = true});
  CHECK(lies_in(pair.a.tensor(), file));
  CHECK(lies_in(pair.b.tensor(), file));
  // In another dtype they are converted.
  Pair wide(first);
  wide.to(DType::f64);
  load_model(wide, file, path, {.adopt = true});
  CHECK_FALSE(lies_in(wide.a.tensor(), file));
  CHECK(equal(wide.a.tensor().detach(), a_values().to(DType::f64)));
  // On another device they are copied there.
  Pair there(first);
  there.to(Device::host(1));
  load_model(there, file, path, {.adopt = true});
  CHECK(there.b.device() == Device::host(1));
  CHECK(equal(there.b.tensor().detach(), b_values()));
  // Written to, the file stays as it is.
  if (map) {
    pair.b.assign(zeros({4}));
    CHECK(equal(load_safetensors(path).tensors[1].tensor, b_values()));
  }
}

TEST_CASE("elements that a file does not align are copied") {
  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  save_safetensors(path, {{"a", a_values()}, {"b", b_values()}});
  // A header that is a space longer.
  std::string bytes = read_bytes(path);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  bytes.insert(8 + header, " ");
  ++header;
  std::memcpy(bytes.data(), &header, sizeof header);
  write_bytes(path, bytes);
  Pair pair(FirstWeights::absent);
  load_checkpoint(pair, path, {.map = true});
  CHECK(reinterpret_cast<std::uintptr_t>(pair.a.tensor().data()) % sizeof(float) == 0);
  CHECK(equal(pair.a.tensor().detach(), a_values()));
  CHECK(equal(pair.b.tensor().detach(), b_values()));
}

TEST_CASE("parameters that adopt tensors keep their gradients, and their graphs") {
  Pair pair;
  pair(b_values()).sum().backward();
  const Tensor before = pair(b_values()).sum();
  Safetensors file;
  file.tensors = {{"a", a_values()}, {"b", b_values()}};
  load_model(pair, file, "memory", {.adopt = true});
  CHECK(equal(pair.b.grad(), ones({4})));
  before.backward();
  pair(b_values()).sum().backward();
  CHECK(equal(pair.b.grad(), 3 * ones({4})));
}

TEST_CASE("names in checkpoints may be others than the module's") {
  GptConfig c;
  c.vocab_size = 5, c.n_positions = 4, c.n_embd = 4, c.n_layer = 1, c.n_head = 2;
  const Gpt2 from(c);
  const std::string prefix = GENERATE("", "transformer.");
  Safetensors file;
  for (const NamedTensor& each : from.state_dict()) file.tensors.push_back({prefix + each.name, each.tensor.detach()});
  file.tensors.push_back({prefix + "h.0.attn.bias", ones({1, 1, 4, 4})});
  file.tensors.push_back({prefix + "h.0.attn.masked_bias", ones({})});
  file.tensors.push_back({"lm_head.weight", ones({5, 4})});
  Gpt2 to(c, FirstWeights::absent);
  CHECK(load_checkpoint(to, file, "memory").complete());
  CHECK(equal(to.wte.weight.tensor().detach(), from.wte.weight.tensor().detach()));
  file.tensors.push_back({prefix.empty() ? "transformer.wte.weight" : "wte.weight", ones({5, 4})});
  CHECK_THROWS_WITH(load_checkpoint(to, file, "memory"), Contains("expected one tensor for 'wte.weight'"));
  c.tie_word_embeddings = false;
  file.tensors.pop_back();
  Gpt2 untied(c, FirstWeights::absent);
  CHECK(load_checkpoint(untied, file, "memory").complete());
  CHECK(equal(untied.lm_head->weight.tensor().detach(), ones({5, 4})));
}

TEST_CASE("the tables of older Llama files are passed over") {
  LlamaConfig c;
  c.vocab_size = 5, c.hidden_size = 4, c.intermediate_size = 6, c.num_hidden_layers = 1, c.num_attention_heads = 2;
  const Llama from(c);
  Safetensors file;
  for (const NamedTensor& each : from.state_dict()) file.tensors.push_back({each.name, each.tensor.detach()});
  file.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", ones({1})});
  Llama to(c, FirstWeights::absent);
  CHECK(load_checkpoint(to, file, "memory").complete());
  // A head beside tied embeddings is passed over too.
  c.tie_word_embeddings = true;
  Llama tied(c, FirstWeights::absent);
  CHECK(load_checkpoint(tied, file, "memory").complete());
}

TEST_CASE("a mapped model answers without a copy of its weights") {
  // 40 MB, of which the first token reads what it needs.
  GptConfig c;
  c.vocab_size = 5000, c.n_positions = 64, c.n_embd = 512, c.n_layer = 2, c.n_head = 8;
  const TemporaryFolder folder;
  std::size_t weights = 0;
  {
    const Gpt2 model(c);
    save_model(model, folder / "model.safetensors");
    for (const Parameter& parameter : model.parameters()) weights += parameter.tensor().bytes();
  }
  write_bytes(folder / "config.json",
              R"({"model_type": "gpt2", "vocab_size": 5000, "n_positions": 64, "n_embd": 512, "n_layer": 2, "n_head": 8,
                  "layer_norm_epsilon": 1e-5})");
  REQUIRE(weights > 30'000'000);
  const auto answer = [&](bool map) {
    const std::size_t before = memory_stats(Device::cpu()).in_use_bytes;
    reset_peak(Device::cpu());
    const auto model = load_language_model(folder.path().string(), {.map = map});
    decode_all(*model, from_data({1, 2, 3}, {3}), 3);
    return memory_stats(Device::cpu()).peak_in_use_bytes - before;
  };
  CHECK(answer(true) < weights / 20);
  // Read, they are there once.
  const std::size_t read = answer(false);
  CHECK(read >= weights);
  CHECK(read < weights + weights / 20);
}

}  // namespace lockstep::test
