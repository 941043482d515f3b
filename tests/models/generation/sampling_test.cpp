// sample: each of its steps, their order, and draws that depend on seed and position alone. logprobs.
#include "lockstep/models/generation/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "lockstep/runtime/error.h"
#include "support/catch.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Tokens = std::vector<std::int64_t>;
using Floats = std::vector<float>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// How often each token is drawn, of `count` positions, as a share.
std::map<std::int64_t, double> shares(const Floats& logits, SamplingOptions options, int count = 2000) {
  std::map<std::int64_t, double> drawn;
  for (int i = 0; i < count; ++i) {
    options.seed = static_cast<std::uint64_t>(i);
    drawn[sample(logits, Tokens(5, 0), options)] += 1.0 / count;
  }
  return drawn;
}
Tokens drawn(const Floats& logits, const SamplingOptions& options) {
  Tokens tokens;
  for (const auto& [token, share] : shares(logits, options)) tokens.push_back(token);
  return tokens;
}
Floats log_of(const std::vector<double>& probabilities) {
  Floats logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3));
  return logits;
}

}  // namespace

TEST_CASE("without a temperature the most probable token comes, of equal ones the first") {
  CHECK(sample(Floats{1, 3, 2, 3}, {}, {}) == 1);
  CHECK(sample(Floats{-kInfinity, -5, -kInfinity}, {}, {}) == 1);
  CHECK(sample(Floats{4}, {}, {.top_k = 3, .top_p = 0.1}) == 0);
}

TEST_CASE("draws follow the probabilities, at any temperature") {
  const std::vector<double> p{0.1, 0.5, 0.15, 0.25};
  auto of = shares(log_of(p), {.temperature = 1});
  for (std::size_t i = 0; i < p.size(); ++i) CHECK(of[static_cast<std::int64_t>(i)] == Approx(p[i]).margin(0.05));
  of = shares(log_of(p), {.temperature = 0.5});  // squared
  double sum = 0;
  for (const double each : p) sum += each * each;
  for (std::size_t i = 0; i < p.size(); ++i)
    CHECK(of[static_cast<std::int64_t>(i)] == Approx(p[i] * p[i] / sum).margin(0.05));
  CHECK(drawn(log_of(p), {.temperature = 1e-300}) == Tokens{1});
  CHECK(drawn(Floats{2, -kInfinity, 2}, {.temperature = 1e10}) == Tokens{0, 2});
}

TEST_CASE("top_k keeps the k largest and what is equal to the last of them") {
  const Floats logits{1, 5, 3, 4, 3};
  CHECK(drawn(logits, {.temperature = 1, .top_k = 1}) == Tokens{1});
  CHECK(drawn(logits, {.temperature = 1, .top_k = 2}) == Tokens{1, 3});
  CHECK(drawn(logits, {.temperature = 1, .top_k = 3}) == Tokens{1, 2, 3, 4});
  CHECK(drawn(logits, {.temperature = 3, .top_k = 99}) == Tokens{0, 1, 2, 3, 4});
}

TEST_CASE("top_p keeps the fewest tokens that reach it") {
  const Floats logits = log_of({0.1, 0.5, 0.15, 0.25});
  CHECK(drawn(logits, {.temperature = 1, .top_p = 0.01}) == Tokens{1});
  CHECK(drawn(logits, {.temperature = 1, .top_p = 0.49}) == Tokens{1});
  CHECK(drawn(logits, {.temperature = 1, .top_p = 0.51}) == Tokens{1, 3});
  CHECK(drawn(logits, {.temperature = 1, .top_p = 0.76}) == Tokens{1, 2, 3});
  CHECK(drawn(logits, {.temperature = 1, .top_p = 0.95}) == Tokens{0, 1, 2, 3});
  CHECK(drawn(Floats{2, 2, 2, 2}, {.temperature = 1, .top_p = 0.5}) == Tokens{0, 1});  // equal ones: the first
  // Of thousands, which are sorted in parts.
  Floats many(5000, 0);
  many[4321] = 1;
  CHECK(drawn(many, {.temperature = 1, .top_p = 0.0001}) == Tokens{4321});
  const Tokens some = drawn(many, {.temperature = 1, .top_p = 0.1});
  CHECK(some.size() > 350);
  CHECK(std::count_if(some.begin(), some.end(), [](std::int64_t t) { return t > 500 && t != 4321; }) == 0);
}

