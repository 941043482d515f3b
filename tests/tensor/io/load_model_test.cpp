#include <sys/stat.h>

#include <cstring>

#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::read_bytes;
using lockstep::test::TemporaryFolder;
using lockstep::test::write_bytes;

namespace {

struct Inner : Module<Inner> {
  Parameter weight{zeros({2})}, bias{zeros({3})};
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override { m("weight", weight), m("bias", bias); }
};
struct Wrapper : Module<Wrapper> {
  Inner module;
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override { m("module", module); }
};
struct Tied : Module<Tied> {
  Parameter a{zeros({2})}, b = a;
  Tensor forward(const Tensor& x) const { return x; }
  void members(Members& m) override { m("a", a), m("b", b); }
};

using Names = std::vector<std::string>;

std::vector<float> floats_of(const Parameter& parameter) { return parameter.tensor().to_vector<float>(); }

}  // namespace

TEST_CASE("load_model: a report says what did not fit, and the rest is loaded") {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", {{"weight", ones({2})}, {"bias", ones({4})}, {"z", ones({1})}, {"b", ones({1})}},
                   {{"k", "v"}});
  for (const bool map : {false, true}) {
    Inner net;
    const LoadReport report = load_model(net, folder / "file", {.strict = false, .map = map});
    CHECK(report.missing.empty());
    CHECK(report.unexpected == Names{"b", "z"});
    REQUIRE(report.mismatched.size() == 1);
    CHECK(report.mismatched[0].name == "bias");
    CHECK(report.mismatched[0].expected == Shape{3});
    CHECK(report.mismatched[0].got == Shape{4});
    CHECK(report.metadata.at("k") == "v");
    CHECK_FALSE(report.complete());
    CHECK(floats_of(net.weight) == std::vector<float>{1, 1});
    CHECK(floats_of(net.bias) == std::vector<float>{0, 0, 0});
  }
  save_safetensors(folder / "part", {{"bias", ones({3})}});
  Inner net;
  CHECK(load_model(net, folder / "part", {.strict = false}).missing == Names{"weight"});
  CHECK(floats_of(net.bias) == std::vector<float>{1, 1, 1});
}

TEST_CASE("load_model: strict changes nothing unless everything fits") {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", {{"weight", ones({2})}, {"bias", ones({4})}, {"more", ones({1})}});
  Inner net;
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(load_model(net, folder / "file", {.strict = true}),
                    Contains("missing: none") && Contains("unexpected: more") &&
                        Contains("bias (expected [3], got [4])") && Contains(folder / "file"));
  CHECK_THROWS_AS(load_model(net, folder / "file", false), InvalidArgument);  // shapes must agree there
  CHECK(floats_of(net.weight) == std::vector<float>{0, 0});
  save_safetensors(folder / "good", {{"weight", ones({2})}, {"bias", ones({3})}});
  CHECK(load_model(net, folder / "good", LoadModelOptions{}).complete());
  CHECK(floats_of(net.weight) == std::vector<float>{1, 1});
}

TEST_CASE("load_model: the prefix of a wrapper is passed over in both directions") {
  const TemporaryFolder folder;
  Wrapper wrapped;
  wrapped.module.weight.assign(full({2}, 3));
  save_model(wrapped, folder / "wrapped");
  Inner bare;
  CHECK(load_model(bare, folder / "wrapped", LoadModelOptions{}).complete());
  CHECK(floats_of(bare.weight) == std::vector<float>{3, 3});
  bare.weight.assign(full({2}, 4));
  save_model(bare, folder / "bare");
  load_model(wrapped, folder / "bare");
  CHECK(floats_of(wrapped.module.weight) == std::vector<float>{4, 4});
  load_model(wrapped, folder / "wrapped");  // and stays where both have it
  CHECK(floats_of(wrapped.module.weight) == std::vector<float>{3, 3});

  // Names of which only some have it are taken as they are.
  save_safetensors(folder / "mixed", {{"module.weight", ones({2})}, {"bias", ones({3})}});
  CHECK(load_model(bare, folder / "mixed", {.strict = false}).unexpected == Names{"module.weight"});
}

TEST_CASE("load_model: one name of a tied parameter is enough") {
  const TemporaryFolder folder;
  save_safetensors(folder / "file", {{"b", ones({2})}});
  Tied net;
  CHECK(load_model(net, folder / "file", LoadModelOptions{}).complete());
  CHECK(floats_of(net.a) == std::vector<float>{1, 1});
  save_safetensors(folder / "none", {});
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(load_model(net, folder / "none", {.strict = false}),
                    Contains("[load_model]") && Contains("got none") && Contains("missing: a, b"));
}

TEST_CASE("safetensors: a mapped file is not copied, and not written to") {
  const TemporaryFolder folder;
  const std::string path = folder / "file";
  save_safetensors(path, {{"x", full({1000}, 2)}, {"y", full({3}, 5)}, {"none", zeros({0, 4})}});
  const std::string before = read_bytes(path);
  Tensor x, y;
  {
    const Safetensors file = load_safetensors(path, {.map = true});
    REQUIRE(file.tensors.size() == 3);
    for (const NamedTensor& each : file.tensors) {
      if (each.name == "x") x = each.tensor;
      if (each.name == "y") y = each.tensor;
    }
    // Their places are those in the file.
    CHECK(static_cast<const char*>(y.data()) - static_cast<const char*>(x.data()) == 4000);
  }
  x.add_(1);
  CHECK(x.to_vector<float>() == std::vector<float>(1000, 3));
  CHECK(y.to_vector<float>() == std::vector<float>(3, 5));
  CHECK(read_bytes(path) == before);
  std::filesystem::remove(path);  // the map keeps the contents
  CHECK((x.sum() + y.sum()).item<double>() == 3015);
  CHECK(x.to(Device::host(1)).sum().item<double>() == 3000);

  // What was written to one map is not seen in another.
  write_bytes(path, before);
  const Safetensors again = load_safetensors(path, {.map = true});
  for (const NamedTensor& each : again.tensors)
    if (each.name == "x") CHECK(each.tensor.sum().item<double>() == 2000);
}

TEST_CASE("safetensors: elements that a mapped file does not align are copied") {
  const TemporaryFolder folder;
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  const float numbers[] = {1.5f, -2};
  file += header + "x" + std::string(reinterpret_cast<const char*>(numbers), 8);
  write_bytes(folder / "file", file);
  const Safetensors loaded = load_safetensors(folder / "file", {.map = true});
  const Tensor& b = loaded.tensors.at(1).tensor;
  CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % alignof(float) == 0);
  CHECK(b.to_vector<float>() == std::vector<float>{1.5f, -2});
}
