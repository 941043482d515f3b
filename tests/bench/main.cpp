// lockstep-bench: measurements of one's own machine, one subcommand each. Ends with 1 after a failure, and with 2 where
// the command line asks for what does not exist.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>

#include "bench.h"
#include "lockstep/runtime/error.h"

namespace {

int fail(int exit_code, const std::exception& error) {
  std::fprintf(stderr, "lockstep-bench: %s\n", error.what());
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures what Lockstep costs on this machine.", "lockstep-bench");
  bool json = false;
  app.add_flag("--json", json, "Print JSON instead of tables");
  app.require_subcommand(1);
  app.fallthrough();  // --json may follow the subcommand

  bench::Report report;
  std::vector<bench::Subcommand*> commands = bench::Subcommand::all();
  std::sort(commands.begin(), commands.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (bench::Subcommand* command : commands) {
    CLI::App* sub = app.add_subcommand(command->name, command->description);
    command->options(*sub);
    sub->callback([command, &report] { command->run(report); });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: help
  } catch (const lockstep::InvalidArgument& error) {
    return fail(2, error);
  } catch (const lockstep::NotSupported& error) {
    return fail(2, error);
  } catch (const std::exception& error) {
    return fail(1, error);
  }
  if (!report.empty()) std::fputs((json ? report.json() : report.text()).c_str(), stdout);
  return report.exit_code;
}
