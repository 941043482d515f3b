// Collectives, with the flags and columns of nccl-tests: ranks are threads of this program.
#include <CLI/CLI.hpp>
#include <cctype>
#include <fstream>
#include <map>

#include "bench.h"
#include "collective_case.h"
#include "lockstep/parallel/comm/run_ranks.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream.h"

namespace {

using namespace lockstep;
using bench::CollectiveCase;
using Kind = Collective::Kind;

struct Options {
  std::string smallest = "32M", largest = "32M", step = "1M", devices, json_file;
  double factor = 0;  // 0: by steps
  int iterations = 20, warmup = 1, check = 1, root = 0, threads = 0, per_thread = 1;
  std::string reduction = "sum", dtype = "float";
} options;

// "64", "4K", "1.5M", "1G": binary.
std::size_t parse_size(const std::string& text) {
  std::size_t end = 0;
  double number = -1;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
  }
  const std::string unit = text.substr(std::min(end, text.size()));
  const std::map<char, double> units{{'K', 0x1p10}, {'M', 0x1p20}, {'G', 0x1p30}};
  const auto found = unit.empty() ? units.end() : units.find(static_cast<char>(std::toupper(unit[0])));
  LOCKSTEP_CHECK(number >= 0 && (unit.empty() || found != units.end()),
                 "[size] expected a number with K, M or G, got '", text, "'");
  return static_cast<std::size_t>(number * (unit.empty() ? 1 : found->second));
}

DType parse_dtype(const std::string& name) {
  const std::map<std::string, DType> names{
      {"float", DType::f32}, {"double", DType::f64}, {"half", DType::f16},  {"bfloat16", DType::bf16},
      {"int32", DType::i32}, {"int", DType::i32},    {"int64", DType::i64}, {"uint8", DType::u8},
      {"f32", DType::f32},   {"f64", DType::f64},    {"f16", DType::f16},   {"bf16", DType::bf16},
      {"i32", DType::i32},   {"i64", DType::i64},    {"u8", DType::u8},     {"bool", DType::boolean},
  };
  const auto found = names.find(name);
  LOCKSTEP_CHECK(found != names.end(),
                 "[-d] expected float, double, half, bfloat16, int32, int64, uint8 or bool, got '", name, "'");
  return found->second;
}

RedOp parse_reduction(const std::string& name) {
  const std::map<std::string, RedOp> names{{"sum", RedOp::sum},         {"prod", RedOp::product},
                                               {"product", RedOp::product}, {"max", RedOp::max},
                                               {"min", RedOp::min},         {"avg", RedOp::avg}};
  const auto found = names.find(name);
  LOCKSTEP_CHECK(found != names.end(), "[-o] expected sum, prod, max, min or avg, got '", name, "'");
  return found->second;
}

std::vector<std::size_t> sizes() {
  const std::size_t first = parse_size(options.smallest), last = parse_size(options.largest);
  const std::size_t step = parse_size(options.step);
  LOCKSTEP_CHECK(first <= last, "[-b] expected at most the largest size ", last, ", got ", first);
  LOCKSTEP_CHECK(options.factor > 1 || (options.factor == 0 && step > 0), "[-f] expected a factor above 1, or steps");
  std::vector<std::size_t> all;
  for (auto size = static_cast<double>(first); size <= static_cast<double>(last);
       size = options.factor > 0 ? std::max(size * options.factor, 1.0) : size + static_cast<double>(step))
    all.push_back(static_cast<std::size_t>(size));
  return all;
}

struct Figures {
  double microseconds = 0;
  std::int64_t wrong = 0;
};

// One rank's part of a measurement.
Figures measure(Communicator& comm, Kind kind, std::size_t bytes, bool in_place) {
  CollectiveCase its(comm, kind, parse_dtype(options.dtype), parse_reduction(options.reduction), options.root, bytes,
                     in_place);
  Stream& stream = current_stream(comm.device());
  Figures figures;
  its.fill();
  if (options.check > 0) {
    its.perform();
    figures.wrong = its.count_wrong();
    its.fill();
  }
  for (int i = 0; i < options.warmup; ++i) its.perform();
  synchronize(stream);
  comm.barrier();
  const auto begin = bench::Clock::now();
  for (int i = 0; i < options.iterations; ++i) its.perform();
  synchronize(stream);
  figures.microseconds = bench::seconds_since(begin) * 1e6 / options.iterations;
  return figures;
}

// The mean time of the ranks, all their wrong elements.
Figures together(const std::vector<std::vector<Figures>>& by_rank, std::size_t index) {
  Figures sum;
  for (const std::vector<Figures>& rank : by_rank) {
    sum.microseconds += rank[index].microseconds / static_cast<double>(by_rank.size());
    sum.wrong += rank[index].wrong;
  }
  return sum;
}

