#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/openmmlab/fewshot/baseline.h"
#include "lockstep/parallel/openmmlab/fewshot/episodes.h"
#include "lockstep/parallel/openmmlab/fewshot/maml.h"
#include "lockstep/parallel/openmmlab/fewshot/meta_test.h"
#include "lockstep/parallel/openmmlab/fewshot/proto_net.h"
#include "lockstep/tensor/nn/simple_layers.h"
#include "parallel/openmmlab/fewshot/fewshot_support.h"
#include "support/gradcheck.h"

using namespace fewshot_test;

namespace {

MAML<Backbone> make_maml(MAMLOptions options) {
  const DefaultDType dtype(DType::f64);
  manual_seed(4);
  options.in_channels = 3;
  options.num_classes = 2;
  return {Backbone{}, options};
}

// Gradient descent from copies of the parameters, one step after the other: the parameters after it.
std::vector<Tensor> descended(const MAML<Backbone>& net, const FewShotData& samples, int steps, double lr) {
  MAML<Backbone> copy = deep_copy(net);
  for (int step = 0; step < steps; ++step) {
    copy.zero_grad();
    cross_entropy(copy.head(copy.backbone(samples.img)), samples.gt_label).backward();
    const NoGrad no_grad;
    for (const Parameter& parameter : copy.parameters())
      if (parameter.requires_grad()) parameter.tensor().add_(parameter.grad(), -lr);
  }
  std::vector<Tensor> result;
  for (const Parameter& parameter : copy.parameters()) result.push_back(parameter.tensor().detach());
  return result;
}
Doubles gradients(const ModuleBase& net) {
  Doubles all;
  for (const Parameter& parameter : net.parameters())
    for (const double value : parameter.grad().defined() ? values(parameter.grad()) : Doubles{}) all.push_back(value);
  return all;
}

// One task for ever.
struct OneTask {
  Episode task = episode();
  std::int64_t size() const { return 2; }
  Episode get(std::int64_t) const { return task; }
};

}  // namespace

TEST_CASE("few-shot: prototypes are class means, scores negative squared distances") {
  const Tensor feats = noise({5, 3}, 1), queries = noise({4, 3}, 2);
  const std::vector<std::int64_t> labels{1, 0, 2, 1, 1};
  const Tensor prototypes = class_prototypes(feats, from_data(labels, {5}));
  CHECK(largest_difference(rows(prototypes), plain_prototypes(rows(feats), labels, 3)) < 1e-15);
  CHECK(largest_difference(rows(negative_squared_distances(queries, prototypes)),
                           plain_scores(rows(queries), rows(prototypes))) < 1e-15);
  const support::Function both = [&](const std::vector<Tensor>& in) {
    return negative_squared_distances(in[1], class_prototypes(in[0], from_data(labels, {5})));
  };
  CHECK(support::gradcheck(both, {support::random_leaf({5, 3}, 1), support::random_leaf({4, 3}, 2)}) == "");

  const auto labelled_as = [&](std::vector<std::int64_t> given) {
    return refusal([&] { class_prototypes(feats, from_data(given, {static_cast<std::int64_t>(given.size())})); });
  };
  CHECK(missing(labelled_as({0, 2, 0, 2, 2}), {"[class_prototypes]", "3 classes", "none of class 1"}) == "");
  CHECK(missing(labelled_as({0, -1, 0, 1, 1}), {"got -1"}) == "");
  CHECK(missing(labelled_as({0, 5, 0, 1, 1}), {"0 to 4", "got 5"}) == "");
  CHECK(missing(labelled_as({0, 1}), {"[n, d]", "i64[2]"}) == "");
  CHECK(missing(refusal([&] { negative_squared_distances(feats, noise({2, 4}, 1)); }), {"[5, 3]", "[2, 4]"}) == "");
}

