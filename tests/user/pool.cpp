// A server under everything at once: clients that cancel, give little time and send what cannot be computed, weights
// that are exchanged, a device that is lost, a replica that hangs. Every request ends, each answer is right and of one
// version, and all memory comes back.
//
//   lockstep-user-pool [requests] [seed]
//   lockstep-user-pool allocations     what a request allocates, beside the module's own call
//   lockstep-user-pool fork            what a child of the process finds: an error at once, also at the end of the pool
//
// Last line of the first: `pool: requests=N answered=… failed=… cancelled=… late=… refused=… moved=… wrong=0 open=0
// leaked=0`. Exit code 1 when something was wrong.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"

namespace {
std::atomic<long> allocations{0};
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes)) return memory;  // NOLINT: this is operator new
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }               // NOLINT
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }  // NOLINT

namespace {

using namespace lockstep;
using namespace std::chrono_literals;

constexpr int kClients = 8, kParts = 4;
constexpr Device kLost = Device::host(2);

struct Trouble {
  std::atomic<bool> lose{false};
  std::atomic<int> hang{0};  // calls that are to hang
};

// Each row of its answer is its number times the version of each part.
struct Net : Module<Net> {
  std::vector<Parameter> parts;
  std::shared_ptr<Trouble> trouble = std::make_shared<Trouble>();
  Net() {
    for (int i = 0; i < kParts; ++i) parts.emplace_back(ones({16}, {.dtype = DType::f64}), false);
  }
  Tensor forward(const Tensor& x) const {
    if (trouble->lose && x.device() == kLost) throw DeviceError(kLost, 0, "lost on purpose");
    if (trouble->hang > 0 && trouble->hang.fetch_sub(1) > 0) std::this_thread::sleep_for(300ms);
    for (const double number : x.to_vector<double>())
      if (number < 0) throw std::runtime_error("a number below 0");
    std::vector<Tensor> seen;
    for (const Parameter& part : parts) seen.push_back(x.narrow(1, 0, 1) * part.on(x.device()).narrow(0, 15, 1));
    return cat(seen, 1);
  }
  void members(Members& m) override { m("parts", parts); }
};

std::vector<NamedTensor> version(double number) {
  std::vector<NamedTensor> state;
  for (int i = 0; i < kParts; ++i)
    state.push_back({"parts." + std::to_string(i), full({16}, number, {.dtype = DType::f64})});
  return state;
}

struct Counts {
  std::atomic<long> answered{0}, failed{0}, cancelled{0}, late{0}, refused{0}, wrong{0};
  std::atomic<long> versions{1};
};

// The answer to rows that begin with `first`.
bool right(const Tensor& answer, double first, std::int64_t rows, long versions) {
  if (answer.shape() != Shape{rows, kParts}) return false;
  const std::vector<double> values = answer.to_vector<double>();
  const double number = values[0] / first;
  if (number != std::floor(number) || number < 1 || number > static_cast<double>(versions)) return false;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != (first + static_cast<double>(i / kParts)) * number) return false;
  return true;
}

void settle(Answer<Tensor> answer, double first, std::int64_t rows, Counts& counts) {
  try {
    const Tensor y = answer.get();
    ++(first < 0 || !right(y, first, rows, counts.versions) ? counts.wrong : counts.answered);
  } catch (const Cancelled&) {
    ++counts.cancelled;
  } catch (const TimeoutError&) {
    ++counts.late;
  } catch (const DeviceError&) {
    ++counts.failed;  // was moved before, from a replica that hung
  } catch (const std::exception& error) {
    if (first < 0) {
      ++counts.failed;
      return;
    }
    ++counts.wrong;
    std::fprintf(stderr, "rows that begin with %g: %s\n", first, error.what());
  }
}

