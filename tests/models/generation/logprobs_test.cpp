// Penalties, biases and log probabilities of texts: what the definition says, and the same alone as beside others.
#include "lockstep/models/generation/generate.h"
#include "lockstep/models/generation/generator.h"
#include "models/generation/small_model.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Tokens = std::vector<std::int64_t>;

std::shared_ptr<SmallModel> wide_model() {
  return std::make_shared<SmallModel>(support::first_devices(1)[0], DType::f64);
}
// Behind the last of these tokens, by the whole sequence.
std::vector<double> last_logits(const SmallModel& model, const Tokens& tokens) {
  const Tensor logits = model.whole(tokens);
  return logits.select(0, logits.size(0) - 1).to_vector<double>();
}
double log_softmax(const std::vector<double>& logits, std::int64_t token) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit);
  return logits[static_cast<std::size_t>(token)] - std::log(sum);
}

// Requests that use everything, each in its own way.
GenerateOptions varied(std::int64_t i) {
  return {.max_new_tokens = 3 + i % 9,
          .sampling = {.temperature = i % 3 == 0 ? 0.0 : 0.9,
                       .repetition_penalty = i % 2 == 0 ? 1 : 1.2,
                       .presence_penalty = 0.3 * static_cast<double>(i % 4),
                       .frequency_penalty = 0.5,
                       .logit_bias = {{i, 1.5}, {36 - i, -2}},
                       .seed = static_cast<std::uint64_t>(i)},
          .logprobs = i % 5};
}
Tokens varied_prompt(std::int64_t i) { return prompt_of(2 + 7 * i % 23, i); }

void check_same(const std::vector<TokenLogprobs>& some, const std::vector<TokenLogprobs>& others) {
  REQUIRE(some.size() == others.size());
  for (std::size_t i = 0; i < some.size(); ++i) {
    CHECK(some[i].logprob == Approx(others[i].logprob).epsilon(1e-5));
    REQUIRE(some[i].top.size() == others[i].top.size());
    for (std::size_t k = 0; k < some[i].top.size(); ++k) {
      CHECK(some[i].top[k].token == others[i].top[k].token);
      CHECK(some[i].top[k].logprob == Approx(others[i].top[k].logprob).epsilon(1e-5));
    }
  }
}

}  // namespace

TEST_CASE("texts with penalties and biases, and their log probabilities, are those of the definition") {
  const auto model = wide_model();
  const SamplingOptions sampling{.presence_penalty = 0.7, .frequency_penalty = 0.4, .logit_bias = {{3, 1.5}, {4, -9}}};
  const Tokens prompt = prompt_of(30);  // words that the text has, too
  const Generated text = generate(*model, prompt, {.max_new_tokens = 40, .sampling = sampling, .logprobs = 3});
  REQUIRE(text.tokens.size() == 40);
  REQUIRE(text.logprobs.size() == 40);
  CHECK(text.tokens != model->continued(prompt, 40));
  Tokens all = prompt;
  std::vector<int> times(SmallModel::kWords);
  for (std::size_t i = 0; i < 40; ++i) {
    const std::vector<double> raw = last_logits(*model, all);
    std::vector<double> logits = raw;
    logits[3] += 1.5, logits[4] -= 9;
    for (std::size_t word = 0; word < logits.size(); ++word)
      if (times[word] > 0) logits[word] -= 0.7 + 0.4 * times[word];
    const std::int64_t token = std::max_element(logits.begin(), logits.end()) - logits.begin();
    CHECK(text.tokens[i] == token);
    CHECK(text.logprobs[i].logprob == Approx(log_softmax(raw, token)).epsilon(1e-5));  // of the model alone
    REQUIRE(text.logprobs[i].top.size() == 3);
    CHECK(text.logprobs[i].top[0].token == std::max_element(raw.begin(), raw.end()) - raw.begin());
    for (const Logprob& each : text.logprobs[i].top)
      CHECK(each.logprob == Approx(log_softmax(raw, each.token)).epsilon(1e-5));
    ++times[static_cast<std::size_t>(token)];
    all.push_back(token);
  }
  CHECK(std::count_if(times.begin(), times.end(), [](int n) { return n > 1; }) > 0);  // the frequency mattered
  CHECK(generate(*model, prompt, {.max_new_tokens = 3}).logprobs.empty());
}

