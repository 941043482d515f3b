#include "collective_options.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cmath>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::bench {
namespace {

using namespace lockstep;
using Kind = Collective::Kind;

template <class T>
using Named = std::vector<std::pair<std::string, T>>;

constexpr std::size_t kMostSizes = 100'000;

// The first name of a value is the one that is shown.
const Named<DType>& dtypes() {
  static const Named<DType> names{
      {"float", DType::f32},    {"double", DType::f64}, {"half", DType::f16}, {"bfloat16", DType::bf16},
      {"int32", DType::i32},    {"int64", DType::i64},  {"uint8", DType::u8}, {"int8", DType::i8},
      {"bool", DType::boolean}, {"int", DType::i32},    {"f32", DType::f32},  {"f64", DType::f64},
      {"f16", DType::f16},      {"i32", DType::i32},    {"i64", DType::i64},  {"u8", DType::u8},
      {"i8", DType::i8},        {"bf16", DType::bf16},
  };
  return names;
}
constexpr std::size_t kDifferentDtypes = 9;

const Named<RedOp>& reductions() {
  static const Named<RedOp> names{{"sum", RedOp::sum}, {"prod", RedOp::product}, {"max", RedOp::max},
                                  {"min", RedOp::min}, {"avg", RedOp::avg},      {"product", RedOp::product}};
  return names;
}
constexpr std::size_t kDifferentReductions = 5;

// The `different` first ones for "all".
template <class T>
Named<T> chosen(const Named<T>& names, std::size_t different, const std::string& name) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(different);
  if (name == "all") return {names.begin(), end};
  for (const auto& each : names)
    if (each.first == name) return {each};
  return {};
}

template <class T>
CLI::Option* add_choice(CLI::App& app, const char* flag, std::string& value, const Named<T>& names,
                        std::size_t different, const std::string& help) {
  std::string list;
  for (std::size_t i = 0; i < different; ++i) list += names[i].first + ", ";
  list += "or all";
  return app.add_option(flag, value, cat(help, list, " (default ", value, ")"))
      ->check([&names, different, list](const std::string& text) {
        return chosen(names, different, text).empty() ? cat("expected ", list, ", got '", text, "'") : std::string();
      });
}

// "64", "4K", "1.5M", "1G": binary. Negative for what is no size.
double parse_size(const std::string& text) {
  std::size_t end = 0;
  double number = -1;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    return -1;
  }
  const std::string unit = text.substr(end);
  if (unit.size() > 1 || !std::isfinite(number)) return -1;
  double scale = 1;
  if (unit.size() == 1) {
    const std::string units = "KMGT";
    const std::size_t at = units.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (at == units.npos) return -1;
    scale = std::exp2(10.0 * static_cast<double>(at + 1));
  }
  return number * scale < 0x1p60 ? number * scale : -1;
}

std::string why_no_size(const std::string& text) {
  return parse_size(text) >= 0 ? "" : cat("expected a number of bytes, with K, M, G or T, got '", text, "'");
}

std::string why_no_root(const std::string& text) {
  const bool number = !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == text.npos;
  return number || text == "all" || text == "-1" ? "" : cat("expected a rank, or all, got '", text, "'");
}

}  // namespace

