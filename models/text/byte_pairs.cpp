#include "lockstep/models/text/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "lockstep/models/text/unicode.h"
#include "lockstep/runtime/error.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";
constexpr std::size_t kFew = 32;  // symbols, up to which looking at all of them beats a heap

std::uint64_t mixed(std::uint64_t value) {
  value *= 0x9E3779B97F4A7C15u;
  return value ^ value >> 29;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = text.size();
  while (text.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hash = mixed(hash ^ word);
    text.remove_prefix(8);
  }
  std::uint64_t word = 0;
  for (const char c : text) word = word << 8 | static_cast<unsigned char>(c);
  hash = mixed(hash ^ word);
  return hash ^ hash >> 32;
}

std::size_t slots_for(std::size_t count) { return std::bit_ceil(2 * count + 1); }

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
}

bool joins_words(std::string_view token) {
  while (token.starts_with(kSpaceMark)) token.remove_prefix(kSpaceMark.size());
  return token.find(kSpaceMark) != std::string_view::npos;
}

}  // namespace

void TextTable::reserve(std::size_t count) {
  slots_.assign(slots_for(count), Slot{});
  mask_ = slots_.size() - 1;
}

void TextTable::set(std::string_view text, std::int32_t number) {
  std::size_t at = hash_of(text) & mask_;
  while (slots_[at].number >= 0 && slots_[at].text != text) at = (at + 1) & mask_;
  slots_[at] = {text, number};
}

std::int32_t TextTable::find(std::string_view text) const {
  std::size_t at = hash_of(text) & mask_;
  while (slots_[at].number >= 0 && slots_[at].text != text) at = (at + 1) & mask_;
  return slots_[at].number;
}

BytePairs::BytePairs(std::vector<std::string> vocabulary, const std::vector<MergeRule>& rules,
                     const BytePairOptions& options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  table_.reserve(vocabulary_.size());
  for (std::size_t id = 0; id < vocabulary_.size(); ++id)
    if (!vocabulary_[id].empty()) table_.set(vocabulary_[id], std::int32_t(id));
  for (std::size_t byte = 0; byte < 256; ++byte) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    const char one = char(byte);
    bytes_[byte] = table_.find({&one, 1});
    fallback_[byte] = table_.find(cat("<0x", kDigits[byte / 16], kDigits[byte % 16], ">"));
  }

  pairs_.resize(slots_for(rules.size()));
  mask_ = pairs_.size() - 1;
  for (std::size_t rank = 0; rank < rules.size(); ++rank) {
    const std::uint64_t key = key_of(rules[rank].left, rules[rank].right);
    std::size_t at = mixed(key) & mask_;
    while (pairs_[at].result >= 0 && pairs_[at].key != key) at = (at + 1) & mask_;
    pairs_[at] = {key, std::int32_t(rank), rules[rank].result};
  }

  cut_ = !options_.bytes && table_.find(kSpaceMark) >= 0 && std::none_of(rules.begin(), rules.end(), [&](auto& rule) {
    return joins_words(vocabulary_[std::size_t(rule.result)]);
  });
  whole_.resize(vocabulary_.size());
  std::vector<std::int32_t> symbols;
  for (std::size_t id = 0; id < vocabulary_.size(); ++id) {
    if (vocabulary_[id].empty()) continue;
    symbols_of(vocabulary_[id], symbols);
    merge(symbols);
    whole_[id] = symbols.size() == 1 && symbols[0] == std::int32_t(id);
  }
}

const BytePairs::Pair* BytePairs::pair(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = key_of(left, right);
  std::size_t at = mixed(key) & mask_;
  while (pairs_[at].result >= 0) {
    if (pairs_[at].key == key) return &pairs_[at];
    at = (at + 1) & mask_;
  }
  return nullptr;
}

void BytePairs::symbols_of(std::string_view piece, std::vector<std::int32_t>& out) const {
  out.clear();
  bool unknown = false;  // one waits: others may be fused with it
  const auto write_unknown = [&] {
    if (unknown) out.push_back(options_.unknown);
    unknown = false;
  };
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t bytes = options_.bytes ? 1 : first_character(piece.substr(at)).bytes;
    const std::string_view symbol = piece.substr(at, bytes);
    at += bytes;
    const std::int32_t id = bytes == 1 ? bytes_[static_cast<unsigned char>(symbol[0])] : table_.find(symbol);
    if (id >= 0) {
      write_unknown();
      out.push_back(id);
      continue;
    }
    const auto fallback = [&](char c) { return fallback_[static_cast<unsigned char>(c)]; };
    if (options_.byte_fallback && std::all_of(symbol.begin(), symbol.end(), [&](char c) { return fallback(c) >= 0; })) {
      for (const char c : symbol) out.push_back(fallback(c));
    } else if (options_.unknown >= 0) {
      if (!options_.fuse_unknown) write_unknown();
      unknown = true;
    }
  }
  write_unknown();
}