void run(const char* name, Kind kind, bench::Report& report) {
  const std::vector<Device> all = options.devices.empty() ? accelerators() : parse_devices(options.devices);
  const int threads = options.threads > 0 ? options.threads : static_cast<int>(all.size());
  const int ranks = threads * options.per_thread;
  LOCKSTEP_CHECK(ranks > 0 && options.iterations > 0, "[", name, "] expected ranks and iterations, got none");
  std::vector<Device> devices;
  for (int r = 0; r < ranks; ++r) devices.push_back(all[static_cast<std::size_t>(r) % all.size()]);
  const DType dtype = parse_dtype(options.dtype);
  const std::vector<std::size_t> asked = sizes();

  std::string backend;
  const auto by_rank = run_ranks(ranks,
                                 [&](Communicator& comm) {
                                   if (comm.rank() == 0) backend = comm.backend();
                                   std::vector<Figures> figures;
                                   for (const std::size_t bytes : asked)
                                     for (const bool in_place : {false, true})
                                       figures.push_back(measure(comm, kind, bytes, in_place));
                                   return figures;
                                 },
                                 {.devices = devices});

  report.add_text(cat("# Collective test starting: ", name, "\n# nRanks ", ranks, " nThread ", threads, " nGpus ",
                      options.per_thread, " minBytes ", asked.front(), " maxBytes ", asked.back(),
                      " step: ", options.factor > 0 ? cat(options.factor, "(factor)") : options.step + "(bytes)",
                      " warmup iters: ", options.warmup, " iters: ", options.iterations, " validation: ", options.check,
                      "\n# backend ", backend));
  bench::Table table(name,
                     {"size(B)", "count", "type", "redop", "root", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong",
                      "in-place time(us)", "in-place algbw(GB/s)", "in-place busbw(GB/s)", "in-place #wrong"});
  const bool reduces = Collective{.kind = kind}.reduces(), has_root = Collective{.kind = kind}.has_root();
  double bandwidths = 0;
  std::int64_t wrong = 0;
  for (std::size_t s = 0; s < asked.size(); ++s) {
    const std::int64_t count = CollectiveCase::count_of(kind, dtype, asked[s], ranks);
    const std::size_t bytes = CollectiveCase::bytes_of(kind, dtype, count, ranks);
    std::vector<bench::Table::Cell> row{bytes, count, options.dtype, reduces ? options.reduction : "none",
                                        has_root ? options.root : -1};
    for (std::size_t place = 0; place < 2; ++place) {
      const Figures figures = together(by_rank, 2 * s + place);
      const double algorithm = static_cast<double>(bytes) / figures.microseconds / 1e3;
      const double bus = algorithm * CollectiveCase::bus_factor(kind, ranks);
      row.emplace_back(figures.microseconds);
      row.emplace_back(algorithm);
      row.emplace_back(bus);
      if (options.check > 0)
        row.emplace_back(figures.wrong);
      else
        row.emplace_back("N/A");
      bandwidths += bus;
      wrong += figures.wrong;
    }
    table.add(std::move(row));
  }
  const double average = bandwidths / static_cast<double>(2 * asked.size());
  bench::Table summary("summary",
                       {"collective", "ranks", "backend", "out of bounds values", "avg bus bandwidth (GB/s)"});
  summary.add({name, ranks, backend, wrong, average});
  if (!options.json_file.empty()) {
    bench::Report own;
    own.add(table);
    own.add(summary);
    std::ofstream file(options.json_file);
    file << own.json();
    if (!file.flush()) throw Error(cat("[-J] could not write ", options.json_file));
  }
  report.add(std::move(table));
  report.add_text(cat("# Out of bounds values : ", wrong, wrong == 0 ? " OK" : " FAILED", "\n# Avg bus bandwidth    : ",
                      number_to_string(static_cast<float>(average)), "\n# Collective test concluded: ", name));
  report.add(std::move(summary));
  if (wrong > 0) throw Error(cat("[", name, "] expected exact results, got ", wrong, " wrong elements"));
}

void declare(CLI::App& app) {
  app.add_option("-b,--minbytes", options.smallest, "Smallest message, with K, M or G (default 32M)");
  app.add_option("-e,--maxbytes", options.largest, "Largest message (default 32M)");
  app.add_option("-i,--stepbytes", options.step, "Step between sizes, without a factor (default 1M)");
  app.add_option("-f,--stepfactor", options.factor, "Factor between sizes");
  app.add_option("-n,--iters", options.iterations, "Timed calls of each size (default 20)");
  app.add_option("-w,--warmup_iters", options.warmup, "Calls before them (default 1)");
  app.add_option("-c,--check", options.check, "Compare results: 1, or 0 for not (default 1)");
  app.add_option("-o,--op", options.reduction, "sum, prod, max, min or avg (default sum)");
  app.add_option("-d,--datatype", options.dtype,
                 "float, double, half, bfloat16, int32, int64, uint8 or bool (default float)");
  app.add_option("-r,--root", options.root, "Root of broadcast and reduce (default 0)");
  app.add_option("-t,--nthreads", options.threads, "Threads (default: one for each device)");
  app.add_option("-g,--ngpus", options.per_thread, "Devices for each thread: a rank each (default 1)");
  app.add_option("-J,--output_file", options.json_file, "Write JSON to this file as well");
  app.add_option("--devices", options.devices, "Device list, used over and over (default: all accelerators)");
}

struct Command {
  const char* name;
  Kind kind;
  bench::Subcommand subcommand;
  Command(const char* its_name, Kind its_kind, const char* description)
      : name(its_name),
        kind(its_kind),
        subcommand(its_name, description, declare, [this](bench::Report& report) { run(name, kind, report); }) {}
};

Command commands[] = {
    {"allreduce", Kind::all_reduce, "Time all_reduce among threads, as nccl-tests does"},
    {"all_gather", Kind::all_gather, "Time all_gather"},
    {"reduce_scatter", Kind::reduce_scatter, "Time reduce_scatter"},
    {"broadcast", Kind::broadcast, "Time broadcast"},
    {"reduce", Kind::reduce, "Time reduce"},
    {"all_to_all", Kind::all_to_all, "Time all_to_all"},
    {"sendrecv", Kind::send, "Time a ring of sends"},
};

}  // namespace
