// Files that are no safetensors files: each must be refused with the right byte, quickly and without harm.
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "lockstep/tensor/io/safetensors.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::read_bytes;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>(length >> (8 * i));
  return file + rest;
}

// The byte that load_safetensors complains of; -1 when it does not complain.
std::int64_t complaint(const std::string& path, const std::string& bytes) {
  write_bytes(path, bytes);
  try {
    load_safetensors(path);
  } catch (const FormatError& error) {
    CHECK(error.file == path);
    CHECK(std::string(error.what()).find(path) == 0);
    CHECK(std::strlen(error.what()) < path.size() + 300);
    return static_cast<std::int64_t>(error.offset);
  }
  return -1;
}

struct Case {
  const char* what;
  std::string header;  // '@' stands before the byte that is expected to be named
  std::string data;
};

const std::string kGood = R"("dtype":"U8","shape":[2],"data_offsets":[0,2])";

std::vector<Case> bad_headers() {
  return {
      {"empty header", "@", ""},
      {"space first", "@ {}", ""},
      {"byte order mark first", "@\xef\xbb\xbf{}", ""},
      {"array", "@[]", ""},
      {"string", "@\"a\"", ""},
      {"number", "@7", ""},
      {"ends in an object", "{@", ""},
      {"ends in a key", "{\"ab@", ""},
      {"ends after a key", "{\"a\"@", ""},
      {"two objects", "{} @{}", ""},
      {"text after the object", "{} @x", ""},
      {"filled up with zero bytes", std::string("{}@\0\0", 5), ""},
      {"zero byte in a name", std::string("{\"a@\0\":{}}", 10), ""},
      {"comma before the end", "{\"a\":{" + kGood + "},@}", "12"},
      {"key without quotes", "{@a:1}", ""},
      {"single quotes", "{@'a':1}", ""},
      {"comment", "{@/**/}", ""},
      {"NaN", "{\"a\":@NaN}", ""},
      {"not UTF-8", "{\"a@\xff\":1}", ""},
      {"overlong UTF-8", "{\"a@\xc0\x80\":1}", ""},
      {"half a surrogate pair", "{\"a\\ud800@\":1}", ""},
      {"control character in a name", "{\"a@\n\":1}", ""},
      {"tensor is a number", "{\"a\":@1}", ""},
      {"tensor is an array", "{\"a\": @[1]}", ""},
      {"tensor is a string", "{\"a\":@\"x\"}", ""},
      {"tensor is null", "{\"a\":@null}", ""},
      {"tensor is true", "{\"a\":@true}", ""},
      {"a name twice", "{\"a\":{" + kGood + "},@\"a\":{" + kGood + "}}", "12"},
      {"the same name, escaped", "{\"a\":{" + kGood + "},@\"\\u0061\":{" + kGood + "}}", "12"},
      {"metadata twice", R"({"__metadata__":{},@"__metadata__":{}})", ""},
      {"metadata is a list", R"({"__metadata__":@[]})", ""},
      {"metadata is a string", R"({"__metadata__":@"x"})", ""},
      {"metadata holds a number", R"({"__metadata__":{"a":@1}})", ""},
      {"metadata holds an object", R"({"__metadata__":{"a":@{}}})", ""},
      {"metadata holds null", R"({"__metadata__":{"a": @null}})", ""},
      {"a key of metadata twice", R"({"__metadata__":{"a":"","b":"",@"a":""}})", ""},
      {"unknown field", "{\"a\":{" + kGood + ",@\"offsets\":[0,2]}}", "12"},
      {"dtype twice", "{\"a\":{" + kGood + ",@\"dtype\":\"U8\"}}", "12"},
      {"shape twice", "{\"a\":{" + kGood + ",@\"shape\":[2]}}", "12"},
      {"data_offsets twice", "{\"a\":{" + kGood + ",@\"data_offsets\":[0,2]}}", "12"},
      {"no dtype", R"({"a":{"shape":[2],"data_offsets":[0,2]@}})", "12"},
      {"no shape", R"({"a":{"dtype":"U8","data_offsets":[0,2]@}})", "12"},
      {"no data_offsets", R"({"a":{"dtype":"U8","shape":[2]@}})", "12"},
      {"dtype is a number", R"({"a":{"dtype":@8,"shape":[2],"data_offsets":[0,2]}})", "12"},
      {"dtype in small letters", R"({"a":{"dtype":@"u8","shape":[2],"data_offsets":[0,2]}})", "12"},
      {"unheard-of dtype", R"({"a":{"dtype":@"F128","shape":[2],"data_offsets":[0,2]}})", "12"},
      {"shape is a number", R"({"a":{"dtype":"U8","shape":@2,"data_offsets":[0,2]}})", "12"},
      {"shape is an object", R"({"a":{"dtype":"U8","shape":@{},"data_offsets":[0,2]}})", "12"},
      {"size is negative", R"({"a":{"dtype":"U8","shape":[@-2],"data_offsets":[0,2]}})", "12"},
      {"size is a fraction", R"({"a":{"dtype":"U8","shape":[@2.0],"data_offsets":[0,2]}})", "12"},
      {"size has an exponent", R"({"a":{"dtype":"U8","shape":[1,@2e0],"data_offsets":[0,2]}})", "12"},
      {"size is text", R"({"a":{"dtype":"U8","shape":[@"2"],"data_offsets":[0,2]}})", "12"},
      {"size is a list", R"({"a":{"dtype":"U8","shape":[@[2]],"data_offsets":[0,2]}})", "12"},
      {"size of more than 64 bits", R"({"a":{"dtype":"U8","shape":[@18446744073709551616],"data_offsets":[0,2]}})",
       "12"},
      {"size with a leading zero", R"({"a":{"dtype":"U8","shape":[0@2],"data_offsets":[0,2]}})", "12"},
      {"size of 64 bits", R"({@"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,2]}})", "12"},
      {"product overflows", R"({@"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", ""},
      {"product of bytes overflows", R"({@"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})",
       ""},
      {"product overflows before a zero",
       R"({@"a":{"dtype":"U8","shape":[4611686018427387904,8,0],"data_offsets":[0,0]}})", ""},
      {"one offset", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2@]}})", "12"},
      {"no offset", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[@]}})", "12"},
      {"three offsets", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,@4]}})", "12"},
      {"offset is negative", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[@-2,0]}})", "12"},
      {"offset is a fraction", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,@2.5]}})", "12"},
      {"offsets are text", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":@"0,2"}})", "12"},
      {"offsets decrease", R"({"a":{"dtype":"U8","shape":[2],@"data_offsets":[2,0]}})", "12"},
      {"too few bytes for the shape", R"({"a":{"dtype":"U8","shape":[3],@"data_offsets":[0,2]}})", "12"},
      {"too many bytes for the shape", R"({"a":{"dtype":"U8","shape":[0],@"data_offsets":[0,2]}})", "12"},
      {"bytes for another dtype", R"({"a":{"dtype":"F32","shape":[2],@"data_offsets":[0,2]}})", "12"},
      {"half a byte", R"({"a":{"dtype":"F4","shape":[3],@"data_offsets":[0,1]}})", "1"},
      {"hole at the start", R"({"a":{"dtype":"U8","shape":[2],@"data_offsets":[1,3]}})", "123"},
      {"hole", "{\"a\":{" + kGood + R"(},"b":{"dtype":"U8","shape":[1],@"data_offsets":[3,4]}})", "1234"},
      {"overlap", "{\"a\":{" + kGood + R"(},"b":{"dtype":"U8","shape":[2],@"data_offsets":[1,3]}})", "123"},
      {"the same bytes twice", "{\"a\":{" + kGood + "},\"b\":{" + R"("dtype":"U8","shape":[2],@"data_offsets":[0,2]}})",
       "12"},
      {"an empty tensor inside another",
       "{\"a\":{" + kGood + R"(},"b":{"dtype":"U8","shape":[0],@"data_offsets":[1,1]}})", "12"},
  };
}

}  // namespace

