// Lockstep's side of scripts/compare_tokenizers.
//
//   lockstep-tokenize TOKENIZER                  answers lines of JSON: {"text": ...} or {"ids": [...]}
//   lockstep-tokenize TOKENIZER --time TEXTS N   the seconds of the fastest of N encodings of a file's lines of JSON,
//   and
//                                                their tokens
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/models/text/stream_decoder.h"
#include "lockstep/models/text/tokenizer.h"
#include "lockstep/runtime/error.h"

namespace {

using Ids = std::vector<std::int64_t>;

std::string streamed(const lockstep::Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  lockstep::StreamDecoder stream(tokenizer, {.skip_special = skip_special});
  std::string text;
  for (const std::int64_t id : ids) text += stream.push(id);
  return text += stream.finish();
}

nlohmann::json answer(const lockstep::Tokenizer& tokenizer, const nlohmann::json& question) {
  nlohmann::json result;
  Ids ids;
  if (question.contains("text")) {
    const auto text = question["text"].get<std::string>();
    ids = tokenizer.encode(text);
    result["plain"] = tokenizer.encode(text, {.add_special = false, .parse_special = false});
  } else {
    ids = question["ids"].get<Ids>();
  }
  result["ids"] = ids;
  result["decoded"] = tokenizer.decode(ids, {.skip_special = false});
  result["skipped"] = tokenizer.decode(ids);
  result["streamed"] = streamed(tokenizer, ids, false);
  result["streamed_skipped"] = streamed(tokenizer, ids, true);
  return result;
}

int time(const lockstep::Tokenizer& tokenizer, const char* path, int rounds) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> texts;
  for (std::string line; std::getline(file, line);) texts.push_back(nlohmann::json::parse(line).get<std::string>());
  double best = std::numeric_limits<double>::infinity();
  std::size_t tokens = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::cout << nlohmann::json{{"seconds", best}, {"tokens", tokens}} << '\n';
  return 0;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count != 2 && count != 5) throw lockstep::InvalidArgument("expected TOKENIZER [--time TEXTS N]");
  const auto begin = std::chrono::steady_clock::now();
  const auto tokenizer = lockstep::Tokenizer::load(arguments[1]);
  const double load = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (count == 5) {
    std::cerr << "loaded in " << load << " s\n";
    return time(tokenizer, arguments[3], std::stoi(arguments[4]));
  }
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);)
    std::cout << answer(tokenizer, nlohmann::json::parse(line)) << '\n';
} catch (const std::exception& error) {
  std::cerr << "lockstep-tokenize: " << error.what() << '\n';
  return 1;
}
