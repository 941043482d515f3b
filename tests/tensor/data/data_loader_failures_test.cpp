// What ends an epoch early, and workers that are slow: with doors instead of sleeps.
#include <atomic>
#include <thread>

#include "lockstep/runtime/log.h"
#include "lockstep/tensor/data/data_loader.h"
#include "support/catch.h"
#include "support/counter.h"
#include "support/devices.h"

using namespace lockstep;
using lockstep::test::Counter;
using support::device_at;

namespace {

struct Failing {
  std::int64_t bad = 7;
  std::int64_t size() const { return 20; }
  std::int64_t get(std::int64_t index) const {
    if (index == bad) throw std::out_of_range("no such picture");
    return index;
  }
};

// Each get() counts itself, then waits for the door.
struct Guarded {
  Counter begun, door, ended;
  std::int64_t closed_from = 0;  // samples before this one need no door
  std::int64_t size() const { return 40; }
  std::int64_t get(std::int64_t index) const {
    begun.add();
    const bool passed = index < closed_from || door.reaches(1);
    ended.add();
    return passed ? index : -1;
  }
};

}  // namespace

TEST_CASE("data loader: what a sample throws comes out at its batch, with its index") {
  for (int workers = 0; workers <= 3; ++workers) {
    INFO("workers " << workers);
    DataLoader loader(Failing{}, {.batch_size = 3, .workers = workers});
    std::int64_t batches = 0;
    try {
      for (auto& batch : loader) {
        CHECK(batch.to_vector<std::int64_t>()[0] == 3 * batches);
        ++batches;
      }
      FAIL("no exception");
    } catch (const DataError& error) {
      CHECK(error.index == 7);
      CHECK(error.batch == 2);
      CHECK(error.epoch == 0);
      CHECK(std::string(error.what()) == "[DataLoader] sample 7 (batch 2 of epoch 0): no such picture");
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
    }
    CHECK(batches == 2);
    loader.set_epoch(5);  // the loader goes on to work
    auto it = loader.begin();
    CHECK((*it).to_vector<std::int64_t>()[0] == 0);
    ++it;
    CHECK_THROWS_AS(++it, DataError);
    CHECK(it == loader.end());
  }
}

TEST_CASE("data loader: what collating throws names the batch") {
  struct Uneven {
    std::int64_t size() const { return 4; }
    Tensor get(std::int64_t index) const { return ones({index < 3 ? 1 : 2}); }
  };
  for (int workers : {0, 2}) {
    DataLoader loader(Uneven{}, {.batch_size = 2, .workers = workers});
    try {
      for ([[maybe_unused]] auto& batch : loader) {
      }
      FAIL("no exception");
    } catch (const DataError& error) {
      CHECK(error.index == -1);
      CHECK(error.batch == 1);
      CHECK_THROWS_AS(std::rethrow_if_nested(error), InvalidArgument);
    }
  }
}

TEST_CASE("data loader: an epoch may end at any batch, by a break or an exception") {
  for (int workers = 0; workers <= 3; ++workers)
    for (const Device device : {Device::cpu(), device_at(1)})
      for (int stop = 0; stop < 6; ++stop) {
        DataLoader loader(Failing{-1}, {.batch_size = 4, .workers = workers, .device = device});
        int at = 0;
        for ([[maybe_unused]] auto& batch : loader)
          if (at++ == stop) break;
        try {
          at = 0;
          for ([[maybe_unused]] auto& batch : loader)
            if (at++ == stop) throw std::runtime_error("of the consumer");
        } catch (const std::runtime_error&) {
        }
        { const auto unused = loader.begin(); }
      }
}

TEST_CASE("data loader: an iteration goes on when its loader is gone") {
  auto loader = std::make_unique<DataLoader<Failing>>(Failing{-1}, DataLoaderOptions{.batch_size = 4, .workers = 2});
  auto it = loader->begin();
  loader.reset();
  std::int64_t sum = 0;
  for (; it != std::default_sentinel; ++it)
    for (const std::int64_t index : it->to_vector<std::int64_t>()) sum += index;
  CHECK(sum == 190);
}