void BytePairs::encode(std::string_view piece, std::vector<std::int64_t>& out) const {
  LOCKSTEP_CHECK(piece.size() < (std::size_t{1} << 31), "[tokenizer] expected a text of less than 2^31 bytes, got ",
                 piece.size());
  std::vector<std::int32_t> symbols;
  if (!cut_ || options_.ignore_merges) return encode_word(piece, symbols, out);
  while (!piece.empty()) {
    std::size_t end = 0;
    while (piece.substr(end).starts_with(kSpaceMark)) end += kSpaceMark.size();
    end = std::min(piece.find(kSpaceMark, end), piece.size());
    encode_word(piece.substr(0, end), symbols, out);
    piece.remove_prefix(end);
  }
}

void BytePairs::encode_word(std::string_view word, std::vector<std::int32_t>& symbols,
                            std::vector<std::int64_t>& out) const {
  const std::int32_t token = table_.find(word);
  if (token >= 0 && (options_.ignore_merges || whole_[std::size_t(token)])) {
    out.push_back(token);
    return;
  }
  symbols_of(word, symbols);
  merge(symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void BytePairs::merge(std::vector<std::int32_t>& symbols) const {
  return symbols.size() <= kFew ? merge_few(symbols) : merge_many(symbols);
}

// The lowest rank first, of equal ones the leftmost.
void BytePairs::merge_few(std::vector<std::int32_t>& symbols) const {
  constexpr std::int32_t kNone = INT32_MAX;
  std::array<std::int32_t, kFew> ranks, results;  // of each symbol with the next
  std::size_t count = symbols.size();
  const auto look = [&](std::size_t i) {
    const Pair* found = i + 1 < count ? pair(symbols[i], symbols[i + 1]) : nullptr;
    ranks[i] = found != nullptr ? found->rank : kNone;
    results[i] = found != nullptr ? found->result : -1;
  };
  for (std::size_t i = 0; i < count; ++i) look(i);
  while (count > 1) {
    const std::size_t best =
        std::size_t(std::min_element(ranks.begin(), ranks.begin() + std::ptrdiff_t(count)) - ranks.begin());
    if (ranks[best] == kNone) break;
    symbols[best] = results[best];
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols.resize(count);
}

void BytePairs::merge_many(std::vector<std::int32_t>& symbols) const {
  struct Symbol {
    std::int32_t token, previous, next;  // token -1: merged into the one before; next: the number of symbols at the end
  };
  const auto count = std::int32_t(symbols.size());
  std::vector<Symbol> list(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) list[std::size_t(i)] = {symbols[std::size_t(i)], i - 1, i + 1};
  const auto at = [&](std::int32_t i) -> Symbol& { return list[std::size_t(i)]; };

  // rank << 32 | position of the left one, the smallest first. An entry is stale when its pair has another rank by now.
  std::vector<std::uint64_t> heap;
  heap.reserve(symbols.size());
  const auto pair_at = [&](std::int32_t i) {
    return at(i).next < count ? pair(at(i).token, at(at(i).next).token) : nullptr;
  };
  const auto entry = [&](std::int32_t i) {
    if (const Pair* found = pair_at(i)) heap.push_back(key_of(found->rank, i));
    return heap.size();
  };
  const auto push = [&](std::int32_t i) {
    const std::size_t before = heap.size();
    if (entry(i) > before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::int32_t i = 0; i + 1 < count; ++i) entry(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    const auto left = std::int32_t(top & 0xFFFFFFFFu);
    if (at(left).token < 0) continue;
    const Pair* found = pair_at(left);
    if (found == nullptr || std::uint64_t(found->rank) != top >> 32) continue;
    const std::int32_t right = at(left).next;
    at(left).token = found->result;
    at(left).next = at(right).next;
    at(right).token = -1;
    if (at(left).next < count) at(at(left).next).previous = left;
    if (at(left).previous >= 0) push(at(left).previous);
    push(left);
  }
  symbols.clear();
  for (std::int32_t i = 0; i < count; i = at(i).next) symbols.push_back(at(i).token);
}

}  // namespace lockstep::text
