#include "lockstep/models/text/stream_decoder.h"

#include <random>
#include <string>
#include <vector>

#include "lockstep/runtime/error.h"
#include "models/text/small_tokenizers.h"
#include "support/catch.h"

using namespace lockstep;
using Ids = std::vector<std::int64_t>;

namespace {

Tokenizer byte_level() { return Tokenizer::from_json(test::byte_level().dump()); }
Tokenizer byte_fallback() { return Tokenizer::from_json(test::byte_fallback().dump()); }

// What every push gives, and what finish() does.
std::vector<std::string> steps(StreamDecoder stream, const Ids& ids) {
  std::vector<std::string> texts;
  for (const std::int64_t id : ids) texts.push_back(stream.push(id));
  texts.push_back(stream.finish());
  return texts;
}

using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("a stream gives out whole characters") {
  CHECK(steps(StreamDecoder(byte_level()), {0, 4, 5, 1}) == Texts{"a", "", "é", "b", ""});
  CHECK(steps(StreamDecoder(byte_level()), {4, 0, 4}) == Texts{"", "\uFFFDa", "", "\uFFFD"});
  CHECK(steps(StreamDecoder(byte_level()), {5, 4, 4, 5}) == Texts{"\uFFFD", "", "\uFFFD", "é", ""});
  CHECK(steps(StreamDecoder(byte_level()), {6, 0, 99, -1, 7}) == Texts{"", "a", "", "", "<t>", ""});
  CHECK(steps(StreamDecoder(byte_level(), {.skip_special = false}), {6, 0}) == Texts{"<s>", "a", ""});
}

TEST_CASE("a stream of bytes that are tokens") {
  CHECK(steps(StreamDecoder(byte_fallback()), {6, 1, 2, 3, 5}) == Texts{"a", "", "é", " ", "b", ""});
  CHECK(steps(StreamDecoder(byte_fallback()), {3, 3, 6}) == Texts{"", " ", " a", ""});  // one space is taken off
  CHECK(steps(StreamDecoder(byte_fallback()), {4, 1, 5}) == Texts{"a", "", "\uFFFDb", ""});
}

TEST_CASE("bytes that are tokens and make no character are replaced one by one") {
  auto json = test::byte_fallback();
  json["model"]["vocab"]["<0xE2>"] = 7;
  json["model"]["vocab"]["<0x82>"] = 8;
  const Tokenizer tokenizer = Tokenizer::from_json(json.dump());
  CHECK(steps(StreamDecoder(tokenizer), {4, 7, 8, 5}) == Texts{"a", "", "", "\uFFFD\uFFFDb", ""});
  CHECK(tokenizer.decode(Ids{4, 7, 8, 5}) == "a\uFFFD\uFFFDb");
}

TEST_CASE("a stream ends before a stop string") {
  const auto stopping = [](std::vector<std::string> stops) {
    return StreamDecoder(byte_level(), {.stops = std::move(stops)});
  };
  // Held back: what may be the beginning of a stop.
  CHECK(steps(stopping({"aba"}), {1, 0, 1, 1}) == Texts{"b", "", "", "abb", ""});
  CHECK(steps(stopping({"aba"}), {0, 0, 1, 0, 1}) == Texts{"", "a", "", "", "", ""});
  CHECK(steps(stopping({"aba"}), {1, 3}) == Texts{"b", "", "ab"});  // until the end
  CHECK(steps(stopping({"ba"}), {3, 3}) == Texts{"a", "", ""});     // over tokens, in the middle of one
  CHECK(steps(stopping({"a b", "b"}), {0, 2, 0, 1}) == Texts{"", "", "a ", "a", ""});
  CHECK(steps(stopping({"é"}), {0, 4, 5, 0}) == Texts{"a", "", "", "", ""});
  // Beginnings within beginnings.
  CHECK(steps(stopping({"abaabb"}), {3, 0, 3, 0, 3, 1, 0}) == Texts{"", "", "", "aba", "", "", "", ""});

  StreamDecoder stream = stopping({"bb", "bab", "ab"});
  CHECK(stream.push(1) == "");
  CHECK_FALSE(stream.stop().has_value());
  CHECK(stream.push(3) == "");  // "bab" and "ab" are complete at once: the longest
  CHECK(stream.stop() == 1u);
  CHECK(stream.push(0) == "");
  CHECK(stream.finish() == "");
  CHECK_THROWS_AS(stopping({""}), InvalidArgument);
  CHECK_THROWS_AS(stopping({"a", "\xFF"}), InvalidArgument);
}

TEST_CASE("a stream ends where the first stop is complete, however tokens are cut") {
  std::mt19937 random(3);
  const Tokenizer tokenizer = byte_level();
  const std::vector<std::string> stops = {"aab", "ba b", "bbbb", "abab"};
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    std::string text;
    for (unsigned i = random() % 24; i > 0; --i) ids.push_back(std::int64_t(random() % 4));
    for (const std::int64_t id : ids) text += tokenizer.bytes_of(id);
    std::size_t end = std::string::npos, begin = text.size();
    for (const std::string& stop : stops) {
      const std::size_t at = text.find(stop);
      if (at == std::string::npos || at + stop.size() > end) continue;
      if (at + stop.size() < end || at < begin) begin = at;
      end = at + stop.size();
    }
    StreamDecoder stream(tokenizer, {.stops = stops});
    std::string given;
    for (const std::int64_t id : ids) {
      given += stream.push(id);
      REQUIRE(text.substr(0, begin).starts_with(given));
    }
    given += stream.finish();
    REQUIRE(given == text.substr(0, begin));
    REQUIRE(stream.stop().has_value() == (end != std::string::npos));
    if (stream.stop()) REQUIRE(text.substr(begin, end - begin) == stops[*stream.stop()]);
  }
}

TEST_CASE("nothing comes after a stream has finished") {
  StreamDecoder stream(byte_level());
  CHECK(stream.push(4) == "");
  CHECK(stream.finish() == "\uFFFD");
  CHECK(stream.finish() == "");
  CHECK(stream.push(0) == "");
}
