#include "lockstep/tensor/io/npy.h"

#include <cstring>
#include <random>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

std::string npy(const std::string& dict, const std::string& data, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(dict.size() >> (8 * i));
  return file + dict + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string dict(const std::string& descr, const std::string& shape, bool fortran = false) {
  return cat("{'descr': '", descr, "', 'fortran_order': ", fortran ? "True" : "False", ", 'shape': ", shape,
             ", }    \n");
}

Tensor load(const TemporaryFolder& folder, const std::string& bytes) {
  write_bytes(folder / "array.npy", bytes);
  return load_npy(folder / "array.npy");
}

// The byte that load_npy complains of; -1 when it does not.
std::int64_t complaint(const TemporaryFolder& folder, const std::string& bytes) {
  try {
    load(folder, bytes);
  } catch (const FormatError& error) {
    CHECK(error.file == folder / "array.npy");
    return static_cast<std::int64_t>(error.offset);
  }
  return -1;
}

}  // namespace

TEST_CASE("npy: every dtype, version and number of dimensions") {
  const TemporaryFolder folder;
  const auto check = [&](const std::string& descr, DType dtype, auto values) {
    for (int version = 1; version <= 3; ++version) {
      const Tensor tensor = load(folder, npy(dict(descr, "(2, 3)"), bytes_of(values), version));
      CHECK(tensor.dtype() == dtype);
      CHECK(tensor.shape() == Shape{2, 3});
      CHECK(std::memcmp(tensor.data(), values.data(), tensor.bytes()) == 0);
    }
  };
  check("<f4", DType::f32, std::vector<float>{1, 2, 3, 4, 5, -6.5f});
  check("<f8", DType::f64, std::vector<double>{1, 2, 3, 4, 5, -6.5});
  check("=f8", DType::f64, std::vector<double>{1, 2, 3, 4, 5, -6.5});
  check("<f2", DType::f16, std::vector<std::uint16_t>{0x3c00, 0, 1, 2, 3, 4});
  check("<i4", DType::i32, std::vector<std::int32_t>{1, 2, 3, 4, 5, -6});
  check("<i8", DType::i64, std::vector<std::int64_t>{1, 2, 3, 4, 5, -6});
  check("|u1", DType::u8, std::vector<std::uint8_t>{1, 2, 3, 4, 5, 255});
  check(">u1", DType::u8, std::vector<std::uint8_t>{1, 2, 3, 4, 5, 255});
  check("|i1", DType::i8, std::vector<std::int8_t>{1, -2, 3, 4, -128, 127});
  check("|b1", DType::boolean, std::vector<std::uint8_t>{0, 1, 1, 0, 0, 1});
  CHECK(load(folder, npy(dict("<f4", "()"), bytes_of(std::vector<float>{7}))).item<float>() == 7);
  CHECK(load(folder, npy(dict("<f4", "(2,)"), bytes_of(std::vector<float>{7, 8}))).shape() == Shape{2});
  CHECK(load(folder, npy(dict("<f4", "(2L, 1L)"), bytes_of(std::vector<float>{7, 8}))).shape() == Shape{2, 1});
  CHECK(load(folder, npy(dict("<f4", "(2, 0, 3)"), "")).shape() == Shape{2, 0, 3});
  CHECK(load(folder, npy(dict("|u1", "(1, 1, 1, 1, 1, 1, 1, 1)"), "x")).rank() == 8);
  const std::string other_way = R"({"shape":(1,),"fortran_order":False,"descr":"|u1"})";
  CHECK(load(folder, npy(other_way, "x")).shape() == Shape{1});
}

TEST_CASE("npy: a file as NumPy writes it") {
  const TemporaryFolder folder;
  // numpy.save(file, numpy.arange(3, dtype=numpy.int32)) of NumPy 1.24.
  std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
  header.resize(117, ' ');
  header += '\n';
  const Tensor tensor = load(folder, npy(header, bytes_of(std::vector<std::int32_t>{0, 1, 2})));
  CHECK(tensor.to_vector<std::int32_t>() == std::vector<std::int32_t>{0, 1, 2});
}

TEST_CASE("npy: Fortran order is transposed") {
  const TemporaryFolder folder;
  const Tensor matrix = load(folder, npy(dict("<i4", "(2, 3)", true), bytes_of(std::vector<int>{0, 10, 1, 11, 2, 12})));
  CHECK(matrix.shape() == Shape{2, 3});
  CHECK(matrix.contiguous_layout());
  CHECK(matrix.to_vector<int>() == std::vector<int>{0, 1, 2, 10, 11, 12});
  const Tensor cube = load(folder, npy(dict("|u1", "(2, 1, 3)", true), std::string("\0\3\1\4\2\5", 6)));
  CHECK(cube.to_vector<std::uint8_t>() == std::vector<std::uint8_t>{0, 1, 2, 3, 4, 5});
  CHECK(load(folder, npy(dict("|u1", "(3,)", true), "abc")).to_vector<std::uint8_t>()[2] == 'c');
  CHECK(load(folder, npy(dict("|u1", "()", true), "a")).item<int>() == 'a');
  CHECK(load(folder, npy(dict("|u1", "(0, 2)", true), "")).shape() == Shape{0, 2});
}

