// ContinuousBatch and generate: every request gets what it gets alone, whoever joins, leaves or waits beside it.
#include "lockstep/models/generation/continuous_batch.h"

#include <limits>
#include <map>

#include "lockstep/models/generation/generate.h"
#include "models/generation/small_model.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Tokens = std::vector<std::int64_t>;

struct Results {
  std::map<std::int64_t, Tokens> tokens;
  std::map<std::int64_t, FinishReason> finish;
};
void take(Results& results, const std::vector<GenerationEvent>& events) {
  for (const GenerationEvent& event : events) {
    REQUIRE_FALSE(results.finish.contains(event.request));
    if (event.token >= 0) results.tokens[event.request].push_back(event.token);
    if (event.finish) results.finish[event.request] = *event.finish;
  }
}
Results run(ContinuousBatch& batch) {
  Results results;
  for (int steps = 0; !batch.idle(); ++steps) {
    REQUIRE(steps < 10'000);
    take(results, batch.step());
  }
  CHECK(batch.stats().cache.used == 0);
  return results;
}
SmallModel exact_model() { return SmallModel(support::first_devices(1)[0], DType::f64); }

}  // namespace

TEST_CASE("generate continues a prompt as the whole sequence would") {
  const SmallModel model = exact_model();
  for (const std::int64_t length : {1, 5, 16, 31, 120}) {
    const Generated result = generate(model, prompt_of(length), {.max_new_tokens = 20});
    CHECK(result.tokens == model.continued(prompt_of(length), 20));
    CHECK(result.finish == FinishReason::length);
  }
}

TEST_CASE("generate of several prompts gives each what it gets alone") {
  const SmallModel model = exact_model();
  for (const SamplingOptions& sampling :
       {SamplingOptions{}, SamplingOptions{.temperature = 1, .top_p = 0.9, .repetition_penalty = 1.1, .seed = 40}}) {
    std::vector<Tokens> prompts;
    for (std::int64_t i = 0; i < 70; ++i) prompts.push_back(prompt_of(1 + i * 5 % 40, i));  // more than run at once
    const std::vector<Generated> together = generate(model, prompts, {.max_new_tokens = 4, .sampling = sampling});
    REQUIRE(together.size() == prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      GenerateOptions alone{.max_new_tokens = 4, .sampling = sampling};
      alone.sampling.seed += i;
      CHECK(together[i].tokens == generate(model, prompts[i], alone).tokens);
    }
  }
  CHECK(generate(model, std::vector<Tokens>{}).empty());
}

TEST_CASE("a sequence ends behind a stop token, where nobody listens any more, and where the positions end") {
  const SmallModel model = exact_model();
  const Tokens all = model.continued(prompt_of(7), 30);
  const std::int64_t word = all[4];
  const auto first = std::find(all.begin(), all.end(), word) + 1;
  const Generated stopped = generate(model, prompt_of(7), {.max_new_tokens = 30, .stop_tokens = {36, word}});
  CHECK(stopped.tokens == Tokens(all.begin(), first));
  CHECK(stopped.finish == FinishReason::stop);
  Tokens seen;
  const Generated dropped =
      generate(model, prompt_of(7), {.max_new_tokens = 30}, [&](std::size_t prompt, std::int64_t token) {
        CHECK(prompt == 0);
        seen.push_back(token);
        return seen.size() < 3;
      });
  CHECK(seen == Tokens(all.begin(), all.begin() + 3));
  CHECK(dropped.tokens == seen);
  CHECK(dropped.finish == FinishReason::stop);
  const Generated last = generate(model, prompt_of(195), {.max_new_tokens = 30});
  CHECK(last.tokens.size() == 5);
  CHECK(last.tokens == model.continued(prompt_of(195), 5));
  CHECK(last.finish == FinishReason::length);
  constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
  CHECK(generate(model, prompt_of(150), {.max_new_tokens = kEndless}).tokens == model.continued(prompt_of(150), 50));
}

TEST_CASE("requests join and leave between two steps, and prompts are read in parts") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 100, .page_size = 4}, .max_sequences = 3, .max_tokens = 8});
  Results results;
  std::map<std::int64_t, Tokens> prompts;
  for (std::int64_t i = 0; i < 9; ++i) {
    const Tokens prompt = prompt_of(3 + 11 * i % 40, i);
    const std::int64_t request = batch.add(prompt, {.max_new_tokens = 2 + i});
    CHECK(request == i);
    prompts[request] = prompt;
    take(results, batch.step());
    CHECK(batch.stats().running <= 3);
  }
  for (const auto& [request, tokens] : run(batch).tokens)
    results.tokens[request].insert(results.tokens[request].end(), tokens.begin(), tokens.end());
  for (const auto& [request, prompt] : prompts) CHECK(results.tokens[request] == model.continued(prompt, 2 + request));
  CHECK(model.most_tokens <= 8);
}