TEST_CASE("few-shot: ProtoNet's loss and its answers are those of the definition") {
  const Episode task = episode();
  const ProtoNet net(Backbone{});
  const Rows prototypes = plain_prototypes(rows(net.backbone(task.support_data.img)), {0, 1, 0, 1}, 2);
  const Rows scores = plain_scores(rows(net.backbone(task.query_data.img)), prototypes);
  const Tensor loss = net(task);
  CHECK(loss.item<double>() == Approx(plain_cross_entropy(scores, {0, 1, 1, 0, 1})).epsilon(1e-13));
  loss.backward();
  CHECK(net.backbone.layer.weight.grad().defined());

  ProtoNet<Backbone> copy = deep_copy(net);
  copy.before_meta_test(MetaTestConfig{});
  CHECK_FALSE(copy.backbone.layer.weight.requires_grad());
  CHECK_FALSE(copy.backbone.is_training());
  copy.before_forward_support();
  copy(task.query_data, FewShotMode::support);
  copy.before_forward_query();
  for (int repeat = 0; repeat < 2; ++repeat) {  // a task knows nothing of those before it
    copy.before_forward_support();
    copy(task.support_data.slice(0, 3), FewShotMode::support);
    copy(task.support_data.slice(3, 3), FewShotMode::support);
    copy.before_forward_query();
    CHECK(largest_difference(rows(copy(task.query_data, FewShotMode::query)), scores) < 1e-14);
  }
  std::int64_t right = 0;
  for (std::size_t i = 0; i < 5; ++i)
    right += (scores[i][1] > scores[i][0]) == (task.query_data.gt_label.to_vector<std::int64_t>()[i] == 1);
  CHECK(meta_test(net, OneTask{}).tasks[1].correct == right);
  CHECK(net.backbone.layer.weight.requires_grad());
  CHECK(net.backbone.is_training());
  CHECK(values(copy(task.query_data, FewShotMode::extract_feat)) == values(net.backbone(task.query_data.img)));

  CHECK(missing(refusal([&] { net(task.query_data, FewShotMode::query); }), {"[ProtoNet]", "before_forward_query"}) ==
        "");
  CHECK(missing(refusal([&] { net(task.query_data, FewShotMode::train); }), {"[ProtoNet]", "episode"}) == "");
  copy.before_forward_support();
  CHECK(missing(refusal([&] { copy.before_forward_query(); }), {"[ProtoNet]", "'support'", "got none"}) == "");
  CHECK(missing(refusal([&] { meta_test(net, OneTask{}, {.support = {.train = SupportTraining{}}}); }), {"gradient"}) ==
        "");
}

TEST_CASE("few-shot: a number that is no mode is an error") {
  const auto none = static_cast<FewShotMode>(4);
  const FewShotData data{.img = counting({2, 3}), .gt_label = lockstep::tensor(std::int64_t{0}, {.dtype = DType::i64})};
  ProtoNet model(Flatten{});
  const std::string expected = "[FewShotMode] expected train, support, query or extract_feat, got number 4";
  CHECK(message_of<InvalidArgument>([&] { model(data, none); }).starts_with(expected));
  CHECK(message_of<InvalidArgument>([&] { MetaTestParallel(deep_copy(model))(data, none); }).starts_with(expected));
  CHECK(message_of<InvalidArgument>([&] { to_string(static_cast<FewShotMode>(-1)); }).ends_with("got number -1"));
}

