// Modules whose members have names that clash, or none; errors that name a module by its place in the tree.
#include <filesystem>
#include <vector>

#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;

namespace {
struct Twins : Module<Twins> {
  Linear a{2, 2}, b{2, 2};
  Buffer mean{zeros({2})};
  Parameter scale{ones({2})};
  bool buffers = false;
  Tensor forward(const Tensor& x) const { return b(a(x)); }
  void members(Members& m) override {
    m("a", a);
    if (buffers) {
      m("mean", mean);
      m("mean", scale);
    } else {
      m("a", b);
    }
  }
};
struct Unlisted : Module<Unlisted> {
  Linear a{2, 2};
  Tensor forward(const Tensor& x) const { return a(x); }
};
struct Deep : Module<Deep> {
  struct Block : Module<Block> {
    Linear narrow{4, 2}, wide{3, 4};  // they do not fit together
    Tensor forward(const Tensor& x) const { return narrow(relu(narrow(x))); }
    void members(Members& m) override {
      m("narrow", narrow);
      m("wide", wide);
    }
  };
  std::vector<Block> blocks{Block(), Block()};
  Tensor forward(const Tensor& x) const { return blocks[1](x); }
  void members(Members& m) override { m("blocks", blocks); }
};
}  // namespace

TEST_CASE("two members of one name are an error at the first traversal") {
  for (const bool buffers : {false, true}) {
    const std::string name = buffers ? "'mean'" : "'a.weight'";
    const auto twins = [&] {
      Twins made;
      made.buffers = buffers;
      return made;
    };
    CHECK_THROWS_WITH(twins().parameters(), Contains("[members]") && Contains(name) && Contains("twice"));
    CHECK_THROWS_WITH(twins().named_buffers(), Contains(name));
    CHECK_THROWS_WITH(twins().state_dict(), Contains(name));
    CHECK_THROWS_WITH(twins().load_state_dict({}, false), Contains(name));
    CHECK_THROWS_WITH(twins()(ones({1, 2})), Contains(name));
  }
}

TEST_CASE("a forgotten members() is named as such") {
  support::needs_devices(2);
  const Unlisted net;
  CHECK_THROWS_WITH(net(ones({1, 2}, {.device = device_at(1)})),
                    Contains("(not listed)") && Contains("list it in the members() of its module"));
  const test::TemporaryFolder folder;
  const std::string path = folder / "unlisted.safetensors";
  CHECK_THROWS_WITH(save_model(net, path), Contains("[save_model]") && Contains(path) && Contains("members()"));
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("an argument that does not fit names the module by its place in the tree") {
  const Deep net;
  CHECK_THROWS_WITH(net(ones({1, 4})),
                    Contains("[linear]") && Contains("f32[1, 2]") && Contains("(in the module 'blocks.1.narrow')"));
  CHECK_THROWS_WITH(net.blocks[1](ones({1, 4})), Contains("(in the module 'narrow')"));
  CHECK_THROWS_WITH(net.blocks[1].narrow(ones({1, 3})), !Contains("in the module"));
  CHECK_THROWS_WITH(Linear(4, 2)(ones({1, 3})), Contains("[linear]") && !Contains("in the module"));
}

namespace {
struct TooLong : InvalidArgument {
  using InvalidArgument::InvalidArgument;
  int length = 7;
};
struct Picky : Module<Picky> {
  Tensor forward(const Tensor&) const { throw TooLong("too long"); }
  void members(Members&) override {}
};
struct Holder : Module<Holder> {
  Picky picky;
  Tensor forward(const Tensor& x) const { return picky(x); }
  void members(Members& m) override { m("picky", picky); }
};
}  // namespace

TEST_CASE("an error of a type of the caller's own comes through modules as it is") {
  try {
    Holder()(ones({1}));
    FAIL("expected an error");
  } catch (const TooLong& error) {
    CHECK(std::string(error.what()) == "too long");
    CHECK(error.length == 7);
  }
}
