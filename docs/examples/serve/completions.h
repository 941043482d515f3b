// Answers to completions and chats, whole and as streams.
#pragma once

#include <chrono>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "completion_request.h"
#include "http.h"
#include "logprobs.h"
#include "text_run.h"

namespace example {

// One answer of one text or several, as OpenAI's interface spells it.
class Completion {
 public:
  // Each text of a prompt has a seed of its own, the first that of the request.
  Completion(const TextService& service, const CompletionRequest& request)
      : chat_(request.chat),
        include_usage_(request.include_usage),
        logprobs_(request.options.logprobs.has_value()),
        backend_(service.backend()) {
    for (const Prompt& prompt : request.prompts) {
      prompt_tokens_ += static_cast<std::int64_t>(prompt.tokens.size());
      lockstep::GenerateOptions options = request.options;
      for (std::int64_t i = 0; i < request.texts; ++i, ++options.sampling.seed)
        runs_.emplace_back(backend_, service.submit(prompt.tokens, options), request.stops,
                           request.echo ? prompt.text : std::string(), logprobs_);
    }
    char name[40];
    std::random_device random;
    std::snprintf(name, sizeof name, "%s-%08x%08x", chat_ ? "chatcmpl" : "cmpl", random(), random());
    id_ = name;
  }

  // Waits for all of it. Throws HttpError, also when the client has gone, and what the text ended in.
  json whole() {
    json answer = frame(chat_ ? "chat.completion" : "text_completion");
    answer["choices"] = json::array();
    for (TextRun& run : runs_) {
      Piece piece;
      while (run.advance(piece, kMoment) != TextRun::State::ended) check_client();
      json choice = {{"index", answer["choices"].size()},
                     {"logprobs", logprobs(piece.tokens)},
                     {"finish_reason", run.finish_reason()}};
      if (chat_)
        choice["message"] = {{"role", "assistant"}, {"content", std::move(piece.text)}};
      else
        choice["text"] = std::move(piece.text);
      answer["choices"].push_back(std::move(choice));
    }
    answer["usage"] = usage();
    return answer;
  }

  // The next events. False when the client has gone, which cancels the text. Behind the last one the sink is done.
  bool stream(httplib::DataSink& sink) {
    std::string events;
    try {
      if (chat_ && !std::exchange(begun_, true))
        for (std::size_t i = 0; i < runs_.size(); ++i)
          events += event(chunk(i, {{"role", "assistant"}, {"content", ""}}));
      // Waits for one of those that are being written, by turns, and looks at the others.
      std::size_t writing = 0;
      for (std::size_t k = 0, first = first_; k < runs_.size(); ++k) {
        const std::size_t i = (first + k) % runs_.size();
        if (runs_[i].ended()) continue;
        Piece piece;
        const auto state = runs_[i].advance(piece, writing == 0 ? kMoment : lockstep::Milliseconds(0));
        if (!piece.empty())
          events += event(chunk(i, chat_ ? json{{"content", piece.text}} : json(piece.text),
                                piece.tokens.empty() ? json() : logprobs(piece.tokens)));
        if (state == TextRun::State::ended)
          events += event(chunk(i, chat_ ? json::object() : json(""), nullptr, runs_[i].finish_reason()));
        else if (writing++ == 0)
          first_ = i + 1;
      }
      check_client();
      if (writing == 0) {
        if (include_usage_) {
          json last = frame(chunk_name());
          last["choices"] = json::array();
          last["usage"] = usage();
          events += event(last);
        }
        return write(sink, events + "data: [DONE]\n\n") && (sink.done(), true);
      }
    } catch (...) {  // the status has been sent: the error is an event, and there is no [DONE]
      const HttpError error = http_error_of(std::current_exception());
      if (error.status == kGone) return false;
      return write(sink, events + event(error_json(error))) && (sink.done(), true);
    }
    if (events.empty() && std::chrono::steady_clock::now() - last_ > std::chrono::seconds(15))
      events = ": still writing\n\n";  // a comment, which keeps proxies from closing the connection
    return events.empty() || write(sink, events);
  }

 private:
  static constexpr int kGone = 499;
  static constexpr lockstep::Milliseconds kMoment{50};
  static void check_client() {
    if (Connection::current()->gone()) throw HttpError(kGone, "the client has gone");
  }
  static std::string event(const json& value) { return "data: " + to_text(value) + "\n\n"; }
  bool write(httplib::DataSink& sink, const std::string& events) {
    last_ = std::chrono::steady_clock::now();
    return sink.write(events.data(), events.size());
  }
  const char* chunk_name() const { return chat_ ? "chat.completion.chunk" : "text_completion"; }
  json frame(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", backend_.name}};
  }
  json logprobs(const std::vector<WrittenToken>& tokens) const {  // null where they are not wanted
    if (!logprobs_) return nullptr;
    return chat_ ? chat_logprobs(backend_, tokens) : completion_logprobs(backend_, tokens);
  }
  json chunk(std::size_t index, json content, json logprobs = nullptr, const char* finish = nullptr) const {
    json choice = {
        {"index", index}, {"logprobs", std::move(logprobs)}, {"finish_reason", finish ? json(finish) : json()}};
    choice[chat_ ? "delta" : "text"] = std::move(content);
    json result = frame(chunk_name());
    result["choices"] = json::array({std::move(choice)});
    if (include_usage_) result["usage"] = nullptr;
    return result;
  }
  json usage() const {
    std::int64_t written = 0;
    for (const TextRun& run : runs_) written += run.tokens();
    return {
        {"prompt_tokens", prompt_tokens_}, {"completion_tokens", written}, {"total_tokens", prompt_tokens_ + written}};
  }

  const bool chat_, include_usage_, logprobs_;
  const TextBackend& backend_;
  std::int64_t prompt_tokens_ = 0;  // each prompt counts once
  std::vector<TextRun> runs_;       // texts of the first prompt, then of the next
  std::size_t first_ = 0;           // which of them is waited for
  std::string id_;
  const std::int64_t created_ = std::time(nullptr);
  bool begun_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

inline void answer_completion(const TextService& service, bool chat, const json& body, httplib::Response& response) {
  const CompletionRequest request = completion_request(body, chat, service);
  const auto completion = std::make_shared<Completion>(service, request);
  if (!request.stream) return reply(response, completion->whole());
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.set_chunked_content_provider(
      "text/event-stream", [completion](std::size_t, httplib::DataSink& sink) { return completion->stream(sink); });
}

}  // namespace example
