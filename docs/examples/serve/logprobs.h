// Log probabilities as OpenAI's interface spells them: one way for completions, another one for chats.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "text_run.h"

namespace example {

// A part of a character stands as bytes:\xe2\x80.
inline std::string token_text(const TextBackend& backend, std::int64_t token) {
  std::string bytes(backend.tokenizer.bytes_of(token));
  const json value = bytes;
  if (to_text(value) == value.dump(-1, ' ', false, json::error_handler_t::ignore)) return bytes;  // it is UTF-8
  std::string text = "bytes:";
  for (const char c : bytes) {
    char byte[8];
    std::snprintf(byte, sizeof byte, "\\x%02x", static_cast<unsigned char>(c));
    text += byte;
  }
  return text;
}

inline json completion_logprobs(const TextBackend& backend, const std::vector<WrittenToken>& written) {
  json lists = {{"tokens", json::array()},
                {"token_logprobs", json::array()},
                {"top_logprobs", json::array()},
                {"text_offset", json::array()}};
  for (const WrittenToken& each : written) {
    const std::string text = token_text(backend, each.token);
    json top = {{text, each.logprobs.logprob}};  // by text: of several tokens with the same one, the first
    for (const lockstep::Logprob& other : each.logprobs.top)
      top.emplace(token_text(backend, other.token), other.logprob);
    lists["tokens"].push_back(text);
    lists["token_logprobs"].push_back(each.logprobs.logprob);
    lists["top_logprobs"].push_back(std::move(top));
    lists["text_offset"].push_back(each.offset);
  }
  return lists;
}

inline json chat_logprobs(const TextBackend& backend, const std::vector<WrittenToken>& written) {
  const auto entry = [&](std::int64_t token, double logprob) {
    json bytes = json::array();
    for (const char c : backend.tokenizer.bytes_of(token)) bytes.push_back(static_cast<unsigned char>(c));
    return json{{"token", token_text(backend, token)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
  };
  json content = json::array();
  for (const WrittenToken& each : written) {
    json one = entry(each.token, each.logprobs.logprob);
    one["top_logprobs"] = json::array();
    for (const lockstep::Logprob& other : each.logprobs.top)
      one["top_logprobs"].push_back(entry(other.token, other.logprob));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

}  // namespace example
