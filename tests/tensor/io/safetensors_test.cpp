#include "lockstep/tensor/io/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::read_bytes;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

// A cpu tensor whose bytes count up from `first` (0 and 1 for bools).
Tensor counting(DType dtype, const Shape& shape, int first = 1) {
  const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * size_of(dtype);
  const Tensor tensor = Tensor::over(Storage::allocate(Device::cpu(), bytes), dtype, shape, contiguous_strides(shape));
  auto* out = static_cast<unsigned char*>(tensor.storage()->data());
  for (std::size_t i = 0; i < bytes; ++i)
    out[i] = static_cast<unsigned char>(dtype == DType::boolean ? i % 2 : i + static_cast<std::size_t>(first));
  return tensor;
}

std::string content(const Tensor& tensor) { return {static_cast<const char*>(tensor.data()), tensor.bytes()}; }

const DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16,   DType::i32,
                      DType::i64, DType::u8,  DType::i8,  DType::boolean};

struct Affine : Module<Affine> {
  Parameter weight, bias;
  Buffer mean;
  explicit Affine(int first = 1)
      : weight(counting(DType::f32, {2, 3}, first)),
        bias(counting(DType::f64, {3}, first)),
        mean(counting(DType::f32, {3}, first)) {}
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override {
    m("weight", weight);
    m("bias", bias);
    m("mean", mean);
  }
};

}  // namespace

TEST_CASE("safetensors: all dtypes and shapes come back as they were") {
  const TemporaryFolder folder;
  std::vector<NamedTensor> tensors;
  for (const DType dtype : kAll) {
    tensors.push_back({cat("matrix.", dtype), counting(dtype, {3, 5})});
    tensors.push_back({cat("scalar.", dtype), counting(dtype, {})});
    tensors.push_back({cat("nothing.", dtype), counting(dtype, {2, 0, 3})});
    tensors.push_back({cat("eight.", dtype), counting(dtype, {1, 2, 1, 2, 1, 1, 2, 1})});
  }
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"ключ \"\\\n\x01", ""}, {"", "empty"}};
  save_safetensors(folder / "file", tensors, metadata);
  const Safetensors back = load_safetensors(folder / "file");
  CHECK(back.metadata == metadata);
  REQUIRE(back.tensors.size() == tensors.size());
  for (const NamedTensor& wanted : tensors) {
    const auto found = std::find_if(back.tensors.begin(), back.tensors.end(),
                                    [&](const NamedTensor& each) { return each.name == wanted.name; });
    REQUIRE(found != back.tensors.end());
    CHECK(found->tensor.dtype() == wanted.tensor.dtype());
    CHECK(found->tensor.shape() == wanted.tensor.shape());
    CHECK(found->tensor.device() == Device::cpu());
    CHECK(content(found->tensor) == content(wanted.tensor));
  }
  CHECK(folder.count() == 1);
}

