// What a model of OpenMMLab's kind does in a step: its data, its losses, what is logged.
#include "parallel/openmmlab/training_support.h"
#include "support/devices.h"

using namespace parallel_test;
using support::first_devices;

namespace {

Tensor number(double value) { return tensor({value}, {}); }
double at(const LogVars& log, const char* name) { return log.at(name).as_tensor().item<double>(); }
std::string names(const NamedValues& log) {
  std::string text;
  for (const auto& [name, value] : log) text += name + ' ';
  return text;
}
std::string losses_refusal(const Losses& losses) {
  return message_of<InvalidArgument>([&] { parse_losses(losses); });
}

// What forward was called with: 2 inputs + 3 samples.
struct Echo : Module<Echo> {
  ModelOutput<Tensor, std::string> forward(const Tensor& inputs, const Tensor& samples, Mode mode) const {
    if (mode == Mode::predict) return std::string("predicted");
    return inputs * 2 + (samples.defined() ? samples * 3 : number(0));
  }
};
struct EchoValues : Module<EchoValues> {
  ModelOutput<Tensor, std::string> forward(const Value& inputs, const Value& samples, Mode) const {
    return inputs.as_tensor() * 2 + (samples.is(Value::Type::nothing) ? number(0) : samples.as_tensor() * 3);
  }
};
struct OneValue : Module<OneValue> {
  Tensor forward(const Value& inputs, Mode) const { return inputs.as_tensor() * 2; }
};
struct ModelSample {
  Tensor a, b;
  void fields(auto& f) { f(a, b); }
};
struct Whole : Module<Whole> {
  Tensor forward(const ModelSample& sample, Mode) const { return sample.a * 2 + sample.b * 3; }
};
struct InParts {
  Value a, b;
  void fields(auto& f) { f(a), f(b); }
};

template <class M, class Data>
double run(const M& model, Data data) {
  auto result = run_forward(model, std::move(data), Mode::tensor);
  if constexpr (requires { result.tensor(); })
    return result.tensor().template item<double>();
  else
    return result.template item<double>();
}
template <class M, class Data>
std::string run_refusal(const M& model, Data data) {
  return message_of<InvalidArgument>([&] { run(model, std::move(data)); });
}

// Gives what a test asks for in Mode::loss.
struct Telling : BaseModel<Telling> {
  Parameter weight{counting({2})};
  int what = 1;  // losses, with predictions, with masks
  ModelOutput<Tensor, std::string> forward(const Tensor& inputs, Mode mode) const {
    const Tensor output = inputs * weight.on(inputs.device());
    if (mode == Mode::predict) return std::string(cat("predicted ", is_training(), ' ', GradMode::enabled()));
    if (mode == Mode::tensor) return output;
    const Losses losses{{"loss_sum", sum(output)}, {"acc", number(0.5)}};
    if (what == 1) return losses;
    if (what == 2) return LossOutput(losses, Value::Map{{"deep", Value::List{output}}});
    if (what == 3) return LossOutput(losses, output, output * 2);
    LossOutput masks_alone(losses, Value(), output);
    return masks_alone;
  }
  void members(Members& m) override { m("weight", weight); }
};

// A preprocessor that doubles, of a model without parameters.
struct Doubling {
  std::string* seen;
  std::tuple<Tensor> operator()(const std::tuple<Tensor>& data, Device device, bool training) const {
    *seen += cat(device, training ? " training " : " validation ");
    return {std::get<0>(data) * 2};
  }
};
struct Bare : BaseModel<Bare, Doubling> {
  using BaseModel::BaseModel;
  Losses forward(const Tensor& x, Mode) const { return {{"loss", x}}; }
};

}  // namespace

TEST_CASE("parse_losses: means, sums of means, and names") {
  const Tensor weight = tensor({1, 3}, {2}).set_requires_grad();
  const auto [total, log] = parse_losses({{"loss_cls", weight * 2},
                                          {"acc", number(0.75)},
                                          {"aux_loss", Value::List{weight, number(10)}},
                                          {"glossary", number(100)},
                                          {"hits", lockstep::tensor(std::int64_t{3}, {.dtype = DType::i64})}});
  CHECK(total.item<double>() == 4 + (2 + 10) + 100);
  CHECK(names(log) == "loss loss_cls acc aux_loss glossary hits ");
  CHECK(at(log, "loss") == 116);
  CHECK(at(log, "loss_cls") == 4);
  CHECK(at(log, "acc") == 0.75);
  CHECK(at(log, "aux_loss") == 12);
  CHECK(at(log, "hits") == 3);
  for (const auto& [name, value] : log) CHECK_FALSE(value.as_tensor().requires_grad());
  total.backward();
  CHECK(values(weight.grad()) == Doubles{1.5, 1.5});
}

