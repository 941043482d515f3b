#include "lockstep/runtime/utf8.h"

#include "support/catch.h"

using namespace lockstep::detail;

TEST_CASE("bytes that are no UTF-8 end where a replacement ends") {
  CHECK(replaced_utf8("a\xF0\x9F\x98z\xFF\xC2") == "a\uFFFDz\uFFFD\uFFFD");
  CHECK(replaced_utf8("\xE0\x80\x80") == "\uFFFD\uFFFD\uFFFD");
  CHECK(replaced_utf8("\xF0\x8F\xBF") == "\uFFFD\uFFFD\uFFFD");
  CHECK(replaced_utf8("\xF5\x80") == "\uFFFD\uFFFD");
  CHECK(replaced_utf8("\U0010FFFF\uD7FF\uE000") == "\U0010FFFF\uD7FF\uE000");
}
