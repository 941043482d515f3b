// AmpOptimWrapper trains as the loop that one writes without it, overflows included.
#include "lockstep/parallel/openmmlab/optim/amp_optim_wrapper.h"

#include "parallel/openmmlab/training_support.h"

using namespace parallel_test;

namespace {

struct PlainModel : Module<PlainModel> {
  Parameter weight{noise({2, 3}, 7).to(DType::f32)};
  Tensor forward(const Tensor& x) const { return linear(x, weight.on(x.device())); }
  void members(Members& m) override { m("weight", weight); }
};

struct AmpPlan {
  DType dtype = DType::f16;
  GradScalerOptions scaler = {.init_scale = 1024, .growth_interval = 3};
  int window = 1;
  double max_norm = 0;
};
constexpr int kLosses = 10;

Tensor inputs_of(int i) { return noise({4, 3}, static_cast<std::uint64_t>(40 + i)).to(DType::f32); }
// Losses 4 and 5 overflow.
Tensor plain_loss(const PlainModel& model, int i) {
  const Tensor output = model(inputs_of(i));
  const Tensor loss = mean(output * output);
  return i == 4 || i == 5 ? loss * 1e38 : loss;
}
bool finite(const Tensor& x) {
  for (const double value : x.to_vector<double>())
    if (!std::isfinite(value)) return false;
  return true;
}

struct TrainedAmp {
  Doubles weights, scales;
  friend bool operator==(const TrainedAmp&, const TrainedAmp&) = default;
};

// The rules of dynamic loss scaling, written out.
TrainedAmp plain(const AmpPlan& plan) {
  PlainModel model;
  SGD optimizer(model.parameters(), {.lr = 0.1});
  double scale = plan.scaler.init_scale;
  int good = 0;
  TrainedAmp trained;
  for (int i = 0; i < kLosses; ++i) {
    Tensor loss;
    {
      const Autocast autocast(plan.dtype);
      loss = plain_loss(model, i);
    }
    const int rest = kLosses % plan.window, length = i >= kLosses - rest ? rest : plan.window;
    ((plan.window == 1 ? loss : loss / length) * scale).backward();
    if ((i + 1) % plan.window == 0 || i + 1 == kLosses) {
      const bool steps = finite(model.weight.grad());
      const NoGrad no_grad;
      model.weight.set_grad(model.weight.grad() * (1 / scale));
      if (plan.max_norm > 0) clip_grad_norm(model.parameters(), plan.max_norm);
      if (steps) optimizer.step();
      optimizer.zero_grad();
      if (plan.scaler.dynamic && !steps) scale *= 0.5, good = 0;
      if (plan.scaler.dynamic && steps && ++good == plan.scaler.growth_interval) scale *= 2, good = 0;
    }
    trained.scales.push_back(scale);
  }
  trained.weights = values(model.weight.tensor());
  return trained;
}

AmpOptimWrapperOptions options_of(const AmpPlan& plan) {
  AmpOptimWrapperOptions options{.loss_scale = plan.scaler, .dtype = plan.dtype, .accumulative_counts = plan.window};
  if (!plan.scaler.dynamic) options.loss_scale = plan.scaler.init_scale;
  if (plan.max_norm > 0) options.clip_grad = ClipGrad{.max_norm = plan.max_norm};
  return options;
}

void train(const PlainModel& model, AmpOptimWrapper& optim, int begin, int end, TrainedAmp& trained) {
  for (int i = begin; i < end; ++i) {
    Tensor loss;
    {
      const auto context = optim.optim_context(model);
      loss = plain_loss(model, i);
    }
    optim.update_params(loss);
    trained.scales.push_back(optim.loss_scaler().scale());
  }
  trained.weights = values(model.weight.tensor());
}

TrainedAmp wrapped(const AmpPlan& plan) {
  PlainModel model;
  AmpOptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}), options_of(plan));
  optim.initialize_count_status(model, 0, kLosses);
  TrainedAmp trained;
  train(model, optim, 0, kLosses, trained);
  return trained;
}

std::unique_ptr<AmpOptimWrapper> make(const AmpOptimWrapperOptions& options) {
  return std::make_unique<AmpOptimWrapper>(SGD(PlainModel().parameters()), options);
}
std::string amp_refusal(const AmpOptimWrapperOptions& options) {
  return message_of<InvalidArgument>([&] { make(options); });
}

}  // namespace

TEST_CASE("AmpOptimWrapper trains as a plain loop with autocast and scaling does, bit for bit") {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const bool dynamic : {true, false})
      for (const int window : {1, 3})
        for (const double max_norm : {0.0, 0.05}) {
          INFO(cat(dtype) << ", dynamic " << dynamic << ", window " << window << ", max_norm " << max_norm);
          AmpPlan plan{.dtype = dtype, .window = window, .max_norm = max_norm};
          plan.scaler.dynamic = dynamic;
          const TrainedAmp got = wrapped(plan);
          CHECK(got == plain(plan));
          // Two losses overflow: the steps they belong to are not made, and the numbers stay finite.
          for (const double weight : got.weights) CHECK(std::isfinite(weight));
          if (!dynamic) CHECK(got.scales == Doubles(kLosses, 1024));
          if (dynamic && window == 1)
            CHECK(got.scales == Doubles{1024, 1024, 2048, 2048, 1024, 512, 512, 512, 1024, 1024});
        }
  CHECK(plain({}).weights != plain({.dtype = DType::bf16}).weights);
}