TEST_CASE("few-shot: Baseline trains a fresh linear head on frozen features") {
  const DefaultDType dtype(DType::f64);
  manual_seed(1);
  const Episode task = episode();
  Baseline net(Backbone{}, {.in_channels = 3, .num_classes = 4, .meta_test_classes = 2});
  const FewShotData batch = labelled(noise({3, 2}, 9), {3, 0, 2});
  const Rows base_scores = rows(net.head(net.backbone(batch.img)));
  CHECK(net(batch, FewShotMode::train).item<double>() ==
        Approx(plain_cross_entropy(base_scores, {3, 0, 2})).epsilon(1e-13));
  CHECK(net.named_parameters().size() == 4);  // no head of a task yet
  CHECK(missing(refusal([&] { net(batch, FewShotMode::support); }), {"[Baseline]", "before_meta_test"}) == "");

  CHECK(missing(refusal([&] { net.before_forward_support(); }), {"[Baseline]", "before_meta_test"}) == "");
  CHECK(missing(refusal([&] { net.before_forward_query(); }), {"[Baseline]", "before_meta_test"}) == "");

  Baseline<Backbone> called = deep_copy(net);  // a head that comes after calls has names nevertheless
  called.before_meta_test(MetaTestConfig{});
  called(task.support_data, FewShotMode::support).backward();
  CHECK(called.meta_test_head->weight.grad().defined());

  MetaTestParallel wrapper(deep_copy(net));
  Baseline<Backbone>& copy = wrapper.module();
  wrapper.to(Device::host(1));
  {
    const DefaultDType other(DType::f32);
    wrapper.before_meta_test(MetaTestConfig{});
  }
  REQUIRE(copy.meta_test_head);
  CHECK(copy.meta_test_head->weight.device() == Device::host(1));
  CHECK(copy.meta_test_head->weight.dtype() == DType::f64);
  CHECK_FALSE(net.meta_test_head);
  Doubles begins;
  for (const std::uint64_t seed : {11, 12, 11}) {
    manual_seed(seed);
    wrapper.before_forward_support();
    begins.push_back(values(copy.meta_test_head->weight.tensor())[0]);
  }
  CHECK(begins[0] == begins[2]);
  CHECK(begins[0] != begins[1]);
  const double widest = 1 / std::sqrt(3.0);  // that of a new Linear with 3 inputs
  CHECK(std::abs(begins[0]) < widest);

  // Three steps of gradient descent on the head, by hand.
  const Rows feats = rows(net.backbone(task.support_data.img));
  Rows weight = rows(copy.meta_test_head->weight.tensor());
  Doubles bias = values(copy.meta_test_head->bias.tensor());
  const std::vector<std::int64_t> labels{0, 1, 0, 1};
  const auto plain_head = [&](const Rows& x) {
    Rows scores(x.size(), bias);
    for (std::size_t i = 0; i < x.size(); ++i)
      for (std::size_t c = 0; c < 2; ++c)
        for (std::size_t d = 0; d < 3; ++d) scores[i][c] += weight[c][d] * x[i][d];
    return scores;
  };
  SGD optimizer(copy.meta_test_head->parameters(), {.lr = 0.5});
  for (int step = 0; step < 3; ++step) {
    const Rows scores = plain_head(feats);
    const Tensor loss = wrapper(task.support_data, FewShotMode::support);
    CHECK(loss.item<double>() == Approx(plain_cross_entropy(scores, labels)).epsilon(1e-12));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    for (std::size_t i = 0; i < 4; ++i) {
      Doubles slope = plain_softmax(scores[i]);
      slope[static_cast<std::size_t>(labels[i])] -= 1;
      for (std::size_t c = 0; c < 2; ++c) {
        bias[c] -= 0.5 * slope[c] / 4;
        for (std::size_t d = 0; d < 3; ++d) weight[c][d] -= 0.5 * slope[c] / 4 * feats[i][d];
      }
    }
  }
  CHECK_FALSE(copy.backbone.layer.weight.grad().defined());
  CHECK_FALSE(copy.head.weight.requires_grad());
  wrapper.before_forward_query();
  CHECK_FALSE(copy.meta_test_head->is_training());
  const Tensor answers = wrapper(task.query_data, FewShotMode::query);
  CHECK(largest_difference(rows(answers), plain_head(rows(net.backbone(task.query_data.img)))) < 1e-12);

  for (const BaselineOptions& wrong : {BaselineOptions{0, 4, 2}, BaselineOptions{3, 0, 2}, BaselineOptions{3, 4, 0}})
    CHECK(missing(refusal([&] { Baseline(Backbone{}, wrong); }), {"[Baseline]", "at least 1"}) == "");
}

TEST_CASE("few-shot: MAML's second-order gradient through several steps is that of finite differences") {
  const Episode task = episode();
  for (const int steps : {1, 3}) {
    const MAML<Backbone> net = make_maml({.num_inner_steps = steps, .inner_lr = 0.7});
    net(task).backward();
    Doubles numeric;
    const double h = 1e-6;
    for (const Parameter& parameter : net.parameters()) {
      double* elements = parameter.tensor().detach().mutable_data<double>();
      for (std::int64_t i = 0; i < parameter.tensor().count(); ++i) {
        const double before = elements[i];
        Doubles losses;
        for (const double value : {before + h, before - h}) {
          elements[i] = value;
          losses.push_back(net(task).item<double>());
        }
        elements[i] = before;
        numeric.push_back((losses[0] - losses[1]) / (2 * h));
      }
    }
    CHECK(numeric.size() == 17);
    CHECK(largest_difference(gradients(net), numeric) < 1e-8);
  }
}

