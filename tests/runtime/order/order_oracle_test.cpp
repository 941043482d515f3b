// The order checker against an oracle: random programs with random edges, judged by the transitive closure of what the
// program declared, byte by byte.
#include <random>
#include <set>
#include <vector>

#include "runtime/order/order_programs.h"
#include "runtime/text.h"
#include "support/catch.h"

using namespace backend_streams;

namespace {

constexpr int kStreams = 4;
constexpr std::size_t kOracleBytes = 48;

// Every step of the program so far, and which steps come before it.
class Oracle {
 public:
  struct Step {
    std::vector<bool> before;
    std::set<std::size_t> reads, writes;
  };

  // What the next step of a stream comes after.
  std::vector<bool> past_of(int stream) const {
    std::vector<bool> past(steps_.size(), false);
    merge(past, stream_[stream]);
    merge(past, host_);
    return past;
  }
  bool races(int stream, const std::set<std::size_t>& reads, const std::set<std::size_t>& writes) const {
    const std::vector<bool> past = past_of(stream);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (past[i]) continue;
      if (meet(writes, steps_[i].writes) || meet(writes, steps_[i].reads) || meet(reads, steps_[i].writes)) return true;
    }
    return false;
  }
  void add(int stream, std::set<std::size_t> reads, std::set<std::size_t> writes) {
    std::vector<bool> past = past_of(stream);
    steps_.push_back({past, std::move(reads), std::move(writes)});
    past.push_back(true);
    stream_[stream] = std::move(past);
  }
  std::vector<bool> record(int stream) const { return past_of(stream); }
  void wait(int stream, const std::vector<bool>& mark) { merge(stream_[stream], mark); }
  void host_wait(const std::vector<bool>& mark) { merge(host_, mark); }

 private:
  static void merge(std::vector<bool>& into, const std::vector<bool>& from) {
    if (into.size() < from.size()) into.resize(from.size(), false);
    for (std::size_t i = 0; i < from.size(); ++i) into[i] = into[i] || from[i];
  }
  static bool meet(const std::set<std::size_t>& a, const std::set<std::size_t>& b) {
    for (const std::size_t byte : a) {
      if (b.count(byte)) return true;
    }
    return false;
  }

  std::vector<Step> steps_;
  std::vector<bool> stream_[kStreams], host_;
};

struct RandomUse {
  MemoryUse use;
  std::set<std::size_t> bytes;
};

RandomUse random_use(std::mt19937& random, std::byte* memory, bool writes) {
  RandomUse made;
  const std::size_t begin = random() % kOracleBytes;
  made.use = {.data = memory + begin,
              .device = Device::host(0),
              .reads = !writes,
              .writes = writes,
              .element_bytes = 1,
              .rank = 1};
  made.use.byte_strides[0] = 1 + static_cast<int>(random() % 5);
  made.use.sizes[0] =
      1 + static_cast<std::int64_t>(
              random() % ((kOracleBytes - begin - 1) / static_cast<std::size_t>(made.use.byte_strides[0]) + 1));
  for (std::int64_t i = 0; i < made.use.sizes[0]; ++i) {
    made.bytes.insert(begin + static_cast<std::size_t>(i * made.use.byte_strides[0]));
  }
  return made;
}

}  // namespace

