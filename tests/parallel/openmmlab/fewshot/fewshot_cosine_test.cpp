// BaselinePlus, NegMargin and their classifier.
#include "lockstep/parallel/openmmlab/fewshot/baseline_plus.h"
#include "lockstep/parallel/openmmlab/fewshot/meta_test.h"
#include "parallel/openmmlab/fewshot/fewshot_support.h"
#include "support/gradcheck.h"

using namespace fewshot_test;

TEST_CASE("few-shot: a cosine head's scores, its loss with a margin and their gradients") {
  const DefaultDType dtype(DType::f64);
  manual_seed(3);
  const CosineHead head(3, 4, {.temperature = 5, .margin = -0.2});
  const Tensor feats = noise({3, 3}, 8);
  const std::vector<std::int64_t> labels{3, 0, 2};
  const Rows x = rows(feats), w = rows(head.weight.tensor());
  Rows scores(3, Doubles(4)), with_margin = scores;
  for (std::size_t i = 0; i < 3; ++i)
    for (std::size_t c = 0; c < 4; ++c) {
      double dot = 0, xx = 0, ww = 0;
      for (std::size_t d = 0; d < 3; ++d) dot += x[i][d] * w[c][d], xx += x[i][d] * x[i][d], ww += w[c][d] * w[c][d];
      scores[i][c] = 5 * dot / std::sqrt(xx * ww);
      with_margin[i][c] = scores[i][c] + (static_cast<std::int64_t>(c) == labels[i] ? 5 * 0.2 : 0);
    }
  CHECK(largest_difference(rows(head(feats)), scores) < 1e-8);
  const Tensor label = from_data(labels, {3});
  CHECK(head.loss(feats, label).item<double>() == Approx(plain_cross_entropy(with_margin, labels)).epsilon(1e-8));
  const auto loss_of = [&](const std::vector<Tensor>& inputs) {
    const SubstituteScope scope(head.parameters(), {inputs[1]});
    return head.loss(inputs[0], label);
  };
  const std::vector<Tensor> inputs{feats.clone().set_requires_grad(),
                                   head.weight.tensor().detach().clone().set_requires_grad()};
  CHECK(support::gradcheck(loss_of, inputs) == "");
  CHECK(support::gradgradcheck(loss_of, inputs) == "");
  // A row of zeros: no angle, and gradients that are numbers.
  const Tensor none = zeros({1, 3}).set_requires_grad();
  CHECK(values(head(none)) == Doubles(4));
  for (const double slope : values(grad(sum(head(none)), {none})[0])) CHECK(std::isfinite(slope));
  CHECK(missing(refusal([] { CosineHead(0, 4); }), {"[CosineHead]", "at least 1"}) == "");
  CHECK(missing(refusal([] { CosineHead(3, 4, {.temperature = 0}); }), {"temperature above 0, got 0"}) == "");
  CHECK(missing(refusal([&] { head(noise({3, 2}, 8)); }), {"features [n, 3]"}) == "");
}

TEST_CASE("few-shot: BaselinePlus and NegMargin train a cosine head for each task") {
  const DefaultDType dtype(DType::f64);
  const auto check = [](auto net, double temperature, double margin, double task_temperature) {
    const Episode task = episode();
    const FewShotData batch = labelled(noise({3, 2}, 9), {3, 0, 2});
    CHECK(net.head.options().temperature == temperature);
    CHECK(net.head.options().margin == margin);
    CHECK(values(net(batch, FewShotMode::train)) == values(net.head.loss(net.backbone(batch.img), batch.gt_label)));
    CHECK(missing(refusal([&] { net(batch, FewShotMode::support); }), {"before_meta_test"}) == "");
    MetaTestParallel wrapper(deep_copy(net));
    auto& copy = wrapper.module();
    wrapper.before_meta_test(MetaTestConfig{});
    CHECK(copy.meta_test_head->options().temperature == task_temperature);
    CHECK(copy.meta_test_head->options().margin == 0);
    wrapper.before_forward_support();
    SGD optimizer(copy.meta_test_head->parameters(), {.lr = 0.5});
    Doubles losses;
    for (int step = 0; step < 20; ++step) {
      const Tensor loss = wrapper(task.support_data, FewShotMode::support);
      losses.push_back(loss.template item<double>());
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
    }
    CHECK(losses.back() < losses.front());
    CHECK_FALSE(copy.backbone.layer.weight.grad().defined());
    wrapper.before_forward_query();
    CHECK(values(wrapper(task.query_data, FewShotMode::query)) ==
          values((*copy.meta_test_head)(net.backbone(task.query_data.img))));
  };
  manual_seed(1);
  check(BaselinePlus(Backbone{}, {.in_channels = 3, .num_classes = 4, .meta_test_classes = 2}), 2, 0, 2);
  check(NegMargin(Backbone{}, {.in_channels = 3, .num_classes = 4, .meta_test_classes = 2}), 10, -0.01, 5);
  CHECK(BaselinePlus(Backbone{}, {.in_channels = 3, .num_classes = 201}).head.options().temperature == 10);
}
