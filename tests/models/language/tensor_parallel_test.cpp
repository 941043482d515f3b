// Language models that several ranks have together: what one device has and computes.
#include <fstream>
#include <map>

#include "lockstep/models/generation/generate.h"
#include "lockstep/models/generation/kv_cache.h"
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/language/quantize_language_model.h"
#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/tensor_parallel/parts.h"
#include "lockstep/parallel/tensor_parallel/vocabulary.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Doubles = std::vector<double>;
using Results = std::map<std::string, Doubles>;

GptConfig small_gpt(std::int64_t heads, bool tied) {
  GptConfig c;
  c.vocab_size = 11, c.n_positions = 16, c.n_embd = 4 * heads, c.n_layer = 2, c.n_head = heads;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.2;
  return c;
}

LlamaConfig small_llama(std::int64_t groups, bool tied) {
  LlamaConfig c;
  c.vocab_size = 11, c.hidden_size = 10, c.intermediate_size = 6 * groups, c.num_hidden_layers = 2;
  c.num_attention_heads = 2 * groups, c.num_key_value_heads = groups, c.head_dim = 4;
  c.attention_bias = c.output_bias = c.mlp_bias = true;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.2;
  return c;
}

// One device has no communicator at all.
Device device_of(Communicator* ranks) { return ranks ? ranks->device() : Device::host(0); }
Tensor ids_on(Device device) { return from_data({1, 5, 2, 9, 9, 3, 0, 4, 10, 2}, {2, 5}).to(device); }
Doubles values(const Tensor& x) { return x.detach().to(DType::f64).to_vector<double>(); }

std::vector<std::unique_ptr<Communicator>> make_peers(std::span<const Device> devices, Milliseconds timeout) {
  return make_peer_group({devices.begin(), devices.end()}, {.timeout = timeout});
}

double difference(const Results& a, const Results& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (const auto& [name, x] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != x.size()) return 1e300;
    for (std::size_t i = 0; i < x.size(); ++i) largest = std::max(largest, std::abs(x[i] - found->second[i]));
  }
  return largest;
}

std::vector<NamedTensor> whole(const ModuleBase& module, Communicator* ranks) {
  return ranks ? whole_state(module, *ranks) : module.state_dict();
}

// Logits, all gradients, and the weights after five steps with clipped gradients; at rank 0.
template <class M>
Results trained(M model, Communicator* ranks) {
  model.to(device_of(ranks));
  const Tensor ids = ids_on(device_of(ranks)), targets = ids.narrow(1, 1, 4).reshape({8});
  SGD sgd(model.parameters(), {.lr = 0.2, .momentum = 0.9});
  Results results;
  for (int step = 0; step < 5; ++step) {
    model.zero_grad();
    const Tensor logits = model(ids);
    results["logits"] = values(logits);
    // One of the two losses, by turns.
    const std::int64_t words = model.config().vocab_size;
    const Tensor own = ranks && step % 2 ? model.own_logits(ids) : logits;
    const Tensor flat = own.narrow(1, 0, 4).reshape({8, own.size(2)});
    const Tensor loss = ranks && step % 2
                            ? vocabulary_parallel_cross_entropy(flat, targets, words, *ranks,
                                                                {.ignore_index = 9, .label_smoothing = 0.1})
                            : cross_entropy(flat, targets, {.ignore_index = 9, .label_smoothing = 0.1});
    loss.backward();
    results[cat("loss ", step)] = values(loss);
    if (step < 2) {  // the gradients, as a state
      M copy = deep_copy(model);
      for (std::size_t i = 0; i < copy.parameters().size(); ++i)
        copy.parameters()[i].assign(model.parameters()[i].grad());
      for (const NamedTensor& each : whole(copy, ranks))
        results[cat(each.name, " gradient ", step)] = values(each.tensor);
    }
    const Tensor norm =
        ranks ? clip_grad_norm(model.parameters(), 0.5, *ranks) : clip_grad_norm(model.parameters(), 0.5);
    results[cat("norm ", step)] = values(norm);
    sgd.step();
  }
  for (const NamedTensor& each : whole(model, ranks)) results[each.name] = values(each.tensor);
  return results;
}