TEST_CASE("safetensors: the file is laid out byte by byte as the format says") {
  const TemporaryFolder folder;
  save_safetensors(folder / "file",
                   {{"b", counting(DType::u8, {3})},
                    {"z", counting(DType::i64, {1})},
                    {"a", counting(DType::u8, {2}, 9)},
                    {"y", counting(DType::f16, {})}},
                   {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"z":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
      R"("y":{"dtype":"F16","shape":[],"data_offsets":[8,10]},"a":{"dtype":"U8","shape":[2],"data_offsets":[10,12]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  std::string wanted(1, static_cast<char>(padded.size()));
  wanted += std::string(7, '\0') + padded;
  wanted +=
      "\1\2\3\4\5\6\7\10"
      "\1\2"
      "\11\12"
      "\1\2\3";
  CHECK(read_bytes(folder / "file") == wanted);

  std::vector<std::string> names;
  for (const NamedTensor& each : load_safetensors(folder / "file").tensors) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{"z", "y", "a", "b"});
}

TEST_CASE("safetensors: a file without tensors") {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", {});
  CHECK(read_bytes(folder / "file") == std::string("\10\0\0\0\0\0\0\0{}      ", 16));
  CHECK(load_safetensors(folder / "file").tensors.empty());
  CHECK(load_safetensors(folder / "file").metadata.empty());
}

TEST_CASE("safetensors: files written with more freedom are read") {
  const TemporaryFolder folder;
  // Fields in another order, spaces, escapes, no padding, entries not in the order of their bytes.
  const std::string header =
      "{ \"\\u0062\" : {\"data_offsets\": [4, 6], \"shape\":[2] ,\"dtype\":\"U8\"},\n\t"
      "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]} , \"__metadata__\":{} } ";
  write_bytes(folder / "file", std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header +
                                   std::string("\0\0\200\77\5\6", 6));
  const Safetensors file = load_safetensors(folder / "file");
  REQUIRE(file.tensors.size() == 2);
  CHECK(file.tensors[0].name == "a");
  CHECK(*file.tensors[0].tensor.data<float>() == 1.0f);
  CHECK(file.tensors[1].name == "b");
  CHECK(content(file.tensors[1].tensor) == "\5\6");
}

TEST_CASE("safetensors: long and foreign names") {
  const TemporaryFolder folder;
  const std::vector<std::string> names{
      "", " ", "日本語.重み", "a\"b\\c\n", std::string("zero\0byte", 9), "\U0001F600", std::string(1 << 20, 'x')};
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) tensors.push_back({name, counting(DType::i32, {2})});
  save_safetensors(folder / "file", tensors);
  const Safetensors back = load_safetensors(folder / "file");
  std::vector<std::string> found;
  for (const NamedTensor& each : back.tensors) found.push_back(each.name);
  std::vector<std::string> wanted = names;
  std::sort(wanted.begin(), wanted.end());
  CHECK(found == wanted);
}

TEST_CASE("safetensors: views and tensors on devices are written as they read") {
  const TemporaryFolder folder;
  const Tensor matrix = counting(DType::u8, {2, 3});
  save_safetensors(folder / "file", {{"t", matrix.t()}, {"d", matrix.to(Device::host(0))}, {"row", matrix[1]}});
  const Safetensors back = load_safetensors(folder / "file");
  REQUIRE(back.tensors.size() == 3);
  CHECK(content(back.tensors[0].tensor) == "\1\2\3\4\5\6");
  CHECK(content(back.tensors[1].tensor) == "\4\5\6");
  CHECK(content(back.tensors[2].tensor) == "\1\4\2\5\3\6");
  CHECK(back.tensors[2].tensor.shape() == Shape{3, 2});
}

TEST_CASE("safetensors: what cannot be written is refused and leaves nothing behind") {
  const TemporaryFolder folder;
  const Tensor tensor = counting(DType::f32, {2});
  CHECK_THROWS_AS(save_safetensors(folder / "f", {{"a", tensor}, {"a", tensor}}), InvalidArgument);
  CHECK_THROWS_AS(save_safetensors(folder / "f", {{"__metadata__", tensor}}), InvalidArgument);
  CHECK_THROWS_AS(save_safetensors(folder / "f", {{"bad\xff", tensor}}), InvalidArgument);
  CHECK_THROWS_AS(save_safetensors(folder / "f", {{"a", tensor}}, {{"k", "\xc0\x80"}}), InvalidArgument);
  CHECK_THROWS_AS(save_safetensors(folder / "f", {{"a", Tensor()}}), InvalidArgument);
  CHECK_THROWS_AS(save_safetensors(folder / "f", {{std::string(100'000'001, 'x'), tensor}}), InvalidArgument);
  CHECK(folder.count() == 0);
}