TEST_CASE("safetensors: every broken rule of the header is named by its byte") {
  const TemporaryFolder folder;
  for (const Case& each : bad_headers()) {
    const std::size_t mark = each.header.find('@');
    REQUIRE(mark != std::string::npos);
    const std::string header = each.header.substr(0, mark) + each.header.substr(mark + 1);
    INFO(each.what << ": " << header);
    CHECK(complaint(folder / "file", with_length(header.size(), header + each.data)) ==
          static_cast<std::int64_t>(8 + mark));
  }
}

TEST_CASE("safetensors: every broken rule of the file around the header is named by its byte") {
  const TemporaryFolder folder;
  const std::string path = folder / "file", header = "{\"a\":{" + kGood + "}}";
  const auto size = static_cast<std::int64_t>(8 + header.size());
  CHECK(complaint(path, with_length(header.size(), header + "12")) == -1);
  CHECK(complaint(path, "") == 0);
  CHECK(complaint(path, std::string(7, '\0')) == 7);
  CHECK(complaint(path, std::string(8, '\0')) == 8);
  CHECK(complaint(path, with_length(100'000'001, header)) == 0);
  CHECK_THROWS_WITH(load_safetensors(path), Catch::Matchers::Contains("100000001: this is another kind of file"));
  CHECK(complaint(path, with_length(~std::uint64_t{0}, header)) == 0);
  CHECK(complaint(path, with_length(~std::uint64_t{7}, header)) == 0);
  CHECK(complaint(path, with_length(100'000'000, header)) == size);
  CHECK(complaint(path, with_length(header.size() + 3, header + "12")) == size + 2);
  CHECK(complaint(path, with_length(header.size(), header)) == size);  // no data
  CHECK(complaint(path, with_length(header.size(), header + "1")) == size + 1);
  CHECK(complaint(path, with_length(header.size(), header + "123")) == size + 2);  // a byte too many
  CHECK(complaint(path, with_length(2, "{}1")) == 10);
  CHECK(complaint(path, with_length(header.size() - 1, header + "12")) == size - 1);
}

