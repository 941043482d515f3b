// Tokens that are cut out of a text before anything else is done with it, such as <|endoftext|>.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::text {

struct AddedToken {
  std::string content;
  std::string pattern;  // the text that stands for it: content, normalized where it is looked for in normalized text
  std::int32_t id = 0;
  bool single_word = false;  // not beside letters, digits and the like
  bool lstrip = false;       // with the whitespace before it
  bool rstrip = false;       // with the whitespace behind it
  bool normalized = true;    // looked for in the normalized text
  bool special = false;
};

// Finds some of them in texts.
class AddedTokens {
 public:
  void add(const AddedToken& token);  // no pattern is empty, none that of another

  // `section` gets what lies between the tokens (never empty) and where it begins, `token` their ids: in order. Of
  // tokens that begin at one place the longest counts. Without `special` those that are special are text.
  void split(std::string_view text, bool special, const std::function<void(std::string_view, std::size_t)>& section,
             const std::function<void(std::int32_t)>& token) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> next;  // by byte
    std::int32_t token = -1;                                    // that ends here
  };
  struct Match {
    std::int32_t token;  // -1: none
    std::size_t begin, end;
  };
  Match first(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
};

}  // namespace lockstep::text