TEST_CASE("few-shot: MAML's first-order gradient is that of the queries at the fast weights") {
  const Episode task = episode();
  const MAML<Backbone> first = make_maml({.num_inner_steps = 3, .inner_lr = 0.7, .first_order = true});
  const MAML<Backbone> second = make_maml({.num_inner_steps = 3, .inner_lr = 0.7});
  const Tensor loss = first(task);
  loss.backward();
  MAML<Backbone> there = deep_copy(first);
  const std::vector<Tensor> fast = descended(first, task.support_data, 3, 0.7);
  for (std::size_t i = 0; i < fast.size(); ++i) there.parameters()[i].assign(fast[i]);
  there.zero_grad();
  const Tensor at_fast = cross_entropy(there.head(there.backbone(task.query_data.img)), task.query_data.gt_label);
  at_fast.backward();
  CHECK(std::abs(loss.item<double>() - at_fast.item<double>()) < 1e-14);
  CHECK(largest_difference(gradients(first), gradients(there)) < 1e-14);
  // That is another one than through the steps, for the same loss.
  const Tensor through = second(task);
  through.backward();
  CHECK(std::abs(loss.item<double>() - through.item<double>()) < 1e-14);
  CHECK(largest_difference(gradients(first), gradients(second)) > 1e-2);
}

TEST_CASE("few-shot: MAML takes its steps in every task, or those of the optimizer that the config names") {
  const Episode task = episode();
  const MAML<Backbone> net = make_maml({.num_inner_steps = 3, .inner_lr = 0.7});
  net.head.bias.set_requires_grad(false);  // stays as it is
  const auto expected = [&](int steps) {
    const SubstituteScope scope(net.parameters(), descended(net, task.support_data, steps, 0.7));
    return rows(net.head(net.backbone(task.query_data.img)));
  };
  const Rows adapted = expected(3);
  CHECK(largest_difference(adapted, expected(2)) > 1e-3);

  MetaTestParallel wrapper(deep_copy(net));
  wrapper.to(Device::host(1));
  wrapper.before_meta_test(MetaTestConfig{});
  wrapper.before_forward_support();
  wrapper(task.query_data, FewShotMode::support);
  wrapper.before_forward_query();
  for (int repeat = 0; repeat < 2; ++repeat) {  // each task begins with the parameters themselves
    wrapper.before_forward_support();
    const NoGrad no_grad;
    CHECK_FALSE(wrapper(task.support_data.slice(0, 3), FewShotMode::support).defined());
    wrapper(task.support_data.slice(3, 3), FewShotMode::support);
    wrapper.before_forward_query();
    CHECK(largest_difference(rows(wrapper(task.query_data, FewShotMode::query)), adapted) < 1e-14);
  }
  MetaTestParallel<MAML<Backbone>> copy = deep_copy(wrapper);  // with the fast weights of the task
  CHECK(largest_difference(rows(copy(task.query_data, FewShotMode::query)), adapted) < 1e-14);
  CHECK(values(wrapper.module().head.weight.tensor()) == values(net.head.weight.tensor()));

  MetaTestConfig config;
  config.support.train = {.num_steps = 3, .optimizer = {.lr = 0.7}};
  wrapper.before_meta_test(config);
  wrapper.before_forward_support();
  const auto optimizer = detail::support_optimizer(wrapper, *config.support.train);
  for (int step = 0; step < 3; ++step) {
    const Tensor loss = wrapper(task.support_data, FewShotMode::support);
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
  }
  wrapper.before_forward_query();
  CHECK(largest_difference(rows(wrapper(task.query_data, FewShotMode::query)), adapted) < 1e-14);
  CHECK(meta_test(net, OneTask{}, config).tasks == meta_test(net, OneTask{}).tasks);

  CHECK(missing(refusal([&] { net(task.query_data, FewShotMode::train); }), {"[MAML]", "episode"}) == "");
  CHECK(missing(refusal([&] { net(FewShotData{.feats = task.query_data.img}, FewShotMode::query); }),
                {"[MAML]", "features"}) == "");
  MAML<Backbone> idle = deep_copy(net);
  CHECK(missing(refusal([&] { idle.before_forward_query(); }), {"[MAML]", "'support'", "got none"}) == "");
  CHECK(missing(refusal([&] { MAML(Backbone{}, {.in_channels = 0}); }), {"[MAML]", "in_channels"}) == "");
  CHECK(missing(refusal([&] { MAML(Backbone{}, {.in_channels = 3, .num_inner_steps = 0}); }), {"num_inner_steps"}) ==
        "");
}
