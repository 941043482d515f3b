// The command line of detect_shapes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "command_line.h"
#include "lockstep/lockstep.h"

namespace example {

struct ShapesOptions {
  int ranks = 0;        // threads of this process; 0: a launcher's processes, else two threads
  std::string devices;  // for the test; empty: two accelerators
  std::int64_t epochs = 20, images = 480, test_images = 96, batch_size = 4, width = 16;
  double learning_rate = 4e-3;
  std::int64_t workers = 0;
  std::int64_t seed = 1;
  std::int64_t stop_after = 0;  // 0: after all epochs
  std::string checkpoint;       // folder; empty: nothing is saved
  bool resume = false;
  std::string output;  // folder; empty: no pictures
  bool json = false, quiet = false, no_progress = false;
  int stall_seconds = 120;
};

// The options, or nothing when the text for --help was asked for and printed. Throws UsageError.
inline std::optional<ShapesOptions> parse_shapes_options(int argc, char** argv) {
  ShapesOptions o;
  CLI::App app{
      "Learns to find circles, squares and triangles in drawn images of different sizes: for every pixel, which shape "
      "it "
      "is part of. Ranks train on shares of the batches, several devices test; the pictures show what was found.\n"
      "  detect_shapes --ranks 2 --output pictures     ranks are threads of this process\n"
      "  lockstep-run -n 2 detect_shapes               ranks are processes"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto number = [&](const char* name, std::int64_t& value, const char* text, std::int64_t least = 1) {
    app.add_option(name, value, text)->check(CLI::Range(least, kMost))->capture_default_str();
  };
  app.add_option("--ranks", o.ranks, "So many ranks, as threads of this process [default: 2, or those of a launcher]")
      ->check(CLI::Range(1, 1024));
  app.add_option(
      "--devices", o.devices,
      "How many accelerators the test uses, or which: 4, host:0,host:3 [default: 2, where there are so many]");
  number("--epochs", o.epochs, "Passes over the training images");
  number("--images", o.images, "Training images");
  number("--test-images", o.test_images, "Images of the test");
  number("--batch-size", o.batch_size, "Images per step, over all ranks; a multiple of their number");
  number("--width", o.width, "Channels at full size; a multiple of 4");
  app.add_option("--lr", o.learning_rate,
                 "Learning rate, reached after a warm-up; it falls to a twentieth over the epochs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  number("--workers", o.workers, "Threads of each rank that draw images ahead", 0);
  number("--seed", o.seed, "Same seed, same number of ranks: same bits", 0);
  app.add_option("--checkpoint", o.checkpoint, "Folder for checkpoints, one after every epoch, and for scalars.json");
  app.add_flag("--resume", o.resume, "Go on from the newest checkpoint, bit for bit as if there had been no break");
  number("--stop-after", o.stop_after, "Stop after this epoch, as if interrupted", 0);
  app.add_option("--output", o.output, "Folder for shapes.png (test images, truths and what was found) and losses.png");
  app.add_option("--stall-seconds", o.stall_seconds, "How long a rank waits for the others")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_flag("--json", o.json, "Print one JSON object instead of text");
  app.add_flag("--quiet", o.quiet, "Print only the last line");
  app.add_flag("--no-progress", o.no_progress, "No progress bar");
  if (!parse(app, argc, argv)) return std::nullopt;
  if (o.width % 4 != 0) throw UsageError(lockstep::cat("--width: expected a multiple of 4, got ", o.width));
  if (o.resume && o.checkpoint.empty()) throw UsageError("--resume: expected --checkpoint to name the folder");
  for (const auto& [name, value] :
       {std::pair("--devices", &o.devices), {"--output", &o.output}, {"--checkpoint", &o.checkpoint}})
    if (app.count(name) > 0 && value->empty()) throw UsageError(lockstep::cat(name, ": expected a value, got none"));
  return o;
}

}  // namespace example
