// lockstep-failure-drill: whatever a rank does, wherever it is, the others hear of it, leave nothing behind, and go on
// without it. Each cell runs in processes of its own.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "judge.h"
#include "machine.h"
#include "rank.h"

namespace {

using namespace failures;

constexpr const char* kUsage =
    "usage: lockstep-failure-drill [--cells] [--only CELL] [--some N] [--seed S] [--jobs N] [--json FILE]\n"
    "                              [--table FILE]\n"
    "\n"
    "Runs every cell: a place in a training, a fault that strikes one of four ranks there, and what the ranks are.\n"
    "  --cells       lists them instead\n"
    "  --only CELL   that one, and what its ranks say\n"
    "  --some N      N of those that can occur, drawn from the seed\n"
    "  --seed S      says which rank fails (default 1)\n"
    "  --jobs N      cells at a time (default: twice the cores)\n"
    "  --json FILE   writes the figures there\n"
    "  --table FILE  replaces the table between the markers there\n"
    "Exits with 0 when all passed, 1 when one did not, 2 on a wrong argument.\n";
constexpr const char* kBegin = "<!-- failure drill -->\n";
constexpr const char* kEnd = "<!-- end of the failure drill -->\n";

struct Options {
  bool list = false;
  std::string only, json, table;
  std::uint64_t seed = 1;
  std::size_t some = 0, jobs = 0;
};

struct Result {
  Cell cell;
  std::string impossible;
  Verdict verdict = {};
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") std::fputs(kUsage, stdout), std::exit(0);
    if (name == "--cells") {
      options.list = true;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument("expected a known argument, and a value after it, got " + name);
    const std::string value = argv[++i];
    const auto number = [&] {
      if (value.empty() || value.find_first_not_of("0123456789") != value.npos || value.size() > 18)
        throw std::invalid_argument("expected a number after " + name + ", got " + value);
      return std::stoull(value);
    };
    if (name == "--only")
      options.only = cell_of(value).name();
    else if (name == "--json")
      options.json = value;
    else if (name == "--table")
      options.table = value;
    else if (name == "--seed")
      options.seed = number();
    else if (name == "--some")
      options.some = number();
    else if (name == "--jobs")
      options.jobs = number();
    else
      throw std::invalid_argument("unknown argument " + name);
  }
  if (options.jobs == 0) options.jobs = 2 * std::max(1u, std::thread::hardware_concurrency());
  return options;
}

std::vector<Result> cells_of(const Options& options) {
  std::vector<Result> results;
  for (const Cell& cell : all_cells())
    if (options.only.empty() || cell.name() == options.only) results.push_back({cell, cell.impossible()});
  if (options.some == 0) return results;
  std::erase_if(results, [](const Result& result) { return !result.impossible.empty(); });
  std::uint64_t state = options.seed;
  for (std::size_t i = results.size(); i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(results[i - 1], results[(state >> 33) % i]);
  }
  results.resize(std::min(results.size(), options.some));
  return results;
}

std::string path_of_this_program() {
  char path[4096];
  const ssize_t length = ::readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) throw std::runtime_error("expected to find this program in /proc/self/exe");
  return {path, static_cast<std::size_t>(length)};
}