TEST_CASE("penalties and log probabilities are the same beside others, and after a loss of pages") {
  const auto model = wide_model();
  std::vector<Generated> alone;
  for (std::int64_t i = 0; i < 12; ++i) alone.push_back(generate(*model, varied_prompt(i), varied(i)));
  ContinuousBatch batch(*model, {.cache = {.pages = 9, .page_size = 4}, .max_sequences = 12, .max_tokens = 16});
  for (std::int64_t i = 0; i < 12; ++i) batch.add(varied_prompt(i), varied(i));
  std::vector<Generated> together(12);
  while (!batch.idle())
    for (const GenerationEvent& event : batch.step()) {
      Generated& text = together[static_cast<std::size_t>(event.request)];
      text.tokens.push_back(event.token);
      REQUIRE(event.logprobs);
      text.logprobs.push_back(*event.logprobs);
    }
  CHECK(batch.stats().preempted > 0);
  for (std::size_t i = 0; i < 12; ++i) {
    CAPTURE(i);
    CHECK(together[i].tokens == alone[i].tokens);
    check_same(together[i].logprobs, alone[i].logprobs);
    CHECK(alone[i].logprobs[0].top.size() == i % 5);
  }
  batch.add(prompt_of(3), {.max_new_tokens = 1});
  CHECK_FALSE(batch.step().at(0).logprobs);
}

TEST_CASE("a generator gives log probabilities with its tokens") {
  const auto model = wide_model();
  Generator generator(model, {.batch = {.cache = {.pages = 40, .page_size = 4}, .max_sequences = 4}});
  for (std::int64_t i = 0; i < 6; ++i) {
    const Generated alone = generate(*model, varied_prompt(i), varied(i));
    Generation one = generator.submit(varied_prompt(i), varied(i)), all = generator.submit(varied_prompt(i), varied(i)),
               rest = generator.submit(varied_prompt(i), varied(i));
    Generated read;
    TokenLogprobs logprobs;
    while (const auto token = one.next(&logprobs)) {
      read.tokens.push_back(*token);
      read.logprobs.push_back(std::move(logprobs));
    }
    CHECK(read.tokens == alone.tokens);
    check_same(read.logprobs, alone.logprobs);
    const Generated whole = all.get();
    CHECK(whole.tokens == alone.tokens);
    check_same(whole.logprobs, alone.logprobs);
    CHECK(all.get().logprobs.empty());
    rest.next();  // what is left belongs to the tokens that are left
    check_same(rest.get().logprobs, {alone.logprobs.begin() + 1, alone.logprobs.end()});
  }
  Generation unasked = generator.submit(prompt_of(3), {.max_new_tokens = 2});
  TokenLogprobs logprobs{-1, {{1, -1}}};
  CHECK(unasked.next(&logprobs));
  CHECK(logprobs == TokenLogprobs());
  CHECK(unasked.get().logprobs.empty());
}

TEST_CASE("biases and log probabilities of words that the model does not have are refused where they are asked for") {
  const auto model = wide_model();
  ContinuousBatch batch(*model, {.cache = {.pages = 4}});
  const auto refused = [&](GenerateOptions options) {
    return support::message_of<InvalidArgument>([&] { batch.add({1}, std::move(options)); });
  };
  CHECK_THAT(refused({.sampling = {.logit_bias = {{37, 1}}}}), Contains("logit_bias from 0 to 36, got 37"));
  CHECK_THAT(refused({.sampling = {.logit_bias = {{0, NAN}}}}), Contains("biases of logit_bias"));
  CHECK_THAT(refused({.sampling = {.presence_penalty = NAN}}), Contains("presence_penalty"));
  CHECK_THAT(refused({.logprobs = 38}), Contains("logprobs of the most probable 0 to 37 tokens, got 38"));
  CHECK_THAT(refused({.logprobs = -1}), Contains("got -1"));
  CHECK(batch.idle());
  Generator generator(model, {.batch = {.cache = {.pages = 4}}});
  CHECK_THROWS_AS(generator.submit({1}, {.sampling = {.logit_bias = {{37, 1}}}}), InvalidArgument);
  CHECK_THROWS_AS(generator.submit({1}, {.logprobs = 38}), InvalidArgument);
  CHECK(generate(*model, Tokens{1}, {.max_new_tokens = 1, .logprobs = 37}).logprobs[0].top.size() == 37);
}

}  // namespace lockstep::test
