// lockstep-memory-drill: memory of the host that runs out anywhere. The k-th `operator new` of a phase fails, for every
// k: making a wrapper, forward, derivatives of derivatives, backward, step, refresh, a call of one replica, and letting
// go of it all. It must be an exception that says so; then the same again must work, with the same bits; nothing may
// hang, end the process or leave memory of the devices behind.
#include <errno.h>  // program_invocation_short_name
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "failing_new.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/log.h"
#include "phases.h"

namespace {

using namespace lockstep;
using namespace memory_drill;

constexpr const char* kUsage =
    "usage: %s [--devices N] [--every M] [--seed S] [--phase NAME] [--k K] [--mode once|lasting]\n"
    "\n"
    "Makes the k-th `operator new` of each phase fail, once or from then on, for every k, on N devices (default 1, 2\n"
    "and 5). --every M: of M successive k one, drawn from S. --k: that one alone.\n"
    "Exits with 0 when everything was right, 1 when something was not, 2 on a wrong argument.\n";

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kPatienceSeconds = 600;
#else
constexpr int kPatienceSeconds = 120;
#endif

// Whether an exception says that memory has run out, by itself or by what is nested in it.
bool says_so(const std::exception& error) {
  if (dynamic_cast<const OutOfMemory*>(&error) || dynamic_cast<const std::bad_alloc*>(&error)) return true;
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& nested) {
    return says_so(nested);
  } catch (...) {
  }
  return false;
}

// What failed on a stream and nobody has asked for yet.
void settle(const std::vector<Device>& devices) {
  for (const Device device : devices)
    for (int i = 0; i < 4; ++i) {
      try {
        synchronize(device);
      } catch (const std::exception&) {
      }
    }
}

std::size_t in_use() {
  std::size_t bytes = 0;
  for (const Device device : all_devices()) bytes += memory_stats(device).in_use_bytes;
  return bytes;
}
// The thread of a device may hold on to what it has run for a moment longer.
std::size_t in_use_at_last(std::size_t wanted) {
  for (int i = 0; i < 10'000 && in_use() != wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return in_use();
}

struct Outcome {
  bool struck = false, threw = false;
  std::string wrong;
};

struct Expected {
  Doubles loss, gradients, weights, refreshed, answer, second;
};

// All phases, of which one meets the failure.
Outcome trial(State& s, int failing, std::int64_t k, bool lasting, Expected* expected, bool record) {
  Outcome outcome;
  const auto say = [&](const std::string& what) {
    if (outcome.wrong.empty()) outcome.wrong = what;
  };
  const auto compare = [&](Doubles Expected::*part, Doubles got, const char* what) {
    if (record)
      expected->*part = std::move(got);
    else if (got != expected->*part)
      say(std::string(what) + " differ");
  };
  for (int p = 0; p < static_cast<int>(phases().size()); ++p) {
    const Phase& phase = phases()[static_cast<std::size_t>(p)];
    // What has no bearing on the phase is left out, but for a few.
    const bool matters = p == failing || failing < 0 || k % 16 == 0 || p + 1 == static_cast<int>(phases().size());
    if (!matters && (p > failing || std::strcmp(phase.name, "second") == 0)) continue;
    Doubles before;
    if (p == failing && std::strcmp(phase.name, "step") == 0) before = weights(s);
    bool again = false;
    std::string caught;
    try {
      phase.before(s);
    } catch (const std::exception& error) {
      say(std::string("before ") + phase.name + ": " + error.what());
      return outcome;
    }
    if (p == failing) {
      settle(s.devices);  // what earlier phases enqueued is theirs
      arm(k, lasting);
      try {
        phase.run(s);
        outcome.struck = disarm();
      } catch (const std::exception& error) {
        outcome.struck = disarm();
        again = outcome.threw = true;
        if (!says_so(error)) caught = error.what();
      }
      if (!caught.empty()) say("threw: " + caught);
      // On streams that work on their own a failure may come later.
      if (outcome.struck && !default_stream(s.devices[0]).synchronous()) again = true;
      if (again) settle(s.devices);
    }
    try {
      if (again && std::strcmp(phase.name, "step") == 0) {
        // A step moves all or nothing where it ends in the call.
        if (default_stream(s.devices[0]).synchronous() && weights(s) != before && outcome.threw)
          say("a step that failed has moved something");
        make(s);
        for (int q = 1; q <= p; ++q) {
          phases()[static_cast<std::size_t>(q)].before(s);
          phases()[static_cast<std::size_t>(q)].run(s);
        }
      } else if (again && p + 2 < static_cast<int>(phases().size())) {
        phase.before(s);
        phase.run(s);
      } else if (p != failing) {
        phase.run(s);
      }
      if (std::strcmp(phase.name, "forward") == 0) compare(&Expected::loss, values(s.loss), "losses");
      if (std::strcmp(phase.name, "replica") == 0) compare(&Expected::answer, values(s.answer), "answers of a replica");
      if (std::strcmp(phase.name, "second") == 0) compare(&Expected::second, second_gradients(s), "second gradients");
      if (std::strcmp(phase.name, "backward") == 0) compare(&Expected::gradients, gradients(s), "gradients");
      if (std::strcmp(phase.name, "step") == 0) compare(&Expected::weights, weights(s), "weights");
      if (std::strcmp(phase.name, "refresh") == 0) compare(&Expected::refreshed, values(s.refreshed), "results");
    } catch (const std::exception& error) {
      say(std::string("afterwards, ") + phase.name + ": " + error.what());
      s.loss = s.refreshed = s.answer = Tensor();
      s.optimizer.reset();
      s.net.reset();
      return outcome;
    }
  }
  return outcome;
}

// ---- watching

std::atomic<std::int64_t> current_k{0};
std::atomic<const char*> current_phase{""};
std::atomic<int> current_devices{0};
std::atomic<std::uint64_t> trials{0};

void tell_where() {
  char text[200];
  const int length = std::snprintf(text, sizeof text, "memory: devices=%d phase=%s k=%lld\n", current_devices.load(),
                                   current_phase.load(), static_cast<long long>(current_k.load()));
  (void)!write(2, text, static_cast<std::size_t>(length));
}

void watch() {
  std::thread([] {
    std::uint64_t seen = 0;
    for (int quiet = 0;; ++quiet) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (const std::uint64_t now = trials; now != seen) seen = now, quiet = 0;
      if (quiet < kPatienceSeconds) continue;
      std::fprintf(stderr, "memory: hangs\n");
      tell_where();
      std::_Exit(1);
    }
  }).detach();
  std::set_terminate([] {
    tell_where();
    std::abort();
  });
}

