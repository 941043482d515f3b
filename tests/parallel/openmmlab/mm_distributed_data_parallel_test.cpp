// Ranks that make steps of OpenMMLab's kind train as one device does on the whole batch, and communicate no more than
// they must.
#include "lockstep/parallel/openmmlab/mm_distributed_data_parallel.h"

#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/parallel/openmmlab/model/model_wrapper.h"
#include "lockstep/parallel/openmmlab/optim/amp_optim_wrapper.h"
#include "parallel/openmmlab/training_support.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

struct RankResult {
  Doubles parameters, figures;
};
std::vector<Doubles> parameters_of(const std::vector<RankResult>& ranks) {
  std::vector<Doubles> all;
  for (const RankResult& rank : ranks) all.push_back(rank.parameters);
  return all;
}

// Uses `spare` where it is told to.
struct SpareModel : BaseModel<SpareModel> {
  Parameter used{counting({2})}, spare{counting({2, 3})}, frozen{counting({4})};
  Buffer steps{zeros({1}, {.dtype = DType::f64})};
  int what = 1;
  SpareModel() { frozen.set_requires_grad(false); }
  ModelOutput<Tensor, std::vector<Tensor>> forward(const Tensor& x, bool uses_spare, Mode mode) const {
    Tensor output = x * used.on(x.device());
    if (uses_spare) output = output + sum(spare.on(x.device()));
    if (mode != Mode::loss) return std::vector<Tensor>{output};
    const Losses losses{{"loss_a", output}};
    if (what == 1) return losses;
    if (what == 2) return LossOutput(losses, output);
    return LossOutput(losses, output, output);
  }
  void members(Members& m) override { m("used", used), m("spare", spare), m("frozen", frozen), m("steps", steps); }
};
std::tuple<Tensor, bool> ones_and(bool uses_spare) { return {full({1, 2}, 1.0, {.dtype = DType::f64}), uses_spare}; }

// Takes what is known at run time only.
struct Dynamic : BaseModel<Dynamic> {
  Parameter weight{counting({2})};
  Losses forward(const Value& inputs, const Value& samples, Mode) const {
    const Tensor x = inputs.as_tensor();
    return {{"loss", x * weight.on(x.device()) - samples.as_tensor()}};
  }
  void members(Members& m) override { m("weight", weight); }
};
struct Fields {
  Tensor inputs;
  bool uses_spare;
  void fields(auto& f) { f(inputs, uses_spare); }
};

}  // namespace

TEST_CASE("ranks make steps as one device does on the whole batch") {
  const Plan plans[] = {{.losses = 10},
                        {.losses = 9, .window = 3},
                        {.losses = 10, .window = 3, .max_norm = 0.2},
                        {.losses = 11, .window = 3, .clip_value = 0.05}};
  for (const int ranks : {2, 3})
    for (const Plan& plan : plans) {
      if (support::watched() && ranks + plan.losses % 3 != 4) continue;  // 10 losses on 3 ranks, 11 on 2
      INFO(ranks << " ranks, " << plan.losses << " losses, " << plan.window << " a step");
      const auto result = run_ranks(ranks, [&](Communicator& communicator) {
        MMDistributedDataParallel<Regressor> model(Regressor{}, communicator);
        OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}), wrapper_options(plan));
        optim.initialize_count_status(model, 0, plan.losses);
        RankResult mine;
        for (int i = 0; i < plan.losses; ++i) {
          model.train_step(share_of_batch(i, communicator.rank(), ranks), optim);
          mine.figures.push_back(static_cast<double>(model.logging_data().iteration));
        }
        mine.parameters = all_parameters(model.module());
        return mine;
      });
      CHECK(different(parameters_of(result)) == 0);
      CHECK(largest_difference(result[0].parameters, plain_loop(plan, ranks)) < 1e-10);
      // Reductions so far: one for each window that is complete.
      Doubles reductions;
      for (int i = 1; i <= plan.losses; ++i)
        reductions.push_back(i / plan.window + (i == plan.losses && plan.losses % plan.window > 0));
      CHECK(result[0].figures == reductions);
    }
}

