// A benchmark of lockstep-bench is one file: it defines a Subcommand at namespace scope, which registers itself.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/bench/session.h"

namespace CLI {
class App;
}

namespace lockstep::bench {

struct Subcommand {
  // `options` declares the command's options on its CLI::App (what they bind to must live on); `run` does the work.
  Subcommand(const char* name, const char* description, std::function<void(CLI::App&)> options,
             std::function<void(Session&)> run);

  std::string name, description;
  std::function<void(CLI::App&)> options;
  std::function<void(Session&)> run;

  static std::vector<Subcommand*>& all();
};

}  // namespace lockstep::bench
