#include "lockstep/models/text/tokenizer.h"

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "models/text/small_tokenizers.h"
#include "support/catch.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

namespace {

Tokenizer read(const Json& json) { return Tokenizer::from_json(json.dump()); }

// The small file with one field changed.
Json with(const char* pointer, const Json& value) {
  Json json = test::byte_level();
  json[Json::json_pointer(pointer)] = value;
  return json;
}

std::string format_error(const Json& json) {
  return support::message_of<FormatError>([&] { read(json); });
}
std::string unsupported(const Json& json) {
  return support::message_of<NotSupported>([&] { read(json); });
}

}  // namespace

TEST_CASE("a tokenizer knows its tokens") {
  const Tokenizer tokenizer = read(test::byte_level());
  CHECK(tokenizer.size() == 8);
  CHECK(tokenizer.id_of("ab") == 3);
  CHECK(tokenizer.id_of("<s>") == 6);
  CHECK_FALSE(tokenizer.id_of("c").has_value());
  CHECK(tokenizer.token_of(2) == "Ġ");
  CHECK(tokenizer.bytes_of(2) == " ");
  CHECK(tokenizer.bytes_of(4) == "\xC3");
  CHECK(tokenizer.bytes_of(6) == "<s>");
  CHECK(tokenizer.is_special(6));
  CHECK_FALSE(tokenizer.is_special(7));
  CHECK_FALSE(tokenizer.is_special(3));
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{8}, INT64_MIN, INT64_MAX}) {
    CHECK(tokenizer.token_of(id) == "");
    CHECK(tokenizer.bytes_of(id) == "");
    CHECK_FALSE(tokenizer.is_special(id));
  }
}

TEST_CASE("special tokens of a text are tokens or text") {
  const Tokenizer tokenizer = read(test::byte_level());
  CHECK(tokenizer.encode("ab<s>a") == Ids{6, 3, 6, 0});
  CHECK(tokenizer.encode("ab<s>a", {.add_special = false}) == Ids{3, 6, 0});
  // Of <, s and > there are no tokens. What is not special stays a token.
  CHECK(tokenizer.encode("ab<s>a<t>", {.parse_special = false}) == Ids{6, 3, 0, 7});
  CHECK(tokenizer.decode(Ids{6, 3, 7}) == "ab<t>");
  CHECK(tokenizer.decode(Ids{6, 3, 7}, {.skip_special = false}) == "<s>ab<t>");
}

TEST_CASE("a special token is left out also where the normalizer changes it") {
  Json json = test::byte_fallback();
  json["added_tokens"] = Json::array({test::added_token(7, "<s>")});
  json["added_tokens"][0]["normalized"] = true;
  const Tokenizer tokenizer = read(json);
  CHECK(tokenizer.encode("<s>a") == Ids{7, 4});  // as \u2581<s>
  CHECK(tokenizer.token_of(7) == "<s>");
  CHECK(tokenizer.is_special(7));
  CHECK(tokenizer.decode(Ids{6, 7}) == "a");
  CHECK(tokenizer.decode(Ids{6, 7}, {.skip_special = false}) == "a <s>");
}

TEST_CASE("ids without a token are left out") {
  CHECK(read(test::byte_level()).decode(Ids{0, 8, -1, INT64_MAX, INT64_MIN, 1}) == "ab");
  CHECK(read(test::byte_fallback()).decode(Ids{}) == "");
}