TEST_CASE("a rank alone steps, validates and accumulates without the others") {
  // Broadcasts of buffers and reductions of rank 0 would meet those of another call on rank 1.
  const auto result = run_ranks(2, [](Communicator& communicator) {
    MMDistributedDataParallel<SpareModel> model(SpareModel{}, communicator);
    OptimWrapper optim(SGD(model.module().parameters(), {.lr = 0.25}), {.accumulative_counts = 2});
    if (communicator.rank() == 0) {
      for (int i = 0; i < 3; ++i) {
        model.val_step(ones_and(true));
        model.test_step(ones_and(true));
      }
      model.train_step(ones_and(true), optim);
    }
    communicator.barrier();
    if (communicator.rank() == 1) model.train_step(ones_and(true), optim);
    communicator.barrier();
    model.train_step(ones_and(true), optim);
    return RankResult{all_parameters(model.module()), {static_cast<double>(model.logging_data().iteration)}};
  });
  CHECK(different(parameters_of(result)) == 0);
  CHECK(result[0].figures == Doubles{1});
  SpareModel untrained;
  CHECK(result[0].parameters != all_parameters(untrained));
}

TEST_CASE("train_step goes through the forward of the wrapper, and tells who wraps") {
  const auto communicator = make_loopback_communicator(accelerators().at(0));
  MMDistributedDataParallel<SpareModel> model(SpareModel{}, *communicator);
  CHECK(is_model_wrapper(model));
  CHECK(model.wrapped_module() == &model.module());
  int calls = 0;
  model.register_forward_pre_hook([&](const ModuleBase&, std::span<const Tensor>) { ++calls; });
  OptimWrapper optim(SGD(model.parameters()));
  model.train_step(ones_and(true), optim);
  CHECK(calls == 1);
  model.val_step(ones_and(true));
  CHECK(calls == 1);
}

TEST_CASE("what forward gives with its losses lands in the log of a rank") {
  const auto names = run_ranks(2, [](Communicator& communicator) {
    MMDistributedDataParallel<SpareModel> model(SpareModel{}, communicator);
    OptimWrapper optim(SGD(model.parameters()));
    std::string text;
    for (const int what : {1, 2, 3}) {
      model.module().what = what;
      LogVars log = model.train_step(ones_and(true), optim);
      for (const auto& [name, value] : log) text += name + ' ';
      log.for_each_tensor([&](Tensor& tensor) { text += tensor.requires_grad() ? "! " : ""; });
      text += "| ";
    }
    return text;
  });
  for (const std::string& rank : names)
    CHECK(rank == "loss loss_a | loss loss_a vis_preds | loss loss_a vis_preds vis_masks | ");
}

TEST_CASE("the data of a step may have any form") {
  const auto communicator = make_loopback_communicator(accelerators().at(0));
  MMDistributedDataParallel<Dynamic> model(Dynamic{}, *communicator);
  OptimWrapper optim(SGD(model.parameters(), {.lr = 0}));
  const Tensor x = counting({2});
  const auto step = [&](const auto& data) {
    return model.train_step(data, optim).at("loss").as_tensor().template item<double>();
  };
  CHECK(step(Value(Value::List{x, x * 2})) == -0.5);
  CHECK(step(Value(Value::Map{{"inputs", x}, {"data_samples", x}})) == 1);
  CHECK(step(std::map<std::string, Value>{{"inputs", x}, {"data_samples", x}}) == 1);
  CHECK(step(std::pair(Value(x), Value(x))) == 1);
  CHECK(message_of<InvalidArgument>([&] { step(Value("x")); }) ==
        "[run_forward] expected data that is a map or a list, got string");
  MMDistributedDataParallel<SpareModel> other(SpareModel{}, *communicator);
  OptimWrapper optim_of_other(SGD(other.parameters(), {.lr = 0}));
  for (const bool uses_spare : {true, true})
    CHECK(other.train_step(Fields{x, uses_spare}, optim_of_other).count() == 2);
}

TEST_CASE("parameters that the loss does not reach are found") {
  SpareModel model;
  const Tensor x = full({1, 2}, 1.0, {.dtype = DType::f64});
  const auto found = [&](const Tensor& loss) {
    CapturedLog log;
    std::string text;
    for (const NamedParameter& named : detect_anomalous_params(loss, model)) text += named.name + ' ';
    CHECK(log.messages.size() == static_cast<std::size_t>(std::count(text.begin(), text.end(), ' ')));
    for (const std::string& message : log.messages) text += message;
    return text;
  };
  const Tensor both = mean(model(x, true, Mode::predict).predictions()[0]);
  CHECK(found(both) == "");
  both.backward();
  CHECK(found(both) == "");  // what was saved is freed, the graph is there
  CHECK(missing(found(mean(model(x, false, Mode::predict).predictions()[0])),
                {"spare ", "'spare'", "[2, 3]", "graph"}) == "");
  CHECK(missing(found(full({1}, 1.0)), {"used spare ", "'used'", "'spare'"}) == "");
  // A graph of any depth.
  Tensor deep = sum(model.used.tensor());
  for (int i = 0; i < 100000; ++i) deep = deep + 1.0;
  CHECK(found(deep).starts_with("spare "));
}

