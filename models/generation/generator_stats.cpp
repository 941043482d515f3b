#include "lockstep/models/generation/generator.h"
#include "lockstep/parallel/serving/prometheus_text.h"
#include "lockstep/runtime/strings.h"

namespace lockstep {

std::string to_prometheus(const GeneratorStats& stats, const std::string& model) {
  detail::PrometheusText text("lockstep_generation_");
  const std::string label = detail::PrometheusText::label("model", model);
  const auto number = [](auto value) { return static_cast<double>(value); };
  const auto metric = [&](const char* name, const char* type, const char* help, double value) {
    text.metric(name, type, help);
    text.sample(label, value);
  };
  text.metric("requests_total", "counter", "Requests that have ended, by how.");
  const auto outcome = [&](const char* name, std::uint64_t value) {
    text.sample(cat(label, ",outcome=\"", name, "\""), number(value));
  };
  outcome("finished", stats.finished);
  outcome("failed", stats.failed);
  outcome("cancelled", stats.cancelled);
  outcome("late", stats.late);
  outcome("dropped", stats.dropped);
  outcome("refused", stats.refused);
  text.metric("requests", "gauge", "Requests that have not ended.");
  text.sample(cat(label, ",state=\"queued\""), number(stats.queued));
  text.sample(cat(label, ",state=\"running\""), number(stats.running));
  metric("tokens_total", "counter", "Tokens that were given out.", number(stats.tokens));
  metric("computed_tokens_total", "counter", "Tokens that the model computed, prompts included.",
         number(stats.batch.computed_tokens));
  metric("shared_tokens_total", "counter", "Tokens of prompts that were in the cache.",
         number(stats.batch.shared_tokens));
  metric("preempted_total", "counter", "Sequences that lost their pages to others.", number(stats.batch.preempted));
  text.metric("cache_pages", "gauge", "Pages of keys and values.");
  const KvCacheStats& cache = stats.batch.cache;
  text.sample(cat(label, ",state=\"used\""), number(cache.used));
  text.sample(cat(label, ",state=\"kept\""), number(cache.kept));
  text.sample(cat(label, ",state=\"free\""), number(cache.pages - cache.used - cache.kept));
  const auto histogram = [&](const char* name, const char* help, const Histogram& values) {
    text.metric(name, "histogram", help);
    text.histogram(label, values);
  };
  histogram("first_token_seconds", "From submit to the first token.", stats.first_token_seconds);
  histogram("token_seconds", "Between two tokens of a text.", stats.token_seconds);
  histogram("step_seconds", "Calls of the model.", stats.step_seconds);
  return text.take();
}

}  // namespace lockstep
