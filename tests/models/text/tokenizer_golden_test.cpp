#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/models/text/stream_decoder.h"
#include "lockstep/models/text/tokenizer.h"
#include "support/catch.h"
#include "support/golden.h"

using namespace lockstep;
using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

namespace {

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder stream(tokenizer, {.skip_special = skip_special});
  std::string text;
  for (const std::int64_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

// What differs, and in which text. The files are made by scripts/compare_tokenizers --golden.
std::string difference(const std::string& kind) {
  std::string path = test::golden_path("tokenizers/" + kind);
  path.replace(path.rfind('.'), std::string::npos, ".json");
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const Tokenizer tokenizer = Tokenizer::from_json(line, path);
  int count = 0;
  for (; std::getline(file, line); ++count) {
    const Json row = Json::parse(line);
    const auto text = row[0].get<std::string>();
    const auto ids = row[1].get<Ids>();
    const Ids plain = row[2].is_null() ? ids : row[2].get<Ids>();
    const std::string decoded = row[3].is_null() ? text : row[3].get<std::string>();
    const std::string skipped = row[4].is_null() ? decoded : row[4].get<std::string>();
    const auto fails = [&](const std::string& what) {
      return what + " of line " + std::to_string(count + 2) + ": " + line;
    };
    if (tokenizer.encode(text) != ids) return fails("ids");
    if (tokenizer.encode(text, {.add_special = false, .parse_special = false}) != plain)
      return fails("ids without specials");
    if (tokenizer.decode(ids, {.skip_special = false}) != decoded) return fails("text");
    if (tokenizer.decode(ids) != skipped) return fails("text without specials");
    if (streamed(tokenizer, ids, false) != decoded) return fails("stream");
    if (streamed(tokenizer, ids, true) != skipped) return fails("stream without specials");
  }
  return count >= 12 ? "" : "too few texts";
}

}  // namespace

TEST_CASE("a tokenizer gives the tokens and texts of PyPI's tokenizers") {
  CHECK(difference("gpt2") == "");
  CHECK(difference("gpt2_legacy") == "");
  CHECK(difference("gpt2_holes") == "");
  CHECK(difference("flags") == "");
  CHECK(difference("llama3") == "");
  CHECK(difference("qwen2") == "");
  CHECK(difference("llama2") == "");
  CHECK(difference("llama2_whole") == "");
  CHECK(difference("llama2_fused") == "");
  CHECK(difference("metaspace") == "");
  CHECK(difference("metaspace_always") == "");
  CHECK(difference("metaspace_never") == "");
}
