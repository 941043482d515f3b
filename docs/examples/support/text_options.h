// The command line of train_text.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "command_line.h"
#include "lockstep/lockstep.h"
#include "text_hook.h"

namespace example {

struct TextOptions {
  std::string data;
  int threads = 0;     // 0: this process is one rank
  std::string device;  // of the rank; empty: the accelerator of its place on the machine
  std::int64_t steps = 300, batch_size = 24, context = 64;
  std::int64_t layers = 2, heads = 4, width = 64;
  double learning_rate = 3e-3, dropout = 0;
  std::string hook = "none";  // see text_hook.h
  std::int64_t fewer = 0;     // rank r takes r times as many steps less than rank 0
  std::int64_t seed = 1;
  std::string checkpoint;  // folder; empty: none are written
  std::int64_t every = 100;
  int keep = 2;
  std::string save;           // file of the model; empty: none
  std::int64_t sample = 200;  // characters
  double temperature = 0.8;
  bool json = false, quiet = false, no_progress = false;
  int stall_seconds = 120;  // how long a rank waits for the others
};

// The options, or nothing when the text for --help was asked for and printed. Throws UsageError.
inline std::optional<TextOptions> parse_text_options(int argc, char** argv) {
  TextOptions o;
  CLI::App app{
      "Trains a small GPT-like model of characters on a text, by several ranks that average their gradients; saves "
      "and resumes; writes some text at the end.\n"
      "  train_text --data FILE --threads 4            ranks are threads of this process\n"
      "  lockstep-run -n 4 train_text --data FILE      ranks are processes (torchrun, mpirun and srun work too)"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  constexpr std::int64_t kMost = 1'000'000'000;
  const auto number = [&](const char* name, std::int64_t& value, const char* text, std::int64_t least = 1) {
    app.add_option(name, value, text)->check(CLI::Range(least, kMost))->capture_default_str();
  };
  app.add_option("--data", o.data, "Text file to learn; any bytes will do")->required();
  app.add_option("--threads", o.threads, "So many ranks, as threads of this process")->check(CLI::Range(1, 1024));
  app.add_option("--device", o.device, "Device of this process's rank: host:0, cuda:1");
  number("--steps", o.steps, "Steps of training, from the very beginning");
  number("--batch-size", o.batch_size, "Sequences per step, over all ranks; a multiple of their number");
  number("--context", o.context, "Characters in a sequence");
  number("--layers", o.layers, "Transformer blocks");
  number("--heads", o.heads, "Attention heads of a block");
  number("--width", o.width, "Size of a character's vector; a multiple of the heads");
  app.add_option("--lr", o.learning_rate, "Learning rate, reached after 20 steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--dropout", o.dropout, "Share of the features that is dropped in training")
      ->check(CLI::Range(0.0, 0.9))
      ->capture_default_str();
  app.add_option("--hook", o.hook, "What becomes of gradients: a communication hook with its usual settings")
      ->check(CLI::IsMember(TextHook::names()))
      ->capture_default_str();
  number("--fewer", o.fewer, "Rank r takes r times so many steps fewer, as with uneven inputs", 0);
  number("--seed", o.seed, "Same seed, same number of ranks: same bits", 0);
  app.add_option(
      "--checkpoint", o.checkpoint,
      "Folder of checkpoints, which all ranks share: model, optimizer, random state. Training goes on from the "
      "newest whole one, bit for bit as if there had been no break, also on another number of ranks. SIGUSR1 "
      "saves one more, SIGTERM saves and ends");
  number("--every", o.every, "Steps between checkpoints; there is one at the end too");
  app.add_option("--keep", o.keep, "So many checkpoints stay, the newest")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--save", o.save, "File that the model is written to at the end, for programs that use it");
  number("--sample", o.sample, "Characters to write at the end", 0);
  app.add_option("--temperature", o.temperature, "Of the sampling; smaller is more careful")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--stall-seconds", o.stall_seconds, "How long a rank waits for the others")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  app.add_flag("--json", o.json, "Print one JSON object instead of text");
  app.add_flag("--quiet", o.quiet, "Print only the last line");
  app.add_flag("--no-progress", o.no_progress, "No progress bar");
  if (!parse(app, argc, argv)) return std::nullopt;
  if (o.width % o.heads != 0)
    throw UsageError(lockstep::cat("--width: expected a multiple of the ", o.heads, " heads, got ", o.width));
  if (!o.checkpoint.empty() && TextHook::has_state(o.hook))
    throw UsageError(lockstep::cat("--checkpoint: expected a hook that is the same on every rank, got ", o.hook));
  if (o.fewer > 0 && !o.checkpoint.empty())
    throw UsageError("--fewer: expected no --checkpoint, which all ranks write together");
  if (o.fewer > 0 && o.hook == "post_local_sgd")
    throw UsageError("--fewer: expected a hook whose ranks meet in each step, got post_local_sgd");
  if (o.threads > 0 && !o.device.empty())
    throw UsageError("--device: expected no --threads, whose ranks take one each");
  return o;
}

}  // namespace example
