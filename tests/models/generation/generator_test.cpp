// Generator: tokens as they come, for many callers; every text ends, and each in what it should.
#include "lockstep/models/generation/generator.h"

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "lockstep/parallel/serving/serving_error.h"
#include "models/generation/small_model.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Tokens = std::vector<std::int64_t>;

// Calls of the model wait at a gate, where a test lets them through one by one.
class GatedModel : public SmallModel {
 public:
  explicit GatedModel(bool open = true) : SmallModel(support::first_devices(1)[0], DType::f64), open_(open) {}
  Tensor decode(const DecodeStep& step) const override {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || passes_ > 0; });
    if (!open_) --passes_;
    lock.unlock();
    return SmallModel::decode(step);
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void let_through(int count) {
    const std::lock_guard lock(mutex_);
    passes_ += count;
    changed_.notify_all();
  }
  void wait_for_call(int number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= number; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool open_;
  mutable int passes_ = 0, arrived_ = 0;
};

GeneratorOptions small_options() {
  return {.batch = {.cache = {.pages = 80, .page_size = 4}, .max_sequences = 4, .max_tokens = 32}};
}
Tokens all_of(Generation& text) {
  Tokens tokens;
  while (const auto token = text.next()) tokens.push_back(*token);
  return tokens;
}
void wait_until_late(Clock::time_point submitted, Milliseconds timeout) {
  while (Clock::now() <= submitted + timeout) std::this_thread::yield();
}

}  // namespace

TEST_CASE("a generator writes many texts at once, each as alone") {
  const auto model = std::make_shared<GatedModel>();
  Generator generator(model, small_options());
  constexpr int kClients = 6, kTexts = 8;
  std::vector<std::vector<Tokens>> results(kClients);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c)
    clients.emplace_back([&, c] {
      for (int i = 0; i < kTexts; ++i) {
        Generation text = generator.submit(prompt_of(1 + (5 * c + 7 * i) % 30, c), {.max_new_tokens = 2 + i});
        results[static_cast<std::size_t>(c)].push_back(i % 2 ? all_of(text) : text.get().tokens);
      }
    });
  for (std::thread& client : clients) client.join();
  for (int c = 0; c < kClients; ++c)
    for (int i = 0; i < kTexts; ++i)
      CHECK(results[static_cast<std::size_t>(c)][static_cast<std::size_t>(i)] ==
            model->continued(prompt_of(1 + (5 * c + 7 * i) % 30, c), 2 + i));
  const GeneratorStats stats = generator.stats();
  CHECK(stats.submitted == kClients * kTexts);
  CHECK(stats.finished == kClients * kTexts);
  CHECK(stats.running + stats.queued == 0);
  CHECK(stats.tokens == kClients * (2 + 3 + 4 + 5 + 6 + 7 + 8 + 9));
  CHECK(stats.first_token_seconds.count == kClients * kTexts);
  CHECK(stats.batch.cache.used == 0);
}

