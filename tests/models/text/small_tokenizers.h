// Tokenizers of a few tokens, as the JSON of their files.
#pragma once

#include <nlohmann/json.hpp>

namespace lockstep::test {

inline nlohmann::json added_token(int id, const char* content, bool special = true) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

// "a" 0, "b" 1, space 2, "ab" 3, the two bytes of é 4 and 5; <s> 6, which begins a text, and <t> 7, which is not
// special.
inline nlohmann::json byte_level() {
  auto json = nlohmann::json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [6], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "vocab": {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ã": 4, "©": 5},
              "merges": [["a", "b"]]}})");
  json["added_tokens"] = nlohmann::json::array({added_token(6, "<s>"), added_token(7, "<t>", false)});
  return json;
}

// <unk> 0, <0xC3> 1, <0xA9> 2, U+2581 3, "a" 4, "b" 5, "\u2581a" 6.
inline nlohmann::json byte_fallback() {
  return nlohmann::json::parse(R"({
    "added_tokens": [],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                   {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "merges": ["▁ a"],
              "vocab": {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "▁": 3, "a": 4, "b": 5, "▁a": 6}}})");
}

}  // namespace lockstep::test