void be_client(ReplicaPool<Net>& pool, long requests, std::uint64_t seed, Counts& counts) {
  std::mt19937_64 random(seed);
  const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
  struct Open {
    Answer<Tensor> answer;
    double first;
    std::int64_t rows;
  };
  std::deque<Open> open;
  for (long i = 0; i < requests; ++i) {
    const std::int64_t rows = chance(20) ? 2 + static_cast<std::int64_t>(random() % 7) : 1;
    const std::int64_t columns = chance(30) ? 2 : 1;
    const double first = chance(2) ? -1.0 : 1.0 + static_cast<double>(random() % 1000);
    Tensor x = full({rows, columns}, first, {.dtype = DType::f64});
    if (first > 0)
      for (std::int64_t row = 0; row < rows; ++row) x.narrow(0, row, 1).fill_(first + static_cast<double>(row));
    RequestOptions options{.priority = static_cast<int>(random() % 3)};
    if (chance(5)) options.timeout = Milliseconds(1 + random() % 3);
    try {
      if (chance(10)) {
        pool.submit(x, options,
                    [&counts, first, rows](Answer<Tensor> answer) { settle(std::move(answer), first, rows, counts); });
      } else {
        open.push_back({pool.submit(x, options), first, rows});
        if (chance(10)) open.back().answer.cancel();
      }
    } catch (const Refused&) {
      ++counts.refused;
    } catch (const TimeoutError&) {
      ++counts.late;
    }
    if (!open.empty() && chance(3)) open[random() % open.size()].answer.cancel();
    while (open.size() > 32 || (i + 1 == requests && !open.empty())) {
      settle(std::move(open.front().answer), open.front().first, open.front().rows, counts);
      open.pop_front();
    }
  }
}

std::size_t in_use(const std::vector<Device>& devices) {
  std::size_t bytes = 0;
  for (const Device device : devices) {
    synchronize(device);
    bytes += memory_stats(device).in_use_bytes;
  }
  return bytes;
}

int run(long requests, std::uint64_t seed) {
  set_log_level(LogLevel::error);  // what is taken out is on purpose
  const std::vector<Device> devices{Device::host(0), Device::host(1), Device::host(1), kLost};
  const std::vector<Device> used{Device::cpu(), Device::host(0), Device::host(1), kLost};
  const std::size_t before = in_use(used);
  Counts counts;
  std::uint64_t open = 0, moved = 0, lost = 0;
  {
    Net net;
    ReplicaPool pool(
        net,
        {.devices = devices, .max_batch_samples = 16, .max_delay = 200us, .max_queued = 64, .hang_timeout = 100ms});
    std::atomic<int> running{kClients};
    std::vector<std::thread> clients;
    for (int i = 0; i < kClients; ++i)
      clients.emplace_back([&, i] {
        be_client(pool, requests / kClients, seed * kClients + static_cast<std::uint64_t>(i), counts);
        --running;
      });
    // A version at least as new as the newest that an answer may be of is known before it is loaded.
    long number = 1;
    while (running > 0) {
      counts.versions = ++number;
      try {
        pool.update([&](Net& module) { module.load_state_dict(version(static_cast<double>(number))); });
      } catch (const Error&) {  // a replica hangs: the version comes after it
        --number;
        std::this_thread::sleep_for(1ms);
        continue;
      }
      if (number == 5) net.trouble->hang = 1;
      if (number == 9) net.trouble->lose = true;
      if (number % 50 == 0) net.trouble->hang = 1;
      std::this_thread::sleep_for(1ms);
    }
    for (std::thread& client : clients) client.join();
    net.trouble->lose = true;
    while (pool.stats().replicas[3].state != ReplicaState::lost) pool.submit(ones({1, 1}, {.dtype = DType::f64})).get();
    if (!pool.drain()) ++counts.wrong;
    // One that still hangs would be left to itself, with its memory.
    const auto hangs = [&] {
      const ReplicaPoolStats now = pool.stats();
      return std::any_of(now.replicas.begin(), now.replicas.end(),
                         [](const ReplicaStats& replica) { return replica.state == ReplicaState::hung; });
    };
    while (hangs()) std::this_thread::sleep_for(1ms);
    const ReplicaPoolStats stats = pool.stats();
    open = stats.queued + stats.running;
    moved = stats.moved;
    for (const ReplicaStats& replica : stats.replicas) lost += replica.state == ReplicaState::lost;
    if (stats.submitted != stats.answered + stats.failed + stats.cancelled + stats.late + stats.dropped) ++counts.wrong;
  }
  const std::size_t leaked = in_use(used) - before;
  const long ended = counts.answered + counts.failed + counts.cancelled + counts.late + counts.refused;
  std::printf(
      "pool: requests=%ld answered=%ld failed=%ld cancelled=%ld late=%ld refused=%ld moved=%lu wrong=%ld open=%lu "
      "leaked=%zu\n",
      requests / kClients * kClients, counts.answered.load(), counts.failed.load(), counts.cancelled.load(),
      counts.late.load(), counts.refused.load(), moved, counts.wrong.load(), open, leaked);
  return counts.wrong == 0 && open == 0 && leaked == 0 && lost == 1 && ended == requests / kClients * kClients ? 0 : 1;
}

