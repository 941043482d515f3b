// Byte-pair encoding: which tokens of a vocabulary a piece of text becomes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::text {

// Texts and their numbers, in one table without chains. What a text views outlives it.
class TextTable {
 public:
  void reserve(std::size_t count);
  void set(std::string_view text, std::int32_t number);  // room for it was reserved
  std::int32_t find(std::string_view text) const;        // -1: not there

 private:
  struct Slot {
    std::string_view text;
    std::int32_t number = -1;
  };
  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
};

struct MergeRule {
  std::int32_t left, right, result;  // tokens
};

struct BytePairOptions {
  bool bytes = false;  // symbols are bytes at first, else characters
  bool byte_fallback = false;
  bool fuse_unknown = false;
  bool ignore_merges = false;
  std::int32_t unknown = -1;  // -1: what is not in the vocabulary is left out
};

class BytePairs {
 public:
  // vocabulary[id]: the text of a token, empty where there is none. An earlier rule comes first; of two for one pair
  // the later counts.
  BytePairs(std::vector<std::string> vocabulary, const std::vector<MergeRule>& rules, const BytePairOptions& options);

  // Appends the tokens of a piece of at most 2^31 - 1 bytes. May be called from many threads.
  void encode(std::string_view piece, std::vector<std::int64_t>& out) const;

 private:
  struct Pair {
    std::uint64_t key = ~std::uint64_t{0};  // left << 32 | right
    std::int32_t rank = 0, result = -1;
  };
  const Pair* pair(std::int32_t left, std::int32_t right) const;  // null: they do not merge
  void symbols_of(std::string_view piece, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& symbols, std::vector<std::int64_t>& out) const;
  void merge(std::vector<std::int32_t>& symbols) const;
  void merge_few(std::vector<std::int32_t>& symbols) const;
  void merge_many(std::vector<std::int32_t>& symbols) const;

  std::vector<std::string> vocabulary_;
  BytePairOptions options_;
  TextTable table_;
  std::vector<Pair> pairs_;
  std::size_t mask_ = 0;
  std::vector<bool> whole_;  // tokens whose text becomes that token alone
  std::array<std::int32_t, 256> bytes_{}, fallback_{};
  bool cut_ = false;  // nothing merges across what stands before a U+2581: words are encoded by themselves
};

}  // namespace lockstep::text
