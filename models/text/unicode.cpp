#include "lockstep/models/text/unicode.h"

#include <algorithm>
#include <vector>

namespace lockstep::text {
namespace {

std::uint32_t value_in(const std::uint32_t* ranges, std::size_t count, int bits, char32_t code) {
  const std::uint32_t mask = (1u << bits) - 1;
  const std::uint32_t* range = std::upper_bound(ranges, ranges + count, code << bits | mask) - 1;
  return *range & mask;
}

std::uint32_t combining_class(char32_t code) {
  return code < 0x300 ? 0 : value_in(kCombiningRanges, kCombiningRangesCount, 8, code);
}

struct Decomposition {
  std::uint32_t code, first, second;
};
Decomposition decomposition(std::size_t i) {
  return {kDecompositions[3 * i], kDecompositions[3 * i + 1], kDecompositions[3 * i + 2]};
}

// The index of the first one in [0, count) for which `before` does not hold.
template <class Before>
std::size_t partition_point(std::size_t count, const Before& before) {
  std::size_t low = 0;
  while (low < count) {
    const std::size_t middle = (low + count) / 2;
    if (before(middle)) {
      low = middle + 1;
    } else {
      count = middle;
    }
  }
  return low;
}

constexpr char32_t kHangul = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28;

void append_decomposed(std::u32string& out, char32_t code) {
  if (code >= kHangul && code < kHangul + kLeads * kVowels * kTails) {
    const char32_t syllable = code - kHangul;
    out += static_cast<char32_t>(kLead + syllable / (kVowels * kTails));
    out += static_cast<char32_t>(kVowel + syllable / kTails % kVowels);
    if (syllable % kTails != 0) out += static_cast<char32_t>(kTail + syllable % kTails);
    return;
  }
  const std::size_t i =
      code < 0xC0 ? kDecompositionsCount
                  : partition_point(kDecompositionsCount, [&](std::size_t k) { return kDecompositions[3 * k] < code; });
  if (i == kDecompositionsCount || kDecompositions[3 * i] != code) {
    out += code;
    return;
  }
  append_decomposed(out, decomposition(i).first);
  if (decomposition(i).second != 0) append_decomposed(out, decomposition(i).second);
}

// 0: they do not compose.
char32_t composition(char32_t first, char32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kHangul + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  if (first - kHangul < kLeads * kVowels * kTails && (first - kHangul) % kTails == 0 && second - kTail - 1 < kTails - 1)
    return first + (second - kTail);
  const std::size_t i = partition_point(kCompositionsCount, [&](std::size_t k) {
    const Decomposition pair = decomposition(kCompositions[k]);
    return pair.first != first ? pair.first < first : pair.second < second;
  });
  if (i == kCompositionsCount) return 0;
  const Decomposition pair = decomposition(kCompositions[i]);
  return pair.first == first && pair.second == second ? pair.code : 0;
}

// Of a piece behind which, and before which, nothing joins.
void append_composed(std::string& out, std::string_view piece) {
  std::u32string codes;
  for (std::size_t at = 0; at < piece.size();) {
    const Character character = first_character(piece.substr(at));
    append_decomposed(codes, character.code);
    at += character.bytes;
  }
  // Marks in the order of their classes.
  std::vector<std::uint32_t> classes(codes.size());
  for (std::size_t begin = 0; begin < codes.size();) {
    std::size_t end = begin;
    while (end < codes.size() && (classes[end] = combining_class(codes[end])) != 0) ++end;
    if (end - begin > 1) {
      std::stable_sort(codes.begin() + std::ptrdiff_t(begin), codes.begin() + std::ptrdiff_t(end),
                       [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
      std::sort(classes.begin() + std::ptrdiff_t(begin), classes.begin() + std::ptrdiff_t(end));
    }
    begin = std::max(end, begin + 1);
  }
  // A mark joins the starter before it unless one of its class, or another starter, stands between.
  std::size_t kept = 0, starter = codes.size();  // none yet
  std::uint32_t between = 0;                     // the class of the last that was kept behind the starter
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const bool adjacent = starter + 1 == kept;
    if (starter < codes.size() && (adjacent || (between < classes[i] && between != 0))) {
      if (const char32_t composed = composition(codes[starter], codes[i])) {
        codes[starter] = composed;
        continue;
      }
    }
    between = classes[i];
    if (classes[i] == 0) starter = kept;
    codes[kept++] = codes[i];
  }
  codes.resize(kept);
  for (const char32_t code : codes) append_utf8(out, code);
}

}  // namespace

unsigned classes_beyond_ascii(char32_t code) { return value_in(kClassRanges, kClassRangesCount, 5, code); }

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::size_t copied = 0, last = 0;  // what is in `out`; where the last character that stays as it is begins
  for (std::size_t at = 0; at < text.size();) {
    const Character character = first_character(text.substr(at));
    if ((classes_of(character.code) & kNormalizes) == 0) {
      last = at;
      at += character.bytes;
      continue;
    }
    const std::size_t begin = std::max(last, copied);
    out.append(text.substr(copied, begin - copied));
    while (at < text.size()) {
      const Character next = first_character(text.substr(at));
      if ((classes_of(next.code) & kNormalizes) == 0) break;
      at += next.bytes;
    }
    append_composed(out, text.substr(begin, at - begin));
    copied = last = at;
  }
  return out.append(text.substr(copied));
}

}  // namespace lockstep::text