TEST_CASE("a generator that is made on a stream of one's own has its pages on its thread's") {
  const Device device = support::first_devices(1)[0];
  const auto model = std::make_shared<GatedModel>();
  synchronize(device);
  const auto written = [&] {
    Generator generator(model, small_options());
    Generation text = generator.submit({1, 2, 3}, {.max_new_tokens = 6});
    return all_of(text);
  };
  const Tokens expected = written();
  const Stream side(device);
  side.wait_for(default_stream(device));
  Tokens found;
  {
    const StreamScope scope(side);
    Tensor work = ones({100'000}, {.device = device});
    for (int i = 0; i < 20; ++i) work = work * 1.0;
    found = written();
  }
  CHECK(found == expected);
  default_stream(device).wait_for(side);
  synchronize(device);
}

TEST_CASE("tokens come one by one, to next and to the callback") {
  const auto model = std::make_shared<GatedModel>(false);
  Generator generator(model, small_options());
  std::atomic<int> called = 0;
  Generation text = generator.submit(prompt_of(3), {.max_new_tokens = 3}, {.on_token = [&](std::int64_t) {
                                       ++called;
                                       return true;
                                     }});
  const Tokens expected = model->continued(prompt_of(3), 3);
  CHECK_FALSE(text.finish());
  for (int i = 0; i < 3; ++i) {
    model->let_through(1);
    CHECK(text.next() == expected[static_cast<std::size_t>(i)]);
  }
  CHECK_FALSE(text.next());
  CHECK_FALSE(text.next());
  CHECK(text.finish() == FinishReason::length);
  CHECK(called == 3);
  CHECK_FALSE(text.cancel());
  CHECK(text.get().tokens.empty());
  Generation whole = generator.submit(prompt_of(3), {.max_new_tokens = 3});
  model->open();
  CHECK(whole.get().tokens == expected);
  CHECK(whole.get().tokens.empty());
}

TEST_CASE("a text that is cancelled or dropped gives its place to others") {
  const auto model = std::make_shared<GatedModel>(false);
  GeneratorOptions options = small_options();
  options.batch.max_sequences = 1;
  Generator generator(model, options);
  Generation first = generator.submit(prompt_of(3), {.max_new_tokens = 50});
  Generation queued = generator.submit(prompt_of(3), {.max_new_tokens = 50});
  { const Generation unwanted = generator.submit(prompt_of(3), {.max_new_tokens = 50}); }
  Generation last = generator.submit(prompt_of(4), {.max_new_tokens = 2});
  model->let_through(1);
  CHECK(first.next() == model->continued(prompt_of(3), 1)[0]);
  CHECK(first.cancel());
  CHECK(queued.cancel());
  model->open();
  CHECK(last.get().tokens == model->continued(prompt_of(4), 2));
  CHECK_THROWS_AS(all_of(first), Cancelled);
  CHECK(first.finish() == FinishReason::failed);
  CHECK_THROWS_AS(queued.get(), Cancelled);
  CHECK(generator.stats().cancelled == 3);
  CHECK(generator.stats().finished == 1);
  CHECK(generator.stats().batch.cache.used == 0);
}

TEST_CASE("a callback ends its text, and what it throws is what the text ends in") {
  const auto model = std::make_shared<GatedModel>(false);
  Generator generator(model, small_options());
  Generation ended =
      generator.submit(prompt_of(3), {.max_new_tokens = 50}, {.on_token = [](std::int64_t) { return false; }});
  Generation thrown = generator.submit(prompt_of(5), {.max_new_tokens = 50},
                                       {.on_token = [](std::int64_t) -> bool { throw std::runtime_error("mine"); }});
  Generation at_end = generator.submit(prompt_of(5), {.max_new_tokens = 1},
                                       {.on_token = [](std::int64_t) -> bool { throw std::runtime_error("mine"); }});
  Generation good = generator.submit(prompt_of(6), {.max_new_tokens = 9});
  model->open();
  CHECK_THROWS_AS(ended.get(), Cancelled);
  CHECK_THROWS_WITH(thrown.get(), "mine");
  CHECK_THROWS_WITH(at_end.get(), "mine");
  CHECK(good.get().tokens == model->continued(prompt_of(6), 9));
  const GeneratorStats stats = generator.stats();
  CHECK(stats.batch.cache.used == 0);
  CHECK(stats.finished == 1);
  CHECK(stats.failed == 2);  // also the one whose callback threw at its last token
  CHECK(stats.cancelled == 1);
}

TEST_CASE("a deadline covers waiting and writing") {
  const auto model = std::make_shared<GatedModel>(false);
  GeneratorOptions options = small_options();
  options.batch.max_sequences = 1;
  Generator generator(model, options);
  const Clock::time_point submitted = Clock::now();
  Generation running = generator.submit(prompt_of(3), {.max_new_tokens = 50}, {.timeout = Milliseconds(20)});
  Generation queued = generator.submit(prompt_of(3), {.max_new_tokens = 2}, {.timeout = Milliseconds(20)});
  Generation patient = generator.submit(prompt_of(3), {.max_new_tokens = 2});
  wait_until_late(Clock::now(), Milliseconds(20));
  model->open();
  CHECK_THROWS_WITH(running.get(), Contains("within 20 ms"));
  CHECK_THROWS_AS(queued.get(), TimeoutError);
  CHECK(patient.get().tokens == model->continued(prompt_of(3), 2));
  CHECK(generator.stats().late == 2);
  CHECK(Clock::now() > submitted);
}

TEST_CASE("a full generator waits, refuses or drops") {
  const auto model = std::make_shared<GatedModel>(false);
  GeneratorOptions options = small_options();
  options.batch.max_sequences = 1;
  options.max_queued = 2;
  for (const WhenFull when : {WhenFull::refuse, WhenFull::drop_oldest, WhenFull::wait}) {
    options.when_full = when;
    const auto gated = std::make_shared<GatedModel>(false);
    Generator generator(gated, options);
    std::vector<Generation> texts;
    texts.push_back(generator.submit(prompt_of(2), {.max_new_tokens = 1}));
    gated->wait_for_call(1);  // it has left the queue
    for (int i = 0; i < 2; ++i) texts.push_back(generator.submit(prompt_of(2), {.max_new_tokens = 1}));
    CHECK(generator.stats().queued == 2);
    if (when == WhenFull::refuse) {
      CHECK_THROWS_WITH(generator.submit(prompt_of(2)), Contains("fewer than 2 requests that wait, got 2"));
      CHECK(generator.stats().refused == 1);
    } else if (when == WhenFull::drop_oldest) {
      texts.push_back(generator.submit(prompt_of(2), {.max_new_tokens = 1}));
      CHECK_THROWS_AS(texts[1].get(), Refused);
      texts.erase(texts.begin() + 1);
    } else {
      CHECK_THROWS_AS(generator.submit(prompt_of(2), {}, {.timeout = Milliseconds(5)}), TimeoutError);
      auto waits =
          std::async(std::launch::async, [&] { return generator.submit(prompt_of(2), {.max_new_tokens = 1}); });
      gated->let_through(1);
      texts.push_back(waits.get());
    }
    gated->open();
    for (Generation& text : texts) CHECK(text.get().tokens == model->continued(prompt_of(2), 1));
  }
}

TEST_CASE("a queued text that is cancelled makes room while another is written") {
  const auto model = std::make_shared<GatedModel>(false);
  GeneratorOptions options = small_options();
  options.batch.max_sequences = 1;
  options.max_queued = 1;
  Generator generator(model, options);
  Generation running = generator.submit(prompt_of(2), {.max_new_tokens = 50});
  model->wait_for_call(1);
  Generation queued = generator.submit(prompt_of(2), {.max_new_tokens = 3});
  auto waits = std::async(std::launch::async, [&] { return generator.submit(prompt_of(3), {.max_new_tokens = 1}); });
  while (generator.stats().waiting == 0) std::this_thread::yield();
  queued.cancel();
  model->let_through(1);
  Generation last = waits.get();  // before `running` has ended
  model->open();
  CHECK(last.get().tokens == model->continued(prompt_of(3), 1));
}

TEST_CASE("a callback that submits to a full generator is refused at once") {
  const auto model = std::make_shared<GatedModel>(false);
  GeneratorOptions options = small_options();
  options.batch.max_sequences = 1;
  options.max_queued = 1;
  Generator generator(model, options);
  std::string message;
  Generation first = generator.submit(prompt_of(2), {.max_new_tokens = 1}, {.on_token = [&](std::int64_t) {
                                        message = support::message_of<Refused>([&] { generator.submit({1}); });
                                        return true;
                                      }});
  model->wait_for_call(1);
  Generation queued = generator.submit(prompt_of(2), {.max_new_tokens = 1});
  model->open();
  first.get();
  CHECK_THAT(message, Contains("fewer than 1 requests that wait, got 1"));
}

TEST_CASE("closing wakes who waits for room, and lets what is written go on") {
  const auto model = std::make_shared<GatedModel>(false);
  GeneratorOptions options = small_options();
  options.batch.max_sequences = 1;
  options.max_queued = 1;
  Generator generator(model, options);
  Generation running = generator.submit(prompt_of(2), {.max_new_tokens = 3});
  model->wait_for_call(1);
  Generation queued = generator.submit(prompt_of(2), {.max_new_tokens = 3});
  auto waits = std::async(std::launch::async, [&] { generator.submit(prompt_of(2)); });
  while (generator.stats().waiting == 0) std::this_thread::yield();
  generator.close();
  CHECK_THROWS_AS(waits.get(), Refused);
  CHECK_THROWS_AS(queued.get(), Cancelled);
  CHECK_THROWS_AS(generator.submit(prompt_of(2)), Refused);
  CHECK_FALSE(generator.drain(Milliseconds(1)));
  model->open();
  CHECK(generator.drain(Milliseconds(60'000)));
  CHECK(running.get().tokens == model->continued(prompt_of(2), 3));
}

TEST_CASE("a generator that goes ends its texts, and handles outlive it") {
  const auto model = std::make_shared<GatedModel>();
  std::vector<Generation> texts;
  {
    Generator generator(model, small_options());
    for (int i = 0; i < 8; ++i) texts.push_back(generator.submit(prompt_of(2 + i), {.max_new_tokens = 150}));
  }
  for (Generation& text : texts) {
    std::size_t tokens = 150;  // if it was quick
    try {
      tokens = text.get().tokens.size();
    } catch (const Cancelled&) {
    }
    CHECK(tokens == 150);
    CHECK(text.finish().has_value());
  }
  CHECK_THROWS_WITH(Generation().next(), Contains("empty handle"));
  CHECK_FALSE(Generation().cancel());
}

TEST_CASE("a model that throws ends what it computed; a device that fails, everything") {
  const auto model = std::make_shared<GatedModel>(false);
  Generator generator(model, small_options());
  Generation failed = generator.submit(prompt_of(2), {.max_new_tokens = 5});
  model->wait_for_call(1);
  Generation later = generator.submit(prompt_of(3), {.max_new_tokens = 5});
  model->fails = 1;
  model->open();
  CHECK_THROWS_WITH(failed.get(), Contains("as was asked for"));
  CHECK(later.get().tokens == model->continued(prompt_of(3), 5));
  CHECK(generator.stats().failed == 1);
  CHECK(generator.stats().batch.cache.used == 0);

  struct LostModel : SmallModel {
    using SmallModel::SmallModel;
    Tensor decode(const DecodeStep&) const override { throw DeviceError(device(), 7, "gone"); }
  };
  Generator lost(std::make_shared<LostModel>(support::first_devices(1)[0]), small_options());
  std::vector<Generation> texts;
  try {
    for (int i = 0; i < 9; ++i) texts.push_back(lost.submit(prompt_of(2)));
  } catch (const Refused&) {
  }
  for (Generation& text : texts) CHECK_THROWS_AS(text.get(), DeviceError);
  CHECK_THROWS_AS(lost.submit(prompt_of(2)), Refused);
}

TEST_CASE("new weights come between texts, and no prefix of the old ones is used") {
  const auto model = std::make_shared<GatedModel>(false);
  const auto other = std::make_unique<SmallModel>(support::first_devices(1)[0], DType::f64, 99);
  Generator generator(model, small_options());
  const auto take = [&](const SmallModel& from) {
    model->words = from.words, model->places = from.places, model->head = from.head;
    model->q = from.q, model->k = from.k, model->v = from.v, model->out = from.out;
  };
  const Tokens before = model->continued(prompt_of(20), 4), after = other->continued(prompt_of(20), 4);
  CHECK(before != after);
  Generation first = generator.submit(prompt_of(20), {.max_new_tokens = 4});
  model->wait_for_call(1);
  std::atomic<int> changes = 0;
  auto updated = std::async(std::launch::async, [&] {
    generator.update([&] {
      take(*other);
      ++changes;
    });
  });
  CHECK_THROWS_AS(generator.update([&] { ++changes; }, Milliseconds(1)), TimeoutError);
  while (generator.stats().waiting_updates != 1) std::this_thread::yield();
  Generation second = generator.submit(prompt_of(20), {.max_new_tokens = 4});  // waits for the update
  model->open();
  updated.get();
  CHECK(second.get().tokens == after);
  CHECK(changes == 1);
  CHECK(first.get().tokens == before);
  CHECK(generator.submit(prompt_of(20), {.max_new_tokens = 4}).get().tokens == after);
  CHECK(generator.stats().updates == 1);
  CHECK_THROWS_WITH(generator.update([] { throw std::runtime_error("mine"); }), "mine");
  CHECK(generator.submit(prompt_of(20), {.max_new_tokens = 4}).get().tokens == after);
  // What throws may have changed weights before.
  const SmallModel third(support::first_devices(1)[0], DType::f64, 7);
  const auto changes_and_throws = [&] {
    take(third);
    throw std::runtime_error("mine");
  };
  CHECK_THROWS_WITH(generator.update(changes_and_throws), "mine");
  CHECK(generator.submit(prompt_of(20), {.max_new_tokens = 4}).get().tokens == third.continued(prompt_of(20), 4));
}

TEST_CASE("a generator refuses wrong requests where they are made") {
  const auto model = std::make_shared<GatedModel>();
  CHECK_THROWS_AS(Generator(nullptr, small_options()), InvalidArgument);
  CHECK_THROWS_AS(Generator(model, {}), InvalidArgument);
  GeneratorOptions roomless = small_options();
  roomless.max_queued = 0;
  CHECK_THROWS_WITH(Generator(model, roomless), Contains("room for at least 1 request, got 0"));
  Generator generator(model, small_options());
  CHECK_THROWS_AS(generator.submit({}), InvalidArgument);
  CHECK_THROWS_AS(generator.submit({37}), InvalidArgument);
  CHECK_THROWS_AS(generator.submit({1}, {.sampling = {.top_p = 2}}), InvalidArgument);
  CHECK_THROWS_AS(generator.submit({1}, {}, {.timeout = Milliseconds(-1)}), InvalidArgument);
  CHECK_THROWS_AS(generator.update(nullptr), InvalidArgument);
  CHECK_THROWS_WITH(generator.update(std::function<void()>()), Contains("expected a function, got an empty one"));
  CHECK(generator.stats().submitted == 0);
  // The thread itself cannot wait for itself.
  std::string message;
  generator
      .submit({1}, {.max_new_tokens = 1},
              {.on_token =
                   [&](std::int64_t) {
                     message = support::message_of<Error>([&] { generator.update([] {}); });
                     return true;
                   }})
      .get();
  CHECK_THAT(message, Contains("another thread than the generator's"));
}

TEST_CASE("a generator's statistics are lines of Prometheus' format") {
  const auto model = std::make_shared<GatedModel>();
  Generator generator(model, small_options());
  generator.submit(prompt_of(9), {.max_new_tokens = 4}).get();
  const std::string text = to_prometheus(generator.stats(), "small \"one\"");
  for (const char* line : {"lockstep_generation_requests_total{model=\"small \\\"one\\\"\",outcome=\"finished\"} 1\n",
                           "lockstep_generation_tokens_total{model=\"small \\\"one\\\"\"} 4\n",
                           "lockstep_generation_computed_tokens_total{model=\"small \\\"one\\\"\"} 12\n",
                           "lockstep_generation_first_token_seconds_count{model=\"small \\\"one\\\"\"} 1\n",
                           "lockstep_generation_token_seconds_count{model=\"small \\\"one\\\"\"} 3\n",
                           "lockstep_generation_cache_pages{model=\"small \\\"one\\\"\",state=\"used\"} 0\n"})
    CHECK_THAT(text, Contains(line));
  // The whole text is UTF-8, whatever a folder is called.
  CHECK_THAT(to_prometheus(generator.stats(), "a\xFFz"), Contains("tokens_total{model=\"a\uFFFDz\"} 4\n"));
}

}  // namespace lockstep::test
