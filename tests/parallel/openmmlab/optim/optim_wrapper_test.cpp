// OptimWrapper trains as the loop that one writes without it.
#include "lockstep/tensor/nn/layers.h"
#include "parallel/openmmlab/training_support.h"

using namespace parallel_test;

namespace {

Doubles wrapped_loop(const Plan& plan) {
  Regressor model;
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}), wrapper_options(plan));
  if (plan.knows_end) optim.initialize_count_status(model, 0, plan.losses);
  for (int i = 0; i < plan.losses; ++i) optim.update_params(fit_loss(model, whole_batch(i)));
  CHECK(optim.inner_count() == plan.losses);
  return all_parameters(model);
}

// A module lists it, as backward asks for.
Parameter weight() {
  Scale module(Doubles{1, 2});
  return module.parameters()[0];
}
std::unique_ptr<OptimWrapper> make(const Parameter& p, OptimWrapperOptions options = {}) {
  return std::make_unique<OptimWrapper>(SGD({p}, {.lr = 1}), std::move(options));
}
std::string wrapper_refusal(const OptimWrapperOptions& options) {
  return message_of<InvalidArgument>([&] { make(weight(), options); });
}

}  // namespace

TEST_CASE("OptimWrapper trains as a plain loop does, bit for bit") {
  for (const int losses : {9, 10, 11})  // tails of 0, 1 and 2
    for (const int window : {1, 3})
      for (const bool knows_end : {true, false})
        for (const int clip : {0, 1, 2}) {
          INFO(losses << " losses, " << window << " a step, end known " << knows_end << ", clip " << clip);
          const Plan plan{losses, window, knows_end, clip == 1 ? 0.2 : 0, clip == 2 ? 0.05 : 0};
          CHECK(wrapped_loop(plan) == plain_loop(plan));
        }
  // None of these is the other by accident.
  const Doubles plain = plain_loop({});
  CHECK(plain != plain_loop({.window = 3}));
  CHECK(plain_loop({.window = 3}) != plain_loop({.window = 3, .knows_end = false}));
  CHECK(plain != plain_loop({.max_norm = 0.2}));
  CHECK(plain != plain_loop({.clip_value = 0.05}));
}

TEST_CASE("OptimWrapper counts losses and windows") {
  const Parameter p = weight();
  const auto optim = make(p, {.accumulative_counts = 3});
  Scale model(Doubles{1});
  std::string steps, syncs, scales;
  const auto run = [&](int losses) {
    for (int i = 0; i < losses; ++i) {
      syncs += optim->should_sync() ? 's' : '.';
      scales += cat(optim->scale_loss(tensor({6}, {})).item<double>(), ' ');
      const Doubles before = values(p.tensor());
      optim->update_params(sum(p.tensor()));
      steps += values(p.tensor()) != before ? 's' : '.';
      CHECK(optim->should_update() == (steps.back() == 's'));
      CHECK(p.grad().defined() != (steps.back() == 's'));
    }
  };
  run(4);
  CHECK(steps == "..s.");
  CHECK(scales == "2 2 2 2 ");
  // The gradient of the fourth loss is still there.
  optim->zero_grad();
  CHECK_FALSE(p.grad().defined());
  steps = syncs = scales = "";
  optim->initialize_count_status(model, 3, 8);
  CHECK(optim->inner_count() == 3);
  CHECK(optim->max_counts() == 8);
  run(7);  // two more than were announced
  CHECK(steps == "..s.ss.");
  CHECK(syncs == steps);
  CHECK(scales == "2 2 2 3 3 2 2 ");
}

TEST_CASE("what is lost or misleading is logged when counts are set") {
  const auto optim = make(weight(), {.accumulative_counts = 4});
  const auto logged = [&](const ModuleBase& model, std::int64_t init, std::int64_t max) {
    CapturedLog log;
    optim->initialize_count_status(model, init, max);
    return log.messages;
  };
  Scale plain(Doubles{1});
  BatchNorm2d norm(3);
  CHECK(logged(plain, 8, 20).empty());
  CHECK(logged(plain, 0, -1).empty());
  const auto lost = logged(plain, 6, 20);
  REQUIRE(lost.size() == 1);
  CHECK(missing(lost[0], {"accumulative_counts 4", "got 6", "2 losses"}) == "");
  const auto batch_norm = logged(norm, 0, 20);
  REQUIRE(batch_norm.size() == 1);
  CHECK(missing(batch_norm[0], {"batch norm", "4 losses"}) == "");
  CapturedLog log;
  make(weight())->initialize_count_status(norm, 3, 20);
  CHECK(log.messages.empty());
  const auto refused = [&](std::int64_t init, std::int64_t max) {
    return message_of<InvalidArgument>([&] { optim->initialize_count_status(plain, init, max); });
  };
  CHECK(missing(refused(-1, 4), {"init_counts", "got -1 and 4"}) == "");
  CHECK(missing(refused(5, 4), {"got 5 and 4"}) == "");
  CHECK(missing(refused(0, -2), {"got 0 and -2"}) == "");
}

