// The command line of fewshot_digits.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "lockstep/lockstep.h"

namespace example {

struct FewShotOptions {
  int devices = 1;
  std::filesystem::path data = LOCKSTEP_EXAMPLE_DATA "/digits";  // where the tree was built
  std::vector<std::string> algorithms = {"raw_pixels", "baseline", "baseline_plus",   "neg_margin",
                                         "protonet",   "maml",     "maml_first_order"};
  std::vector<std::int64_t> shots = {1, 5};
  std::int64_t tasks = 300, queries = 15, steps = 0;  // steps 0: what suits each algorithm
  double confidence = 0.95;
  std::int64_t seed = 1;
  bool json = false, quiet = false, no_progress = false;
};

// The options, or nothing when the text for --help was asked for and printed. Throws UsageError.
inline std::optional<FewShotOptions> parse_fewshot_options(int argc, char** argv) {
  FewShotOptions o;
  CLI::App app{
      "Learns to tell five handwritten digits apart from one or five samples of each. The algorithms are trained on "
      "the "
      "digits 0 to 4 and tested on tasks with the digits 5 to 9, which several ranks share; their number does not "
      "change "
      "the results."};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  constexpr std::int64_t kMost = 1'000'000;
  const auto number = [&](const char* name, std::int64_t& value, const char* text, std::int64_t least = 1) {
    return app.add_option(name, value, text)->check(CLI::Range(least, kMost));
  };
  app.add_option("--devices", o.devices, "Virtual devices that share the tasks, with a rank (a thread) on each")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--data", o.data,
                 "Folder with images-idx3-ubyte and labels-idx1-ubyte, or with MNIST's train-... and t10k-... files "
                 "[default: the digits that come with this example]");
  app.add_option("--algorithms", o.algorithms, "Which, with commas between them")
      ->check(CLI::IsMember(o.algorithms))
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  app.add_option("--shots", o.shots,
                 "Samples of each digit that a task shows, several numbers with commas between them")
      ->check(CLI::Range(1, 1000))
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->capture_default_str();
  number("--tasks", o.tasks, "Tasks for each number of shots")->capture_default_str();
  number("--queries", o.queries, "Pictures of each digit that a task asks about")->capture_default_str();
  number("--steps", o.steps, "Steps of training [default: what suits each algorithm]");
  app.add_option("--confidence", o.confidence, "Of the interval around the mean: 0.5, 0.8, 0.9, 0.95, 0.98 or 0.99")
      ->capture_default_str();
  number("--seed", o.seed, "Same seed: same numbers", 0)->capture_default_str();
  app.add_flag("--json", o.json, "Print one JSON object instead of text");
  app.add_flag("--quiet", o.quiet, "Print only the results");
  app.add_flag("--no-progress", o.no_progress, "No progress bar");
  if (!parse(app, argc, argv)) return std::nullopt;
  return o;
}

}  // namespace example
