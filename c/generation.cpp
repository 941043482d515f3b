// Tokenizers, language models and generation.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/c/guarded.h"
#include "lockstep/c/lockstep.h"
#include "lockstep/models/generation/generator.h"
#include "lockstep/models/language/load_language_model.h"
#include "lockstep/models/text/tokenizer.h"

using namespace lockstep;
using detail::guarded;
using detail::needed;

struct lockstep_tokenizer {
  Tokenizer tokenizer;
};
struct lockstep_language_model {
  std::shared_ptr<const LanguageModel> model;
};
struct lockstep_generator {
  Generator generator;
};
struct lockstep_generation {
  Generation generation;
  bool has_logprobs = false;
};

namespace {

// The first `capacity` of them, and how many there are.
template <class T, class Values>
void give(const Values& values, T* to, std::size_t capacity, std::size_t* count) {
  needed(count, "the count") = values.size();
  const std::size_t some = std::min(capacity, values.size());
  if (some == 0) return;
  needed(to, "what is written to");
  std::copy_n(values.begin(), some, to);
}
void give_text(const std::string& text, char* to, std::size_t capacity, std::size_t* bytes) {
  give(text, to, capacity, bytes);
  if (capacity <= text.size()) return;
  detail::check_given(to, "text");
  to[text.size()] = '\0';
}

std::vector<std::int64_t> ids_of(const int64_t* ids, std::size_t count) {
  if (count > 0) needed(ids, "tokens");
  constexpr std::size_t kMost = std::size_t{PTRDIFF_MAX} / sizeof *ids;  // a negative number from elsewhere, for one
  LOCKSTEP_CHECK(count <= kMost, "[C] expected at most ", kMost, " tokens, got ", count);
  return ids ? std::vector<std::int64_t>(ids, ids + count) : std::vector<std::int64_t>();
}

// An older program's struct is shorter: what it lacks has its default.
template <class T>
T whole(const T* given, void (*init)(T*), const char* name) {
  T options;
  init(&options);
  if (!given) return options;
  LOCKSTEP_CHECK(given->size > 0 && given->size <= sizeof(T) && given->size % alignof(T) == 0, "[C] expected ", name,
                 " that were made by their init function, of at most ", sizeof(T), " bytes, got ", given->size);
  std::memcpy(&options, given, given->size);
  return options;
}

struct Options {
  GenerateOptions generate;
  SubmitOptions submit;
};
Options options_of(const lockstep_generate_options* given) {
  const lockstep_generate_options o = whole(given, &lockstep_generate_options_init, "lockstep_generate_options");
  Options options;
  options.generate.max_new_tokens = o.max_new_tokens;
  options.generate.stop_tokens = ids_of(o.stop_tokens, o.stop_count);
  options.generate.sampling = {
      .temperature = o.temperature,
      .top_k = o.top_k,
      .top_p = o.top_p,
      .min_p = o.min_p,
      .repetition_penalty = o.repetition_penalty,
      .presence_penalty = o.presence_penalty,
      .frequency_penalty = o.frequency_penalty,
      .order = o.temperature_last ? SamplingOrder::temperature_last : SamplingOrder::temperature_first,
      .seed = o.seed};
  if (const std::vector<std::int64_t> biased = ids_of(o.bias_tokens, o.bias_count); !biased.empty()) {
    const double* const biases = &needed(o.biases, "biases");
    for (std::size_t i = 0; i < biased.size(); ++i)
      options.generate.sampling.logit_bias.push_back({biased[i], biases[i]});
  }
  if (o.logprobs != -1) options.generate.logprobs = o.logprobs;
  options.submit.timeout = Milliseconds(o.timeout_ms);
  return options;
}

}  // namespace