TEST_CASE("what is not UTF-8 counts as U+FFFD") {
  Json json = test::byte_fallback();
  json["model"]["vocab"]["\uFFFD"] = 7;
  const Tokenizer tokenizer = read(json);
  CHECK(tokenizer.encode("a\xFF"
                         "a") == Ids{6, 7, 4});
  CHECK(tokenizer.encode("a\xE2\x82") == Ids{6, 7});  // a character that is cut off
  CHECK(tokenizer.encode("a\xE2\x82"
                         "a") == Ids{6, 7, 4});
  CHECK(tokenizer.encode("a\xC0\x80") == Ids{6, 7, 7});                // overlong
  CHECK(tokenizer.encode("a\xED\xA0\x80") == Ids{6, 7, 7, 7});         // half a pair
  CHECK(tokenizer.encode("a\xF4\x90\x80\x80") == Ids{6, 7, 7, 7, 7});  // beyond U+10FFFF
  CHECK(tokenizer.encode("a\xF0\x9F\x98") == Ids{6, 7});
  CHECK(read(test::byte_level()).decode(Ids{4, 0, 4, 4, 5}) == "\uFFFDa\uFFFDé");
}

TEST_CASE("characters without a token become bytes or one unknown token") {
  const Tokenizer tokenizer = read(test::byte_fallback());
  CHECK(tokenizer.encode("aé b") == Ids{6, 1, 2, 3, 5});
  CHECK(tokenizer.encode("axyb") == Ids{6, 0, 5});
  CHECK(tokenizer.encode("") == Ids{});
  Json json = test::byte_fallback();
  json["model"]["fuse_unk"] = false;
  CHECK(read(json).encode("axyb") == Ids{6, 0, 0, 5});
  CHECK(tokenizer.decode(Ids{6, 1, 2, 3, 5}) == "aé b");
  CHECK(tokenizer.decode(Ids{6, 1, 1, 2}) == "a\uFFFD\uFFFD\uFFFD");
  CHECK(tokenizer.decode(Ids{3, 3, 4}) == " a");  // one space is taken off
}

TEST_CASE("long pieces merge as short ones do") {
  // Digits of one piece; the pair (b, a) comes after (a, b), and aa never merges.
  Json json = test::byte_level();
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"Ġ", 2}, {"ab", 3}, {"ba", 4}, {"abab", 5}};
  json["model"]["merges"] = {"b a", "a b", "ab ab"};
  json["post_processor"] = nullptr;
  const Tokenizer tokenizer = read(json);
  for (const int repeats : {1, 2, 5, 15, 16, 17, 40, 500}) {
    std::string text;
    for (int i = 0; i < repeats; ++i) text += "ab";
    Ids expected(std::size_t(repeats) - 1, 4);
    expected.insert(expected.begin(), 0);
    expected.push_back(1);
    if (repeats == 1) expected = {3};
    CHECK(tokenizer.encode(text) == expected);
  }
  json["model"]["merges"] = {"a b", "b a", "ab ab"};
  CHECK(read(json).encode(std::string("b") + std::string(40, 'a')) == [] {
    Ids ids(39, 0);
    ids.insert(ids.begin(), 4);
    return ids;
  }());
  std::string text;
  for (int i = 0; i < 41; ++i) text += "ab";
  Ids expected(20, 5);
  expected.push_back(3);
  CHECK(read(json).encode(text) == expected);  // of equal ranks the leftmost first
}

TEST_CASE("a pair that merges another way by now waits for its own rank") {
  Json json = test::byte_level();
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}, {"bc", 4}, {"ab", 5}, {"bcd", 6}, {"abc", 7}};
  json["model"]["merges"] = {"b c", "a b", "bc d", "a bc"};
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  std::string text;
  Ids expected;
  for (int i = 1; i <= 20; ++i) {
    text += "abcd";
    expected.insert(expected.end(), {0, 6});
    CHECK(read(json).encode(text) == expected);
  }
}

TEST_CASE("tokens may reach over spaces") {
  Json json = test::byte_fallback();
  json["model"]["vocab"]["a▁"] = 7;
  json["model"]["merges"] = {"a ▁"};
  CHECK(read(json).encode("a aab") == Ids{3, 7, 4, 4, 5});
}

