// OptimWrappers by name.
#include "lockstep/parallel/openmmlab/optim/optim_wrapper_dict.h"

#include "lockstep/parallel/openmmlab/optim/amp_optim_wrapper.h"
#include "parallel/openmmlab/training_support.h"

using namespace parallel_test;

namespace {

// SGD with momentum for one parameter, Adam and windows of two losses for another.
struct TwoOptims {
  Scale first{Doubles{1, 2}}, second{Doubles{1, 2}};
  Parameter a = first.parameters()[0], b = second.parameters()[0];
  OptimWrapperDict optims;
  TwoOptims() {
    optims.add("sgd", std::make_unique<OptimWrapper>(SGD({a}, {.lr = 0.5, .momentum = 0.75})));
    optims.add("adam",
               std::make_unique<OptimWrapper>(Adam({b}, {.lr = 0.25}), OptimWrapperOptions{.accumulative_counts = 2}));
  }
  void update(const char* name) { optims[name].update_params(sum(optims[name].optimizer().parameters()[0].tensor())); }
};

std::string dict_refusal(const std::function<void(OptimWrapperDict&)>& call) {
  TwoOptims two;
  return message_of<InvalidArgument>([&] { call(two.optims); });
}

}  // namespace

TEST_CASE("OptimWrapperDict: wrappers by name") {
  TwoOptims two;
  CHECK(two.optims.count() == 2);
  CHECK(two.optims.names() == std::vector<std::string>{"sgd", "adam"});
  CHECK(two.optims.contains("adam"));
  CHECK_FALSE(two.optims.contains("lion"));
  std::string seen;
  for (const auto& [name, wrapper] : two.optims) seen += cat(name, '=', wrapper->optimizer().name(), ' ');
  CHECK(seen == "sgd=SGD adam=Adam ");
  CHECK(&two.optims["adam"] == &two.optims.at("adam"));
  CHECK(two.optims.get_lr() == NamedNumbers{{"sgd.lr", {0.5}}, {"adam.lr", {0.25}}});
  CHECK(two.optims.get_momentum() == NamedNumbers{{"sgd.momentum", {0.75}}, {"adam.momentum", {0.9}}});

  CHECK(missing(dict_refusal([](auto& o) { o["lion"]; }), {"(sgd, adam)", "'lion'"}) == "");
  CHECK(missing(dict_refusal([](auto& o) { std::as_const(o).at("lion"); }), {"'lion'"}) == "");
  CHECK(missing(dict_refusal([](auto& o) { o.add("x", nullptr); }), {"'x'", "got none"}) == "");
  for (const char* name : {"", "a.b"})
    CHECK(missing(dict_refusal(
                      [&](auto& o) { o.add(name, std::make_unique<OptimWrapper>(SGD({Parameter(counting({1}))}))); }),
                  {"without dots", cat('\'', name, '\'')}) == "");
  CHECK(missing(dict_refusal(
                    [](auto& o) { o.add("sgd", std::make_unique<OptimWrapper>(SGD({Parameter(counting({1}))}))); }),
                {"'sgd' again"}) == "");
}

TEST_CASE("OptimWrapperDict: zero_grad and counts reach each") {
  TwoOptims two;
  two.a.set_grad(counting({2}));
  two.b.set_grad(counting({2}));
  two.optims.zero_grad();
  CHECK_FALSE(two.a.grad().defined());
  CHECK_FALSE(two.b.grad().defined());
  two.optims.initialize_count_status(Scale(Doubles{1}), 4, 9);
  for (const char* name : {"sgd", "adam"}) {
    CHECK(two.optims[name].inner_count() == 4);
    CHECK(two.optims[name].max_counts() == 9);
  }
}