template <class M, class Config>
void check_trains(const Config& config, int count, DType dtype) {
  const auto body = [&](Communicator* ranks) {
    const DefaultDType scope(dtype);
    manual_seed(ranks && ranks->rank() > 0 ? 99 : 3);
    return trained(M(config, FirstWeights::random, ranks), ranks);
  };
  const Results alone = body(nullptr);
  const auto all = run_ranks(count, [&](Communicator& ranks) { return body(&ranks); }, {.make = make_peers});
  CHECK(difference(all[0], alone) <= (dtype == DType::f64 ? 1e-12 : 1e-5));
  for (const Results& each : all)
    for (const char* name : {"logits", "loss 3", "norm 4"}) CHECK(each.at(name) == all[0].at(name));
}

void write_config(const std::string& folder, const LlamaConfig& c) {
  std::ofstream(folder + "/config.json")
      << R"({"model_type": "llama", "hidden_act": "silu", "vocab_size": )" << c.vocab_size << R"(, "hidden_size": )"
      << c.hidden_size << R"(, "intermediate_size": )" << c.intermediate_size << R"(, "num_hidden_layers": )"
      << c.num_hidden_layers << R"(, "num_attention_heads": )" << c.num_attention_heads
      << R"(, "num_key_value_heads": )" << c.key_value_heads() << R"(, "head_dim": )" << c.head_size()
      << R"(, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "attention_bias": true, "mlp_bias": true,)"
      << R"( "tie_word_embeddings": false, "rope_theta": 10000.0})";
}

}  // namespace

TEST_CASE("language models of several ranks train as one device does") {
  check_trains<Llama>(small_llama(2, false), 2, DType::f64);
  check_trains<Gpt2>(small_gpt(4, true), 2, DType::f64);
  check_trains<Llama>(small_llama(3, true), 3, DType::f32);
  GptConfig shallow = small_gpt(4, false);
  shallow.n_layer = 1;
  check_trains<Gpt2>(shallow, 4, DType::f32);
}

TEST_CASE("one checkpoint is for any number of ranks") {
  const auto check = [](auto type, const auto& config) {
    using M = typename decltype(type)::type;
    TemporaryFolder folder;
    manual_seed(4);
    const M alone(config);
    save_model(alone, folder / "0.safetensors");
    const Doubles logits = values(alone(ids_on(Device::cpu())));
    int last = 0;
    for (const int count : {2, 4, 1, 2}) {  // each from the file of the one before
      const std::string from = folder / cat(last, ".safetensors"), to = folder / cat(count, "-.safetensors");
      const auto got = run_ranks(count, [&](Communicator& ranks) {
        M model(config, FirstWeights::absent, &ranks);
        const LoadReport report = load_checkpoint(model, from, {.map = count == 4});
        model.to(ranks.device());
        model.eval();
        const auto state = whole_state(model, ranks);
        if (ranks.rank() == 0) save_safetensors(to, state);
        return report.complete() ? values(model(ids_on(ranks.device()))) : Doubles{};
      });
      last = count;
      std::filesystem::rename(to, folder / cat(count, ".safetensors"));
      for (const Doubles& each : got) {
        REQUIRE(each.size() == logits.size());
        for (std::size_t i = 0; i < each.size(); ++i) CHECK(std::abs(each[i] - logits[i]) < 1e-5);
      }
      const auto state = load_safetensors(folder / cat(count, ".safetensors")).tensors;
      std::map<std::string, Tensor> expected;
      for (const NamedTensor& each : alone.state_dict()) expected[each.name] = each.tensor.detach();
      CHECK(state.size() == expected.size());
      for (const NamedTensor& each : state) CHECK(equal(each.tensor, expected.at(each.name)));
    }
  };
  check(std::type_identity<Llama>(), small_llama(4, true));
  check(std::type_identity<Gpt2>(), small_gpt(4, false));
}

