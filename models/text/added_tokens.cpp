#include "lockstep/models/text/added_tokens.h"

#include <algorithm>

#include "lockstep/models/text/unicode.h"

namespace lockstep::text {
namespace {

bool ends_with(unsigned kind, std::string_view text) {
  return !text.empty() && (classes_of(last_character(text).code) & kind) != 0;
}
bool begins_with(unsigned kind, std::string_view text) {
  return !text.empty() && (classes_of(first_character(text).code) & kind) != 0;
}

}  // namespace

void AddedTokens::add(const AddedToken& token) {
  std::uint32_t node = 0;
  for (const char c : token.pattern) {
    const auto byte = static_cast<unsigned char>(c);
    auto& next = nodes_[node].next;
    auto edge = std::lower_bound(next.begin(), next.end(), std::pair(byte, std::uint32_t{0}));
    if (edge == next.end() || edge->first != byte) {
      const auto fresh = std::uint32_t(nodes_.size());
      next.insert(edge, {byte, fresh});
      nodes_.emplace_back();
      node = fresh;
    } else {
      node = edge->second;
    }
  }
  nodes_[node].token = std::int32_t(tokens_.size());
  tokens_.push_back(token);
}

AddedTokens::Match AddedTokens::first(std::string_view text, std::size_t from) const {
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    Match match{-1, begin, begin};
    std::uint32_t node = 0;
    for (std::size_t end = begin; end < text.size();) {
      const auto& next = nodes_[node].next;
      const auto byte = static_cast<unsigned char>(text[end]);
      const auto edge = std::lower_bound(next.begin(), next.end(), std::pair(byte, std::uint32_t{0}));
      if (edge == next.end() || edge->first != byte) break;
      node = edge->second;
      ++end;
      if (nodes_[node].token >= 0) match = {nodes_[node].token, begin, end};
    }
    if (match.token >= 0) return match;
  }
  return {-1, text.size(), text.size()};
}

void AddedTokens::split(std::string_view text, bool special,
                        const std::function<void(std::string_view, std::size_t)>& section,
                        const std::function<void(std::int32_t)>& token) const {
  std::size_t done = 0;  // up to where tokens and sections reach
  for (std::size_t from = 0; !tokens_.empty() && from < text.size();) {
    const Match match = first(text, from);
    if (match.token < 0) break;
    from = match.end;
    const AddedToken& found = tokens_[std::size_t(match.token)];
    std::size_t begin = match.begin, end = match.end;
    if (found.special && !special) continue;
    if (found.single_word && (ends_with(kWord, text.substr(0, begin)) || begins_with(kWord, text.substr(end))))
      continue;
    if (found.lstrip)  // perhaps what a token before it has taken
      while (ends_with(kSpace, text.substr(0, begin))) begin -= last_character(text.substr(0, begin)).bytes;
    if (found.rstrip)
      while (begins_with(kSpace, text.substr(end))) end += first_character(text.substr(end)).bytes;
    if (done < begin) section(text.substr(done, begin - done), done);
    token(found.id);
    done = end;
  }
  if (done < text.size()) section(text.substr(done), done);
}

}  // namespace lockstep::text
