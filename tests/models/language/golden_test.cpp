// Small checkpoints that transformers saved, against the logits that it computed (scripts/make_golden_models).
#include "support/golden.h"

#include "lockstep/models/language/gpt2.h"
#include "lockstep/models/language/llama.h"
#include "lockstep/models/language/load_language_model.h"
#include "models/support/forward.h"
#include "models/support/joined_cache.h"
#include "support/catch.h"
#include "support/devices.h"

namespace lockstep::test {
namespace {

TensorMap expected_of(const std::string& name) {
  TensorMap all;
  for (NamedTensor& each : load_safetensors(golden_model(name) + "/expected.safetensors").tensors)
    all.emplace(each.name, each.tensor);
  return all;
}

}  // namespace

TEST_CASE("published checkpoints give the logits of transformers, whole and token by token") {
  const std::string name = GENERATE("gpt2", "llama", "llama3", "qwen2");
  const bool map = GENERATE(false, true);
  const Device device = GENERATE(Device::cpu(), support::device_at(0));
  CAPTURE(name, map, device);
  const TensorMap expected = expected_of(name);
  const auto model = load_language_model(golden_model(name), {.device = device, .dtype = DType::f32, .map = map});
  REQUIRE(model->device() == device);
  REQUIRE(model->dtype() == DType::f32);
  const Tensor ids = expected.at("ids").to(device), logits = forward(*model, ids);
  REQUIRE(logits.shape() == expected.at("logits").shape());
  CHECK(distance(logits, expected.at("logits")) < 1e-4);
  const std::int64_t prompt = GENERATE(1, 9);
  for (std::int64_t text = 0; text < ids.size(0); ++text)
    CHECK(distance(decode_all(*model, ids[text], prompt), expected.at("logits")[text]) < 1e-4);
}

TEST_CASE("checkpoints of 16 bits are computed in 16 bits unless another dtype is asked for") {
  const std::string name = GENERATE("llama3", "qwen2");
  CAPTURE(name);
  const TensorMap expected = expected_of(name);
  const auto model = load_language_model(golden_model(name), {.map = true});
  CHECK(model->dtype() == DType::bf16);
  const Tensor logits = forward(*model, expected.at("ids"));
  CHECK(logits.dtype() == DType::bf16);
  // Roundings differ: as far from exact numbers as those of transformers.
  const double ours = mean(abs(logits.to(DType::f32) - expected.at("logits"))).item<double>();
  const double theirs = mean(abs(expected.at("logits_16") - expected.at("logits"))).item<double>();
  CHECK(ours < 1.5 * theirs);
}

TEST_CASE("a step gives the logits of the wanted tokens alone, in their order") {
  const std::string name = GENERATE("gpt2", "llama");
  CAPTURE(name);
  const auto model = load_language_model(golden_model(name));
  const Tensor ids = expected_of(name).at("ids")[0].narrow(0, 0, 6);
  const NoGrad no_grad;
  const auto logits_of = [&](const std::vector<std::int64_t>& wanted) {
    JoinedCache cache;
    const Tensor logits = model->decode({.tokens = ids,
                                         .positions = arange(6),
                                         .wanted = from_data(wanted, {static_cast<std::int64_t>(wanted.size())}),
                                         .attention = &cache});
    CHECK(cache.calls == std::vector<int>{0, 1});  // each layer once, in order
    return logits;
  };
  const Tensor all = logits_of({0, 1, 2, 3, 4, 5}), some = logits_of({4, 1}), none = logits_of({});
  CHECK(some.shape() == Shape{2, model->shape().vocabulary});
  CHECK(distance(some[0], all[4]) < 1e-5);
  CHECK(distance(some[1], all[1]) < 1e-5);
  CHECK(none.shape() == Shape{0, model->shape().vocabulary});
}

TEST_CASE("a language model tells its shape") {
  const LanguageModelShape gpt2 = load_language_model(golden_model("gpt2"))->shape();
  CHECK((gpt2.layers == 2 && gpt2.heads == 4 && gpt2.head_size == 4 && gpt2.vocabulary == 64 && gpt2.positions == 48));
  const LanguageModelShape llama = load_language_model(golden_model("llama"))->shape();
  CHECK((llama.layers == 2 && llama.heads == 2 && llama.head_size == 8 && llama.vocabulary == 64 &&
         llama.positions == 64));
}

TEST_CASE("a loaded language model is in evaluation mode and can be trained on") {
  const auto model = load_language_model(golden_model("gpt2"));
  auto& gpt2 = dynamic_cast<Gpt2&>(*model);
  CHECK_FALSE(gpt2.is_training());
  CHECK_FALSE(gpt2.h[1].is_training());
  for (const Parameter& parameter : gpt2.parameters()) CHECK(parameter.requires_grad());
}

}  // namespace lockstep::test