TEST_CASE("the forward of a step runs under autocast") {
  PlainModel model;
  AmpOptimWrapper optim(SGD(model.parameters()), {.dtype = DType::bf16});
  CHECK(optim.loss_scaler().scale() == GradScalerOptions{}.init_scale);
  {
    const auto context = optim.optim_context(model);
    CHECK(Autocast::enabled());
    CHECK(model(inputs_of(0)).dtype() == DType::bf16);
  }
  CHECK_FALSE(Autocast::enabled());
}

TEST_CASE("options of AmpOptimWrapper that make no sense") {
  CHECK(missing(amp_refusal({.dtype = DType::f32}), {"f16 or bf16", "got f32"}) == "");
  CHECK(missing(amp_refusal({.loss_scale = -1.0}), {"scale above 0", "got -1"}) == "");
  CHECK(missing(amp_refusal({.loss_scale = GradScalerOptions{.growth_factor = 1}}), {"growth factor"}) == "");
  CHECK(missing(amp_refusal({.accumulative_counts = 0}), {"accumulative_counts"}) == "");
  CHECK(missing(message_of<InvalidArgument>([] { LossScale("static"); }), {"'dynamic'", "'static'"}) == "");
  CHECK(make({.loss_scale = "dynamic"})->loss_scaler().options().dynamic);
  CHECK_FALSE(make({.loss_scale = 512})->loss_scaler().options().dynamic);
}

TEST_CASE("a training in mixed precision goes on from its state") {
  const AmpPlan plan{.window = 2};
  std::vector<NamedTensor> weights, state;
  TrainedAmp trained;
  {
    PlainModel model;
    AmpOptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}), options_of(plan));
    optim.initialize_count_status(model, 0, kLosses);
    train(model, optim, 0, 6, trained);  // with the overflow behind it
    weights = deep_copy(model).state_dict();
    state = optim.state_dict();
  }
  PlainModel model;
  model.load_state_dict(weights);
  AmpOptimWrapper optim(SGD(model.parameters()), options_of(plan));
  optim.load_state_dict(state);
  train(model, optim, 6, kLosses, trained);
  CHECK(trained == plain(plan));

  // A number that was given stays.
  AmpOptimWrapper pinned(SGD(model.parameters()), {.loss_scale = 8.0});
  pinned.load_state_dict(state);
  CHECK(pinned.loss_scaler().scale() == 8);

  // What does not fit changes nothing.
  AmpOptimWrapper fresh(SGD(model.parameters(), {.lr = 0.5}), options_of(plan));
  const auto without = [&](const std::string& name) {
    std::vector<NamedTensor> part;
    for (const NamedTensor& entry : state)
      if (entry.name != name) part.push_back(entry);
    return message_of<InvalidArgument>([&] { fresh.load_state_dict(part); });
  };
  CHECK(missing(without("loss_scaler.scale"), {"[GradScaler]", "'scale'"}) == "");
  CHECK(missing(without("groups.0.lr"), {"groups.0.lr"}) == "");
  CHECK(missing(without("inner_count"), {"inner_count"}) == "");
  CHECK(fresh.loss_scaler().scale() == 1024);
  CHECK(fresh.optimizer().lr() == 0.5);
  CHECK(fresh.inner_count() == 0);
}

TEST_CASE("after an error an AmpOptimWrapper can be used again") {
  PlainModel model;
  AmpOptimWrapper optim(SGD(model.parameters(), {.lr = 0.1}),
                        {.loss_scale = GradScalerOptions{.init_scale = 1024},
                         .clip_grad = ClipGrad{.max_norm = 1, .error_if_nonfinite = true}});
  const Doubles before = values(model.weight.tensor());
  CHECK_THROWS_AS(optim.update_params(plain_loss(model, 4)), Error);
  CHECK(values(model.weight.tensor()) == before);
  CHECK(optim.loss_scaler().scale() == 512);
  optim.zero_grad();
  optim.update_params(plain_loss(model, 0));
  CHECK(values(model.weight.tensor()) != before);
}

TEST_CASE("states go from any wrapper of an optimizer to any other") {
  PlainModel model;
  const auto state_of = [&](auto& optim) {
    optim.zero_grad();
    optim.update_params(plain_loss(model, 0));
    return optim.state_dict();
  };
  OptimWrapper plain_wrapper(SGD(model.parameters(), {.lr = 0.25, .momentum = 0.5}));
  AmpOptimWrapper amp(SGD(model.parameters(), {.lr = 0.125, .momentum = 0.5}),
                      {.loss_scale = GradScalerOptions{.init_scale = 1024}});
  const auto of_plain = state_of(plain_wrapper), of_amp = state_of(amp);
  const auto raw = plain_wrapper.optimizer().state_dict();

  amp.load_state_dict(of_plain);
  CHECK(amp.optimizer().lr() == 0.25);
  CHECK(amp.inner_count() == 1);
  CHECK(amp.loss_scaler().scale() == 1024);  // its own
  plain_wrapper.load_state_dict(of_amp);
  CHECK(plain_wrapper.optimizer().lr() == 0.125);
  CHECK(plain_wrapper.inner_count() == 1);
  for (OptimWrapper* const wrapper : {&plain_wrapper, static_cast<OptimWrapper*>(&amp)}) {
    wrapper->load_state_dict(raw);
    CHECK(wrapper->optimizer().lr() == 0.25);
    CHECK(wrapper->inner_count() == 0);
    CHECK(wrapper->max_counts() == -1);
  }
  // Between them the momenta go along.
  CHECK(values(plain_wrapper.optimizer().state_dict()[0].tensor.to(DType::f64).reshape({-1})) ==
        values(amp.optimizer().state_dict()[0].tensor.to(DType::f64).reshape({-1})));
}
