// Answers to completions and chats, whole and as streams.
#pragma once

#include <chrono>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "completion_request.h"
#include "http.h"
#include "text_run.h"

namespace example {

// One answer, as OpenAI's interface spells it.
class Completion {
 public:
  Completion(const TextService& service, CompletionRequest request)
      : chat_(request.chat),
        include_usage_(request.include_usage),
        model_(service.backend().name),
        prompt_tokens_(request.prompt.size()),
        run_(service.backend(), service.submit(std::move(request.prompt), std::move(request.options)),
             std::move(request.stops)) {
    char name[40];
    std::random_device random;
    std::snprintf(name, sizeof name, "%s-%08x%08x", chat_ ? "chatcmpl" : "cmpl", random(), random());
    id_ = name;
  }

  // Waits for all of it. Throws HttpError, also when the client has gone, and what the text ended in.
  json whole() {
    std::string text;
    while (run_.advance(text) != TextRun::State::ended) check_client();
    json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", run_.finish_reason()}};
    if (chat_)
      choice["message"] = {{"role", "assistant"}, {"content", text}};
    else
      choice["text"] = text;
    json answer = frame(chat_ ? "chat.completion" : "text_completion");
    answer["choices"] = json::array({std::move(choice)});
    answer["usage"] = usage();
    return answer;
  }

  // The next events. False when the client has gone, which cancels the text. Behind the last one the sink is done.
  bool stream(httplib::DataSink& sink) {
    std::string events, text;
    if (chat_ && !std::exchange(begun_, true))
      events += event(piece({{"role", "assistant"}, {"content", ""}}, nullptr));
    try {
      const TextRun::State state = run_.advance(text);
      check_client();
      if (!text.empty()) events += event(chat_ ? piece({{"content", text}}, nullptr) : piece(text, nullptr));
      if (state == TextRun::State::ended) {
        events += event(piece(chat_ ? json::object() : json(""), run_.finish_reason()));
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
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", model_}};
  }
  json piece(json content, const char* finish) const {
    json choice = {{"index", 0}, {"logprobs", nullptr}, {"finish_reason", finish ? json(finish) : json()}};
    choice[chat_ ? "delta" : "text"] = std::move(content);
    json chunk = frame(chunk_name());
    chunk["choices"] = json::array({std::move(choice)});
    if (include_usage_) chunk["usage"] = nullptr;
    return chunk;
  }
  json usage() const {
    const auto prompt = static_cast<std::int64_t>(prompt_tokens_);
    return {{"prompt_tokens", prompt}, {"completion_tokens", run_.tokens()}, {"total_tokens", prompt + run_.tokens()}};
  }

  const bool chat_, include_usage_;
  const std::string model_;
  const std::size_t prompt_tokens_;
  TextRun run_;
  std::string id_;
  const std::int64_t created_ = std::time(nullptr);
  bool begun_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

inline void answer_completion(const TextService& service, bool chat, const json& body, httplib::Response& response) {
  CompletionRequest request = completion_request(body, chat, service);
  const bool stream = request.stream;
  const auto completion = std::make_shared<Completion>(service, std::move(request));
  if (!stream) return reply(response, completion->whole());
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.set_chunked_content_provider(
      "text/event-stream", [completion](std::size_t, httplib::DataSink& sink) { return completion->stream(sink); });
}

}  // namespace example
