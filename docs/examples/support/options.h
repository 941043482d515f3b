// The command line of train_digits.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include "command_line.h"
#include "lockstep/lockstep.h"

namespace example {

struct Options {
  std::string devices;                                           // empty: all accelerators
  std::filesystem::path data = LOCKSTEP_EXAMPLE_DATA "/digits";  // where the tree was built
  std::int64_t epochs = 40, batch_size = 32, steps = 0;          // steps 0: as many as the epochs have
  double learning_rate = 0.1;
  std::string schedule = "cosine";
  std::int64_t seed = 1;
  std::string dtype_name = "f32";
  std::string save;  // empty: only in a temporary file, for the test
  bool json = false, quiet = false, no_progress = false;

  lockstep::DType dtype() const { return dtype_name == "f64" ? lockstep::DType::f64 : lockstep::DType::f32; }
};

// The options, or nothing when the text for --help was asked for and printed. Throws UsageError.
inline std::optional<Options> parse_options(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Trains a small convolutional network on handwritten digits, on several devices at once, saves it and "
      "tests what was saved."};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto positive_number = [](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool good = !text.empty() && *end == '\0' && std::isfinite(value) && value > 0;
    return good ? std::string() : "expected a positive number, got '" + text + "'";
  };
  app.add_option("--devices", options.devices,
                 "How many accelerators, or which devices: 4, host:0,host:3, cuda:all [default: all accelerators]");
  app.add_option("--data", options.data,
                 "Folder with images-idx3-ubyte and labels-idx1-ubyte, or with MNIST's train-... and t10k-... files "
                 "[default: the digits that come with this example]");
  app.add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(CLI::Range(std::int64_t{1}, kMost))
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Pictures per step, over all devices")
      ->check(CLI::Range(std::int64_t{1}, kMost))
      ->capture_default_str();
  app.add_option("--lr", options.learning_rate, "Learning rate")->check(positive_number)->capture_default_str();
  app.add_option("--schedule", options.schedule,
                 "Of the learning rate: constant, or cosine, which falls to zero over the epochs")
      ->check(CLI::IsMember({"constant", "cosine"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Same seed, same number of devices: same bits")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  app.add_option("--dtype", options.dtype_name, "f32 or f64")
      ->check(CLI::IsMember({"f32", "f64"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Stop after this many steps [default: when the epochs are over]")
      ->check(CLI::Range(std::int64_t{1}, kMost));
  app.add_option("--save", options.save, "Keep the trained model in this safetensors file");
  app.add_flag("--json", options.json, "Print one JSON object instead of text");
  app.add_flag("--quiet", options.quiet, "Print only the last line");
  app.add_flag("--no-progress", options.no_progress, "No progress bar");
  if (!parse(app, argc, argv)) return std::nullopt;
  if (app.count("--devices") > 0 && options.devices.empty()) throw UsageError("--devices: expected a count or a list");
  if (app.count("--save") > 0 && options.save.empty()) throw UsageError("--save: expected the name of a file");
  return options;
}

}  // namespace example