TEST_CASE("options of OptimWrapper that make no sense") {
  CHECK(missing(wrapper_refusal({.accumulative_counts = 0}), {"accumulative_counts above 0", "got 0"}) == "");
  CHECK(missing(wrapper_refusal({.accumulative_counts = -1}), {"got -1"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{}}), {"max_norm", "an empty one"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.type = "value"}}), {"clip_value", "an empty one"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.type = "norms", .max_norm = 1}}),
                {"'norm' or 'value'", "'norms'"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.clip_value = 1}}), {"with max_norm", "clip_value alone"}) ==
        "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.type = "value", .max_norm = 1}}), {"with clip_value"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.max_norm = 1, .clip_value = 1}}), {"clip_value too"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.max_norm = 0}}), {"max_norm above 0", "got 0"}) == "");
  CHECK(missing(wrapper_refusal({.clip_grad = ClipGrad{.max_norm = 1, .norm_type = 0}}), {"norm_type"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { OptimWrapper(std::unique_ptr<Optimizer>()); }), {"got none"}) == "");
}

TEST_CASE("clipping by norm keeps the norm there was") {
  const Parameter p = weight(), frozen = weight();
  OptimWrapper optim(SGD({p, frozen}, {.lr = 1}), {.clip_grad = ClipGrad{.max_norm = 1}});
  CHECK_FALSE(optim.grad_norm().defined());
  frozen.set_grad(tensor({100, 100}, {2}));
  frozen.set_requires_grad(false);
  optim.update_params(sum(p.tensor() * tensor({3, 4}, {2})));
  CHECK(optim.grad_norm().item<double>() == 5);
  CHECK(values(p.tensor())[0] == Approx(1 - 0.6).epsilon(1e-5));
  const auto by_infinity =
      make(p, {.clip_grad = ClipGrad{.max_norm = 1, .norm_type = std::numeric_limits<double>::infinity()}});
  by_infinity->update_params(sum(p.tensor() * tensor({3, 4}, {2})));
  CHECK(by_infinity->grad_norm().item<double>() == 4);
  const auto strict = make(p, {.clip_grad = ClipGrad{.max_norm = 1, .error_if_nonfinite = true}});
  const Doubles before = values(p.tensor());
  CHECK_THROWS_AS(strict->update_params(sum(p.tensor() * tensor({INFINITY, 4}, {2}))), Error);
  CHECK(values(p.tensor()) == before);
  strict->zero_grad();
  strict->update_params(sum(p.tensor()));
  CHECK(values(p.tensor()) != before);
}

TEST_CASE("learning rates and momentums of an OptimWrapper") {
  OptimWrapper sgd(
      SGD({{.parameters = {weight()}, .lr = 0.5}, {.parameters = {weight()}, .momentum = 0.25}}, {.lr = 0.1}));
  CHECK(sgd.get_lr() == NamedNumbers{{"lr", {0.5, 0.1}}});
  CHECK(sgd.get_momentum() == NamedNumbers{{"momentum", {0, 0.25}}});
  OptimWrapper adam(Adam({weight()}, {.betas = {0.7, 0.9}}));
  CHECK(adam.get_momentum() == NamedNumbers{{"momentum", {0.7}}});
}

TEST_CASE("a training with OptimWrapper goes on from its state") {
  const Plan plan{.losses = 10, .window = 3};
  std::vector<NamedTensor> weights, state;
  {
    Regressor model;
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}), wrapper_options(plan));
    optim.initialize_count_status(model, 0, plan.losses);
    for (int i = 0; i < 6; ++i) optim.update_params(fit_loss(model, whole_batch(i)));
    weights = deep_copy(model).state_dict();
    state = optim.state_dict();
  }
  Regressor model;
  model.load_state_dict(weights);
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0.2}), wrapper_options(plan));
  const std::size_t entries = state.size();
  optim.load_state_dict(state);
  CHECK(state.size() == entries);  // the caller's, untouched
  CHECK(optim.inner_count() == 6);
  CHECK(optim.max_counts() == 10);
  for (int i = 6; i < 10; ++i) optim.update_params(fit_loss(model, whole_batch(i)));
  CHECK(all_parameters(model) == plain_loop(plan));
}

TEST_CASE("a state that does not fit changes nothing in an OptimWrapper") {
  const Parameter p = weight();
  OptimWrapper optim(SGD({p}, {.lr = 1, .momentum = 0.5}));
  optim.update_params(sum(p.tensor()));
  const auto good = optim.state_dict();
  optim.optimizer().set_lr(0.25);
  const auto message = [&](const std::string& name, Tensor replacement) {
    std::vector<NamedTensor> state;
    for (const NamedTensor& entry : good)
      if (entry.name != name) state.push_back(entry);
    if (replacement.defined()) state.push_back({name, replacement});
    return message_of<InvalidArgument>([&] { optim.load_state_dict(state); });
  };
  const TensorOptions whole{.dtype = DType::i64};
  CHECK(missing(message("inner_count", {}), {"'inner_count'", "undefined"}) == "");
  CHECK(missing(message("inner_count", lockstep::tensor(std::int64_t{-1}, whole)), {"at least 0", "got -1"}) == "");
  CHECK(missing(message("max_counts", lockstep::tensor(1.0)), {"'max_counts'", "i64"}) == "");
  CHECK(missing(message("max_counts", lockstep::tensor(std::int64_t{-2}, whole)), {"at least -1"}) == "");
  CHECK(missing(message("groups.0.lr", {}), {"missing", "groups.0.lr"}) == "");
  CHECK(missing(message("other", lockstep::tensor(1.0)), {"unexpected", "other"}) == "");
  std::vector<NamedTensor> twice = good;
  twice.push_back(good.back());
  CHECK(missing(message_of<InvalidArgument>([&] { optim.load_state_dict(twice); }), {"'max_counts' again"}) == "");
  CHECK(optim.optimizer().lr() == 0.25);
  CHECK(optim.inner_count() == 1);
  optim.load_state_dict(good);
  CHECK(optim.optimizer().lr() == 1);
}