TEST_CASE("parse_losses: a loss that is called loss") {
  const auto [alone, log] = parse_losses({{"acc", number(1)}, {"loss", number(2)}});
  CHECK(names(log) == "loss acc ");
  CHECK(at(log, "loss") == 2);
  const auto [total, both] = parse_losses({{"loss", number(2)}, {"loss_cls", number(3)}});
  CHECK(total.item<double>() == 5);
  CHECK(names(both) == "loss loss_ loss_cls ");
  CHECK(at(both, "loss") == 5);
  CHECK(at(both, "loss_") == 2);
  const auto [sum, three] = parse_losses({{"loss", number(2)}, {"loss_", number(3)}});
  CHECK(names(three) == "loss loss__ loss_ ");
  CHECK(at(three, "loss_") == 3);
}

TEST_CASE("parse_losses: what is no loss") {
  const Losses::Item good{"loss_cls", number(1)};
  CHECK(missing(losses_refusal({good, {"loss_x", 1.5}}),
                {"[parse_losses]", "'loss_x'", "a tensor or a list of tensors", "number"}) == "");
  CHECK(missing(losses_refusal({good, {"acc", "high"}}), {"'acc'", "string"}) == "");
  CHECK(missing(losses_refusal({{"loss_x", Value::List{number(1), 2}}}), {"'loss_x'", "a list with integer"}) == "");
  CHECK(missing(losses_refusal({{"loss_x", Value::List{}}}), {"'loss_x'", "an empty list"}) == "");
  CHECK(missing(losses_refusal({{"loss_x", Tensor()}}), {"'loss_x'", "undefined"}) == "");
  CHECK(missing(losses_refusal({{"loss_x", Value()}}), {"'loss_x'", "nothing"}) == "");
  CHECK(missing(losses_refusal({{"loss_x", Value::Map{}}}), {"'loss_x'", "map"}) == "");
  CHECK(missing(losses_refusal({{"acc", number(1)}, {"Loss", number(1)}}), {"'loss' in its name", "'acc', 'Loss'"}) ==
        "");
  CHECK(missing(losses_refusal({}), {"got nothing"}) == "");
}

TEST_CASE("run_forward: data of any form") {
  const Tensor one = number(1), two = number(2);
  CHECK(run(Echo(), std::tuple(one, two)) == 8);
  CHECK(run(Echo(), std::pair(one, two)) == 8);
  CHECK(run(Echo(), std::array{one, two}) == 8);
  CHECK(run(Echo(), ModelData{one, two}) == 8);
  CHECK(run(Echo(), ModelSample{one, two}) == 8);
  CHECK(run(Echo(), std::vector{one, two}) == 8);
  CHECK(run(Echo(), std::map<std::string, Tensor>{{"data_samples", two}, {"inputs", one}}) == 8);
  CHECK(run(Echo(), std::map<std::string, Tensor>{{"inputs", one}}) == 2);
  CHECK(run(EchoValues(), Value(Value::List{one, two})) == 8);
  CHECK(run(EchoValues(), Value(Value::Map{{"data_samples", two}, {"inputs", one}})) == 8);
  CHECK(run(EchoValues(), Value(Value::Map{{"inputs", one}})) == 2);
  CHECK(run(EchoValues(), std::map<std::string, Value>{{"inputs", one}}) == 2);
  CHECK(run(OneValue(), Value(Value::Map{{"inputs", one}})) == 2);
  CHECK(run(OneValue(), Value(Value::List{one})) == 2);
  CHECK(run(Whole(), std::tuple(ModelSample{one, two})) == 8);
  CHECK(run_forward(Echo(), std::tuple(one, two), Mode::predict).predictions() == "predicted");
}

TEST_CASE("run_forward: data of no form that fits") {
  const Tensor one = number(1);
  for (const auto& [value, type] : {std::pair<Value, const char*>(one, "tensor"),
                                    {3, "integer"},
                                    {"x", "string"},
                                    {Value(), "nothing"},
                                    {1.5, "number"},
                                    {true, "bool"}})
    CHECK(missing(run_refusal(EchoValues(), value), {"[run_forward]", "a map or a list", "got ", type}) == "");
  CHECK(missing(run_refusal(EchoValues(), Value(Value::List{one})), {"data of 2 values", "got 1"}) == "");
  CHECK(missing(run_refusal(Echo(), std::vector{one, one, one}), {"data of 2 values", "got 3"}) == "");
  CHECK(missing(run_refusal(EchoValues(), Value(Value::Map{{"inputs", one}, {"img", one}})), {"'img'"}) == "");
  CHECK(missing(run_refusal(Echo(), std::map<std::string, Tensor>{{"data_samples", one}}), {"with 'inputs'"}) == "");
  CHECK(missing(run_refusal(OneValue(), Value(Value::Map{{"inputs", one}, {"data_samples", one}})),
                {"1 values", "got 2"}) == "");
  CHECK(missing(run_refusal(OneValue(), InParts{one, one}), {"one call"}) == "");
  static_assert(ForwardData<std::vector<Tensor>> && ForwardData<ModelSample> && ForwardData<Value>);
  static_assert(!ForwardData<Tensor> && !ForwardData<std::string> && !ForwardData<int>);
  static_assert(!ForwardData<std::map<int, Tensor>> && !ForwardData<std::vector<bool>>);
}