TEST_CASE("every rank generates the tokens of one device, and keeps its heads alone") {
  TemporaryFolder folder;
  LlamaConfig config = small_llama(2, false);
  config.output_bias = true;
  manual_seed(12);
  save_model(Llama(config), folder / "model.safetensors");
  write_config(folder.path().string(), config);
  const std::vector<std::vector<std::int64_t>> prompts{{1, 5, 2}, {7}, {3, 3, 8, 0, 10, 4}};
  const auto written = [&](Communicator* ranks) {
    const auto model = load_language_model(folder.path().string(), {.map = ranks == nullptr, .ranks = ranks});
    const KvCache cache(*model, {.pages = 4});
    std::vector<std::vector<std::int64_t>> tokens;
    for (const double temperature : {0.0, 0.8})
      for (const Generated& each :
           generate(*model, prompts, {.max_new_tokens = 12, .sampling = {.temperature = temperature}}))
        tokens.push_back(each.tokens);
    return std::pair(tokens, cache.stats().bytes);
  };
  const auto alone = written(nullptr);
  for (const auto& each : run_ranks(2, [&](Communicator& ranks) { return written(&ranks); })) {
    CHECK(each.first == alone.first);
    CHECK(2 * each.second == alone.second);
  }
}

namespace {

// A folder of a model in fewer bits.
struct Quantized {
  TemporaryFolder folder;
  std::string path() const { return folder.path().string(); }
  Quantized(const std::string& from, int bits, bool output) {
    QuantizeLanguageModelOptions options;
    options.bits = bits, options.group_size = 32, options.output = output;
    quantize_language_model(from, path(), options);
  }
};

// Inputs of several groups of 32 everywhere.
std::unique_ptr<Quantized> wide_llama(std::int64_t intermediate) {
  LlamaConfig config = small_llama(4, false);
  config.hidden_size = 64, config.intermediate_size = intermediate, config.head_dim = 16;
  TemporaryFolder whole;
  manual_seed(13);
  save_model(Llama(config), whole / "model.safetensors");
  write_config(whole.path().string(), config);
  return std::make_unique<Quantized>(whole.path().string(), 4, true);
}

struct Answer {
  Doubles logits;
  std::vector<std::int64_t> tokens;
  std::map<std::string, Tensor> state;  // whole; at rank 0
  std::size_t bytes = 0;                // of this rank's codes and scales
};

Answer answer_of(const std::string& folder, Communicator* ranks, DType dtype = DType::f32) {
  const auto model = load_language_model(folder, {.dtype = dtype, .ranks = ranks});
  auto& module = dynamic_cast<ModuleBase&>(*model);
  const NoGrad no_grad;
  const Tensor ids = ids_on(model->device());
  const auto* gpt2 = dynamic_cast<const Gpt2*>(model.get());
  Answer answer{values(gpt2 ? (*gpt2)(ids) : dynamic_cast<const Llama&>(*model)(ids)),
                generate(*model, {1, 5, 2}, {.max_new_tokens = 8}).tokens,
                {}};
  for (const NamedTensor& each : whole(module, ranks)) answer.state[each.name] = each.tensor;
  for (const NamedParameter& each : module.named_buffers())
    if (each.name.ends_with(".weight") || each.name.ends_with(".scales"))
      answer.bytes += each.parameter.tensor().bytes();
  return answer;
}

}  // namespace

TEST_CASE("a folder in fewer bits is for any number of ranks, of which each keeps its part of the codes") {
  struct Row {
    std::string name;
    std::unique_ptr<Quantized> folder;
    int count;
  };
  std::vector<Row> rows;
  rows.push_back({"gpt2, 8 bits", std::make_unique<Quantized>(golden_model("gpt2"), 8, true), 4});
  rows.push_back({"llama, 8 bits", std::make_unique<Quantized>(golden_model("llama"), 8, false), 2});
  rows.push_back({"qwen2, 8 bits", std::make_unique<Quantized>(golden_model("qwen2"), 8, true), 2});
  rows.push_back({"llama, 4 bits", wide_llama(128), 4});
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Answer alone = answer_of(row.folder->path(), nullptr);
    const auto all = run_ranks(row.count, [&](Communicator& ranks) { return answer_of(row.folder->path(), &ranks); });
    for (const Answer& each : all) {
      CHECK(difference({{"logits", each.logits}}, {{"logits", alone.logits}}) < 1e-5);
      CHECK(each.tokens == alone.tokens);
      CHECK(each.bytes < alone.bytes / static_cast<std::size_t>(row.count) * 5 / 4);  // scales of rows all have
    }
    CHECK(all[0].state.size() == alone.state.size());
    for (const auto& [name, tensor] : alone.state) {
      CAPTURE(name);
      REQUIRE(all[0].state.contains(name));
      CHECK(equal(all[0].state.at(name), tensor));
    }
  }
  const auto half =
      run_ranks(2, [&](Communicator& ranks) { return answer_of(rows[3].folder->path(), &ranks, DType::bf16).logits; });
  CHECK(half[0] == half[1]);
}

