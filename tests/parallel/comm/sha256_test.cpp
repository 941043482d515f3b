// SHA-256 against the examples of FIPS 180-4, HMAC against RFC 4231.
#include "lockstep/parallel/comm/sha256.h"

#include "support/catch.h"

using lockstep::detail::hmac_sha256;
using lockstep::detail::Sha256;
using lockstep::detail::to_hex;

namespace {

std::string hash(std::string_view text) { return to_hex(Sha256().update(text).digest()); }

}  // namespace

TEST_CASE("SHA-256 gives the published digests") {
  CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstn"
             "opqrstu") == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(hash(std::string(1'000'000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on the pieces of the message") {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i * 7);
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const std::string whole = hash(text.substr(0, length));
    Sha256 pieces;
    for (std::size_t at = 0, piece = 1; at < length; at += piece, piece = piece * 2 + 1)
      pieces.update(std::string_view(text).substr(at, std::min(piece, length - at)));
    REQUIRE(to_hex(pieces.digest()) == whole);
  }
}

TEST_CASE("HMAC-SHA256 gives the published codes") {
  const auto code = [](std::string_view key, std::string_view message) { return to_hex(hmac_sha256(key, message)); };
  CHECK(code(std::string(20, '\x0b'), "Hi There") ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(code("Jefe", "what do ya want for nothing?") ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(code(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(code(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(code(std::string(131, '\xaa'),
             "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be "
             "hashed before being used by the HMAC algorithm.") ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("codes are compared whole") {
  using lockstep::detail::equal_in_constant_time;
  CHECK(equal_in_constant_time("abc", "abc"));
  CHECK_FALSE(equal_in_constant_time("abc", "abd"));
  CHECK_FALSE(equal_in_constant_time("xbc", "abc"));
  CHECK_FALSE(equal_in_constant_time("abc", "abcd"));
}
