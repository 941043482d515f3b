// EarlyStoppingHook: when a training ends, and what it says then.
#include "lockstep/parallel/openmmlab/runner/early_stopping_hook.h"

#include "parallel/openmmlab/model/averages_support.h"

using namespace runner_test;

TEST_CASE("EarlyStoppingHook: when a training ends") {
  const auto epochs = [](EarlyStoppingHookOptions options, std::vector<double> scores) {
    const EarlyStoppingHook hook(std::move(options));
    Training training(
        {.train_cfg = EpochBasedTrainLoop{.max_epochs = static_cast<std::int64_t>(scores.size())}, .hooks = {hook}});
    training.metric.scores = std::move(scores);
    training.train();
    return cat(training.runner.epoch(), ' ', hook.reason());
  };
  const double nan = std::nan("");
  CHECK(epochs({.monitor = "acc/top1", .min_delta = 0, .patience = 2}, {1, 2, 2, 3, 3, 3, 4}) ==
        "6 acc/top1 has not improved on 3 in 2 validations");
  CHECK(epochs({.monitor = "acc/top1", .patience = 2}, {1, 1.05, 1.08, 4}) ==
        "3 acc/top1 has not improved on 1 in 2 validations");
  CHECK(epochs({.monitor = "acc/top1", .rule = Rule::less, .min_delta = 0, .patience = 2}, {3, 2, 2, 1, 1, 1, 1}) ==
        "6 acc/top1 has not improved on 1 in 2 validations");
  CHECK(epochs({.monitor = "acc/top1", .patience = 9}, {1, nan, 2}) == "2 acc/top1 is nan");
  CHECK(epochs({.monitor = "acc/top1", .check_finite = false, .patience = 9}, {1, nan, 2}) == "3 ");
  CHECK(epochs({.monitor = "acc/top1", .patience = 9, .stopping_threshold = 0.5}, {0.1, 0.5, 0.6, 0.7}) ==
        "3 acc/top1 is 0.6, better than 0.5");
  CHECK(epochs({.monitor = "loss", .patience = 2}, {1, 2, 3, 4}) == "3 loss has not improved on 1 in 2 validations");
  CapturedLog log;
  CHECK(epochs({.monitor = "mAP"}, {1, 2}) == "2 ");
  REQUIRE(log.messages.size() == 2);
  CHECK(missing(log.messages[0], {"[EarlyStoppingHook] expected a metric out of (loss, acc/top1), got 'mAP'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] {
                  epochs({.monitor = "mAP", .strict = true}, {1, 2});
                }),
                {"got 'mAP'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { EarlyStoppingHook({.monitor = "mse"}); }),
                {"a rule for the metric 'mse'"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { EarlyStoppingHook({}); }), {"got none"}) == "");
}