TEST_CASE("min_p keeps what has a share of the most probable token's probability") {
  const Floats logits = log_of({0.1, 0.5, 0.15, 0.25});
  CHECK(drawn(logits, {.temperature = 1, .min_p = 1}) == Tokens{1});
  CHECK(drawn(logits, {.temperature = 1, .min_p = 0.45}) == Tokens{1, 3});
  CHECK(drawn(logits, {.temperature = 1, .min_p = 0.25}) == Tokens{1, 2, 3});
  CHECK(drawn(logits, {.temperature = 1, .min_p = 0.15}) == Tokens{0, 1, 2, 3});
}

TEST_CASE("the temperature comes first, or last") {
  // At temperature 2 the probabilities are nearer to each other: .5 .25 .15 .1 become .36 .25 .2 .16.
  const Floats logits = log_of({0.1, 0.5, 0.15, 0.25});
  SamplingOptions options{.temperature = 2, .top_p = 0.7};
  CHECK(drawn(logits, options) == Tokens{1, 2, 3});
  options.order = SamplingOrder::temperature_last;
  CHECK(drawn(logits, options) == Tokens{1, 3});
  options = {.temperature = 2, .min_p = 0.45};
  CHECK(drawn(logits, options) == Tokens{1, 2, 3});
  options.order = SamplingOrder::temperature_last;
  CHECK(drawn(logits, options) == Tokens{1, 3});
  // What is drawn of those that are left has the temperature in both.
  CHECK(shares(logits, options)[1] == Approx(std::sqrt(0.5) / (std::sqrt(0.5) + std::sqrt(0.25))).margin(0.05));
}

TEST_CASE("the repetition penalty makes what is there less probable, once each") {
  CHECK(sample(Floats{4, 3, -1}, Tokens{0, 0, 0}, {.repetition_penalty = 1.3}) == 0);  // 4 / 1.3 > 3
  CHECK(sample(Floats{4, 3, -1}, Tokens{0}, {.repetition_penalty = 1.5}) == 1);
  CHECK(sample(Floats{-2, -3}, Tokens{0}, {.repetition_penalty = 1.4}) == 0);  // -2.8
  CHECK(sample(Floats{-2, -3}, Tokens{0}, {.repetition_penalty = 1.6}) == 1);  // -3.2
  CHECK(sample(Floats{4, 3}, Tokens{0, 99, -1}, {.repetition_penalty = 2}) ==
        1);  // no words of these logits: passed over
  CHECK(drawn(Floats{4, 3}, {.temperature = 0.001, .repetition_penalty = 2}) == Tokens{1});
}

TEST_CASE("presence and frequency penalties count what was drawn, and not the prompt") {
  const Floats logits{4, 3.5, 1};
  const Tokens sequence{0, 0, 1, 0, 0};
  const auto after = [&](std::size_t prompt, const SamplingOptions& options) {
    return sample(logits, sequence, options, prompt);
  };
  CHECK(after(3, {.presence_penalty = 0.4}) == 0);
  CHECK(after(3, {.presence_penalty = 0.6}) == 1);  // once, though it was drawn twice
  CHECK(after(4, {.presence_penalty = 0.6}) == 1);
  CHECK(after(3, {.frequency_penalty = 0.2}) == 0);
  CHECK(after(3, {.frequency_penalty = 0.3}) == 1);  // 4 - 2 * 0.3
  CHECK(after(4, {.frequency_penalty = 0.3}) == 0);
  CHECK(after(3, {.presence_penalty = 0.15, .frequency_penalty = 0.15}) == 0);  // 4 - 0.15 - 2 * 0.15
  CHECK(after(3, {.presence_penalty = 0.25, .frequency_penalty = 0.15}) == 1);
  CHECK(after(5, {.presence_penalty = 100, .frequency_penalty = 100}) == 0);
  CHECK(after(0, {.frequency_penalty = 0.2}) == 1);  // 4 - 4 * 0.2 and 3.5 - 0.2
  CHECK(after(0, {.frequency_penalty = 0.1}) == 0);  // 3.6 and 3.4
  CHECK(sample(logits, Tokens{1}, {.presence_penalty = -0.6}) == 1);
  CHECK(sample(logits, Tokens{1, 1, 99, -1}, {.frequency_penalty = -0.3}) == 1);
  // Draws have them, too: subtracting log 2 halves a probability.
  const std::vector<double> p{0.2, 0.5, 0.3};
  double drawn_once = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed)
    drawn_once +=
        sample(log_of(p), Tokens{0, 1}, {.temperature = 1, .presence_penalty = std::log(2), .seed = seed}, 1) == 1;
  CHECK(drawn_once / 2000 == Approx(0.25 / 0.75).margin(0.05));
}

