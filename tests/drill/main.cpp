// lockstep-drill (virtual host devices in mode strict) and lockstep-fake-drill (CUDA devices on the fake runtime):
// seeded schedules and seeded faults, each run in a process of its own. Every result is compared bit for bit with plain
// arithmetic; every error must be of the right type and name the right device; afterwards the process must go on,
// exactly, and no memory may be left in use.
#include <errno.h>  // program_invocation_short_name
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "plan.h"
#include "processes.h"
#include "run.h"

namespace {

using namespace drill;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kPatience = 6;
#else
constexpr int kPatience = 1;
#endif

constexpr const char* kUsage =
    "usage: %s [--schedules N] [--faults N] [--seed S] [--jobs N] [--json FILE]\n"
    "       [--schedule SEED | --fault SEED]\n"
    "\n"
    "Runs N seeded schedules and N seeded faults (default 1000 each) from seed S (default 1) on.\n"
    "--schedule and --fault do one alone, and say what it consists of.\n"
    "Exits with 0 when everything was right, 1 when something was not, 2 on a wrong argument.\n";

struct Options {
  int schedules = 1000, faults = 1000, jobs = 0;
  std::uint64_t seed = 1;
  bool one = false;  // show its plan
  std::string json;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::printf(kUsage, program_invocation_short_name);
      std::exit(0);
    }
    if (i + 1 == argc) throw std::invalid_argument("expected a value after " + name);
    const std::string value = argv[++i];
    if (name == "--json") {
      options.json = value;
      continue;
    }
    std::size_t used = 0;
    const unsigned long long number = value.find('-') == value.npos ? std::stoull(value, &used) : 0;
    if (used != value.size()) throw std::invalid_argument("expected a number after " + name + ", got " + value);
    if (name == "--schedules")
      options.schedules = static_cast<int>(number);
    else if (name == "--faults")
      options.faults = static_cast<int>(number);
    else if (name == "--jobs")
      options.jobs = static_cast<int>(number);
    else if (name == "--seed")
      options.seed = number;
    else if (name == "--schedule")
      options.seed = number, options.schedules = 1, options.faults = 0, options.one = true;
    else if (name == "--fault")
      options.seed = number, options.schedules = 0, options.faults = 1, options.one = true;
    else
      throw std::invalid_argument("unknown argument " + name);
  }
  if (options.jobs < 1) options.jobs = std::max(1u, std::thread::hardware_concurrency());
  return options;
}

struct Counts {
  int wrong = 0, hangs = 0, leaks = 0, misreported = 0, done = 0;
  std::map<std::string, int> by_fault, struck_by_fault, thrown_by_fault;
  bool good() const { return wrong + hangs + leaks + misreported == 0; }
};

// What a process says: three figures and a text.
std::string encode(const Result& result) {
  return std::to_string(static_cast<int>(result.verdict)) + (result.struck ? " 1" : " 0") +
         (result.thrown ? " 1 " : " 0 ") + result.message;
}

void count(const Plan& plan, const Outcome& outcome, const char* program, Counts& counts) {
  ++counts.done;
  std::string problem;
  if (outcome.end == Outcome::End::hung) {
    ++counts.hangs;
    problem = "hang: " + outcome.text;
  } else if (outcome.end == Outcome::End::crashed || outcome.text.size() < 6) {
    ++counts.wrong;
    problem = "crash: " + outcome.text;
  } else {
    const auto verdict = static_cast<Verdict>(outcome.text[0] - '0');
    const std::string name = plan.machine->fault();
    if (plan.with_fault) ++counts.by_fault[name];
    if (outcome.text[2] == '1') ++counts.struck_by_fault[name];
    if (outcome.text[4] == '1') ++counts.thrown_by_fault[name];
    if (verdict == Verdict::wrong) ++counts.wrong, problem = "wrong: ";
    if (verdict == Verdict::leak) ++counts.leaks, problem = "leak: ";
    if (verdict == Verdict::misreported) ++counts.misreported, problem = "misreported: ";
    if (!problem.empty()) problem += outcome.text.substr(6);
  }
  if (problem.empty()) return;
  const char* what = plan.with_fault ? "--fault" : "--schedule";
  std::fprintf(stderr, "%s%s %llu: %s\n  again: %s %s %llu\n", isatty(2) ? "\r\033[K" : "", what + 2,
               static_cast<unsigned long long>(plan.seed), problem.c_str(), program, what,
               static_cast<unsigned long long>(plan.seed));
}

void show_progress(const Counts& counts, int total) {
  if (isatty(2))
    std::fprintf(stderr, "\r%d of %d", counts.done, total);
  else if (counts.done % 250 == 0)
    std::fprintf(stderr, "%d of %d\n", counts.done, total);
}

std::string json_of(const std::map<std::string, int>& numbers) {
  std::string text = "{";
  for (const auto& [name, number] : numbers) {
    text += (text.size() > 1 ? ", \"" : "\"") + name + "\": " + std::to_string(number);
  }
  return text + "}";
}

void write_json(const Options& options, const Counts& counts, double seconds) {
  std::ofstream file(options.json);
  file << "{\"schedules\": " << options.schedules << ", \"faults\": " << options.faults
       << ", \"seed\": " << options.seed << ", \"wrong\": " << counts.wrong << ", \"hangs\": " << counts.hangs
       << ", \"leaks\": " << counts.leaks << ", \"misreported\": " << counts.misreported << ", \"seconds\": " << seconds
       << ",\n \"faults_by_kind\": " << json_of(counts.by_fault)
       << ",\n \"struck\": " << json_of(counts.struck_by_fault)
       << ",\n \"reported\": " << json_of(counts.thrown_by_fault) << "}\n";
  if (!file.flush()) throw std::runtime_error("expected to write " + options.json);
}

int drill_all(const Options& options, const char* program) {
  const int total = options.schedules + options.faults;
  const auto plan_of = [&](std::size_t i) {
    const bool with_fault = static_cast<int>(i) >= options.schedules;
    return draw_plan(options.seed + i - (with_fault ? static_cast<std::size_t>(options.schedules) : 0), with_fault);
  };
  Counts counts;
  const auto begin = std::chrono::steady_clock::now();
  run_processes(
      static_cast<std::size_t>(total), options.jobs, std::chrono::seconds(120 * kPatience),
      [&](std::size_t i) {
        const Plan plan = plan_of(i);
        if (options.one) std::fprintf(stderr, "%s\n", plan.text().c_str());
        return encode(run(plan, {kPatience}));
      },
      [&](std::size_t i, const Outcome& outcome) {
        count(plan_of(i), outcome, program, counts);
        show_progress(counts, total);
      });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (isatty(2)) std::fputs("\r\033[K", stderr);
  for (const auto& [kind, number] : counts.by_fault) {
    std::printf("%-12s %4d drawn, %4d met something, %4d were reported\n", kind.c_str(), number,
                counts.struck_by_fault[kind], counts.thrown_by_fault[kind]);
  }
  if (!options.json.empty()) write_json(options, counts, seconds);
  std::printf("drill: schedules=%d faults=%d wrong=%d hangs=%d leaks=%d misreported=%d seconds=%.1f\n",
              options.schedules, options.faults, counts.wrong, counts.hangs, counts.leaks, counts.misreported, seconds);
  return counts.good() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, error.what());
    std::fprintf(stderr, kUsage, program_invocation_short_name);
    return 2;
  }
  try {
    return drill_all(options, argv[0]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, error.what());
    return 1;
  }
}