TEST_CASE("safetensors: a file that the system cannot write leaves nothing behind") {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> tensors{{"a", counting(DType::u8, {100'000})}};
  CHECK_THROWS_AS(save_safetensors(folder / "absent/file", tensors), Error);
  CHECK_THROWS_AS(save_safetensors("", tensors), Error);

  // The name is taken by a folder.
  std::filesystem::create_directories(folder.path() / "taken/inner");
  CHECK_THROWS_AS(save_safetensors(folder / "taken", tensors), Error);
  CHECK(folder.count() == 1);

  if (::geteuid() != 0) {  // root may write anywhere
    std::filesystem::create_directory(folder.path() / "closed");
    ::chmod((folder / "closed").c_str(), 0500);
    CHECK_THROWS_AS(save_safetensors(folder / "closed/file", tensors), Error);
    ::chmod((folder / "closed").c_str(), 0700);
    CHECK(std::filesystem::is_empty(folder.path() / "closed"));
  }

  // Files may not grow beyond 50,000 bytes: the old file stays as it was.
  write_bytes(folder / "file", "old");
  const std::ptrdiff_t before = folder.count();
  struct rlimit old_limit {};
  ::getrlimit(RLIMIT_FSIZE, &old_limit);
  const struct rlimit small { 50'000, old_limit.rlim_max };
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  bool thrown = false;
  try {
    save_safetensors(folder / "file", tensors);
  } catch (const Error&) {
    thrown = true;
  }
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  CHECK(thrown);
  CHECK(folder.count() == before);
  CHECK(read_bytes(folder / "file") == "old");

  save_safetensors(folder / "file", tensors);  // now it is replaced
  CHECK(load_safetensors(folder / "file").tensors.size() == 1);
  CHECK(folder.count() == before);
}

TEST_CASE("safetensors: what a path leads to is replaced, with its permissions, if it is a file") {
  const TemporaryFolder folder;
  const std::vector<NamedTensor> tensors{{"a", counting(DType::u8, {1})}};
  std::filesystem::create_directory(folder.path() / "runs");
  write_bytes(folder / "runs/7", "old");
  ::chmod((folder / "runs/7").c_str(), 0640);
  std::filesystem::create_symlink("runs/7", folder.path() / "best");
  std::filesystem::create_symlink(folder.path() / "best", folder.path() / "latest");
  std::filesystem::create_symlink("runs/8", folder.path() / "next");
  for (const char* link : {"latest", "next"}) {
    save_safetensors(folder / link, tensors);
    CHECK(std::filesystem::is_symlink(folder.path() / link));
    CHECK(load_safetensors(folder / link).tensors.size() == 1);
  }
  CHECK(std::filesystem::status(folder.path() / "runs/7").permissions() == std::filesystem::perms(0640));
  CHECK(load_safetensors(folder / "runs/8").tensors.size() == 1);
  CHECK(folder.count() == 4);
  std::filesystem::create_symlink("round", folder.path() / "round");
  CHECK_THROWS_AS(save_safetensors(folder / "round", tensors), Error);
  // Not a pipe or a device, /dev/null of a program that may do anything for one.
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_AS(save_safetensors(folder / "pipe", tensors), Error);
  CHECK(std::filesystem::is_fifo(folder.path() / "pipe"));
}

TEST_CASE("safetensors: a path without a folder, and names as long as the system allows") {
  const TemporaryFolder folder;
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string name(255, 'n');
  save_safetensors(name, {{"a", counting(DType::u8, {1})}});
  CHECK(load_safetensors(name).tensors.size() == 1);
  std::filesystem::current_path(here);
  CHECK(folder.count() == 1);
}

TEST_CASE("safetensors: a model is saved and loaded by name") {
  const TemporaryFolder folder;
  const Affine saved(1);
  save_model(saved, folder / "model", {{"made by", "test"}});
  Affine loaded(50);
  CHECK(load_model(loaded, folder / "model") == std::map<std::string, std::string>{{"made by", "test"}});
  const std::vector<NamedTensor> wanted = saved.state_dict(), got = loaded.state_dict();
  REQUIRE(got.size() == 3);
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(content(got[i].tensor) == content(wanted[i].tensor));

  // A file that lacks a name changes nothing, unless that is allowed.
  const std::string before = content(loaded.mean.tensor());
  save_safetensors(folder / "part", {{"mean", counting(DType::f32, {3}, 70)}});
  CHECK_THROWS_AS(load_model(loaded, folder / "part"), InvalidArgument);
  CHECK(content(loaded.mean.tensor()) == before);
  load_model(loaded, folder / "part", false);
  CHECK(content(loaded.mean.tensor()) != before);
}
