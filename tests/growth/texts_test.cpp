// Texts while the host's memory runs out, once and for a while, at every place.
#include <array>
#include <new>

#include "drill/memory/failing_new.h"
#include "lockstep/models/generation/continuous_batch.h"
#include "lockstep/models/language/gpt2.h"
#include "support/catch.h"

namespace {

using namespace lockstep;
using Texts = std::array<std::vector<std::int64_t>, 3>;

const Gpt2& writer() {
  static const Gpt2& made = []() -> Gpt2& {
    auto& model = *new Gpt2({.vocab_size = 13, .n_positions = 32, .n_embd = 8, .n_layer = 1, .n_head = 2});
    model.eval();
    return model;
  }();
  return made;
}

struct Written {
  Texts texts;
  bool struck = false;
};

// The k-th allocation that the steps make fails, and with `lasting` those after it in the same step; 0: none.
Written written(std::int64_t k, bool lasting) {
  // A beginning that is shared, and fewer pages than all three texts need.
  ContinuousBatch batch(writer(), {.cache = {.pages = 7, .page_size = 4}});
  Written result;
  GenerateOptions options;
  options.max_new_tokens = 8;
  options.sampling.temperature = 1, options.sampling.top_p = 0.9, options.sampling.seed = 7;
  for (std::size_t i = 0; i < result.texts.size(); ++i) {
    batch.add({1, 2, 3, 4, 5, static_cast<std::int64_t>(i)}, options);
    result.texts[i].reserve(32);
  }
  if (k > 0) memory_drill::arm(k, lasting);
  for (int steps = 0; !batch.idle() && steps < 200; ++steps) {
    try {
      for (const GenerationEvent& event : batch.step())
        result.texts[static_cast<std::size_t>(event.request)].push_back(event.token);
    } catch (const std::bad_alloc&) {
      result.struck = memory_drill::disarm();
    }
  }
  result.struck = memory_drill::disarm() || result.struck;
  return result;
}

}  // namespace

TEST_CASE("no token is lost and none comes twice where memory runs out in a step, wherever that is") {
  written(0, false);  // the first makes what is made once
  const Texts expected = written(0, false).texts;
  for (const auto& text : expected) REQUIRE(text.size() == 8);
  for (const bool lasting : {false, true}) {
    int wrong = 0;
    std::int64_t k = 1, first = 0;
    for (;; ++k) {
      const Written got = written(k, lasting);
      if (!got.struck) break;
      if (got.texts != expected && wrong++ == 0) first = k;
    }
    CAPTURE(lasting, k, first);
    CHECK(k > 500);
    CHECK(wrong == 0);
  }
}