TEST_CASE("flags of added tokens") {
  Json json = test::byte_level();
  json["post_processor"] = nullptr;
  const auto with_flag = [&](const char* flag) {
    json["added_tokens"] = Json::array({test::added_token(6, "<s>"), test::added_token(7, "<t>")});
    json["added_tokens"][0][flag] = true;
    return read(json);
  };
  CHECK(with_flag("special").encode("a <s> a") == Ids{0, 2, 6, 2, 0});
  CHECK(with_flag("lstrip").encode("a \u3000<s> a") == Ids{0, 6, 2, 0});
  CHECK(with_flag("rstrip").encode("a <s>\n\u00a0a") == Ids{0, 2, 6, 0});
  CHECK(with_flag("rstrip").encode("<s> <t> a") == Ids{6, 7, 2, 0});
  const Tokenizer word = with_flag("single_word");  // of <, s and > there are no tokens
  CHECK(word.encode("a<s>") == Ids{0});
  CHECK(word.encode("<s>a") == Ids{0});
  CHECK(word.encode("<s>\u00e9") == Ids{4, 5});
  CHECK(word.encode("a <s> a") == Ids{0, 2, 6, 2, 0});
  CHECK(word.encode("<s><s>") == Ids{6, 6});
}

TEST_CASE("what files of other versions leave out or add") {
  Json json = test::byte_level();
  json["post_processor"] = nullptr;
  json["model"]["merges"] = {"#version: 0.2", "a b"};
  json["pre_tokenizer"].erase("use_regex");  // it is true
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"Ġ", 2}, {"ab", 3}, {"abĠ", 4}};
  json["added_tokens"] = Json::array();
  json["model"]["merges"].push_back("ab Ġ");
  CHECK(read(json).encode("ab ab") == Ids{3, 2, 3});
  json["pre_tokenizer"]["use_regex"] = false;
  CHECK(read(json).encode("ab ab") == Ids{4, 3});
}

TEST_CASE("of two rules for one pair the later counts") {
  Json json = test::byte_level();
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"Ġ", 2}, {"ab", 3}, {"ba", 4}};
  json["model"]["merges"] = {"a b", "b a", "a b"};
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  CHECK(read(json).encode("aba") == Ids{0, 4});
}

TEST_CASE("a whole piece of the vocabulary may win over merges") {
  Json json = test::byte_level();
  json["model"]["vocab"]["aab"] = 6;
  json["added_tokens"] = Json::array();
  json["post_processor"] = nullptr;
  CHECK(read(json).encode("aab") == Ids{0, 3});
  json["model"]["ignore_merges"] = true;
  CHECK(read(json).encode("aab") == Ids{6});
}

TEST_CASE("a tokenizer is read from a file, copied, and used by threads") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "tokenizer.json";
  std::ofstream(path) << test::byte_level();
  std::optional<Tokenizer> original = Tokenizer::load(path);
  const Tokenizer copy = *original;
  original.reset();
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) result = copy.encode("ab a<t>b");
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) CHECK(result == Ids{6, 3, 2, 0, 7, 1});
  const std::string absent = support::message_of<FormatError>([&] { Tokenizer::load(path + ".no"); });
  CHECK(support::missing(absent, {path + ".no"}) == "");
  CHECK_THROWS_AS(Tokenizer::load(folder.path().string()), FormatError);
  CHECK_THROWS_WITH(Tokenizer::load(folder.path().string()),
                    Catch::Contains("a file that can be read, got: Is a directory"));
  CHECK_THROWS_AS(Tokenizer::from_json(R"({"model": 1e999})"), FormatError);
}