extern "C" {

lockstep_status lockstep_tokenizer_load(const char* path, lockstep_tokenizer** tokenizer) {
  return guarded(tokenizer, [&] { return new lockstep_tokenizer{Tokenizer::load(&needed(path, "path"))}; });
}

lockstep_status lockstep_tokenizer_encode(const lockstep_tokenizer* tokenizer, const char* text, size_t bytes,
                                          int flags, int64_t* ids, size_t capacity, size_t* count) {
  return guarded([&] {
    const Tokenizer& with = needed(tokenizer, "tokenizer").tokenizer;
    if (bytes > 0) needed(text, "text");
    LOCKSTEP_CHECK((flags & ~(LOCKSTEP_ADD_SPECIAL | LOCKSTEP_PARSE_SPECIAL)) == 0,
                   "[C] expected flags of LOCKSTEP_ADD_SPECIAL and LOCKSTEP_PARSE_SPECIAL, got ", flags);
    const std::string_view what = bytes > 0 ? std::string_view(text, bytes) : std::string_view();
    give(with.encode(what, {.add_special = (flags & LOCKSTEP_ADD_SPECIAL) != 0,
                            .parse_special = (flags & LOCKSTEP_PARSE_SPECIAL) != 0}),
         ids, capacity, count);
  });
}

lockstep_status lockstep_tokenizer_decode(const lockstep_tokenizer* tokenizer, const int64_t* ids, size_t count,
                                          char* text, size_t capacity, size_t* bytes) {
  return guarded(
      [&] { give_text(needed(tokenizer, "tokenizer").tokenizer.decode(ids_of(ids, count)), text, capacity, bytes); });
}

void lockstep_tokenizer_free(lockstep_tokenizer* tokenizer) { delete tokenizer; }

lockstep_status lockstep_language_model_load(const char* folder, const char* device, const char* dtype, int map,
                                             lockstep_language_model** model) {
  return guarded(model, [&] {
    LoadLanguageModelOptions options{.device = detail::device_of(device), .map = map != 0};
    if (dtype) {
      for (const DType each : {DType::f32, DType::bf16, DType::f16, DType::f64})
        if (to_string(each) == dtype) options.dtype = each;
      LOCKSTEP_CHECK(options.dtype, "[C] expected f32, bf16, f16 or f64, got \"", dtype, "\"");
    }
    return new lockstep_language_model{load_language_model(&needed(folder, "folder"), options)};
  });
}

void lockstep_language_model_free(lockstep_language_model* model) { delete model; }

void lockstep_generate_options_init(lockstep_generate_options* options) {
  if (!options) return;
  const GenerateOptions defaults;
  *options = {};
  options->size = sizeof *options;
  options->max_new_tokens = defaults.max_new_tokens;
  options->temperature = defaults.sampling.temperature;
  options->top_k = defaults.sampling.top_k;
  options->top_p = defaults.sampling.top_p;
  options->min_p = defaults.sampling.min_p;
  options->repetition_penalty = defaults.sampling.repetition_penalty;
  options->seed = defaults.sampling.seed;
  options->logprobs = -1;
}

lockstep_status lockstep_generate(const lockstep_language_model* model, const int64_t* prompt, size_t prompt_count,
                                  const lockstep_generate_options* options, int64_t* tokens, size_t capacity,
                                  size_t* count) {
  return guarded([&] {
    const LanguageModel& of = *needed(model, "model").model;
    needed(count, "the count") = 0;
    const GenerateOptions with = options_of(options).generate;
    LOCKSTEP_CHECK(!with.logprobs, "[C] expected logprobs of -1, for none, got ", *with.logprobs,
                   "; lockstep_generation_next_logprobs has them");
    give(generate(of, ids_of(prompt, prompt_count), with).tokens, tokens, capacity, count);
  });
}

void lockstep_generator_options_init(lockstep_generator_options* options) {
  if (!options) return;
  const GeneratorOptions defaults;
  *options = {};
  options->size = sizeof *options;
  options->page_size = defaults.batch.cache.page_size;
  options->max_sequences = defaults.batch.max_sequences;
  options->max_tokens = defaults.batch.max_tokens;
  options->max_queued = static_cast<std::int64_t>(defaults.max_queued);
  options->timeout_ms = defaults.timeout.count();
}

lockstep_status lockstep_generator_create(const lockstep_language_model* model,
                                          const lockstep_generator_options* options, lockstep_generator** generator) {
  return guarded(generator, [&] {
    const auto& of = needed(model, "model").model;
    const lockstep_generator_options o =
        whole(&needed(options, "options"), &lockstep_generator_options_init, "lockstep_generator_options");
    LOCKSTEP_CHECK(o.when_full >= 0 && o.when_full <= 2, "[C] expected when_full from 0 to 2, got ", o.when_full);
    LOCKSTEP_CHECK(o.max_queued > 0, "[C] expected max_queued of 1 or more, got ", o.max_queued);
    GeneratorOptions with;
    with.batch.cache.pages = o.pages;
    with.batch.cache.page_size = o.page_size;
    with.batch.max_sequences = o.max_sequences;
    with.batch.max_tokens = o.max_tokens;
    with.max_queued = static_cast<std::size_t>(o.max_queued);
    with.when_full = static_cast<WhenFull>(o.when_full);
    with.timeout = Milliseconds(o.timeout_ms);
    return new lockstep_generator{Generator(of, with)};
  });
}
static_assert(static_cast<int>(WhenFull::wait) == 0 && static_cast<int>(WhenFull::refuse) == 1 &&
              static_cast<int>(WhenFull::drop_oldest) == 2);

lockstep_status lockstep_generator_submit(lockstep_generator* generator, const int64_t* prompt, size_t prompt_count,
                                          const lockstep_generate_options* options, lockstep_generation** generation) {
  return guarded(generation, [&] {
    Options with = options_of(options);
    auto made = std::make_unique<lockstep_generation>();
    made->has_logprobs = with.generate.logprobs.has_value();
    made->generation =
        needed(generator, "generator")
            .generator.submit(ids_of(prompt, prompt_count), std::move(with.generate), std::move(with.submit));
    return made.release();
  });
}

lockstep_status lockstep_generator_metrics(const lockstep_generator* generator, const char* name, char* text,
                                           size_t capacity, size_t* bytes) {
  return guarded([&] {
    give_text(to_prometheus(needed(generator, "generator").generator.stats(), &needed(name, "name")), text, capacity,
              bytes);
  });
}

lockstep_status lockstep_generator_drain(lockstep_generator* generator, int64_t timeout_ms) {
  return guarded([&] {
    if (!needed(generator, "generator").generator.drain(Milliseconds(timeout_ms)))
      throw TimeoutError(
          cat("[C] expected all texts to have ended within ", timeout_ms, " ms, got some that have not"));
  });
}

void lockstep_generator_free(lockstep_generator* generator) { delete generator; }

lockstep_status lockstep_generation_next(lockstep_generation* generation, int64_t* token) {
  return guarded([&] {
    needed(token, "token") = -1;
    const auto next = needed(generation, "generation").generation.next();
    if (!next) return LOCKSTEP_END;
    *token = *next;
    return LOCKSTEP_OK;
  });
}

lockstep_status lockstep_generation_next_logprobs(lockstep_generation* generation, lockstep_logprob* token,
                                                  lockstep_logprob* top, size_t capacity, size_t* count) {
  return guarded([&] {
    needed(token, "token") = {-1, 0};
    needed(count, "the count") = 0;
    if (capacity > 0) needed(top, "what is written to");
    lockstep_generation& of = needed(generation, "generation");
    LOCKSTEP_CHECK(of.has_logprobs, "[C] expected a text that was submitted with logprobs, got one without");
    TokenLogprobs logprobs;
    const auto next = of.generation.next(&logprobs);
    if (!next) return LOCKSTEP_END;
    *token = {*next, logprobs.logprob};
    std::vector<lockstep_logprob> others;
    for (const Logprob& other : logprobs.top) others.push_back({other.token, other.logprob});
    give(others, top, capacity, count);
    return LOCKSTEP_OK;
  });
}

lockstep_status lockstep_generation_cancel(const lockstep_generation* generation) {
  return guarded([&] { needed(generation, "generation").generation.cancel(); });
}

void lockstep_generation_free(lockstep_generation* generation) { delete generation; }

}  // extern "C"