TEST_CASE("whatever the limits, tokens are those of a request alone") {
  const SmallModel model = exact_model();
  std::map<std::int64_t, Tokens> expected;
  for (std::int64_t i = 0; i < 12; ++i) expected[i] = model.continued(prompt_of(2 + 7 * i % 23, i), 3 + i % 9);
  struct Limits {
    std::int64_t pages, page_size, sequences, tokens;
    bool share;
  };
  for (const Limits& limits : {Limits{100, 4, 12, 12, true}, Limits{100, 4, 12, 512, false}, Limits{9, 4, 12, 16, true},
                               Limits{9, 4, 12, 512, false}, Limits{34, 1, 5, 5, true}, Limits{3, 16, 4, 7, true},
                               Limits{100, 4, 1, 1, true}}) {
    CAPTURE(limits.pages, limits.page_size, limits.sequences, limits.tokens, limits.share);
    ContinuousBatch batch(
        model, {.cache = {.pages = limits.pages, .page_size = limits.page_size, .share_prefixes = limits.share},
                .max_sequences = limits.sequences,
                .max_tokens = limits.tokens});
    for (std::int64_t i = 0; i < 12; ++i) batch.add(prompt_of(2 + 7 * i % 23, i), {.max_new_tokens = 3 + i % 9});
    model.most_tokens = 0;
    const Results results = run(batch);
    CHECK(results.tokens == expected);
    CHECK(model.most_tokens <= limits.tokens);
    if (limits.pages == 9) CHECK(batch.stats().preempted > 0);
  }
}

TEST_CASE("who has text comes before long prompts") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 100, .page_size = 4}, .max_sequences = 4, .max_tokens = 4});
  batch.add(prompt_of(100), {.max_new_tokens = 2});  // 25 steps long
  const std::int64_t reader = batch.add(prompt_of(1), {.max_new_tokens = 10});
  // The prompt of one token is a next token; from then on it gets one in each step.
  for (int i = 0; i < 10; ++i) {
    const auto events = batch.step();
    REQUIRE(events.size() == 1);
    CHECK(events[0].request == reader);
    CHECK(events[0].finish.has_value() == (i == 9));
  }
  CHECK(batch.stats().running == 1);
  run(batch);
}

TEST_CASE("prompts that begin alike are computed once") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 100, .page_size = 4}, .max_sequences = 4, .max_tokens = 64});
  Tokens prompt = prompt_of(41);
  batch.add(prompt, {.max_new_tokens = 1});
  run(batch);
  CHECK(batch.stats().computed_tokens == 41);
  CHECK(batch.stats().shared_tokens == 0);
  prompt.push_back(5);
  batch.add(prompt, {.max_new_tokens = 4});
  CHECK(run(batch).tokens[1] == model.continued(prompt, 4));
  CHECK(batch.stats().shared_tokens == 40);
  CHECK(batch.stats().computed_tokens == 41 + 2 + 3);
  batch.forget_prefixes();
  batch.add(prompt, {.max_new_tokens = 1});
  run(batch);
  CHECK(batch.stats().computed_tokens == 41 + 2 + 3 + 42);
}

TEST_CASE("requests join where there are pages for their prompts beside those of the others") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 10, .page_size = 4, .share_prefixes = false}, .max_sequences = 4});
  for (std::int64_t i = 0; i < 3; ++i) batch.add(prompt_of(17, i), {.max_new_tokens = 3});  // five pages each
  batch.step();
  CHECK(batch.stats().running == 2);
  const Results results = run(batch);
  for (std::int64_t i = 0; i < 3; ++i) CHECK(results.finish.at(i) == FinishReason::length);
  CHECK(batch.stats().preempted == 0);
}

TEST_CASE("who had to give its pages back comes before those that wait") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 6, .page_size = 4, .share_prefixes = false}, .max_sequences = 2});
  const std::int64_t first = batch.add(prompt_of(8), {.max_new_tokens = 12}),
                     second = batch.add(prompt_of(7, 1), {.max_new_tokens = 12}),
                     third = batch.add(prompt_of(3, 2), {.max_new_tokens = 2});
  std::vector<std::int64_t> ended;
  while (!batch.idle())
    for (const GenerationEvent& event : batch.step())
      if (event.finish) ended.push_back(event.request);
  CHECK(batch.stats().preempted > 0);
  CHECK(ended == Tokens{first, third, second});  // the second ran again beside the third
}

TEST_CASE("a cancelled request gives its pages back at once") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 10, .page_size = 4, .share_prefixes = false}, .max_sequences = 2});
  const std::int64_t a = batch.add(prompt_of(8), {.max_new_tokens = 20}),
                     b = batch.add(prompt_of(8, 1), {.max_new_tokens = 5}),
                     c = batch.add(prompt_of(8, 2), {.max_new_tokens = 5});
  batch.step();
  CHECK(batch.stats().running == 2);
  CHECK(batch.stats().waiting == 1);
  CHECK(batch.stats().cache.used == 4);
  CHECK(batch.cancel(a));
  CHECK_FALSE(batch.cancel(a));
  CHECK(batch.stats().cache.used == 2);
  CHECK(batch.cancel(c));
  const Results results = run(batch);
  CHECK(results.tokens.size() == 1);
  CHECK(results.tokens.at(b).size() == 4);  // its first came with the step above
  CHECK_FALSE(batch.cancel(b));
  CHECK_FALSE(batch.cancel(99));
}

