// What a client of OpenAI's interface asks for.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "text.h"

namespace example {

struct Prompt {
  std::vector<std::int64_t> tokens;
  std::string text;
};

struct CompletionRequest {
  static constexpr std::int64_t kMostChoices = 16;  // prompts times texts of each
  std::vector<Prompt> prompts;
  std::int64_t texts = 1;  // of each prompt
  lockstep::GenerateOptions options;
  std::vector<std::string> stops;
  bool chat = false, stream = false, include_usage = false, echo = false;
};

// The text of a message: a string, or a list of parts of type text.
inline std::string content_of(const json& message) {
  const json content = message.is_object() ? message.value("content", json()) : json();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) Fields::wrong("messages", "a content that is a string or a list of texts", content);
  std::string text;
  for (const json& part : content) {
    const json piece = part.is_object() && part.value("type", json()) == "text" ? part.value("text", json()) : json();
    if (!piece.is_string()) Fields::wrong("messages", "parts of type text", part);
    text += piece.get<std::string>();
  }
  return text;
}

// For models without a template of their own: a line for each message, then the one that is to be written.
inline std::string chat_prompt(const json& messages) {
  if (!messages.is_array() || messages.empty()) Fields::wrong("messages", "a list of at least one message", messages);
  std::string text;
  for (const json& message : messages) {
    const json role = message.is_object() ? message.value("role", json()) : json();
    if (!role.is_string()) Fields::wrong("messages", "a role in each message", message);
    text += role.get<std::string>() + ": " + content_of(message) + "\n";
  }
  return text + "assistant:";
}

inline Prompt prompt_of(std::string text, const TextService& service) {
  std::vector<std::int64_t> tokens = service.encode(text);
  return {std::move(tokens), std::move(text)};
}
// A string, or tokens.
inline Prompt prompt_of(const json& prompt, const TextService& service) {
  if (prompt.is_string()) return prompt_of(prompt.get<std::string>(), service);
  if (!prompt.is_array() || prompt.empty()) Fields::wrong("prompt", "a string or a list of tokens", prompt);
  std::vector<std::int64_t> tokens;
  const std::int64_t words = service.backend().model->shape().vocabulary;
  for (const json& token : prompt) {
    if (!token.is_number_integer()) Fields::wrong("prompt", "strings alone or tokens alone", token);
    const auto id = token.get<std::int64_t>();
    if (id < 0 || id >= words) Fields::wrong("prompt", "tokens below " + std::to_string(words), token);
    tokens.push_back(id);
  }
  std::string text = service.backend().tokenizer.decode(tokens, {.skip_special = false});
  return {std::move(tokens), std::move(text)};
}

// A prompt, or a list of prompts.
inline std::vector<Prompt> prompts_of(const json& prompt, const TextService& service) {
  if (!prompt.is_array() || prompt.empty() || prompt[0].is_number()) return {prompt_of(prompt, service)};
  std::vector<Prompt> prompts;
  if (prompt.size() > CompletionRequest::kMostChoices)
    Fields::wrong("prompt", "at most " + std::to_string(CompletionRequest::kMostChoices) + " prompts",
                  std::to_string(prompt.size()));
  for (const json& one : prompt) prompts.push_back(prompt_of(one, service));
  return prompts;
}

inline std::vector<std::string> stops_of(const json& stop) {
  constexpr std::size_t kMost = 4, kLongest = 256;
  const json list = stop.is_string() ? json::array({stop}) : stop;
  if (!list.is_array() || list.size() > kMost) Fields::wrong("stop", "a string or a list of up to 4", stop);
  std::vector<std::string> stops;
  for (const json& one : list) {
    if (!one.is_string() || one.get_ref<const std::string&>().empty() ||
        one.get_ref<const std::string&>().size() > kLongest)
      Fields::wrong("stop", "strings of 1 to 256 bytes", one);
    stops.push_back(one.get<std::string>());
  }
  return stops;
}