TEST_CASE("BaseModel trains as a plain loop does, bit for bit") {
  for (const int window : {1, 3}) {
    const Plan plan{.window = window, .max_norm = 0.5};
    Regressor model;
    OptimWrapper optim(SGD(model.parameters(), {.lr = 0.1, .momentum = 0.9}), wrapper_options(plan));
    optim.initialize_count_status(model, 0, plan.losses);
    for (int i = 0; i < plan.losses; ++i) {
      const double loss = fit_loss(model, whole_batch(i)).item<double>();
      const LogVars log = model.train_step(whole_batch(i), optim);
      CHECK(names(log) == "loss loss_fit ");
      CHECK(at(log, "loss") == loss);
    }
    CHECK(all_parameters(model) == plain_loop(plan));
  }
}

TEST_CASE("BaseModel puts predictions and masks into the log, outside the graph") {
  Telling model;
  OptimWrapper optim(SGD(model.parameters()));
  const auto step = [&](int what) {
    model.what = what;
    LogVars log = model.train_step(std::tuple(counting({2})), optim);
    log.for_each_tensor([](Tensor& tensor) { CHECK_FALSE(tensor.requires_grad()); });
    return log;
  };
  CHECK(names(step(1)) == "loss loss_sum acc ");
  const LogVars two = step(2);
  CHECK(names(two) == "loss loss_sum acc vis_preds ");
  CHECK(two.at("vis_preds").at("deep").at(std::size_t{0}).as_tensor().count() == 2);
  const LogVars three = step(3);
  CHECK(names(three) == "loss loss_sum acc vis_preds vis_masks ");
  CHECK(values(three.at("vis_masks").as_tensor()) == values(three.at("vis_preds").as_tensor() * 2));
  CHECK(names(step(4)) == "loss loss_sum acc ");
}

TEST_CASE("losses may come alone, with predictions, and with masks") {
  const Losses losses{{"loss", number(1)}};
  const auto count = [](const LossOutput& output) { return (output.preds ? 1 : 0) + (output.masks ? 1 : 0); };
  CHECK(count(detail::losses_of(losses)) == 0);
  CHECK(count(detail::losses_of(std::tuple(losses))) == 0);
  CHECK(count(detail::losses_of(std::pair(losses, Value(2)))) == 1);
  CHECK(count(detail::losses_of(std::tuple(losses, Value(2), Value(3)))) == 2);
  CHECK(count(detail::losses_of(ModelOutput<>(LossOutput(losses, 2)))) == 1);
  CHECK(detail::losses_of(std::tuple(losses, Value(2), Value(3))).losses.contains("loss"));
  const std::string other = message_of<InvalidArgument>([] { detail::losses_of(ModelOutput<>(Tensor())); });
  CHECK(missing(other, {"mode 'loss'", "'tensor'"}) == "");
}

TEST_CASE("validation and test switch neither mode nor gradients") {
  Telling model;
  const std::tuple data(counting({2}));
  CHECK(model.val_step(data) == "predicted true true");
  CHECK(model.test_step(data) == "predicted true true");
  model.eval();
  const NoGrad no_grad;
  CHECK(model.val_step(data) == "predicted false false");
}

TEST_CASE("a model's own preprocessor, and where it works") {
  std::string seen;
  const Bare model(Doubling{&seen});
  CHECK(model.device() == Device::cpu());
  const Losses losses = model.val_step(std::tuple(number(3)));
  CHECK(at(losses, "loss") == 6);
  const Parameter weight(counting({1}));
  OptimWrapper optim(SGD({weight}));
  CHECK(at(model.train_step(std::tuple(number(3).set_requires_grad()), optim), "loss") == 6);
  CHECK(seen == "cpu validation cpu training ");
  Regressor moved;
  moved.to(first_devices(1)[0]);
  CHECK(moved.device() == first_devices(1)[0]);
  CHECK(moved.val_step(whole_batch(0))[0].device() == first_devices(1)[0]);
}