void run_all(std::vector<Result>& results, const Options& options) {
  const std::string program = path_of_this_program();
  std::atomic<std::size_t> next{0};
  std::mutex mutex;  // of the output
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < options.jobs; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i; (i = next++) < results.size();) {
        Result& result = results[i];
        if (!result.impossible.empty()) continue;
        try {
          result.verdict = judge(result.cell, options.seed, program);
        } catch (const std::exception& error) {
          result.verdict.wrong = error.what();
        }
        const std::lock_guard lock(mutex);
        const bool wrong = !result.verdict.wrong.empty();
        if (wrong)
          std::fprintf(stderr, "WRONG %s: %s\n  again: %s --only %s --seed %llu\n", result.cell.name().c_str(),
                       result.verdict.wrong.c_str(), program.c_str(), result.cell.name().c_str(),
                       static_cast<unsigned long long>(options.seed));
        if (wrong || !options.only.empty()) std::fputs(result.verdict.log.c_str(), stderr);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string outcome_of(const Result& result) {
  if (!result.impossible.empty()) return "impossible";
  if (!result.verdict.wrong.empty()) return "WRONG";
  if (result.cell.may_be_noticed_before()) return "at the deadline, or at once";
  return result.verdict.at_deadline ? "at the deadline" : "at once";
}

std::string table_of(const std::vector<Result>& results) {
  std::string text = "| where | what |";
  for (int l = 0; l < kLayouts; ++l) text += std::string(" ") + text_of(static_cast<Layout>(l)) + " |";
  text += "\n|---|---|---|---|---|\n";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Cell& cell = results[i].cell;
    if (i % kLayouts == 0) text += std::string("| ") + text_of(cell.place) + " | " + text_of(cell.fault) + " |";
    text += ' ' + outcome_of(results[i]) + (i % kLayouts == kLayouts - 1 ? " |\n" : " |");
  }
  return text;
}

void replace_table(const std::string& path, const std::string& table) {
  std::ostringstream before;
  before << std::ifstream(path).rdbuf();
  std::string text = before.str();
  const std::size_t begin = text.find(kBegin), end = text.find(kEnd);
  if (begin == text.npos || end == text.npos || end < begin)
    throw std::runtime_error("expected the table's two markers in " + path);
  const std::size_t from = begin + std::strlen(kBegin);
  text.replace(from, end - from, '\n' + table + '\n');
  if (text == before.str()) return;
  std::ofstream file(path);
  if (!(file << text).flush()) throw std::runtime_error("expected to write " + path);
}

void write_json(const std::string& path, const std::vector<Result>& results) {
  std::ofstream file(path);
  file << '[';
  for (std::size_t i = 0; i < results.size(); ++i)
    file << (i ? ",\n " : "") << "{\"cell\": \"" << results[i].cell.name() << "\", \"outcome\": \""
         << outcome_of(results[i]) << "\", \"seconds\": " << results[i].verdict.seconds << '}';
  if (!(file << "]\n").flush()) throw std::runtime_error("expected to write " + path);
}

int drill(const Options& options) {
  std::vector<Result> results = cells_of(options);
  if (options.list) {
    for (const Result& result : results)
      std::printf("%s%s%s\n", result.cell.name().c_str(),
                  result.impossible.empty() ? "" : "  impossible: ", result.impossible.c_str());
    return 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  adopt_orphans();
  run_all(results, options);
  const std::string left = children_left();
  if (!left.empty()) std::fprintf(stderr, "WRONG at the end: %s\n", left.c_str());
  const auto count = [&](auto&& counts) { return std::count_if(results.begin(), results.end(), counts); };
  const auto impossible = count([](const Result& each) { return !each.impossible.empty(); });
  const auto cells = static_cast<std::ptrdiff_t>(results.size()) - impossible;  // that can occur
  const auto passed = count([](const Result& each) { return each.impossible.empty() && each.verdict.wrong.empty(); });
  for (const Result& each : results)
    if (!each.impossible.empty())
      std::printf("%s is impossible: %s\n", each.cell.name().c_str(), each.impossible.c_str());
  if (!options.json.empty()) write_json(options.json, results);
  if (!options.table.empty() && why_no_fake_nccl().empty()) {  // else the documents would know less than before
    if (results.size() != all_cells().size()) throw std::runtime_error("expected all cells for the table");
    replace_table(options.table, table_of(results));
  }
  std::printf("seconds=%.1f\ndrill: cells=%td passed=%td impossible=%td\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), cells, passed,
              impossible);
  return left.empty() && passed == cells ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 7 && std::strcmp(argv[1], "--rank-process") == 0)
      return run_rank_process({cell_of(argv[2]), std::stoull(argv[3]), std::atoi(argv[4]), argv[5], argv[6]});
    return drill(parse(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "lockstep-failure-drill: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep-failure-drill: %s\n", error.what());
    return 1;
  }
}