// Of requests that are computed by eights.
int count_allocations() {
  const std::vector<Device> devices{Device::host(0)};
  Linear net(32, 8);
  net.to(devices[0]);
  ReplicaPool pool(net, {.devices = devices, .max_batch_samples = 8, .max_delay = 1h});
  const Tensor x = ones({1, 32}), all = ones({8, 32});
  constexpr int kRounds = 200;
  std::vector<Answer<Tensor>> answers(8);
  const auto rounds = [&] {
    const long before = allocations;
    for (int i = 0; i < kRounds; ++i) {
      for (auto& answer : answers) answer = pool.submit(x);
      for (auto& answer : answers) answer.get();
    }
    return static_cast<double>(allocations - before) / kRounds;
  };
  const auto calls = [&] {
    const InferenceMode inside;
    const long before = allocations;
    for (int i = 0; i < kRounds; ++i) net(all.to(devices[0])).to(Device::cpu());
    return static_cast<double>(allocations - before) / kRounds;
  };
  rounds(), calls();
  const std::uint64_t raw = memory_stats(devices[0]).raw_allocations + memory_stats(Device::cpu()).raw_allocations;
  const double served = rounds(), called = calls();
  const std::uint64_t raw_more =
      memory_stats(devices[0]).raw_allocations + memory_stats(Device::cpu()).raw_allocations - raw;
  std::printf("allocations: request=%.2f call=%.2f raw=%lu\n", (served - called) / 8, called, raw_more);
  return (served - called) / 8 <= 5 && raw_more == 0 ? 0 : 1;
}

// Whether it throws that the process is another one.
template <class F>
bool is_elsewhere(const char* what, F&& f) {
  try {
    f();
    std::printf("fork: %s returned\n", what);
  } catch (const Error& error) {
    if (std::string(error.what()).find("forked off since") != std::string::npos) return true;
    std::printf("fork: %s: %s\n", what, error.what());
  }
  return false;
}

int fork_a_child() {
  auto pool = std::make_unique<ReplicaPool<Linear>>(Linear(3, 2),
                                                    ReplicaPoolOptions{.devices = {Device::host(0)}, .max_delay = 20s});
  Answer<Tensor> answer = pool->submit(ones({32, 3}));  // a full batch
  answer.get();
  const Answer<Tensor> waiting = pool->submit(ones({1, 3}));  // for its window
  const pid_t child = fork();
  if (child == 0) {
    alarm(40);  // ends a child that waits for the parent's threads
    bool right = is_elsewhere("submit", [&] { pool->submit(ones({1, 3})); });
    right &= is_elsewhere("warm_up", [&] { pool->warm_up(std::tuple(ones({1, 3}))); });
    right &= is_elsewhere("update", [&] { pool->update([](Linear&) {}); });
    right &= is_elsewhere("drain", [&] { pool->drain(); });
    right &= is_elsewhere("close", [&] { pool->close(); });
    right &= is_elsewhere("cancel", [&] { waiting.cancel(); });
    right &= pool->stats().answered == 1;
    pool.reset();
    std::fflush(stdout);
    _exit(right ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0 && pool->submit(ones({32, 3})).get().shape() == Shape{32, 2} ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    configure_host({.devices = 4});
    if (argc > 1 && std::string(argv[1]) == "allocations") return count_allocations();
    if (argc > 1 && std::string(argv[1]) == "fork") return fork_a_child();
    return run(argc > 1 ? std::atol(argv[1]) : 4000, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
