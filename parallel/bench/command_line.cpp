#include "lockstep/parallel/bench/command_line.h"

#include <cstdio>
#include <exception>

#include "lockstep/parallel/build_info.h"
#include "lockstep/runtime/error.h"

namespace lockstep::bench {

void declare(CLI::App& app, Settings& settings) {
  const auto json = [&settings](std::int64_t) { settings.format = Format::json; };
  const auto csv = [&settings](std::int64_t) { settings.format = Format::csv; };
  CLI::Option* const as_json =
      app.add_flag("--json", json, "Print JSON: all samples, the machine, the build, the settings");
  app.add_flag("--csv", csv, "Print CSV: a line for each figure")->excludes(as_json);
  app.add_flag("--list", settings.list, "Print the names of the figures, measure nothing");
  app.add_option("--filter", settings.filter, "Measure the figures whose name this regular expression fits");
  app.add_option("--repetitions,--runs", settings.repetitions,
                 "Samples of each figure; default: by benchmark, mostly 9")
      ->check(CLI::PositiveNumber);
  app.add_option("--min-time", settings.min_seconds, "Seconds that a sample lasts at least; default: by benchmark")
      ->check(CLI::NonNegativeNumber);
  app.set_version_flag("--version", std::string("Lockstep ") + version());
}

int run_program(CLI::App& app, int argc, char** argv, const Settings& settings,
                const std::function<void(Session&)>& work) {
  const auto fail = [&](int code, const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", app.get_name().c_str(), error.what());
    return code;
  };
  try {
    app.parse(argc, argv);
    Session session(settings);
    work(session);
    const std::string output = session.output(app.get_name());
    if (std::fputs(output.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
      throw Error("expected to write the results to standard output, which does not take them");
    return session.exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: help, version
  } catch (const InvalidArgument& error) {
    return fail(2, error);
  } catch (const NotSupported& error) {
    return fail(2, error);
  } catch (const std::exception& error) {
    return fail(1, error);
  }
}

}  // namespace lockstep::bench
