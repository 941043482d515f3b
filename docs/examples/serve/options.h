// The command line of serve.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "../support/command_line.h"

namespace example {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string token;                // empty: nobody is asked
  std::string digits, text, model;  // files, folder; empty: not served
  std::string device = "cpu";
  int replicas = 2;
  std::int64_t sequences = 16, queue = 64, context = 4096;
  int workers = 256, request_seconds = 120, stop_seconds = 10;
};

// The options, or nothing when the text for --help was asked for and printed. Throws UsageError.
inline std::optional<ServeOptions> parse_serve_options(int argc, char** argv) {
  ServeOptions o;
  CLI::App app{
      "Answers over HTTP: which digit a picture shows, and how a text goes on, to browsers and to OpenAI's clients.\n"
      "  train_digits --save digits.safetensors\n"
      "  train_text --data README.md --threads 2 --context 256 --save text.safetensors\n"
      "  serve --digits digits.safetensors --text text.safetensors      then open the address that it prints"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto number = [&](const char* name, auto& value, const char* text, int least, int most) {
    app.add_option(name, value, text)->check(CLI::Range(least, most))->capture_default_str();
  };
  app.add_option("--digits", o.digits, "Model of digits, a file that train_digits --save wrote");
  app.add_option("--text", o.text, "Model of characters, a file that train_text --save wrote");
  app.add_option("--model", o.model, "Language model: folder with config.json, *.safetensors and tokenizer.json");
  app.add_option("--host", o.host, "Address to listen on; 0.0.0.0 is the whole network")->capture_default_str();
  number("--port", o.port, "Port; 0 takes one that is free", 0, 65535);
  app.add_option("--token", o.token, "What clients must send as Authorization: Bearer; better by the environment")
      ->envname("LOCKSTEP_SERVE_TOKEN");
  app.add_option("--device", o.device, "Where models compute: cpu, host:0, cuda:0")->capture_default_str();
  number("--replicas", o.replicas, "Replicas of the model of digits", 1, 256);
  number("--sequences", o.sequences, "Texts that are written side by side", 1, 1024);
  number("--queue", o.queue, "Requests that wait for a model; more are refused with 429", 1, 100'000);
  number("--context", o.context, "Tokens of a text at most, where the model has positions for more", 16, 1'000'000);
  number("--workers", o.workers, "Connections at once, each with a thread; more are refused with 503", 4, 4096);
  number("--request-seconds", o.request_seconds, "How long a request may take", 1, 86400);
  number("--stop-seconds", o.stop_seconds, "How long open requests may go on behind SIGTERM", 0, 3600);
  if (!parse(app, argc, argv)) return std::nullopt;
  if (o.digits.empty() && o.text.empty() && o.model.empty())
    throw UsageError("expected a model: --digits FILE, --text FILE or --model FOLDER (--help lists the options)");
  if (!o.text.empty() && !o.model.empty()) throw UsageError("--text: expected no --model beside it, there is one text");
  return o;
}

}  // namespace example
