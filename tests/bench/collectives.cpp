// Collectives, with the flags and columns of nccl-tests: ranks are threads of this program, and of those that a
// launcher has started beside it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "bench_ranks.h"
#include "collective_case.h"
#include "collective_options.h"
#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"
#include "subcommand.h"

namespace lockstep::collectives_bench {

using bench::BenchRanks;
using bench::CollectiveCase;
using bench::CollectiveOptions;
using Kind = Collective::Kind;
using Row = CollectiveOptions::Row;

CollectiveOptions options;

struct Figures {
  double microseconds = 0;  // of one call
  std::int64_t wrong = 0;
};

// One rank's part of a measurement.
Figures measure(Communicator& comm, Kind kind, const Row& row, bool in_place) {
  CollectiveCase its(comm, kind, row.dtype, row.reduction, std::max(row.root, 0), row.bytes, in_place);
  const Stream stream = current_stream(comm.device());
  Figures figures;
  for (int i = 0; i < options.check; ++i) {
    its.fill();
    its.perform();
    if (options.spoil) its.spoil();
    figures.wrong += its.count_wrong();
  }
  its.fill();
  for (int i = 0; i < options.warmup; ++i) its.perform();
  synchronize(stream);
  comm.barrier();
  const auto begin = bench::Clock::now();
  for (int i = 0; i < options.iterations; ++i) {
    for (int call = 0; call < options.aggregate; ++call) its.perform();
    if (options.blocking != 0) synchronize(stream);
  }
  const double enqueued = bench::seconds_since(begin);
  synchronize(stream);
  const double seconds = options.cpu_time != 0 ? enqueued : bench::seconds_since(begin);
  figures.microseconds = seconds * 1e6 / options.iterations / options.aggregate;
  return figures;
}

std::string describe(const Communicator& comm) {
  char machine[256] = {};
  ::gethostname(machine, sizeof machine - 1);
  return cat("process ", ::getpid(), " on ", machine, ", ", comm.device());
}

// What all ranks have found, on each of them.
struct Results {
  std::string backend;
  std::vector<std::string> descriptions;      // by rank
  std::vector<std::vector<Figures>> by_rank;  // two for each row: out of place and in place

  Figures together(std::size_t index) const {
    Figures all{.microseconds = by_rank[0][index].microseconds};
    double sum = 0;
    for (const std::vector<Figures>& rank : by_rank) {
      const double its = rank[index].microseconds;
      sum += its;
      if (options.average == 2) all.microseconds = std::min(all.microseconds, its);
      if (options.average == 3) all.microseconds = std::max(all.microseconds, its);
      all.wrong += rank[index].wrong;
    }
    if (options.average == 1) all.microseconds = sum / static_cast<double>(by_rank.size());
    return all;
  }
};

Results run_rank(Communicator& comm, Kind kind, const std::vector<Row>& rows) {
  Results results{.backend = comm.backend(), .descriptions = comm.all_gather_bytes(describe(comm)), .by_rank = {}};
  std::vector<Figures> mine;
  for (const Row& row : rows)
    for (const bool in_place : {false, true}) mine.push_back(measure(comm, kind, row, in_place));
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Figures));
  for (const std::string& its : comm.all_gather_bytes(bytes)) {
    if (its.size() != bytes.size()) throw Error("[lockstep-bench] expected the same options for every process");
    std::memcpy(results.by_rank.emplace_back(mine.size()).data(), its.data(), its.size());
  }
  return results;
}

std::string header(const char* name, const BenchRanks& ranks, const Results& results) {
  const std::vector<std::size_t> sizes = options.sizes();
  std::string text =
      cat("# Collective test starting: ", name, "\n# nRanks ", ranks.size(), " nProcesses ", ranks.process.size,
          " nThread ", ranks.threads, " nGpus ", ranks.per_thread, " minBytes ", sizes.front(), " maxBytes ",
          sizes.back(), " step: ", options.factor > 0 ? cat(options.factor, "(factor)") : options.step + "(bytes)",
          " warmup iters: ", options.warmup, " iters: ", options.iterations, " agg iters: ", options.aggregate,
          " validation: ", options.check);
  for (std::size_t r = 0; r < results.descriptions.size(); ++r)
    text += cat("\n#  rank ", r, ": ", results.descriptions[r]);
  return cat(text, "\n# backend ", results.backend);
}

// The columns and decimals of nccl-tests, which scripts read.
std::string nccl_tests_rows(const std::vector<std::vector<bench::Table::Cell>>& rows) {
  std::string text =
      "#                                                              out-of-place                       in-place\n"
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
      "#wrong\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)";
  constexpr int kWidths[] = {12, 14, 10, 8, 8, 9, 8, 8, 7, 9, 8, 8, 7};
  for (const auto& row : rows) {
    text += '\n';
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string cell = row[i].text();
      const auto width = static_cast<std::size_t>(kWidths[i]);
      text += cell.size() < width ? std::string(width - cell.size(), ' ') + cell : ' ' + cell;
    }
  }
  return text;
}

