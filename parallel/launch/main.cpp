// lockstep-run: starts the ranks of a job, shows what they write, and ends them together.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/launch/health.h"
#include "lockstep/parallel/launch/health_report.h"
#include "lockstep/parallel/launch/rounds.h"
#include "lockstep/parallel/launch/summary.h"
#include "lockstep/parallel/launch/times.h"
#include "lockstep/runtime/error.h"

namespace {

using namespace lockstep;
using namespace lockstep::launch;

constexpr int kMostNodes = 4096;
constexpr char kDescription[] =
    "lockstep-run [options] program [arguments...]\n\n"
    "Starts a program several times, as the ranks of one job, and ends all of them when one fails (unless with\n"
    "--keep-going).\n\n"
    "Each rank finds LOCKSTEP_RANK, LOCKSTEP_WORLD_SIZE, LOCKSTEP_LOCAL_RANK, LOCKSTEP_LOCAL_SIZE, LOCKSTEP_STORE,\n"
    "LOCKSTEP_TOKEN, LOCKSTEP_RUN_ID and LOCKSTEP_REPORTS in its environment, OMP_NUM_THREADS=1 where there are "
    "several\n"
    "ranks on the machine that share its cores and the variable is not set, and nothing on its standard input. Its\n"
    "standard output is a pseudo-terminal, so that lines are passed on when they are written and none is lost when\n"
    "the rank is killed. Files are written with --log-dir and --json only.";

constexpr char kFooter[] =
    "Exits with 0 when all ranks did, else with the code of the rank that failed first (128 + signal when it was\n"
    "killed or is stopped by one), which is named at the end, with what each of the others said. Ranks that notice\n"
    "another's failure tell lockstep-run whose it was: that rank is the first, whichever ended sooner. Where it did "
    "not\n"
    "end by itself, or with 0, the code is that of the first that failed because of it. 2 on wrong arguments, 126 "
    "when\n"
    "the program cannot be run, 127 when it is not found, 1 when a machine is lost or lockstep-run itself fails.\n"
    "With --keep-going the code is the same, but 0 when as many ranks as --min-ranks says have ended well; a rank\n"
    "that is stopped for --timeout seconds is killed. With --restarts the code is that of\n"
    "the last round; ranks find LOCKSTEP_ROUND, from 0, and LOCKSTEP_RESTARTS.\n"
    "With --restarts on several machines a round has those that are there, from --min-ranks to --max-ranks ranks; one\n"
    "that cannot run the program does not come, or leaves, and ends with 126 or 127.\n"
    "Machine 0 has to live: it has the store.\n"
    "SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed to the ranks and end the job, the second time at once; SIGUSR1 "
    "and\n"
    "SIGUSR2 are passed on.\n\n"
    "Several machines: run it on each, with the same -n, --nnodes, --master and token, and a --node-rank of its own:\n"
    "  (umask 077; head -c 32 /dev/urandom | base64 > token)   # the same file on every machine\n"
    "  lockstep-run -n 4 --nnodes 2 --node-rank 0 --master 10.0.0.1:29400 --token-file token ./train\n"
    "  lockstep-run -n 4 --nnodes 2 --node-rank 1 --master 10.0.0.1:29400 --token-file token ./train";

int code_of(const std::exception& error) { return dynamic_cast<const InvalidArgument*>(&error) ? 2 : 1; }

// That there was no round, and why.
std::string failed_to_begin(const Options& options, int code, const std::string& why) {
  Round none;
  none.options = options;
  none.job.end.code = code;
  none.job.end.message = why;
  none.job.began = none.job.ended = now_milliseconds();
  return job_json(std::vector<Round>(1, none));
}

int run(const Options& options) {
  // The token is asked for before anything is started. Within one machine a job has one of its own.
  std::string token = options.token_file.empty() ? store_token() : store_token_from_file(options.token_file);
  if (token.empty() && !options.several()) token = detail::to_hex(detail::random_bytes(32));
  JsonFile json(options.json);
  try {
    return options.health ? check_health(options, token, json) : run_rounds(options, token, json);
  } catch (const std::exception& error) {
    json.write(options.health ? launch::json({{}, {error.what()}})
                              : failed_to_begin(options, code_of(error), error.what()));
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  double patience = 5, grace = 10, timeout = 60, join_timeout = 600;
  double min_free = 64;
  bool no_prefix = false, no_pty = false;
  std::string bind = "none";
  CLI::App app(kDescription, "lockstep-run");
  app.footer(kFooter);
  app.add_option("-n,--ranks", options.ranks, "Ranks to start on this machine")->check(CLI::Range(1, 4096));
  app.add_option("--nnodes", options.nodes, "Machines of the job; with --restarts those that it begins with")
      ->check(CLI::Range(1, kMostNodes));
  app.add_option("--node-rank", options.node, "Which of the machines this is; 0 serves the store");
  app.add_option("--master", options.master, "host:port of machine 0, for the store");
  app.add_option("--token-file", options.token_file,
                 "File with the job's token, readable by its owner alone (else LOCKSTEP_TOKEN_FILE or LOCKSTEP_TOKEN)");
  app.add_flag("--no-prefix", no_prefix, "Let the ranks write directly, without [rank] before every line");
  app.add_flag(
      "--no-pty", no_pty,
      "A pipe for the ranks' standard output: most programs then write it in blocks, and lose the last one when "
      "they are killed");
  app.add_option(
      "--log-dir", options.log_dir,
      "Write what rank N writes to the file rankN.log in this folder, which is made, instead of passing it on");
  app.add_option("--tee", options.tee,
                 "With --log-dir: pass it on as well. 0 nothing, 1 standard output, 2 standard error, 3 both; or "
                 "rank:mode,... and "
                 "nothing of the other ranks");
  app.add_option(
      "--show", options.show,
      "Ranks whose lines come to the terminal, as 0,4-7 (default all); the others' are in --log-dir, or lost");
  app.add_option("--json", options.json,
                 "Write the end of the job, or what --health finds, to this file (or /dev/fd/N) for programs");
  app.add_flag("--keep-going", options.keep_going,
               "Do not end the others when a rank fails: they get an error that they may get over. With several "
               "machines also when one is silent for --timeout seconds; not without machine 0, which has the store");
  app.add_option(
         "--min-ranks", options.min_ranks,
         "With --keep-going: exit with 0 when so many ranks have ended well, and end the job as soon as fewer "
         "are left. With --restarts: a round may have so few (default all); on several machines, which are taken as a "
         "whole, it waits for more machines while there are fewer")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--restarts", options.restarts,
                 "When a rank fails or a machine is lost, end the others and begin again, so many times at most: with "
                 "what is left where --min-ranks allows it, else with all. The program finds LOCKSTEP_ROUND, from 0. A "
                 "machine that comes back or is new begins a round too, which is no restart")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--max-ranks", options.max_ranks,
                 "With --restarts: no round has more (default all); machines beyond wait for another one to go")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option(
         "--join-timeout", join_timeout,
         "With --restarts on several machines: seconds that a round with fewer than --min-ranks ranks waits for "
         "machines to come (default 600)")
      ->check(CLI::Range(0.1, 1e6));
  app.add_flag("--health", options.health,
               "Run no program: look at the devices, memory, disks, clocks and builds of the machines and at their way "
               "to the store, print a table, and exit with 1 when something is unfit");
  app.add_option("--min-free", min_free,
                 "With --health: MiB that must be free in memory, for --log-dir and in /dev/shm (default 64)")
      ->check(CLI::Range(0.0, 1e12));
  app.add_option("--bind", bind, "cores: pin every rank to its share of the cores; none")
      ->check(CLI::IsMember({"cores", "none"}));
  app.add_option(
         "--patience", patience,
         "Seconds from a rank's failure until the others, which may have something to say, get SIGTERM (default 5)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--grace", grace, "Seconds from then on until ranks that go on are killed (default 10)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option(
         "--timeout", timeout,
         "Seconds that machines wait for one another, and with --keep-going for a rank that is stopped: what is "
         "silent for longer is named (default 60)")
      ->check(CLI::Range(0.1, 1e6));
  app.prefix_command();