TEST_CASE("what is no tokenizer is refused by name") {
  const auto parts = [](const std::string& message, std::initializer_list<std::string> list) {
    return support::missing(message, list);
  };
  CHECK(parts(support::message_of<FormatError>([] { Tokenizer::from_json("{\"a\": ", "x.json"); }),
              {"x.json", "at byte 6", "JSON"}) == "");
  CHECK(parts(support::message_of<FormatError>([] { Tokenizer::from_json("\"\xFF\"", "x"); }), {"UTF-8"}) == "");
  CHECK(parts(format_error(Json::array()), {"tokenizer.json", "expected an object"}) == "");
  CHECK(parts(format_error(with("/model", nullptr)), {"model", "expected an object", "got null"}) == "");
  CHECK(parts(format_error(with("/model/vocab", 3)), {"model.vocab: expected an object, got 3"}) == "");
  CHECK(parts(format_error(with("/model/vocab/a", "x")),
              {"model.vocab[\"a\"]: expected an id below 2^32, got \"x\""}) == "");
  CHECK(parts(format_error(with("/model/vocab/a", -1)), {"model.vocab[\"a\"]", "got -1"}) == "");
  CHECK(parts(format_error(with("/model/vocab/a", 1.5)), {"model.vocab[\"a\"]"}) == "");
  CHECK(parts(format_error(with("/model/vocab/a", std::uint64_t{1} << 32)), {"4294967296"}) == "");
  CHECK(parts(format_error(with("/model/vocab/a", 4294967295)), {"model.vocab", "4294967295", "6 tokens"}) == "");
  CHECK(parts(format_error(with("/model/vocab/a", 1)), {"model.vocab", "\"a\"", "\"b\""}) == "");
  CHECK(parts(format_error(with("/model/vocab/", 9)), {"not empty"}) == "");
  CHECK(parts(format_error(with("/model/merges", Json::object())), {"model.merges: expected a list"}) == "");
  CHECK(parts(format_error(with("/model/merges/0", "ab")), {"model.merges[0]: expected two tokens with one space"}) ==
        "");
  CHECK(parts(format_error(with("/model/merges/0", "a b a")), {"model.merges[0]"}) == "");
  CHECK(parts(format_error(with("/model/merges/0", Json::array({"a"}))), {"model.merges[0]: expected two strings"}) ==
        "");
  CHECK(parts(format_error(with("/model/merges/0", Json::array({"a", "a"}))), {"model.merges[0]", "\"aa\""}) == "");
  CHECK(parts(format_error(with("/model/merges/0", Json::array({"a", "q"}))), {"model.merges[0]", "\"q\""}) == "");
  CHECK(parts(format_error(with("/model/unk_token", "?")), {"model.unk_token", "\"?\""}) == "");
  CHECK(parts(format_error(with("/model/ignore_merges", "yes")), {"model.ignore_merges: expected true or false"}) ==
        "");
  CHECK(parts(format_error(with("/added_tokens/0/id", 9)), {"added_tokens[0].id: expected 6", "got 9"}) == "");
  CHECK(parts(format_error(with("/added_tokens/0/special", nullptr)), {"added_tokens[0].special"}) == "");
  CHECK(parts(format_error(with("/added_tokens/1", test::added_token(7, "<s>"))), {"added_tokens[1].content"}) == "");
  CHECK(parts(format_error(with("/post_processor/single/0/SpecialToken/id", "?")),
              {"post_processor.single[0].SpecialToken.id"}) == "");
  CHECK(parts(format_error(with("/pre_tokenizer/type", 3)), {"pre_tokenizer.type: expected a string"}) == "");
  CHECK(parts(format_error(with("/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", ""}})),
              {"normalizer.pattern.String"}) == "");
}

TEST_CASE("an id that a hole of the vocabulary would get twice is refused") {
  Json json = test::byte_level();
  json["post_processor"] = nullptr;
  json["model"]["vocab"]["b"] = 7;  // six tokens: the first added one is 6, the second 7
  CHECK(support::missing(format_error(json), {"added_tokens[1].id", "that no token of the vocabulary has"}) == "");
}

TEST_CASE("components that contradict themselves are refused") {
  const Json mark = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "always"}, {"add_prefix_space", false}};
  CHECK(support::missing(format_error(with("/pre_tokenizer", mark)), {"pre_tokenizer.prepend_scheme", "\"never\""}) ==
        "");
  Json split = {{"type", "Split"}, {"behavior", "Removed"}, {"invert", false}};
  split["pattern"]["Regex"] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  CHECK(support::missing(unsupported(with("/pre_tokenizer", split)), {"pre_tokenizer.behavior", "\"Removed\""}) == "");
  split["invert"] = true;
  CHECK(read(with("/pre_tokenizer", split)).size() == 8);
  const Json once = test::byte_level()["post_processor"];
  const Json twice = {{"type", "Sequence"}, {"processors", Json::array({once, once})}};
  CHECK(support::missing(unsupported(with("/post_processor", twice)), {"processors[1]", "one TemplateProcessing"}) ==
        "");
}