TEST_CASE("npy: every broken rule is named by its byte") {
  const TemporaryFolder folder;
  const std::string good = npy(dict("|u1", "(2,)"), "xy");
  CHECK(complaint(folder, good) == -1);
  CHECK(complaint(folder, "") == 0);
  CHECK(complaint(folder, "\x93NUMPX") == 5);
  CHECK(complaint(folder, "PK\3\4") == 0);
  CHECK(complaint(folder, good.substr(0, 7)) == 7);
  CHECK(complaint(folder, good.substr(0, 9)) == 9);
  CHECK(complaint(folder, good.substr(0, 40)) == 40);
  CHECK(complaint(folder, npy("", "", 0)) == 6);
  CHECK(complaint(folder, npy("", "", 4)) == 6);
  std::string minor = good;
  minor[7] = 1;
  CHECK(complaint(folder, minor) == 7);
  std::string huge = npy("", "", 2);
  huge[11] = '\x7f';
  CHECK(complaint(folder, huge) == 8);
  CHECK(complaint(folder, good.substr(0, good.size() - 1)) == static_cast<std::int64_t>(good.size()) - 1);
  CHECK(complaint(folder, good + "z") == static_cast<std::int64_t>(good.size()));

  struct Case {
    const char* what;
    std::string header;  // '@' stands before the byte that is expected to be named
  };
  const std::string order = "'fortran_order':False", one = "'shape':(1,)", u1 = "'descr':'|u1'", open = "{",
                    mark_first = "@";
  const auto all = [&](const std::string& shape) { return open + u1 + "," + order + ",'shape':" + shape + "}"; };
  const Case cases[] = {
      {"empty", "@"},
      {"no dict", "@[1]"},
      {"no end", open + u1 + "," + order + "," + one + "@"},
      {"text after the dict", open + u1 + "," + order + "," + one + "} @x"},
      {"zero byte after the dict", open + u1 + "," + order + "," + one + "}@" + std::string(1, '\0')},
      {"no descr", open + order + "," + one + "@}"},
      {"no order", open + u1 + "," + one + "@}"},
      {"no shape", open + u1 + "," + order + "@}"},
      {"a key twice", open + u1 + "," + order + ",@" + order + "," + one + "}"},
      {"another key", "{@'align':True," + u1 + "," + order + "," + one + "}"},
      {"key without quotes", "{@descr:'|u1'}"},
      {"key without end", "{'descr:@"},
      {"no colon", "{'descr' @'|u1'}"},
      {"no comma", open + u1 + " @" + order + "}"},
      {"two commas", open + u1 + ",@," + order + "}"},
      {"descr is a number", "{'descr':@1}"},
      {"descr is empty", "{'descr':@''}"},
      {"descr without order", "{'descr':@'f4'}"},
      {"descr with control characters", "{'descr':@'<f\1'}"},
      {"no order for four bytes", "{'descr':@'|f4'}"},
      {"order is a number", "{'fortran_order':@1}"},
      {"order is in small letters", "{'fortran_order':@false}"},
      {"shape is a list", all("@[1]")},
      {"shape is a number", all("@1")},
      {"shape is a number in brackets", all("(1@)")},
      {"size is negative", all("(@-1,)")},
      {"size with leading zeros", all("(@01,)")},
      {"size is a fraction", all("(1@.5,)")},
      {"size is a string", all("(@'1',)")},
      {"size is missing", all("(@,)")},
      {"two commas in shape", all("(1,@,)")},
      {"no comma in shape", all("(1 @2)")},
      {"shape without end", open + u1 + "," + order + ",'shape':(1,@"},
      {"size of more than 63 bits", all("(@9223372036854775808,)")},
      {"product overflows", mark_first + all("(4294967296,4294967296)")},
      {"product overflows before a zero", mark_first + all("(0,4294967296,4294967296)")},
  };
  for (const Case& each : cases) {
    const std::size_t mark = each.header.find('@');
    REQUIRE(mark != std::string::npos);
    INFO(each.what << ": " << each.header);
    CHECK(complaint(folder, npy(each.header.substr(0, mark) + each.header.substr(mark + 1), "x")) ==
          static_cast<std::int64_t>(10 + mark));
  }
  const std::string bools = npy(dict("|b1", "(3,)"), std::string("\0\1\2", 3));
  CHECK(complaint(folder, bools) == static_cast<std::int64_t>(bools.size()) - 1);
}

TEST_CASE("npy: what NumPy has and Lockstep lacks is NotSupported, by name") {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& header) {
    try {
      load(folder, npy(header, "12345678"));
    } catch (const NotSupported& error) {
      return std::string(error.what());
    }
    return std::string("no NotSupported");
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(message(dict(">f4", "(2,)")), Contains("big-endian") && Contains(">f4"));
  CHECK_THAT(message(dict("|O", "(2,)")), Contains("objects"));
  CHECK_THAT(message(dict("|O8", "(1,)")), Contains("objects"));
  CHECK_THAT(message(dict("<u4", "(2,)")), Contains("<u4"));
  CHECK_THAT(message(dict("<c8", "(1,)")), Contains("<c8"));
  CHECK_THAT(message(dict("|S8", "(1,)")), Contains("|S8"));
  CHECK_THAT(message(dict("<M8[ns]", "(1,)")), Contains("<M8[ns]"));
  CHECK_THAT(message("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"), Contains("structured"));
  CHECK_THAT(message(dict("|u1", "(1,1,1,1,1,1,1,1,8)")), Contains("9 dimensions"));
  CHECK_THROWS_AS(load_npy(folder / "absent"), Error);
  CHECK_THROWS_AS(load_npy(folder.path().string()), Error);
}