struct Options {
  std::vector<int> devices{1, 2, 5};
  std::int64_t every = 1, k = 0;
  std::uint64_t seed = 1;
  std::string phase, mode;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::printf(kUsage, program_invocation_short_name);
      std::exit(0);
    }
    const std::string value = i + 1 < argc ? argv[++i] : "";
    const long long number = std::atoll(value.c_str());
    const bool positive = number > 0 && number < 1'000'000'000;
    if (name == "--devices" && positive && number <= 12)
      options.devices = {static_cast<int>(number)};
    else if (name == "--every" && positive)
      options.every = number;
    else if (name == "--seed" && positive)
      options.seed = static_cast<std::uint64_t>(number);
    else if (name == "--k" && positive)
      options.k = number;
    else if (name == "--phase" && !value.empty())
      options.phase = value;
    else if (name == "--mode" && (value == "once" || value == "lasting"))
      options.mode = value;
    else {
      std::fprintf(stderr, "wrong argument: %s %s\n", name.c_str(), value.c_str());
      std::fprintf(stderr, kUsage, program_invocation_short_name);
      std::exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  configure_host({.devices = 12});
  set_log_level(LogLevel::off);
  watch();
  std::uint64_t draw = options.seed;
  std::int64_t tried = 0, threw = 0, wrong = 0, leaks = 0;
  for (const int count : options.devices) {
    current_devices = count;
    std::vector<Device> devices;
    for (int i = 0; i < count; ++i) devices.push_back(Device::host(i));
    Net source;
    Expected expected;
    const auto fresh = [&] { return State(devices, source); };
    {
      for (int i = 0; i < 2; ++i) {  // the first makes what is made once
        State s = fresh();
        const Outcome plain = trial(s, -1, 0, false, &expected, true);
        if (!plain.wrong.empty()) {
          std::fprintf(stderr, "memory: without a failure: %s\n", plain.wrong.c_str());
          return 1;
        }
      }
    }
    settle(all_devices());
    const std::size_t base = in_use();
    for (std::size_t p = 0; p < phases().size(); ++p) {
      if (!options.phase.empty() && options.phase != phases()[p].name) continue;
      current_phase = phases()[p].name;
      for (const bool lasting : {false, true}) {
        if (!options.mode.empty() && (options.mode == "lasting") != lasting) continue;
        std::int64_t in_phase = 0, threw_in_phase = 0, among = options.every;
        for (std::int64_t begin = 1;;) {
          draw = draw * 6364136223846793005u + 1442695040888963407u;
          const std::int64_t k =
              options.k ? options.k
                        : begin + static_cast<std::int64_t>((draw >> 33) % static_cast<std::uint64_t>(among));
          current_k = k;
          ++trials;
          Outcome outcome;
          const auto once = [&] {
            State s = fresh();
            outcome = trial(s, static_cast<int>(p), k, lasting, &expected, false);
          };
          once();
          settle(devices);
          if (!outcome.wrong.empty()) {  // also where it was not struck: what went before has left something broken
            ++wrong;
            std::printf("wrong: devices=%d phase=%s mode=%s k=%lld: %s\n", count, phases()[p].name,
                        lasting ? "lasting" : "once", static_cast<long long>(k), outcome.wrong.c_str());
          }
          if (const std::size_t now = in_use_at_last(base); now != base && outcome.wrong.empty()) {
            ++leaks;
            std::printf("leak: devices=%d phase=%s mode=%s k=%lld: %lld bytes of the devices\n", count,
                        phases()[p].name, lasting ? "lasting" : "once", static_cast<long long>(k),
                        static_cast<long long>(now) - static_cast<long long>(base));
          }
          if (outcome.struck) {
            ++tried, ++in_phase;
            threw += outcome.threw, threw_in_phase += outcome.threw;
            begin += options.every;
            among = options.every;
          } else if (in_phase == 0 && k > 1 && outcome.wrong.empty()) {
            among = k - 1;  // a short phase is met too
          } else {
            break;
          }
          if (options.k) break;
        }
        std::printf("memory: devices=%d phase=%s mode=%s tried=%lld threw=%lld\n", count, phases()[p].name,
                    lasting ? "lasting" : "once", static_cast<long long>(in_phase),
                    static_cast<long long>(threw_in_phase));
        std::fflush(stdout);
      }
    }
  }
  std::printf("memory: tried=%lld threw=%lld wrong=%lld leaks=%lld\n", static_cast<long long>(tried),
              static_cast<long long>(threw), static_cast<long long>(wrong), static_cast<long long>(leaks));
  if (tried == 0) std::fprintf(stderr, "memory: expected failures, got none: nothing was tried\n");
  return wrong + leaks > 0 || tried == 0 ? 1 : 0;
}