TEST_CASE("components that are not known are refused by name") {
  const auto parts = [](const std::string& message, std::initializer_list<std::string> list) {
    return support::missing(message, list);
  };
  CHECK(parts(unsupported(with("/model/type", "Unigram")),
              {"tokenizer.json", "model.type: expected BPE, got Unigram"}) == "");
  CHECK(parts(unsupported(with("/model/dropout", 0.1)), {"model.dropout: expected null, got 0.1"}) == "");
  CHECK(parts(unsupported(with("/model/end_of_word_suffix", "</w>")), {"model.end_of_word_suffix"}) == "");
  CHECK(parts(unsupported(with("/model/continuing_subword_prefix", "##")), {"model.continuing_subword_prefix"}) == "");
  CHECK(parts(unsupported(with("/model/byte_fallback", true)), {"model.byte_fallback"}) == "");
  CHECK(parts(unsupported(with("/truncation", Json::object())), {"truncation: expected null"}) == "");
  CHECK(parts(unsupported(with("/version", "2.0")), {"version: expected \"1.0\", got \"2.0\""}) == "");
  CHECK(parts(unsupported(with("/padding", Json::object())), {"padding: expected null"}) == "");
  CHECK(parts(unsupported(with("/normalizer", {{"type", "NFKC"}})), {"normalizer", "NFKC"}) == "");
  CHECK(parts(unsupported(with("/pre_tokenizer", {{"type", "Whitespace"}})), {"pre_tokenizer", "Whitespace"}) == "");
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Isolated"}, {"invert", false}};
  CHECK(parts(unsupported(with("/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split})}})),
              {"pre_tokenizer.pretokenizers[0].pattern.Regex", "\"\\w+\""}) == "");
  CHECK(parts(unsupported(with("/post_processor", {{"type", "BertProcessing"}})),
              {"post_processor", "BertProcessing"}) == "");
  CHECK(parts(unsupported(with("/decoder", {{"type", "WordPiece"}})), {"decoder", "WordPiece"}) == "");
  const Json twice = {{"type", "Sequence"},
                      {"decoders", Json::array({{{"type", "ByteLevel"}}, {{"type", "ByteFallback"}}})}};
  CHECK(parts(unsupported(with("/decoder", twice)), {"decoder.decoders[1]"}) == "");
}

TEST_CASE("a hostile file takes neither time nor memory") {
  // Sequences in sequences, and JSON in JSON.
  Json nested = {{"type", "NFC"}};
  for (int i = 0; i < 1000; ++i) nested = {{"type", "Sequence"}, {"normalizers", Json::array({nested})}};
  CHECK(support::missing(unsupported(with("/normalizer", nested)), {"at most 16 Sequences"}) == "");
  const std::string deep(1'000'000, '[');
  CHECK(support::message_of<FormatError>([&] { Tokenizer::from_json(deep); }) != "no error");
  CHECK(support::message_of<FormatError>([&] { Tokenizer::from_json(deep + std::string(deep.size(), ']')); }) !=
        "no error");
  const std::string inside = "{\"truncation\": " + deep + std::string(deep.size(), ']') + "}";
  CHECK(support::missing(support::message_of<NotSupported>([&] { Tokenizer::from_json(inside); }), {"truncation"}) ==
        "");
  // Each doubles the text.
  Json growing = Json::array();
  for (int i = 0; i < 40; ++i)
    growing.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  CHECK(support::missing(unsupported(with("/normalizer", {{"type", "Sequence"}, {"normalizers", growing}})),
                         {"64 times"}) == "");
}