TEST_CASE("the checker reports an operation exactly when the oracle does") {
  int races = 0, rounds = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    Backends backend({.mode = HostMode::strict, .seed = seed});
    DeviceMemory memory(*backend, 0, kOracleBytes);
    std::vector<std::unique_ptr<StrictStream>> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back(std::make_unique<StrictStream>(*backend, 0));
    std::vector<std::unique_ptr<TestEvent>> events;
    std::vector<std::vector<bool>> marks;
    Oracle oracle;
    const unsigned edges = 1 + seed % 8;  // programs with few edges and with many
    for (int step = 0; step < 60; ++step) {
      const int stream = static_cast<int>(random() % kStreams);
      const unsigned kind = random() % 10;
      if (kind < edges && kind < 4) {
        events.push_back(std::make_unique<TestEvent>(*backend));
        streams[static_cast<std::size_t>(stream)]->record(*events.back());
        marks.push_back(oracle.record(stream));
      } else if (kind < edges && !events.empty()) {
        const std::size_t which = random() % events.size();
        if (random() % 10 == 0) {
          REQUIRE(events[which]->wait());
          oracle.host_wait(marks[which]);
        } else {
          streams[static_cast<std::size_t>(stream)]->wait(*events[which]);
          oracle.wait(stream, marks[which]);
        }
      } else {
        const RandomUse in = random_use(random, memory, false), out = random_use(random, memory, true);
        const bool reads = random() % 3 != 0, writes = !reads || random() % 2 == 0;
        const std::set<std::size_t> none;
        const bool expected = oracle.races(stream, reads ? in.bytes : none, writes ? out.bytes : none);
        std::vector<MemoryUse> uses;
        if (reads) uses.push_back(in.use);
        if (writes) uses.push_back(out.use);
        const std::string report = message_of<RaceError>([&] {
          detail::OrderChecker::active()->use(streams[static_cast<std::size_t>(stream)]->handle(), "step", uses, {});
        });
        CAPTURE(seed, step, report);
        REQUIRE((report != "(no exception)") == expected);
        races += expected;
        ++rounds;
        if (!expected) oracle.add(stream, reads ? in.bytes : none, writes ? out.bytes : none);
      }
    }
    for (auto& stream : streams) stream->synchronize();
  }
  CHECK(races > 1000);  // the programs are of both kinds
  CHECK(rounds - races > 1000);
}

// Programs with all their edges: every operation waits for the last writer, and for the readers since when it writes.
// None is reported, and the bytes are those of running it in order.
TEST_CASE("programs with all their edges are never reported and compute what they say, under every schedule") {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    Backends backend({.mode = HostMode::strict, .seed = seed});
    constexpr int kBuffers = 5;
    std::vector<std::unique_ptr<DeviceMemory>> buffers;
    std::vector<std::unique_ptr<StrictStream>> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back(std::make_unique<StrictStream>(*backend, i));
    for (int i = 0; i < kBuffers; ++i) buffers.push_back(std::make_unique<DeviceMemory>(*backend, i % kStreams, 64));
    int writer[kBuffers];
    std::set<int> readers[kBuffers];
    unsigned char expected[kBuffers];
    for (int i = 0; i < kBuffers; ++i) {
      writer[i] = i % kStreams;
      expected[i] = static_cast<unsigned char>(i);
      backend->fill_bytes(buffers[static_cast<std::size_t>(i)]->data(), i, 64,
                          streams[static_cast<std::size_t>(i % kStreams)]->handle());
    }
    for (int step = 0; step < 60; ++step) {
      const int from = static_cast<int>(random() % kBuffers), to = static_cast<int>(random() % kBuffers);
      const int by = static_cast<int>(random() % kStreams);
      if (from == to) continue;
      StrictStream& stream = *streams[static_cast<std::size_t>(by)];
      const auto after = [&](int other) {
        if (other != by) stream.after(*streams[static_cast<std::size_t>(other)]);
      };
      after(writer[from]);
      after(writer[to]);
      for (const int reader : readers[to]) after(reader);
      backend->copy({buffers[static_cast<std::size_t>(to)]->data(), Device::host(to % kStreams),
                     buffers[static_cast<std::size_t>(from)]->data(), Device::host(from % kStreams), 64},
                    stream.handle());
      expected[to] = expected[from];
      readers[from].insert(by);
      readers[to].clear();
      writer[to] = by;
    }
    for (auto& stream : streams) stream->synchronize();
    for (int i = 0; i < kBuffers; ++i) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(buffers[static_cast<std::size_t>(i)]->data());
      CHECK(bytes[0] == expected[i]);
      CHECK(bytes[63] == expected[i]);
    }
  }
}
