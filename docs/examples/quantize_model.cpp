// Writes a language model in fewer bits: a folder as it is published becomes one that Lockstep reads.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/models.h"
#include "support/command_line.h"
#include "support/progress.h"

namespace example {
namespace {

using namespace lockstep;

struct Options {
  std::string from, to;
  QuantizeLanguageModelOptions quantize;
  std::vector<std::string> skip;
  bool json = false, quiet = false, no_progress = false;
};

// The options, or nothing when the text for --help was asked for and printed. Throws UsageError.
std::optional<Options> parse_options(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Reads a language model (GPT-2, Llama, Qwen2: config.json and safetensors), puts its linear layers in fewer bits "
      "and writes it to another folder, with the tokenizer's files. Prints what that costs, layer by layer.\n"
      "  quantize_model gpt2 gpt2-int8                 8 bits, a scale for each row\n"
      "  quantize_model gpt2 gpt2-int4 --bits 4        4 bits, a scale for 64 inputs of a row"};
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("from", o.from, "Folder of the model")->required();
  app.add_option("to", o.to, "Folder to write, made if need be")->required();
  app.add_option("--bits", o.quantize.bits, "Of a weight")->check(CLI::IsMember({4, 8}))->capture_default_str();
  app.add_option("--group-size", o.quantize.group_size, "Inputs that have a scale in common, of 4 bits")
      ->check(CLI::IsMember({32, 64, 128}))
      ->capture_default_str();
  app.add_flag("--output", o.quantize.output, "The output matrix too, which else stays as it is");
  app.add_option("--skip", o.skip, "A layer that stays, or a module of such: h.0, mlp.c_proj; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--json", o.json, "One JSON object instead of text");
  app.add_flag("--quiet", o.quiet, "The sum alone");
  app.add_flag("--no-progress", o.no_progress, "No bar on a terminal");
  if (!parse(app, argc, argv)) return std::nullopt;
  o.quantize.skip.insert(o.quantize.skip.end(), o.skip.begin(), o.skip.end());
  return o;
}

int run(const Options& o) {
  if (!std::filesystem::exists(std::filesystem::path(o.from) / "config.json"))
    throw UsageError(cat("expected a folder with config.json and safetensors, got '", o.from, "'"));
  std::unique_ptr<ProgressBar> bar;
  QuantizeLanguageModelOptions options = o.quantize;
  options.on_layer = [&](const QuantizedLayer& layer, std::size_t done, std::size_t all) {
    if (!bar) bar = std::make_unique<ProgressBar>(static_cast<std::int64_t>(all), !o.no_progress && !o.quiet);
    bar->update(static_cast<std::int64_t>(done), layer.name);
  };
  const QuantizationReport report = [&] {
    try {
      return quantize_language_model(o.from, o.to, options);
    } catch (const InvalidArgument& error) {  // nothing was written
      throw UsageError(error.what());
    }
  }();
  bar.reset();
  if (o.json) {
    std::printf("%s\n", report.to_json().c_str());
  } else {
    if (!o.quiet) std::fputs(report.to_table().c_str(), stdout);
    std::printf("%zu layers in %d bits, %zu as they were: %zu bytes, %zu before; written to %s\n", report.layers.size(),
                options.bits, report.kept.size(), report.bytes_after(), report.bytes_before(), o.to.c_str());
  }
  if (std::fflush(stdout) != 0) throw Error("standard output cannot be written");
  return 0;
}

}  // namespace
}  // namespace example

// Exits with 0, or 1 when something failed, 2 when the command line or the model is not right.
int main(int argc, char** argv) {
  return example::run_program("quantize_model", [&] {
    const auto options = example::parse_options(argc, argv);
    return options ? example::run(*options) : 0;
  });
}
