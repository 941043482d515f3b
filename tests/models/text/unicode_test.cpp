#include "lockstep/models/text/unicode.h"

#include <string>
#include <vector>

#include "lockstep/models/text/splitter.h"
#include "support/catch.h"

using namespace lockstep::text;

namespace {

std::vector<std::string> pieces(Pattern pattern, std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t bytes = match(pattern, text);
    out.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return out;
}

using Pieces = std::vector<std::string>;

}  // namespace

TEST_CASE("the canonical composition of texts") {
  CHECK(nfc("plain") == "plain");
  CHECK(nfc("") == "");
  CHECK(nfc("xe\u0301y") == "x\u00E9y");
  CHECK(nfc("\u0301") == "\u0301");
  CHECK(nfc("a\u0301\u0327b\u0327\u0301") == "\u00E1\u0327b\u0327\u0301");  // marks in order, one composed past another
  CHECK(nfc("e\u0301\u0327") == "\u0229\u0301");
  CHECK(nfc("\u00E9\u0327") == "\u0229\u0301");   // a letter is taken apart for it
  CHECK(nfc("a\u0301\u0301") == "\u00E1\u0301");  // one of its class blocks
  CHECK(nfc("a\u0305\u0301") == "a\u0305\u0301");
  CHECK(nfc("\u1100\u0300\u1161") == "\u1100\u0300\u1161");  // what is no mark joins its neighbour only
  CHECK(nfc("q\u0307\u0323") == "q\u0323\u0307");
  CHECK(nfc("\u1E0B\u0323") == "\u1E0D\u0307");
  CHECK(nfc("\u212B\u2126") == "\u00C5\u03A9");  // singletons
  CHECK(nfc("\u0958") == "\u0915\u093C");        // excluded from composition
  CHECK(nfc("\u1100\u1161\u11A8") == "\uAC01");
  CHECK(nfc("\uAC00\u11A8") == "\uAC01");
  CHECK(nfc("\uAC01\u11A8") == "\uAC01\u11A8");  // it has a tail already
  CHECK(nfc("\u1100\u1161\u1161") == "\uAC00\u1161");
  CHECK(nfc("\uAC00\u11A7") == "\uAC00\u11A7");  // no tail
  CHECK(nfc("\U0002F800") == "\u4E3D");
  CHECK(nfc("\u0344") == "\u0308\u0301");
  CHECK(nfc("a\u0898\u0301") == "a\u0898\u0301");  // younger than the tables
}

TEST_CASE("the pieces of GPT-2") {
  CHECK(pieces(Pattern::gpt2, "I'm we've you'll HE'S") ==
        Pieces{"I", "'m", " we", "'ve", " you", "'ll", " HE", "'", "S"});
  CHECK(pieces(Pattern::gpt2, "a  b") == Pieces{"a", " ", " b"});
  CHECK(pieces(Pattern::gpt2, "a \t\n b \n") == Pieces{"a", " \t\n", " b", " \n"});
  CHECK(pieces(Pattern::gpt2, "x1y 23½?! é") == Pieces{"x", "1", "y", " 23½", "?!", " é"});
  CHECK(pieces(Pattern::gpt2, "\u3000\u3000a") == Pieces{"\u3000", "\u3000", "a"});
  CHECK(pieces(Pattern::gpt2, " ") == Pieces{" "});
  CHECK(pieces(Pattern::gpt2, "'r're") == Pieces{"'", "r", "'re"});
}

TEST_CASE("the pieces of Llama 3 and Qwen2") {
  CHECK(pieces(Pattern::llama3, "I'M 'Tis'\u017Fo'LLx") == Pieces{"I", "'M", " '", "Tis", "'\u017F", "o", "'LL", "x"});
  CHECK(pieces(Pattern::llama3, "12345 6") == Pieces{"123", "45", " ", "6"});
  CHECK(pieces(Pattern::qwen2, "123") == Pieces{"1", "2", "3"});
  CHECK(pieces(Pattern::llama3, "a\tb\nc(d") == Pieces{"a", "\tb", "\n", "c", "(d"});
  CHECK(pieces(Pattern::llama3, "x !?\r\n\n y") == Pieces{"x", " !?\r\n\n", " y"});
  CHECK(pieces(Pattern::llama3, "a \n \n  b") == Pieces{"a", " \n \n", " ", " b"});
  CHECK(pieces(Pattern::llama3, "a   ") == Pieces{"a", "   "});
  CHECK(pieces(Pattern::llama3, "  1") == Pieces{" ", " ", "1"});
  CHECK(pieces(Pattern::llama3, "\n\u00E9") == Pieces{"\n", "\u00E9"});
}