TEST_CASE("a group of 4 bits that would lie on two ranks is named") {
  const auto folder = wide_llama(192);
  const auto said = run_ranks(4, [&](Communicator& ranks) -> std::string {
    try {
      load_language_model(folder->path(), {.ranks = &ranks});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "loaded";
  });
  for (const std::string& each : said)
    CHECK_THAT(each, Contains("down_proj': expected whole groups of 32 inputs on each of 4 ranks, got 192 inputs"));
}

TEST_CASE("what GPT-2 drops between divided layers all ranks drop alike") {
  GptConfig config = small_gpt(4, true);
  const auto which = GENERATE(0, 1, 2);
  (which == 0 ? config.embd_pdrop : which == 1 ? config.attn_pdrop : config.resid_pdrop) = 0.5;
  const auto all = run_ranks(2, [&](Communicator& ranks) {
    Gpt2 model(config, FirstWeights::random, &ranks);
    model.to(ranks.device());
    const Tensor first = model(ids_on(ranks.device())), second = model(ids_on(ranks.device()));
    if (values(first) == values(second)) throw Error("nothing is dropped");
    square(second).sum().backward();
    return values(model.h[0].ln_1.weight.grad());
  });
  CHECK(all[0] == all[1]);
}

TEST_CASE("language models of several ranks name what does not divide, and what does not fit") {
  const auto said = [](int count, auto make) {
    std::vector<std::string> messages(static_cast<std::size_t>(count));
    run_ranks(count, [&](Communicator& ranks) {
      try {
        make(&ranks);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(ranks.rank())] = error.what();
      }
    });
    return messages[0];
  };
  const auto absent = FirstWeights::absent;
  CHECK_THAT(said(4, [&](Communicator* r) { Llama(small_llama(2, true), absent, r); }),
             Contains("[Llama]") && Contains("4 ranks divide evenly, got 4 and 2"));
  LlamaConfig narrow = small_llama(2, true);
  narrow.intermediate_size = 13;
  CHECK_THAT(said(2, [&](Communicator* r) { Llama(narrow, absent, r); }),
             Contains("[Llama] expected 2 ranks to divide intermediate_size evenly, got 13"));
  CHECK_THAT(said(3, [&](Communicator* r) { Gpt2(small_gpt(4, true), absent, r); }), Contains("got 4 and 4"));
  GptConfig inner = small_gpt(4, true);
  inner.n_inner = 15;
  CHECK_THAT(said(2, [&](Communicator* r) { Gpt2(inner, absent, r); }),
             Contains("[Gpt2] expected 2 ranks to divide n_inner evenly, got 15"));

  TemporaryFolder folder;
  save_model(Llama(small_llama(4, false)), folder / "model.safetensors");
  write_config(folder.path().string(), small_llama(2, false));
  CHECK_THAT(said(2, [&](Communicator* r) { load_language_model(folder.path().string(), {.ranks = r}); }),
             Contains("of which rank 0 of 2 has a part"));
  CHECK_THAT(said(2,
                  [&](Communicator* r) {
                    load_language_model(folder.path().string(), {.device = Device::host(5), .ranks = r});
                  }),
             Contains("expected the device of the ranks' communicator, host:0, or none, got host:5"));
}

}  // namespace lockstep::test