bench::Table::Cell time_cell(double microseconds) {
  return bench::Table::Cell::decimals(microseconds, microseconds >= 10'000 ? 0 : microseconds >= 100 ? 1 : 2);
}

void run(const char* name, Kind kind, bench::Session& session) {
  if (!session.wants("all", "sizes")) return;
  const BenchRanks ranks = BenchRanks::discover(options.devices, options.threads, options.per_thread);
  const std::vector<Row> rows = options.rows(kind, ranks.size());
  const auto connect = [&](std::span<const Device>, Milliseconds timeout) { return ranks.connect(timeout); };
  const Results results = run_ranks(ranks.here(), [&](Communicator& comm) { return run_rank(comm, kind, rows); },
                                    {.devices = ranks.devices, .timeout = options.timeout(), .make = connect})[0];

  bench::Table table(name, name,
                     {"size(B)", "count", "type", "redop", "root", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong",
                      "in-place time(us)", "in-place algbw(GB/s)", "in-place busbw(GB/s)", "in-place #wrong"},
                     5);
  std::vector<std::vector<bench::Table::Cell>> lines;
  double bandwidths = 0;
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const std::int64_t count = CollectiveCase::count_of(kind, row.dtype, row.bytes, ranks.size());
    const std::size_t bytes = CollectiveCase::bytes_of(kind, row.dtype, count, ranks.size());
    std::vector<bench::Table::Cell> cells{bytes, count, row.dtype_name, row.reduction_name, row.root};
    for (std::size_t place = 0; place < 2; ++place) {
      const Figures figures = results.together(2 * i + place);
      const double algorithm = static_cast<double>(bytes) / figures.microseconds / 1e3;
      const double bus = algorithm * CollectiveCase::bus_factor(kind, ranks.size());
      cells.push_back(time_cell(figures.microseconds));
      for (const double figure : {algorithm, bus}) cells.push_back(bench::Table::Cell::decimals(figure, 2));
      cells.push_back(options.check > 0 ? bench::Table::Cell(figures.wrong) : bench::Table::Cell("N/A"));
      bandwidths += bus;
      wrong += figures.wrong;
    }
    lines.push_back(cells);
    table.add(std::move(cells));
  }
  // The others print nothing, and end well: a launcher ends all at once when one does not, before it is printed.
  if (ranks.process.rank != 0) return;
  if (wrong > 0) session.exit_code = 1;

  const double average = bandwidths / static_cast<double>(2 * rows.size());
  bench::Table summary("summary", "summary",
                       {"collective", "ranks", "backend", "out of bounds values", "avg bus bandwidth (GB/s)"});
  summary.add({name, ranks.size(), results.backend, wrong, average});
  if (!options.json_file.empty()) {
    bench::Settings as_json = session.settings();
    as_json.format = bench::Format::json;
    bench::Session own(as_json);
    own.add(table);
    own.add(summary);
    std::ofstream file(options.json_file);
    file << own.output("lockstep-bench");
    if (!file.flush()) throw Error(cat("[-J] could not write ", options.json_file));
  }
  session.say_nothing_else();
  session.add_text(header(name, ranks, results));
  session.add_text(nccl_tests_rows(lines));
  session.add_data(std::move(table));
  char bandwidth[32];
  std::snprintf(bandwidth, sizeof bandwidth, "%g", average);
  session.add_text(cat("# Out of bounds values : ", wrong, wrong == 0 ? " OK" : " FAILED",
                       "\n# Avg bus bandwidth    : ", bandwidth, "\n#\n# Collective test concluded: ", name));
  session.add_data(std::move(summary));
}

struct Command {
  bench::Subcommand subcommand;
  // `alias`: as nccl-tests calls it, where that is not the name.
  Command(const char* name, const char* alias, Kind kind, const char* description)
      : subcommand(
            name, description,
            [alias](CLI::App& app) {
              if (*alias) app.alias(alias);
              options.declare(app);
            },
            [name, kind](bench::Session& session) { run(name, kind, session); }) {}
};

Command commands[] = {
    {"allreduce", "all_reduce", Kind::all_reduce, "Time all_reduce among threads or processes, as nccl-tests does"},
    {"all_gather", "", Kind::all_gather, "Time all_gather"},
    {"reduce_scatter", "", Kind::reduce_scatter, "Time reduce_scatter"},
    {"broadcast", "", Kind::broadcast, "Time broadcast"},
    {"reduce", "", Kind::reduce, "Time reduce"},
    {"gather", "", Kind::gather, "Time gather"},
    {"scatter", "", Kind::scatter, "Time scatter"},
    {"all_to_all", "alltoall", Kind::all_to_all, "Time all_to_all"},
    {"sendrecv", "", Kind::send, "Time a ring of sends"},
};

}  // namespace lockstep::collectives_bench
