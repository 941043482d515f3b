// How train_text saves and goes on: checkpoints in a folder, at steps and when a signal asks for one.
#pragma once

#include <algorithm>
#include <atomic>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "progress.h"
#include "text_options.h"

namespace example {

enum class Wish { none, save, end };  // of who runs the program

// SIGUSR1 asks for a checkpoint, SIGTERM for one and the end. A handler may do no more than remember it.
class Wishes {
 public:
  static void hear() {
    std::signal(SIGUSR1, [](int) { wanted_.fetch_or(1); });
    std::signal(SIGTERM, [](int) { wanted_.fetch_or(2); });
  }
  // What any rank has heard of since the last time. All call it at the end of the same step, so that they save, and
  // end, together.
  static Wish agree(lockstep::Communicator& communicator) {
    int all = 0;
    for (const std::string& each : communicator.all_gather_bytes(std::to_string(wanted_.exchange(0))))
      all |= std::stoi(each);
    return (all & 2) != 0 ? Wish::end : all != 0 ? Wish::save : Wish::none;
  }

 private:
  inline static std::atomic<int> wanted_{0};
  static_assert(std::atomic<int>::is_always_lock_free);
};

// The checkpoints of one rank's training: nothing happens without a folder.
class TextCheckpoints {
 public:
  // `setting` is what a checkpoint must have been made with to go on from it.
  TextCheckpoints(const TextOptions& options, std::map<std::string, std::string> setting,
                  lockstep::Communicator& communicator)
      : folder_(options.checkpoint), every_(options.every), setting_(std::move(setting)), communicator_(communicator) {
    if (folder_.empty()) return;
    writer_ = std::make_unique<lockstep::CheckpointWriter>(folder_, communicator,
                                                           lockstep::CheckpointOptions{.keep = options.keep});
    Wishes::hear();
  }

  // Where the last training left off, if there is anything: loads it and returns its step.
  std::int64_t resume(lockstep::ModuleBase& module, lockstep::Optimizer& optimizer, double& loss) {
    if (!writer_) return 0;
    const std::optional<lockstep::Checkpoint> found = lockstep::newest_checkpoint(folder_, communicator_);
    if (!found) return 0;
    // On another number of ranks the values of the first one are as good as any: they are the same on all.
    const auto& values = found->values(std::min(communicator_.rank(), found->ranks() - 1));
    for (const auto& [name, wanted] : setting_) {
      const auto there = values.find(name);
      const std::string got = there == values.end() ? "nothing" : there->second;
      if (got == wanted) continue;
      throw UsageError(
          name == "characters"
              ? lockstep::cat("--checkpoint: '", found->path(), "' was trained on a text of other characters")
              : lockstep::cat("--checkpoint: expected ", name, ' ', got, " as in '", found->path(), "', got ", wanted));
    }
    module.load_state_dict(found->load_all("model."));
    optimizer.load_state_dict(found->load_all("optimizer."), module);
    lockstep::thread_context().random_counter = std::stoull(values.at("random_counter"));
    loss = std::strtod(values.at("loss").c_str(), nullptr);
    return saved_ = found->step();
  }

  // At the end of a step, on every rank. Whether the training is to end.
  bool after_step(std::int64_t step, bool last, const lockstep::ModuleBase& module,
                  const lockstep::Optimizer& optimizer, double loss) {
    if (!writer_) return false;
    writer_->check();
    const Wish wish = Wishes::agree(communicator_);
    if ((last || step % every_ == 0 || wish != Wish::none) && step > saved_) {
      std::vector<lockstep::CheckpointEntry> entries;
      for (const lockstep::NamedTensor& named : module.state_dict())
        entries.push_back({"model." + named.name, named.tensor});
      for (const lockstep::NamedTensor& named : optimizer.state_dict(module))
        entries.push_back({"optimizer." + named.name, named.tensor});
      auto values = setting_;
      values["random_counter"] = std::to_string(lockstep::thread_context().random_counter);
      values["loss"] = format("%.17g", loss);
      writer_->save(step, entries, values);
      saved_ = step;
    }
    if (last || wish == Wish::end) writer_->close();
    return wish == Wish::end;
  }

 private:
  const std::string folder_;
  const std::int64_t every_;
  const std::map<std::string, std::string> setting_;
  lockstep::Communicator& communicator_;
  std::unique_ptr<lockstep::CheckpointWriter> writer_;
  std::int64_t saved_ = -1;
};

}  // namespace example