// An object: tokens, as strings, and what is added to their logits.
inline std::vector<lockstep::LogitBias> logit_bias_of(const json& object, const TextService& service) {
  if (!object.is_object()) Fields::wrong("logit_bias", "an object of tokens and numbers", object);
  const std::int64_t words = service.backend().model->shape().vocabulary;
  std::vector<lockstep::LogitBias> biases;
  for (const auto& [key, value] : object.items()) {
    std::int64_t token = -1;
    std::from_chars(key.data(), key.data() + key.size(), token);
    if (token < 0 || token >= words || std::to_string(token) != key)
      Fields::wrong("logit_bias", "tokens below " + std::to_string(words), key);
    const double bias = value.is_number() ? value.get<double>() : std::nan("");
    if (!(std::abs(bias) <= 100)) Fields::wrong("logit_bias", "numbers from -100 to 100", value);
    biases.push_back({token, bias});
  }
  return biases;
}

// How many of the most probable tokens are told beside each token; nothing where no log probabilities are wanted.
inline std::optional<std::int64_t> logprobs_of(const Fields& fields, bool chat, std::int64_t words) {
  if (!chat) {
    if (!fields.find("logprobs")) return std::nullopt;
    return std::min(fields.integer("logprobs", 0, 0, 5), words);
  }
  const std::int64_t most = fields.integer("top_logprobs", 0, 0, 20);
  if (fields.flag("logprobs")) return std::min(most, words);
  if (most > 0)
    throw HttpError(400, "top_logprobs: expected logprobs to be true beside it", "top_logprobs", "invalid_value");
  return std::nullopt;
}

// Throws HttpError. Fields that are not known are passed over, those that cannot be kept are refused.
inline CompletionRequest completion_request(const json& body, bool chat, const TextService& service) {
  const Fields fields(body);
  const std::string& name = service.backend().name;
  if (const json* model = fields.find("model"); model && *model != name)
    throw HttpError(404, "The model " + to_text(*model) + " does not exist; there is '" + name + "'", "model",
                    "model_not_found");
  fields.refuse({chat ? "echo" : "top_logprobs", "suffix", "tools", "functions"});
  if (const json* format = fields.find("response_format"); format && *format != json{{"type", "text"}})
    throw HttpError(400, "response_format is not supported", "response_format", "unsupported_parameter");

  CompletionRequest request;
  request.chat = chat;
  request.stream = fields.flag("stream");
  if (const json* options = fields.find("stream_options")) {
    if (!options->is_object()) Fields::wrong("stream_options", "an object", *options);
    request.include_usage = Fields(*options).flag("include_usage");
  }
  constexpr std::int64_t kMost = 1'000'000;
  const std::int64_t tokens = fields.integer("max_tokens", chat ? kMost : 16, 1, kMost);
  request.options.max_new_tokens = fields.integer("max_completion_tokens", tokens, 1, kMost);
  lockstep::SamplingOptions& sampling = request.options.sampling;
  sampling.temperature = fields.number("temperature", 1, 0, 2);
  sampling.top_p = fields.number("top_p", 1, 0, 1);
  sampling.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  sampling.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
  if (const json* bias = fields.find("logit_bias")) sampling.logit_bias = logit_bias_of(*bias, service);
  request.options.logprobs = logprobs_of(fields, chat, service.backend().model->shape().vocabulary);
  request.echo = !chat && fields.flag("echo");
  if (request.echo && request.options.logprobs)
    throw HttpError(400, "echo with logprobs is not supported: there are no log probabilities of prompts", "echo",
                    "unsupported_parameter");
  if (sampling.top_p == 0) sampling.top_p = 1, sampling.temperature = 0;  // the most probable one alone
  if (fields.find("seed"))
    sampling.seed = static_cast<std::uint64_t>(fields.integer("seed", 0, INT64_MIN, INT64_MAX));
  else
    sampling.seed = std::uint64_t{std::random_device()()} << 32 | std::random_device()();
  if (const json* stop = fields.find("stop")) request.stops = stops_of(*stop);

  const char* field = chat ? "messages" : "prompt";
  const json* text = fields.find(field);
  if (!text) throw HttpError(400, std::string(field) + ": expected one, got none", field, "missing_required_parameter");
  if (chat)
    request.prompts.push_back(prompt_of(chat_prompt(*text), service));
  else
    request.prompts = prompts_of(*text, service);
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  request.texts = fields.integer("n", 1, 1, CompletionRequest::kMostChoices / prompts);
  if (fields.integer("best_of", request.texts, 1, CompletionRequest::kMostChoices) != request.texts)
    throw HttpError(400, "best_of other than n is not supported", "best_of", "unsupported_parameter");
  return request;
}

}  // namespace example