  const auto wrong = [](const std::string& message) {
    std::fprintf(stderr, "lockstep-run: %s\nRun with --help for more information.\n", message.c_str());
    return 2;
  };
  try {
    app.parse(argc, argv);
    options.program = app.remaining();
    if (!options.program.empty() && options.program.front() == "--")
      options.program.erase(options.program.begin());
    else if (!options.program.empty() && options.program.front().starts_with('-'))
      return wrong("unknown option " + options.program.front());
    if (options.program.empty() && !options.health) return wrong("expected a program to run");
    if (!options.program.empty() && options.health)
      return wrong(cat("expected no program along with --health, got ", options.program.front()));
    // Of one machine it grows only with restarts, and where there is a place to come to.
    const bool grows = options.restarts > 0 && options.max_ranks > options.ranks && !options.master.empty();
    const bool several = options.nodes > 1 || grows;
    const int most_node_rank = several && options.restarts > 0 ? kMostNodes - 1 : options.nodes - 1;
    if (options.node < 0 || options.node > most_node_rank)
      return wrong(cat("expected --node-rank from 0 to ", most_node_rank, ", got ", options.node));
    if (options.nodes > 1 && options.master.empty()) return wrong("expected --master host:port along with --nnodes");
    if (!options.tee.empty() && options.log_dir.empty()) return wrong("expected --log-dir along with --tee");
    // Throws for what does not fit.
    [[maybe_unused]] const Shown fits(options.tee, options.show, 3, std::max(options.world_size(), options.max_ranks));
    if (options.min_ranks > 0 && !options.keep_going && options.restarts == 0)
      return wrong("expected --keep-going or --restarts along with --min-ranks");
    if (options.keep_going && options.restarts > 0)
      return wrong("expected --keep-going or --restarts, got both: ranks go on, or begin again");
    if (options.max_ranks > 0 && options.restarts == 0) return wrong("expected --restarts along with --max-ranks");
    if (options.max_ranks > 0 && options.max_ranks < std::max(options.min_ranks, 1))
      return wrong(
          cat("expected --max-ranks of at least the ", options.min_ranks, " of --min-ranks, got ", options.max_ranks));
    if (app.count("--join-timeout") > 0 && !(several && options.restarts > 0))
      return wrong("expected --restarts on several machines along with --join-timeout");
    if (several && options.max_ranks > 0) {  // machines are taken as a whole
      const int most = options.max_ranks / options.ranks * options.ranks;
      if (most < std::max(options.min_ranks, 1))
        return wrong(cat("expected --max-ranks for machines of ", options.ranks, " ranks with at least the ",
                         std::max(options.min_ranks, options.ranks), " of ",
                         options.min_ranks > options.ranks ? "--min-ranks" : "one machine", ", got ",
                         options.max_ranks));
    }
    if (options.min_ranks > options.world_size())
      return wrong(cat("expected --min-ranks from 1 to ", options.world_size(), ", got ", options.min_ranks));
    if (app.count("--min-free") > 0 && !options.health) return wrong("expected --health along with --min-free");
    if (!options.master.empty()) detail::parse_host_port("--master", options.master);
    if (!several) options.master.clear();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const InvalidArgument& error) {
    return wrong(error.what());
  }
  options.prefix = !no_prefix;
  options.pty = !no_pty;
  options.patience = Milliseconds(static_cast<std::int64_t>(patience * 1000));
  options.bind = bind == "cores";
  options.min_free_bytes = static_cast<std::int64_t>(min_free * (1 << 20));
  options.grace = Milliseconds(static_cast<std::int64_t>(grace * 1000));
  options.timeout = Milliseconds(static_cast<std::int64_t>(timeout * 1000));
  options.join_timeout = Milliseconds(static_cast<std::int64_t>(join_timeout * 1000));
  try {
    return run(options);
  } catch (const std::exception& error) {
    if (code_of(error) == 2) return wrong(error.what());
    std::fprintf(stderr, "lockstep-run: %s\n", error.what());
    return 1;
  }
}