TEST_CASE("logit_bias adds to logits") {
  const Floats logits{4, 3, -kInfinity, 1};
  CHECK(sample(logits, {}, {.logit_bias = {{1, 0.9}}}) == 0);
  CHECK(sample(logits, {}, {.logit_bias = {{1, 1.1}}}) == 1);
  CHECK(sample(logits, {}, {.logit_bias = {{0, -3.5}, {1, -1.8}}}) == 1);  // 0.5, 1.2 and 1
  CHECK(sample(logits, {}, {.logit_bias = {{1, 0.6}, {1, 0.6}}}) == 1);    // both
  CHECK(drawn(logits, {.temperature = 1, .logit_bias = {{0, -100}, {2, 100}}}) == Tokens{1, 3});
  CHECK(drawn(logits, {.temperature = 1, .logit_bias = {{3, 100}}}) == Tokens{3});
  const float most = std::numeric_limits<float>::max();
  CHECK(drawn(Floats{most, -most}, {.temperature = 1, .logit_bias = {{0, -most}, {0, -most}, {1, most}, {1, most}}}) ==
        Tokens{1});
}

TEST_CASE("biases come before the repetition penalty, the penalties of OpenAI behind it") {
  CHECK(sample(Floats{4, 1.2F}, Tokens{0}, {.repetition_penalty = 2, .logit_bias = {{0, -1}}}) == 0);  // 3 / 2
  CHECK(sample(Floats{4, 3}, Tokens{0}, {.repetition_penalty = 2, .presence_penalty = -1.5}) == 0);    // 4 / 2 + 1.5
  // All of them before the temperature and what follows it.
  const Floats logits = log_of({0.1, 0.5, 0.15, 0.25});
  SamplingOptions options{.temperature = 1, .top_k = 2, .logit_bias = {{0, 5}}};
  CHECK(drawn(logits, options) == Tokens{0, 1});
  options.order = SamplingOrder::temperature_last;
  CHECK(drawn(logits, options) == Tokens{0, 1});
  options = {.temperature = 1, .top_k = 2, .presence_penalty = 1};  // of token 0, which `drawn` has drawn
  CHECK(drawn(log_of({0.4, 0.3, 0.2, 0.1}), options) == Tokens{1, 2});
}

TEST_CASE("log probabilities are those of the logits' softmax") {
  const std::vector<double> p{0.1, 0.5, 0.15, 0.25};
  const TokenLogprobs some = logprobs(log_of(p), 2, 3);
  CHECK(some.logprob == Approx(std::log(0.15)));
  REQUIRE(some.top.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(some.top[i].token == Tokens{1, 3, 2}[i]);
    CHECK(some.top[i].logprob == Approx(std::log(p[static_cast<std::size_t>(some.top[i].token)])));
  }
  CHECK(logprobs(log_of(p), 2, 0) == TokenLogprobs{some.logprob, {}});
  CHECK(logprobs(log_of(p), 2, 4).top.back().token == 0);
  // Equal ones: the lower numbers first; and none that cannot be.
  CHECK(logprobs(Floats{2, 2, -kInfinity, 2}, 3, 2) ==
        TokenLogprobs{-std::log(3.0), {{0, -std::log(3.0)}, {1, -std::log(3.0)}}});
  CHECK(logprobs(Floats{2, -kInfinity, 2}, 0, 3).top.size() == 2);
  CHECK(logprobs(Floats{2, -kInfinity}, 1, 1).logprob == -kInfinity);
  CHECK(logprobs(Floats{3e38F, -3e38F, 0}, 2, 1) == TokenLogprobs{-double{3e38F}, {{0, 0}}});
  CHECK(logprobs(Floats{7}, 0, 1) == TokenLogprobs{0, {{0, 0}}});
  // Of many, against the definition.
  Floats many;
  for (int i = 0; i < 3000; ++i) many.push_back(static_cast<float>((i * 7919 + 13 * i * i) % 1009) / 100);
  double sum = 0;
  for (const float logit : many) sum += std::exp(double{logit});
  Tokens order;
  for (std::int64_t i = 0; i < 3000; ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return many[static_cast<std::size_t>(a)] > many[static_cast<std::size_t>(b)];
  });
  const TokenLogprobs of_many = logprobs(many, 17, 20);
  CHECK(of_many.logprob == Approx(many[17] - std::log(sum)).epsilon(1e-12));
  REQUIRE(of_many.top.size() == 20);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(of_many.top[i].token == order[i]);
    CHECK(of_many.top[i].logprob == Approx(many[static_cast<std::size_t>(order[i])] - std::log(sum)).epsilon(1e-12));
  }
  CHECK_THROWS_WITH(logprobs(Floats{1, 2}, 2, 0), Contains("[logprobs] expected a token from 0 to 1, got 2"));
  CHECK_THROWS_AS(logprobs(Floats{1, 2}, -1, 0), InvalidArgument);
  CHECK_THROWS_WITH(logprobs(Floats{1, 2}, 0, 3), Contains("the most probable 0 to 2 tokens, got 3"));
  CHECK_THROWS_AS(logprobs(Floats{1, 2}, 0, -1), InvalidArgument);
  CHECK_THROWS_WITH(logprobs(Floats{1, NAN}, 0, 1), Contains("[logprobs]") && Contains("for token 1"));
  CHECK_THROWS_AS(logprobs(Floats{}, 0, 0), InvalidArgument);
}

