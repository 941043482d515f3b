// Models that begin with random weights, and learn.
#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/tensor/autograd/autocast.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"

namespace lockstep::test {
namespace {

GptConfig small_gpt(bool tied) {
  GptConfig c;
  c.vocab_size = 11, c.n_positions = 8, c.n_embd = 12, c.n_layer = 2, c.n_head = 3;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.2;
  return c;
}

LlamaConfig small_llama(bool tied) {
  LlamaConfig c;
  c.vocab_size = 11, c.hidden_size = 12, c.intermediate_size = 20, c.num_hidden_layers = 2;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.head_dim = 6;
  c.tie_word_embeddings = tied;
  c.initializer_range = 0.2;
  return c;
}

Tensor ids() { return from_data({1, 5, 2, 9, 9, 3, 0, 4, 10, 2}, {2, 5}); }

// Of predicting each next token.
Tensor loss_of(const Tensor& logits, const Tensor& tokens) {
  const std::int64_t length = tokens.size(1), classes = logits.size(2);
  return cross_entropy(logits.narrow(1, 0, length - 1).reshape({-1, classes}),
                       tokens.narrow(1, 1, length - 1).reshape({-1}));
}

template <class M>
void check_learns(M& model) {
  SGD sgd(model.parameters(), {.lr = 0.2});
  std::vector<double> losses;
  for (int step = 0; step < 12; ++step) {
    model.zero_grad();
    const Tensor loss = loss_of(model(ids()), ids());
    loss.backward();
    for (const auto& [name, parameter] : model.named_parameters()) {
      CAPTURE(name);
      REQUIRE(parameter.grad().defined());
      CHECK(all(isfinite(parameter.grad())).template item<bool>());
      // A gradient of exactly nothing: a weight that nothing is made of. (All keys may move alike, so a bias of
      // theirs.)
      if (name.find("k_proj.bias") == name.npos) CHECK(max(abs(parameter.grad())).template item<double>() > 0);
    }
    sgd.step();
    losses.push_back(loss.template item<double>());
  }
  CHECK(losses.back() < 0.7 * losses.front());
}

std::size_t count_of(const ModuleBase& module, const std::string& name) {
  std::size_t count = 0;
  for (const NamedTensor& each : module.state_dict()) count += each.name == name;
  return count;
}

}  // namespace

TEST_CASE("language models learn from random weights, tied or not") {
  const bool tied = GENERATE(false, true);
  CAPTURE(tied);
  manual_seed(3);
  Gpt2 gpt2(small_gpt(tied));
  check_learns(gpt2);
  Llama llama(small_llama(tied));
  check_learns(llama);
  LlamaConfig with_biases = small_llama(tied);
  with_biases.attention_bias = with_biases.output_bias = with_biases.mlp_bias = true;
  Llama biased(with_biases);
  check_learns(biased);
}

TEST_CASE("tied embeddings are one matrix, with the gradients of both ends and one update") {
  manual_seed(4);
  const auto check = [](auto tied, auto untied, const Parameter& embedding, const Parameter& first_end,
                        const Parameter& last_end) {
    CHECK(count_of(tied, "lm_head.weight") == 0);
    CHECK(count_of(untied, "lm_head.weight") == 1);
    CHECK(untied.parameters().size() == tied.parameters().size() + 1);
    // The same elements in both.
    std::map<std::string, Tensor> given;
    for (const NamedTensor& each : tied.state_dict()) given.emplace(each.name, each.tensor);
    for (const auto& [name, parameter] : untied.named_parameters())
      parameter.assign(name == "lm_head.weight" ? embedding.tensor() : given.at(name));
    loss_of(tied(ids()), ids()).backward();
    loss_of(untied(ids()), ids()).backward();
    CHECK(allclose(embedding.grad(), first_end.grad() + last_end.grad(), 1e-4, 1e-6));
    const Tensor before = embedding.tensor().detach().clone();
    SGD sgd(tied.parameters(), {.lr = 0.5});
    sgd.step();
    CHECK(allclose(embedding.tensor(), before - 0.5 * embedding.grad(), 1e-6, 1e-7));
  };
  const Gpt2 gpt2(small_gpt(true)), gpt2_untied(small_gpt(false));
  check(gpt2, gpt2_untied, gpt2.wte.weight, gpt2_untied.wte.weight, gpt2_untied.lm_head->weight);
  const Llama llama(small_llama(true)), llama_untied(small_llama(false));
  check(llama, llama_untied, llama.model.embed_tokens.weight, llama_untied.model.embed_tokens.weight,
        llama_untied.lm_head->weight);
}

TEST_CASE("language models begin with normal numbers of the published deviation") {
  manual_seed(7);
  const auto deviation = [](const Parameter& parameter) { return stddev(parameter.tensor().detach()).item<double>(); };
  GptConfig c = small_gpt(false);
  c.vocab_size = 200, c.n_embd = 60, c.n_layer = 8, c.initializer_range = 0.1;
  const Gpt2 gpt2(c);
  CHECK(deviation(gpt2.wte.weight) == Approx(0.1).epsilon(0.05));
  CHECK(deviation(gpt2.lm_head->weight) == Approx(0.1).epsilon(0.05));
  CHECK(deviation(gpt2.h[1].attn.c_attn.weight) == Approx(0.1).epsilon(0.05));
  // What adds to the stream of 8 layers with two of them each.
  CHECK(deviation(gpt2.h[1].attn.c_proj.weight) == Approx(0.1 / 4).epsilon(0.05));
  CHECK(deviation(gpt2.h[7].mlp.c_proj.weight) == Approx(0.1 / 4).epsilon(0.05));
  LlamaConfig l = small_llama(false);
  l.vocab_size = 200, l.hidden_size = 60, l.intermediate_size = 100;
  const Llama llama(l);
  CHECK(deviation(llama.model.embed_tokens.weight) == Approx(0.2).epsilon(0.05));
  CHECK(deviation(llama.model.layers[1].mlp.down_proj.weight) == Approx(0.2).epsilon(0.05));
  CHECK(deviation(llama.lm_head->weight) == Approx(0.2).epsilon(0.05));
}

TEST_CASE("language models compute under autocast, and without a graph") {
  manual_seed(9);
  const auto check = [](auto model) {
    model.eval();
    const Tensor logits = model(ids());
    {
      const InferenceMode inference;
      CHECK(equal(model(ids()), logits.detach()));
    }
    const Autocast autocast(DType::bf16);
    const Tensor narrow = model(ids());
    CHECK(allclose(narrow.to(DType::f32), logits, 0.05, 0.05));
    loss_of(narrow, ids()).backward();
    for (const Parameter& parameter : model.parameters()) CHECK(parameter.grad().dtype() == DType::f32);
  };
  check(Gpt2(small_gpt(true)));
  check(Llama(small_llama(false)));
}

TEST_CASE("GPT-2 drops elements in training mode alone") {
  manual_seed(5);
  GptConfig c = small_gpt(true);
  const auto which = GENERATE(0, 1, 2);
  (which == 0 ? c.embd_pdrop : which == 1 ? c.attn_pdrop : c.resid_pdrop) = 0.5;
  Gpt2 model(c);
  const NoGrad no_grad;
  CHECK_FALSE(equal(model(ids()), model(ids())));
  model.eval();
  CHECK(equal(model(ids()), model(ids())));
}

TEST_CASE("language models name what does not fit") {
  const Gpt2 gpt2(small_gpt(true));
  CHECK_THROWS_WITH(gpt2(zeros({1, 9}, {.dtype = DType::i64})), Catch::Matchers::Contains("at most 8 tokens"));
  CHECK_THROWS_WITH(gpt2(zeros({4}, {.dtype = DType::i64})), Catch::Matchers::Contains("[Gpt2] expected ids [B, T]"));
  CHECK_THROWS_WITH(gpt2(zeros({1, 4})), Catch::Matchers::Contains("[Gpt2] expected ids [B, T] of integers"));
  GptConfig uneven = small_gpt(true);
  uneven.n_head = 5;
  CHECK_THROWS_WITH(Gpt2(uneven), Catch::Matchers::Contains("n_head 5, n_embd 12"));
  LlamaConfig odd = small_llama(true);
  odd.num_key_value_heads = 3;
  CHECK_THROWS_WITH(Llama(odd), Catch::Matchers::Contains("num_key_value_heads 3"));
  const Llama absent(small_llama(true), FirstWeights::absent);
  CHECK_THROWS_WITH(absent(ids()), Catch::Matchers::Contains("model.embed_tokens.weight") ||
                                       Catch::Matchers::Contains("uninitialised"));
}

}  // namespace lockstep::test