TEST_CASE("train_step reports parameters without a gradient, also where that is an error") {
  const auto steps = [](const MMDistributedDataParallelOptions& options) {
    CapturedLog log;
    const auto said = messages_of_ranks(2, [&](Communicator& communicator) {
      MMDistributedDataParallel<SpareModel> model(SpareModel{}, communicator, options);
      OptimWrapper optim(SGD(model.parameters()));
      model.train_step(ones_and(true), optim);
      model.train_step(ones_and(false), optim);
    });
    return std::pair(said, log.messages);
  };
  const auto [fine, reported] = steps({.detect_anomalous_params = true, .find_unused_parameters = true});
  CHECK(fine == std::vector<std::string>{"", ""});
  CHECK(reported.size() == 2);  // by each rank
  for (const std::string& message : reported) CHECK(missing(message, {"'spare'", "[2, 3]"}) == "");
  const auto [failed, all] = steps({.detect_anomalous_params = true});
  CHECK(missing(failed[0] + failed[1], {"expected every parameter to get a gradient", "spare"}) == "");
  CHECK_FALSE(all.empty());
  const auto [quiet, nothing] = steps({.find_unused_parameters = true});
  CHECK(nothing.empty());
}

TEST_CASE("options reach DistributedDataParallel") {
  const MMDistributedDataParallelOptions options{.bucket_cap_mb = 2,
                                                 .first_bucket_mb = 3,
                                                 .broadcast_buffers = false,
                                                 .find_unused_parameters = true,
                                                 .gradient_as_bucket_view = false,
                                                 .static_graph = true,
                                                 .init_sync = false,
                                                 .ignore = {"spare"},
                                                 .backwards_per_forward = 2,
                                                 .timeout = Milliseconds(5000)};
  const auto communicator = make_loopback_communicator(accelerators().at(0));
  const auto made = MMDistributedDataParallel<SpareModel>(SpareModel{}, *communicator, options).options();
  CHECK(made.bucket_cap_mb == 2);
  CHECK(made.first_bucket_mb == 3);
  CHECK_FALSE(made.broadcast_buffers);
  CHECK(made.find_unused_parameters);
  CHECK_FALSE(made.gradient_as_bucket_view);
  CHECK(made.static_graph);
  CHECK_FALSE(made.init_sync);
  CHECK(made.ignore == std::vector<std::string>{"spare"});
  CHECK(made.backwards_per_forward == 2);
  CHECK(made.timeout == Milliseconds(5000));
  const DistributedDataParallelOptions standard, got = MMDistributedDataParallelOptions{}.distributed();
  CHECK(got.bucket_cap_mb == standard.bucket_cap_mb);
  CHECK(got.first_bucket_mb == standard.first_bucket_mb);
  CHECK(got.broadcast_buffers == standard.broadcast_buffers);
  CHECK(got.gradient_as_bucket_view == standard.gradient_as_bucket_view);
  CHECK(got.init_sync == standard.init_sync);
  CHECK(got.backwards_per_forward == standard.backwards_per_forward);
}

TEST_CASE("an overflow on one rank skips the step of all") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    MMDistributedDataParallel<SpareModel> model(SpareModel{}, communicator);
    AmpOptimWrapper optim(SGD(model.parameters(), {.lr = 0.5}), {.loss_scale = GradScalerOptions{.init_scale = 64}});
    RankResult mine;
    for (int i = 0; i < 3; ++i) {
      auto [x, uses_spare] = ones_and(true);
      if (i == 1 && communicator.rank() == 1) x = x * INFINITY;
      model.train_step(std::tuple(x, uses_spare), optim);
      for (const double value : values(model.module().used.tensor())) mine.parameters.push_back(value);
      mine.figures.push_back(optim.loss_scaler().scale());
    }
    return mine;
  });
  for (const RankResult& rank : result) {
    CHECK(rank.figures == Doubles{64, 32, 32});
    CHECK(rank.parameters == Doubles{0.75, 1.75, 0.75, 1.75, 0.5, 1.5});
  }
}