TEST_CASE("safetensors: a bool is 0 or 1") {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})";
  const auto size = static_cast<std::int64_t>(8 + header.size());
  CHECK(complaint(folder / "file", with_length(header.size(), header + std::string("\0\1\1", 3))) == -1);
  CHECK(complaint(folder / "file", with_length(header.size(), header + std::string("\0\1\2", 3))) == size + 2);
}

TEST_CASE("safetensors: what the format has and Lockstep lacks is NotSupported") {
  const TemporaryFolder folder;
  for (const char* header : {R"({"a":{"dtype":"I16","shape":[1],"data_offsets":[0,2]}})",
                             R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})",
                             R"({"a":{"dtype":"F8_E4M3FNUZ","shape":[2],"data_offsets":[0,2]}})",
                             R"({"a":{"dtype":"F8_E5M2FNUZ","shape":[2],"data_offsets":[0,2]}})",
                             R"({"a":{"dtype":"U16","shape":[],"data_offsets":[0,2]}})",
                             R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})",
                             R"({"a":{"dtype":"U8","shape":[2,1,1,1,1,1,1,1,1],"data_offsets":[0,2]}})"}) {
    INFO(header);
    write_bytes(folder / "file", with_length(std::strlen(header), std::string(header) + "12"));
    CHECK_THROWS_AS(load_safetensors(folder / "file"), NotSupported);
  }
}

TEST_CASE("safetensors: what is no file at all is an Error, at once") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  for (const std::string& path : {folder / "absent", folder / "pipe", folder.path().string(), std::string()}) {
    INFO(path);
    try {
      load_safetensors(path);
      FAIL("no exception");
    } catch (const FormatError&) {
      FAIL("a FormatError is about content");
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find("'" + path + "'") != std::string::npos);
    }
  }
}

TEST_CASE("safetensors: deep and long headers are refused in bounded time") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const std::size_t many = 1'000'000;
  const std::string deep_lists = "{\"a\":" + std::string(many, '[');
  CHECK(complaint(path, with_length(deep_lists.size(), deep_lists)) == 13);
  std::string deep_objects;
  for (std::size_t i = 0; i < many; ++i) deep_objects += "{\"a\":";
  CHECK(complaint(path, with_length(deep_objects.size(), deep_objects)) == 14);
  const std::string name = "{\"" + std::string(10 * many, 'x') + "\":7}";
  CHECK(complaint(path, with_length(name.size(), name)) == static_cast<std::int64_t>(10 * many + 12));
  std::string entries = "{";
  for (std::size_t i = 0; i < many / 10; ++i)
    entries += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(complaint(path, with_length(entries.size() + 1, entries + "}")) == -1);
  CHECK(complaint(path, with_length(entries.size() + 7, entries + ",\"7\":1}")) > 0);
}

TEST_CASE("safetensors: no prefix of a file and no change of its bytes does harm") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("y":{"dtype":"BOOL","shape":[1,3],"data_offsets":[8,11]},"z":{"dtype":"I64","shape":[0],"data_offsets":[11,11]}})";
  const std::string good = with_length(header.size(), header + std::string("12345678\0\1\0", 11));
  REQUIRE(complaint(path, good) == -1);
  for (std::size_t length = 0; length < good.size(); ++length) {
    INFO(length);
    CHECK(complaint(path, good.substr(0, length)) >= 0);
  }
  std::mt19937 random(1);
  int refused = 0;
  const int rounds = 1000;
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = good;
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % bytes.size();
      const char other = "{}[]:,\"0129-.eEtn\\u \0\xff"[random() % 23];
      switch (random() % 4) {
        case 0:
          bytes[at] = other;
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
          break;
        case 2:
          bytes.erase(at, 1 + random() % 4);
          break;
        default:
          bytes.insert(at, 1, other);
      }
    }
    write_bytes(path, bytes);
    try {
      load_safetensors(path);
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > rounds / 2);
}
