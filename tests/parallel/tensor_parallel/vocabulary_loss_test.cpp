// The loss over a divided vocabulary is that of one device, and so are its gradients.
#include <limits>

#include "lockstep/parallel/tensor_parallel/vocabulary.h"
#include "parallel/tensor_parallel/support.h"

using namespace parallel_test;

namespace {

struct Case {
  std::int64_t words;
  Reduction reduction;
  double smoothing;
  std::int64_t ignored;
  double scale = 1;
};

Tensor logits_of(const Case& c, DType dtype) { return (noise({7, c.words}, 11) * (4 * c.scale)).to(dtype); }
Tensor targets_of(const Case& c) {
  return from_data(std::vector<std::int64_t>{0, c.words - 1, c.ignored, 1, c.words / 2, 2, c.ignored}, {7});
}
// A loss of one number, of those that are many.
Tensor one_of(const Tensor& loss) {
  return loss.rank() == 0 ? loss : sum(loss * noise(loss.shape(), 5, loss.device()));
}

}  // namespace

TEST_CASE("the loss over a divided vocabulary is that of one device") {
  std::vector<Case> cases;
  for (const std::int64_t words : {5, 13}) {
    cases.push_back({words, Reduction::mean, 0, -100});
    cases.push_back({words, Reduction::mean, 0.1, -100});
    cases.push_back({words, Reduction::sum, 0.2, -100});
    cases.push_back({words, Reduction::none, 0.1, -100});
  }
  cases.push_back({13, Reduction::mean, 0.3, 4});  // a word that is ignored
  cases.push_back({13, Reduction::mean, 1, -1});
  cases.push_back({12, Reduction::mean, 0.1, -1, 300});  // exponentials that overflow, and underflow
  const auto body = [&](DType dtype) {
    return [&cases, dtype](Communicator& ranks) {
      Results results;
      for (std::size_t i = 0; i < cases.size(); ++i) {
        if (ranks.size() != 3 && i % 3 != 1) continue;  // all cases once, and some with all groups
        const Case& c = cases[i];
        const VocabularyRange range(ranks, c.words);
        const Tensor whole = logits_of(c, dtype).to(ranks.device());
        // What is no word is larger than all that are, and is never looked at.
        Tensor own = full({7, range.rows}, 1e6, {.dtype = dtype, .device = ranks.device()});
        own.narrow(1, 0, range.end - range.begin).copy_(whole.narrow(1, range.begin, range.end - range.begin));
        own.set_requires_grad();
        const Tensor loss = vocabulary_parallel_cross_entropy(
            own, targets_of(c).to(ranks.device()), c.words, ranks,
            {.ignore_index = c.ignored, .reduction = c.reduction, .label_smoothing = c.smoothing});
        one_of(loss).backward();
        results[cat("loss ", i)] = values(loss.to(DType::f64));
        const Tensor parts = empty({ranks.size(), 7, range.rows}, {.dtype = dtype, .device = ranks.device()});
        ranks.all_gather(own.grad().contiguous(), parts);
        const Tensor all = parts.transpose(0, 1).reshape({7, -1});
        results[cat("gradient ", i)] = values(all.narrow(1, 0, c.words).to(DType::f64));
        const std::int64_t behind = range.rows * ranks.size() - c.words;
        results[cat("padding ", i)] = {behind > 0 ? max(abs(all.narrow(1, c.words, behind))).item<double>() : 0};
      }
      return results;
    };
  };
  for (const DType dtype : {DType::f32, DType::f64}) {
    Results expected;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      Tensor logits = logits_of(c, dtype).set_requires_grad();
      const Tensor loss = cross_entropy(
          logits, targets_of(c), {.ignore_index = c.ignored, .reduction = c.reduction, .label_smoothing = c.smoothing});
      one_of(loss).backward();
      expected[cat("loss ", i)] = values(loss.to(DType::f64));
      expected[cat("gradient ", i)] = values(logits.grad().to(DType::f64));
      expected[cat("padding ", i)] = {0};
    }
    for (const RankGroup& group : groups()) {
      if (dtype == DType::f32 && group.ranks != 2) continue;
      INFO(group.name << ", " << group.ranks << " ranks, " << to_string(dtype));
      const auto all = run_ranks(group.ranks, body(dtype), {.make = group.make});
      for (const Results& each : all) {
        CHECK(each == all[0]);
        CHECK(each.size() >= 9);
        for (const auto& [name, got] : each) {
          INFO(name);
          const Doubles& numbers = expected.at(name);
          double size = 1;
          for (const double number : numbers) size = std::max(size, std::abs(number));
          CHECK(largest_difference(got, numbers) <= (dtype == DType::f32 ? 1e-5 : 1e-12) * size);
        }
      }
    }
  }
}

TEST_CASE("the loss over a divided vocabulary names what does not fit") {
  using Catch::Matchers::Contains;
  const auto said = [](Shape logits, std::vector<std::int64_t> targets, double smoothing) {
    return messages_of_ranks(2, [&](Communicator& ranks) {
      const auto count = static_cast<std::int64_t>(targets.size());
      vocabulary_parallel_cross_entropy(zeros(logits, {.device = ranks.device()}),
                                        from_data(targets, {count}, {.device = ranks.device()}), 5, ranks,
                                        {.label_smoothing = smoothing});
      synchronize(ranks.device());
    });
  };
  for (const std::string& message : said({2, 3}, {1, 5}, 0)) CHECK_THAT(message, Contains("got 5"));
  for (const std::string& message : said({2, 3}, {-1, 0}, 0)) CHECK_THAT(message, Contains("got -1"));
  CHECK_THAT(said({2, 5}, {1, 2}, 0)[0], Contains("expected logits [.., 3], a share of 5 words for each of 2 ranks"));
  CHECK_THAT(said({2, 3}, {1, 2, 3}, 0)[1], Contains("and targets [..]"));
  CHECK_THAT(said({2, 3}, {1, 2}, 1.5)[0], Contains("label_smoothing in [0, 1], got 1.5"));
  const auto words = messages_of_ranks(2, [](Communicator& ranks) {
    VocabularyParallelEmbedding table(ranks, 5, 2);
    table.to(ranks.device());
    table(from_data(std::vector<std::int64_t>{4, 5}, {2}, {.device = ranks.device()}));
    synchronize(ranks.device());
  });
  for (const std::string& message : words) CHECK_THAT(message, Contains("got 5"));
}
