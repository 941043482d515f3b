// What a recorded step would take on a machine that is not there.
#include <CLI/CLI.hpp>
#include <functional>

#include "lockstep/parallel/simulate/plot.h"
#include "lockstep/parallel/simulate/pytorch_model.h"
#include "lockstep/parallel/simulate/sweep.h"
#include "lockstep/parallel/simulate/trace.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"
#include "subcommand.h"

namespace lockstep::simulate_bench {

using bench::Table;

struct Asked {
  std::string recording, machine, compute = "vendor", as, trace, sweep, plot;
} asked;

Table::Cell milliseconds(simulate::Nanoseconds time) {
  return Table::Cell::decimals(static_cast<double>(time) * 1e-6, 3);
}
Table::Cell percent(double share) { return Table::Cell::decimals(share * 100, 1); }
double ratio(simulate::Nanoseconds part, simulate::Nanoseconds whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

Table critical_path(const simulate::Result& result) {
  Table table("predicted_step", "Predicted step", {"part of the critical path", "ms", "%"});
  for (std::size_t i = 0; i < result.critical.size(); ++i)
    table.add(
        {simulate::kPartNames[i], milliseconds(result.critical[i]), percent(ratio(result.critical[i], result.step()))});
  table.add({"step", milliseconds(result.step()), percent(result.step() > 0 ? 1 : 0)});
  return table;
}

Table devices(const simulate::Result& result) {
  Table table("predicted_devices", "Devices, within the step",
              {"device", "kernels ms", "kernels %", "copies and collectives ms", "not hidden ms", "not hidden %"});
  for (const auto& [device, use] : result.devices)
    table.add({std::to_string(device), milliseconds(use.kernels), percent(ratio(use.kernels, result.step())),
               milliseconds(use.moves), milliseconds(use.exposed), percent(ratio(use.exposed, result.step()))});
  return table;
}

Table links(const simulate::Result& result) {
  Table table("predicted_links", "Links, over the whole recording", {"link", "bytes", "busy ms", "busy %", "GB/s"});
  for (std::size_t i = 0; i < result.links.size(); ++i) {
    const simulate::LinkUse& use = result.links[i];
    if (use.bytes == 0) continue;
    table.add(
        {result.link_names[i], Table::Cell::bytes(static_cast<std::uint64_t>(use.bytes)), milliseconds(use.busy),
         percent(ratio(use.busy, result.total)),
         Table::Cell::decimals(
             static_cast<double>(use.bytes) / static_cast<double>(std::max<simulate::Nanoseconds>(use.busy, 1)), 1)});
  }
  return table;
}

Table scaling(const std::vector<simulate::SweepRow>& rows) {
  Table table("predicted_scaling", "Predicted scaling",
              {"devices", "step ms", "efficiency %", "not hidden ms", "most of the critical path"});
  for (const simulate::SweepRow& row : rows)
    table.add({std::to_string(row.devices), milliseconds(row.step), percent(row.efficiency), milliseconds(row.exposed),
               simulate::kPartNames[static_cast<std::size_t>(row.most)]});
  return table;
}

// What is to be replayed, for so many devices; 0: as it was recorded, or on all devices of the machine.
class Replayed {
 public:
  Replayed(const simulate::Machine& machine, simulate::Options options) : machine_(machine), options_(options) {
    const bool many = asked.recording.find("{}") != std::string::npos;
    LOCKSTEP_CHECK(!many || (!asked.sweep.empty() && asked.as.empty()), "[simulate] expected --sweep without --as for ",
                   asked.recording, ", got ", asked.as.empty() ? "none" : "--as " + asked.as);
    if (!many) recording_ = simulate::read_recording(asked.recording);
    if (asked.as.empty()) return;
    LOCKSTEP_CHECK(machine.host.framework_kernel > 0,
                   "[--as] expected a machine file with host.framework_kernel_us, got ", asked.machine, " without");
    options.ranks = 1;  // only the order of its calls is asked for
    step_ = simulate::find_training_step(recording_, simulate::simulate(recording_, machine, options));
    options_.framework = true;
  }

  simulate::Result operator()(int devices) {
    simulate::Options options = options_;
    if (asked.as == "pytorch-dp") {
      recording_ = simulate::pytorch_data_parallel(step_, devices > 0 ? devices : machine_.device_count());
    } else if (asked.as == "pytorch-ddp") {
      recording_ = simulate::pytorch_distributed(step_, devices > 0 ? devices : machine_.rank_count());
    } else if (asked.recording.find("{}") != std::string::npos) {
      recording_ = simulate::read_recording(simulate::path_for(asked.recording, devices));
    } else if (devices > 0) {
      LOCKSTEP_CHECK(!recording_.collectives.empty(),
                     "[--sweep] expected a recording with collectives of one rank, or one for each number of devices "
                     "(step-{}.rec), got ",
                     asked.recording, " without collectives");
      options.ranks = devices;
    }
    return simulate::simulate(recording_, machine_, options);
  }
  const simulate::Recording& recording() const { return recording_; }

 private:
  const simulate::Machine& machine_;
  simulate::Options options_;
  simulate::Recording recording_;
  simulate::TrainingStep step_;
};

void run(bench::Session& session) {
  if (session.settings().list) return;
  LOCKSTEP_CHECK(!asked.recording.empty(),
                 "[simulate] expected a recording, as in lockstep-bench simulate step.rec "
                 "--machine FILE, got none");
  LOCKSTEP_CHECK(!asked.machine.empty(), "[--machine] expected the file of a machine (see docs/machines), got none");
  LOCKSTEP_CHECK(asked.plot.empty() || !asked.sweep.empty(), "[--plot] expected --sweep beside it, got none");
  LOCKSTEP_CHECK(asked.trace.empty() || asked.sweep.empty(), "[--trace] expected one replay, got --sweep beside it");
  const simulate::Machine machine = simulate::load_machine(asked.machine);
  simulate::Options options;
  options.speed = asked.compute == "own" ? simulate::KernelSpeed::own : simulate::KernelSpeed::vendor;
  options.keep_rates = !asked.trace.empty();

  session.say_nothing_else();
  const std::string model = asked.as.empty() ? "" : cat("a model of what ", asked.as, " would enqueue, ");
  session.add_text(cat("Predicted, not measured: ", model, asked.recording, " on ", machine.name, " (", asked.machine,
                       "), kernels as fast as ",
                       asked.compute == "own" ? "this library's (estimated)" : "the vendor's libraries", ".\n"));
  Table prediction("prediction", "Prediction", {"recording", "machine", "file", "compute", "as"});
  prediction.add({asked.recording, machine.name, asked.machine, asked.compute, asked.as});
  session.add_data(std::move(prediction));
  Replayed replay(machine, options);
  if (!asked.sweep.empty()) {
    const auto rows = simulate::sweep(simulate::parse_sweep(asked.sweep), std::ref(replay));
    session.add(scaling(rows));
    if (!asked.plot.empty()) simulate::plot_scaling(rows, cat(machine.name, ", predicted"), asked.plot);
    return;
  }
  const simulate::Result result = replay(0);
  session.add(critical_path(result));
  session.add_text(result.steps >= 2 ? cat("The step between the last two of ", result.steps, " marks.\n")
                                     : std::string("The whole recording: it has fewer than two marks of steps.\n"));
  session.add(devices(result));
  Table used = links(result);
  if (!used.empty()) session.add_text("");
  session.add(std::move(used));
  if (!asked.trace.empty()) {
    detail::write_whole_file("simulate", asked.trace, simulate::trace_json(replay.recording(), result));
    session.add_text(cat("\nTimeline for ui.perfetto.dev: ", asked.trace));
  }
}

void options(CLI::App& app) {
  app.add_option("recording", asked.recording,
                 "What a program recorded with LOCKSTEP_RECORD (docs/simulate.md); with --sweep, {} in the name stands "
                 "for the number of devices");
  app.add_option("--machine", asked.machine, "The machine: a file as those in docs/machines");
  app.add_option("--compute", asked.compute,
                 "How fast kernels are: as those of the vendor's libraries, or as this library's own are estimated")
      ->check(CLI::IsMember({"vendor", "own"}))
      ->capture_default_str();
  app.add_option("--as", asked.as,
                 "Predict a model of what PyTorch's DataParallel or DistributedDataParallel would enqueue for the step "
                 "of one device that was recorded")
      ->check(CLI::IsMember({"pytorch-dp", "pytorch-ddp"}));
  app.add_option("--trace", asked.trace, "Write a timeline to this file, for ui.perfetto.dev");
  app.add_option("--sweep", asked.sweep,
                 "A row for each number of devices: devices=1..64 (powers of two) or devices=1,2,4,8");
  app.add_option("--plot", asked.plot, "Draw the rows of --sweep to this PNG file");
}

const bench::Subcommand command("simulate", "A recorded step, predicted for a machine that is not there", options, run);

}  // namespace lockstep::simulate_bench