TEST_CASE("data loader: workers run ahead of a slow consumer, no further than they may") {
  for (const int prefetch : {1, 3}) {
    const Guarded data;
    data.door.add();
    const int workers = 2, window = workers * prefetch;
    DataLoader loader(data, {.batch_size = 2, .workers = workers, .prefetch_factor = prefetch});
    int batch = 0;
    for ([[maybe_unused]] auto& each : loader) {
      ++batch;  // has this many
      const int most = std::min(40, 2 * (batch + window));
      CHECK(data.ended.reaches(most));    // they do get there while we hold a batch,
      CHECK(data.begun.value() == most);  // and stop there
    }
    CHECK(batch == 20);
  }
}

TEST_CASE("data loader: a consumer waits for slow workers") {
  const Guarded data;
  DataLoader loader(data, {.batch_size = 2, .workers = 2});
  std::thread opener([&] {
    data.begun.reaches(2);  // both workers are in a sample
    data.door.add();
  });
  std::int64_t sum = 0;
  for (auto& batch : loader)
    for (const std::int64_t index : batch.to_vector<std::int64_t>()) sum += index;
  opener.join();
  CHECK(sum == 40 * 39 / 2);
}

TEST_CASE("data loader: the end waits for samples in progress and begins no others") {
  Guarded data;
  data.closed_from = 2;
  {
    DataLoader loader(data, {.batch_size = 2, .workers = 2, .prefetch_factor = 4});
    auto it = loader.begin();  // batch 0 is there, the workers stand in batches 1 and 2
    REQUIRE(data.begun.reaches(4));
    std::thread opener([&] { data.door.add(); });
    {
      const auto gone = std::move(it);
      opener.join();
    }
  }
  CHECK(data.begun.value() == data.ended.value());
}

TEST_CASE("data loader: a worker that does not return in time is left to itself") {
  Guarded data;
  data.closed_from = 2;
  std::vector<std::string> messages;
  const LogSink before = set_log_sink([&](LogLevel, std::string_view text) { messages.emplace_back(text); });
  const LogLevel level = log_level();
  set_log_level(LogLevel::warning);
  {
    DataLoader loader(data, {.batch_size = 2, .workers = 1, .timeout = Milliseconds(3000)});
    auto it = loader.begin();
    try {
      ++it;
      FAIL("no exception");
    } catch (const TimeoutError& error) {
      CHECK(std::string(error.what()) == "[DataLoader] expected batch 1 within 3000 ms, got none");
    }
  }
  set_log_sink(before);
  set_log_level(level);
  REQUIRE(messages.size() == 1);
  CHECK(messages[0].find("1 workers did not return") != std::string::npos);
  CHECK(data.begun.value() > data.ended.value());
  data.door.add();  // what it uses is still there
  // It finishes the batch that it is in, at most one sample more, and then ends.
  CHECK(data.ended.reaches(4));
}

TEST_CASE("data loader: with copy_dataset each worker has a dataset of its own") {
  struct Unsafe {
    std::shared_ptr<std::atomic<int>> copies = std::make_shared<std::atomic<int>>(0);
    mutable std::vector<std::int64_t> scratch;  // a race if it were shared
    Unsafe() = default;
    Unsafe(Unsafe&&) = default;
    Unsafe(const Unsafe& other) : copies(other.copies) { ++*copies; }
    std::int64_t size() const { return 60; }
    std::int64_t get(std::int64_t index) const {
      scratch.assign(10, index);
      return scratch[5];
    }
  };
  Unsafe data;
  const auto copies = data.copies;
  DataLoader loader(std::move(data), {.batch_size = 3, .workers = 3, .copy_dataset = true});
  CHECK(copies->load() == 0);
  std::int64_t sum = 0;
  for (auto& batch : loader)
    for (const std::int64_t index : batch.to_vector<std::int64_t>()) sum += index;
  CHECK(sum == 60 * 59 / 2);
  CHECK((copies->load() >= 1 && copies->load() <= 3));
  struct Unique : Failing {
    std::unique_ptr<int> no_copies = nullptr;
  };
  CHECK_THROWS_AS(DataLoader(Unique{}, {.copy_dataset = true}), InvalidArgument);
}