TEST_CASE("a step that throws can be made again") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 12, .page_size = 4}, .max_sequences = 3});
  for (std::int64_t i = 0; i < 3; ++i) batch.add(prompt_of(6, i), {.max_new_tokens = 6});
  Results results;
  int failed = 0;
  while (!batch.idle()) {
    model.fails = failed < 40 ? 1 + failed++ % 2 : 0;
    try {
      take(results, batch.step());
    } catch (const Error&) {
    }
  }
  for (std::int64_t i = 0; i < 3; ++i) CHECK(results.tokens[i] == model.continued(prompt_of(6, i), 6));
}

TEST_CASE("an error that the device tells of later costs no token") {
  const SmallModel model = exact_model();
  ContinuousBatch batch(model, {.cache = {.pages = 12, .page_size = 4}, .max_sequences = 3});
  for (std::int64_t i = 0; i < 3; ++i) batch.add(prompt_of(6, i), {.max_new_tokens = 6});
  Results results;
  int errors = 0;
  while (!batch.idle()) {
    model.bad_logits = errors < 5;
    try {
      take(results, batch.step());
    } catch (const InvalidArgument&) {
      ++errors;
    }
  }
  CHECK(errors == 5);
  for (std::int64_t i = 0; i < 3; ++i) CHECK(results.tokens[i] == model.continued(prompt_of(6, i), 6));
  CHECK(batch.stats().cache.used == 0);
}

TEST_CASE("logits that are no numbers fail their request alone") {
  SmallModel model = exact_model();
  // Word 36 alone leads to NaN, at its own row.
  model.words = model.words.clone();
  model.words.narrow(0, 36, 1).fill_(std::nan(""));
  ContinuousBatch batch(model, {.cache = {.pages = 40, .page_size = 4}, .max_sequences = 3});
  const std::int64_t good = batch.add(Tokens{1, 2, 3}, {.max_new_tokens = 2}),
                     bad = batch.add(Tokens{1, 36, 3}, {.max_new_tokens = 3});
  bool failed = false;
  Tokens tokens;
  while (!batch.idle())
    for (const GenerationEvent& event : batch.step()) {
      if (event.request == good && event.token >= 0) tokens.push_back(event.token);
      if (event.request != bad) continue;
      failed = event.finish == FinishReason::failed;
      CHECK(event.token == -1);
      CHECK_THROWS_AS(std::rethrow_exception(event.error), InvalidArgument);
    }
  CHECK(failed);
  CHECK(tokens == exact_model().continued(Tokens{1, 2, 3}, 2));
  CHECK(batch.stats().cache.used == 0);
  CHECK_THROWS_AS(generate(model, Tokens{36}), InvalidArgument);
}

TEST_CASE("a batch refuses requests that it can never answer, and names both sides") {
  const SmallModel model = exact_model();
  CHECK_THROWS_WITH(ContinuousBatch(model, {.cache = {.pages = 4}, .max_sequences = 0}), Contains("got 0 and 512"));
  CHECK_THROWS_WITH(ContinuousBatch(model, {.cache = {.pages = 4}, .max_sequences = 9, .max_tokens = 8}),
                    Contains("got 9 and 8"));
  CHECK_THROWS_AS(ContinuousBatch(model, {}), InvalidArgument);
  ContinuousBatch batch(model, {.cache = {.pages = 4, .page_size = 4}});
  const auto refused = [&](Tokens prompt, GenerateOptions options = {}) {
    return support::message_of<InvalidArgument>([&] { batch.add(std::move(prompt), std::move(options)); });
  };
  CHECK_THAT(refused({}), Contains("one token at least, got none"));
  CHECK_THAT(refused({1, 37}), Contains("from 0 to 36, got 37"));
  CHECK_THAT(refused(prompt_of(17)), Contains("at most 16 tokens") && Contains("got 17"));
  CHECK_THAT(refused({1}, {.max_new_tokens = 0}), Contains("max_new_tokens of at least 1, got 0"));
  CHECK_THAT(refused({1}, {.sampling = {.temperature = -1}}), Contains("temperature"));
  CHECK(batch.idle());
  ContinuousBatch large(model, {.cache = {.pages = 100}});
  CHECK_THROWS_WITH(large.add(prompt_of(200)), Contains("fewer than 200 tokens") && Contains("got 200"));
  // The longest that fits: one token, which needs no place any more.
  batch.add(prompt_of(16), {.max_new_tokens = 99});
  CHECK(run(batch).tokens.at(0) == model.continued(prompt_of(16), 1));
}

}  // namespace lockstep::test