TEST_CASE("OptimWrapperDict: what each wrapper does by itself") {
  TwoOptims two;
  OptimWrapper& optims = two.optims;
  const Tensor loss = sum(two.a.tensor());
  const auto refused = [&](auto&& call, const char* name) {
    return missing(message_of<NotSupported>(call),
                   {"[OptimWrapperDict]", name, "each wrapper by itself", "(sgd, adam)"});
  };
  CHECK(refused([&] { optims.update_params(loss); }, "update_params") == "");
  CHECK(refused([&] { optims.backward(loss); }, "backward") == "");
  CHECK(refused([&] { optims.step(); }, "step") == "");
  CHECK(refused([&] { optims.scale_loss(loss); }, "scale_loss") == "");
  CHECK(refused([&] { optims.should_update(); }, "should_update") == "");
  CHECK(refused([&] { optims.should_sync(); }, "should_sync") == "");
  CHECK(refused([&] { static_cast<void>(optims.optim_context(Scale(Doubles{1}))); }, "optim_context") == "");
  CHECK(missing(message_of<NotSupported>([&] { optims.optimizer(); }), {"ask each"}) == "");
  CHECK_FALSE(two.a.grad().defined());
}

TEST_CASE("OptimWrapperDict: state by name") {
  TwoOptims one;
  one.update("sgd"), one.update("adam"), one.update("adam");
  const auto state = one.optims.state_dict();
  TwoOptims two;
  two.optims.load_state_dict(state);
  CHECK(two.optims["adam"].inner_count() == 2);
  two.a.assign(one.a.tensor()), two.b.assign(one.b.tensor());
  for (TwoOptims* each : {&one, &two}) each->update("sgd"), each->update("adam"), each->update("adam");
  CHECK(values(two.a.tensor()) == values(one.a.tensor()));
  CHECK(values(two.b.tensor()) == values(one.b.tensor()));

  // What does not fit changes none of them, the first one neither.
  TwoOptims three;
  three.optims["sgd"].optimizer().set_lr(0.125);
  const auto refused = [&](const std::function<void(std::vector<NamedTensor>&)>& spoil) {
    std::vector<NamedTensor> bad = state;
    spoil(bad);
    return message_of<InvalidArgument>([&] { three.optims.load_state_dict(bad); });
  };
  CHECK(missing(refused([](auto& s) {
                  s.push_back({"lion.inner_count", counting({1})});
                }),
                {"(sgd, adam)", "'lion.inner_count'"}) == "");
  CHECK(missing(refused([](auto& s) { s.push_back({"sgd", counting({1})}); }), {"'sgd'"}) == "");
  CHECK(missing(refused([](auto& s) { std::erase_if(s, [](auto& e) { return e.name == "adam.groups.0.lr"; }); }),
                {"[Adam]", "groups.0.lr"}) == "");
  CHECK(missing(refused([](auto& s) { std::erase_if(s, [](auto& e) { return e.name.starts_with("adam."); }); }),
                {"[Adam]", "groups.0.lr"}) == "");
  CHECK(three.optims["sgd"].optimizer().lr() == 0.125);
  CHECK(three.optims["sgd"].inner_count() == 0);
  CHECK(three.optims["adam"].inner_count() == 0);
}

TEST_CASE("OptimWrapperDict: it can be moved, with its wrappers") {
  const Scale scale(Doubles{1, 2});
  const auto make = [&](double lr) {
    OptimWrapperDict optims;
    optims.add("sgd", std::make_unique<OptimWrapper>(SGD(scale.parameters(), {.lr = lr})));
    return optims;
  };
  std::vector<OptimWrapperDict> all;
  all.push_back(make(0.5));
  all.push_back(make(0.25));
  all[0] = std::move(all[1]);
  CHECK(all[0].names() == std::vector<std::string>{"sgd"});
  CHECK(all[0].get_lr()[0].second == std::vector<double>{0.25});
  STATIC_REQUIRE_FALSE(std::is_copy_constructible_v<OptimWrapperDict>);
  STATIC_REQUIRE_FALSE(std::is_move_constructible_v<OptimWrapper>);  // an AmpOptimWrapper would lose a half
}