void CollectiveOptions::declare(CLI::App& app) {
  const CLI::Range flag(0, 1), count(0, 1 << 30), at_least_one(1, 1 << 30);
  app.option_defaults()->take_last();  // as getopt does
  app.add_option("-t,--nthreads", threads,
                 "Threads of each process (default: one for each device; under a launcher of several processes 1)")
      ->check(CLI::Range(1, 1024));
  app.add_option("-g,--ngpus", per_thread,
                 "Devices of each thread (default 1). Each is a rank, with a thread of its own after all: there are "
                 "processes x threads x devices ranks")
      ->check(CLI::Range(1, 1024));
  app.add_option("-b,--minbytes", smallest, "Smallest message, with K, M, G or T (default 32M)")->check(why_no_size);
  app.add_option("-e,--maxbytes", largest, "Largest message (default 32M)")->check(why_no_size);
  app.add_option("-i,--stepbytes", step, "Step between sizes, without a factor (default 1M)")->check(why_no_size);
  app.add_option("-f,--stepfactor", factor, "Factor between sizes, above 1");
  app.add_option("-n,--iters", iterations, "Timed iterations of each size (default 20)")->check(at_least_one);
  app.add_option("-m,--agg_iters", aggregate, "Calls in each iteration (default 1)")->check(at_least_one);
  app.add_option("-w,--warmup_iters", warmup, "Calls before them (default 1)")->check(count);
  app.add_option("-c,--check", check, "Calls whose results are compared, of each size; 0: none (default 1)")
      ->check(count);
  add_choice(app, "-o,--op", reduction, reductions(), kDifferentReductions, "What is reduced: ");
  add_choice(app, "-d,--datatype", dtype, dtypes(), kDifferentDtypes, "Elements: ");
  app.add_option("-r,--root", root, "Root of broadcast, reduce, gather and scatter, or all (default 0)")
      ->check(why_no_root);
  app.add_option("-a,--average", average,
                 "Which rank's time: 0 rank 0, 1 the mean, 2 the least, 3 the most (default 1)")
      ->check(CLI::Range(0, 3));
  app.add_option("-z,--blocking", blocking, "1: each call waits for the device (default 0)")->check(flag);
  app.add_option("-C,--report_cputime", cpu_time, "1: the time until all is enqueued, not until it is done (default 0)")
      ->check(flag);
  app.add_option("-p,--parallel_init", parallel_init, "0 or 1: the ranks always begin in parallel")->check(flag);
  app.add_option("-T,--timeout", timeout_seconds, "Seconds until a rank that does not come is an error (default 600)")
      ->check(count);
  app.add_option("-G,--cudagraph", cuda_graph, "0: collectives in CUDA graphs are not supported")->check(count);
  app.add_option("-y,--stream_null", stream_null, "0: every rank has a stream of its own")->check(flag);
  app.add_option("-R,--local_register", local_register, "0: memory is not registered")->check(CLI::Range(0, 2));
  app.add_option("-J,--output_file", json_file, "Write JSON to this file as well");
  app.add_option("--devices", devices, "Device list, used over and over (default: all accelerators)");
  app.add_flag("--spoil", spoil, "Make results wrong before they are compared")->group("");
  app.footer("Under lockstep-run, torchrun, mpirun or srun the ranks are those of all processes, and rank 0 prints.");
}

std::vector<std::size_t> CollectiveOptions::sizes() const {
  const double first = parse_size(smallest), last = parse_size(largest), by = parse_size(step);
  LOCKSTEP_CHECK(first <= last, "[-b] expected at most the largest size, ", largest, ", got ", smallest);
  LOCKSTEP_CHECK(factor > 1 || (factor == 0 && by > 0), "[-f] expected a factor above 1, or steps, got ", factor);
  std::vector<std::size_t> all;
  for (double size = first; size <= last; size = factor > 0 ? std::max(size * factor, 1.0) : size + by) {
    LOCKSTEP_CHECK(all.size() < kMostSizes, "[-i] expected at most ", kMostSizes, " sizes from ", smallest, " to ",
                   largest, ", got more");
    all.push_back(static_cast<std::size_t>(size));
  }
  return all;
}

std::vector<CollectiveOptions::Row> CollectiveOptions::rows(Kind kind, int ranks) const {
  const auto unsupported = [](const char* flag, int value, const char* why) {
    if (value != 0) throw NotSupported(cat("[", flag, "] expected 0, got ", value, ": ", why));
  };
  unsupported("-G", cuda_graph, "collectives cannot be captured into CUDA graphs here");
  unsupported("-y", stream_null, "every rank has a stream of its own, and the null stream is none of them");
  unsupported("-R", local_register, "memory is not registered with the transport");

  const bool reduces = Collective{.kind = kind}.reduces(), has_root = Collective{.kind = kind}.has_root();
  std::vector<int> roots{-1};
  if (has_root) {
    const int only = root == "all" ? -1 : std::stoi(root);
    LOCKSTEP_CHECK(only < ranks, "[-r] expected a rank below ", ranks, ", got ", only);
    roots.assign(1, only);
    if (only < 0) roots.clear();
    for (int r = 0; only < 0 && r < ranks; ++r) roots.push_back(r);
  }
  Named<RedOp> ops{{"none", RedOp::sum}};
  if (reduces) ops = chosen(reductions(), kDifferentReductions, reduction);
  const std::vector<std::size_t> all_sizes = sizes();
  std::vector<Row> all;
  for (const auto& [dtype_name, type] : chosen(dtypes(), kDifferentDtypes, dtype))
    for (const auto& [op_name, op] : ops) {
      if (op == RedOp::avg && !is_floating(type)) {
        LOCKSTEP_CHECK(dtype == "all" || reduction == "all", "[-o] expected a floating datatype for avg, got ", dtype);
        continue;
      }
      for (const int its_root : roots)
        for (const std::size_t bytes : all_sizes) all.push_back({type, dtype_name, op, op_name, its_root, bytes});
    }
  return all;
}

Milliseconds CollectiveOptions::timeout() const {
  return timeout_seconds > 0 ? Milliseconds(std::int64_t{1000} * timeout_seconds) : kDefaultTimeout;
}

}  // namespace lockstep::bench