TEST_CASE("a draw depends on seed and position, and on nothing else") {
  const Floats logits(100, 0);
  const SamplingOptions options{.temperature = 1, .seed = 7};
  Tokens by_position, by_seed;
  for (std::size_t i = 0; i < 20; ++i) {
    by_position.push_back(sample(logits, Tokens(i, 3), options));
    CHECK(sample(logits, Tokens(i, 8), options) == by_position.back());
    by_seed.push_back(sample(logits, Tokens(3, 3), {.temperature = 1, .seed = i}));
  }
  const auto different = [](Tokens tokens) {
    std::sort(tokens.begin(), tokens.end());
    return std::unique(tokens.begin(), tokens.end()) - tokens.begin();
  };
  CHECK(different(by_position) > 10);
  CHECK(different(by_seed) > 10);
  CHECK(by_position[3] == by_seed[7]);
}

TEST_CASE("sampling refuses what makes no sense") {
  const auto refused = [](const SamplingOptions& options) {
    CHECK_THROWS_AS(check_sampling(options), InvalidArgument);
    CHECK_THROWS_AS(sample(Floats{1, 2}, {}, options), InvalidArgument);
  };
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e39}) {
    refused({.presence_penalty = bad});
    refused({.frequency_penalty = bad});
    refused({.logit_bias = {{0, bad}}});
  }
  refused({.logit_bias = {{-1, 1}}});
  CHECK_THROWS_WITH(sample(Floats{1, 2}, {}, {.logit_bias = {{1, 1}, {2, 1}}}),
                    Contains("[sample] expected tokens of logit_bias from 0 to 1, got 2"));
  CHECK_NOTHROW(check_sampling({.logit_bias = {{2, 1}}}));
  CHECK_THROWS_WITH(check_sampling({.frequency_penalty = -1e39}),
                    Contains("frequency_penalty to be what a float can hold, got -1e+39"));
  CHECK_THROWS_WITH(sample(Floats{1, 2}, Tokens{0}, {}, 2), Contains("at most the sequence's 1 tokens, got 2"));
  for (const double bad : {-0.1, std::nan(""), HUGE_VAL}) {
    refused({.temperature = bad});
    refused({.min_p = bad});
    refused({.repetition_penalty = bad});
    refused({.top_p = bad});
  }
  refused({.top_k = -1});
  refused({.top_p = 0});
  refused({.top_p = 1.01});
  refused({.min_p = 1.01});
  refused({.repetition_penalty = 0});
  refused({.temperature = 1, .repetition_penalty = 1e308});  // -2e308 would be no logit any more
  refused({.temperature = 1, .repetition_penalty = 1e-308});
  CHECK_THROWS_WITH(check_sampling({.top_p = 2}), Contains("top_p to be above 0, and 1 at most, got 2"));
  CHECK_THROWS_AS(sample(Floats{}, {}, {}), InvalidArgument);
  CHECK_THROWS_WITH(sample(Floats{1, NAN}, {}, {}), Contains("for token 1"));
  CHECK_THROWS_AS(sample(Floats{1, kInfinity}, {}, {}), InvalidArgument);
  CHECK_THROWS_AS(sample(Floats{-kInfinity, -kInfinity}, {}, {.temperature = 1}), InvalidArgument);
}

}  // namespace lockstep::test
