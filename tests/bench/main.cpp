// lockstep-bench: measurements of one's own machine, one subcommand each. Ends with 1 after a failure, and with 2 where
// the command line asks for what does not exist.
#include <algorithm>

#include "lockstep/parallel/bench/command_line.h"
#include "lockstep/runtime/error.h"
#include "subcommand.h"

namespace lockstep::bench {

Subcommand::Subcommand(const char* its_name, const char* its_description, std::function<void(CLI::App&)> its_options,
                       std::function<void(Session&)> its_run)
    : name(its_name), description(its_description), options(std::move(its_options)), run(std::move(its_run)) {
  all().push_back(this);
}

std::vector<Subcommand*>& Subcommand::all() {
  static std::vector<Subcommand*> commands;
  return commands;
}

}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;
  using bench::Subcommand;
  CLI::App app("Measures what Lockstep costs on this machine.", "lockstep-bench");
  bench::Settings settings;
  bench::declare(app, settings);
  app.require_subcommand(0, 1);
  app.fallthrough();  // --json and its like may follow the subcommand
  app.footer(
      "lockstep-bench --list prints the figures of all benchmarks, lockstep-bench ops --help one's own options.");

  std::vector<Subcommand*> commands = Subcommand::all();
  std::sort(commands.begin(), commands.end(), [](auto* a, auto* b) { return a->name < b->name; });
  std::vector<CLI::App*> parsers;
  for (Subcommand* command : commands) {
    parsers.push_back(app.add_subcommand(command->name, command->description));
    command->options(*parsers.back());
  }
  return bench::run_program(app, argc, argv, settings, [&](bench::Session& session) {
    const bool none = app.get_subcommands().empty();
    LOCKSTEP_CHECK(!none || settings.list, "expected the name of a benchmark (see --help), got none");
    for (std::size_t i = 0; i < commands.size(); ++i) {
      if (!none && !parsers[i]->parsed()) continue;
      session.begin(commands[i]->name);
      commands[i]->run(session);
    }
  });
}
