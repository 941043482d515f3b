// A Runner takes over a checkpoint.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "lockstep/parallel/openmmlab/runner/checkpoint_file.h"
#include "lockstep/parallel/openmmlab/runner/core.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep {
namespace {

using Tensors = std::vector<NamedTensor>;

Tensors part_of(const Safetensors& file, const std::string& prefix) {
  Tensors part;
  for (const NamedTensor& named : file.tensors)
    if (named.name.starts_with(prefix)) part.push_back({named.name.substr(prefix.size()), named.tensor});
  return part;
}

// What a file says of a training, with the errors of one who reads what others wrote.
class Metadata {
 public:
  Metadata(const std::string& path, const std::map<std::string, std::string>& entries)
      : path_(path), entries_(entries) {
    LOCKSTEP_CHECK(entries_.contains(detail::kRunnerFormat), "[Runner] expected a checkpoint of a Runner, got '", path_,
                   "'");
  }
  const std::string& text(const std::string& name) const {
    const auto found = entries_.find(name);
    LOCKSTEP_CHECK(found != entries_.end(), "[Runner] expected '", path_, "' to say its ", name, ", got nothing");
    return found->second;
  }
  std::uint64_t number(const std::string& name) const { return numbers(name, 1).front(); }
  std::vector<std::uint64_t> numbers(const std::string& name, std::size_t count) const {
    std::vector<std::uint64_t> all;
    const char* at = text(name).c_str();
    for (char* end = nullptr; *at != '\0'; at = *end == ' ' ? end + 1 : end) {
      all.push_back(std::strtoull(at, &end, 10));
      if (end == at) break;
    }
    LOCKSTEP_CHECK(*at == '\0' && all.size() == count, "[Runner] expected '", path_, "' to have ", count,
                   " numbers as its ", name, ", got '", text(name), "'");
    return all;
  }

 private:
  const std::string& path_;
  const std::map<std::string, std::string>& entries_;
};

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

std::string detail::reason_of(int error) {
  return error == 0 ? "no reason of the system" : std::error_code(error, std::generic_category()).message();
}

void detail::fail_to_write(const std::string& path, int error) {
  fail<Error>("[Runner] expected to write '", path, "', got ", reason_of(error));
}

void detail::replace_file(const std::string& path, const std::string& text) try {
  WholeFile file(path, WholeFile::Special::refused);
  file.write(text.data(), text.size());
  file.commit();
} catch (const FileError& error) {
  fail_to_write(path, error.code);
}

struct RunnerCore::Progress {
  std::int64_t epoch, iter, in_epoch, per_epoch;
  std::vector<std::uint64_t> random;
  Files files;
};

LoadReport RunnerCore::load_checkpoint(const std::string& path, bool strict) {
  Safetensors file = load_safetensors(path);
  call<&RunnerHook::after_load_checkpoint>(file);
  LoadReport report = load_model(module_, std::move(file), path, {.strict = strict});
  call<&RunnerHook::after_take_over>();
  if (!report.complete() && rank() == 0)
    log(LogLevel::warning, cat("[Runner] '", path, "' does not fit the model; ", report.describe()));
  return report;
}

bool RunnerCore::resume() {
  std::string name;
  detail::on_rank_0(communicator_, [&] {
    const std::string path = path_of(detail::kLastCheckpoint);
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      if (error) detail::fail<Error>("[Runner] expected to read '", path, "', got ", error.message());
      return;
    }
    errno = 0;
    std::ifstream file(path);
    if (!std::getline(file >> std::ws, name))
      detail::fail<Error>("[Runner] expected the name of a checkpoint in '", path, "', got ",
                          errno == 0 ? "an empty file" : detail::reason_of(errno));
    remove_abandoned();
  });
  if (communicator_ && communicator_->size() > 1) name = communicator_->broadcast_bytes(name, 0);
  if (name.empty()) return false;
  resume(path_of(name));
  return true;
}

// Files that save_safetensors was writing when a process was killed. Those of a process of another machine that shares
// the folder look the same, but nobody writes to one file for a day.
void RunnerCore::remove_abandoned() const {
  std::error_code ignored;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(options_.work_dir, ignored)) {
    const std::string name = entry.path().filename().string();
    int pid = 0, end = 0;
    if (std::sscanf(name.c_str(), ".lockstep-%d-%*d.tmp%n", &pid, &end) != 1 || end != static_cast<int>(name.size()))
      continue;
    if (pid > 0 && ::kill(pid, 0) != 0 && errno == ESRCH) found.push_back(entry.path());
  }
  if (found.empty()) return;
  // The clock that gives files their times may be that of a server: it is asked with a file.
  const std::filesystem::path fresh = path_of(".lockstep-now");
  std::ofstream(fresh) << '\n';
  std::error_code error;
  const auto now = std::filesystem::last_write_time(fresh, error);
  std::filesystem::remove(fresh, ignored);
  for (const std::filesystem::path& path : found)
    if (const auto written = std::filesystem::last_write_time(path, ignored);
        !error && !ignored && now - written > std::chrono::hours(24))
      std::filesystem::remove(path, ignored);
}

RunnerCore::Progress RunnerCore::progress_in(const std::string& path, const Safetensors& checkpoint) const {
  const Metadata metadata(path, checkpoint.metadata);
  const auto same = [&](const char* what, std::uint64_t here) {
    LOCKSTEP_CHECK(metadata.number(what) == here, "[Runner] expected ", here, ' ', what, ", got '", path, "' with ",
                   metadata.number(what));
  };
  same("ranks", communicator_ ? static_cast<std::uint64_t>(communicator_->size()) : 1);
  same("schedulers", schedulers_.size());
  const auto count = [&](const char* name) { return static_cast<std::int64_t>(metadata.number(name)); };
  Progress progress{.epoch = count("epoch"),
                    .iter = count("iter"),
                    .in_epoch = count("iter_in_epoch"),
                    .per_epoch = count("iters_per_epoch"),
                    .random = metadata.numbers(cat("random.", rank()), 3),
                    .files = {.best = {}, .kept = split(metadata.text("checkpoints"), '/'), .superseded = {}}};
  Files& files = progress.files;
  if (checkpoint.metadata.contains("superseded")) files.superseded = split(metadata.text("superseded"), '/');
  constexpr std::string_view kBest = "best.";
  for (const auto& [name, text] : checkpoint.metadata) {
    if (!name.starts_with(kBest)) continue;
    char* end = nullptr;
    const double score = std::strtod(text.c_str(), &end);
    LOCKSTEP_CHECK(*end == ' ', "[Runner] expected '", path, "' to have a score and a file as its ", name, ", got '",
                   text, "'");
    files.best.push_back({name.substr(kBest.size()), score, end + 1});
  }
  // best_score() without a name is that of the first metric of the options.
  const std::vector<std::string>& order = options_.checkpoint.save_best.metrics();
  const auto place = [&](const Best& best) {
    return std::find(order.begin(), order.end(), best.metric) - order.begin();
  };
  std::stable_sort(files.best.begin(), files.best.end(),
                   [&](const Best& a, const Best& b) { return place(a) < place(b); });
  // What other checkpoints than this one have led to may be in use again.
  std::erase_if(files.superseded, [&](const std::string& name) {
    return std::find(files.kept.begin(), files.kept.end(), name) != files.kept.end() ||
           std::any_of(files.best.begin(), files.best.end(), [&](const Best& each) { return each.file == name; });
  });
  return progress;
}

void RunnerCore::resume(const std::string& path) {
  check_whole();
  resuming_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> until_read(&resuming_, [](bool* flag) { *flag = false; });
  Safetensors file = load_safetensors(path);
  progress_in(path, file);  // hooks do not see a file of another training
  call<&RunnerHook::after_load_checkpoint>(file);
  Progress progress = progress_in(path, file);  // they may have changed it

  std::map<std::string, Tensor> gradients;
  for (const NamedTensor& named : part_of(file, cat("grad.", rank(), '.'))) gradients[named.name] = named.tensor;
  for (const NamedParameter& named : module_.named_parameters()) {
    const auto found = gradients.find(named.name);
    LOCKSTEP_CHECK(found == gradients.end() || found->second.shape() == named.parameter.shape(),
                   "[Runner] expected a gradient of ", named.name, " like the parameter's ", named.parameter.shape(),
                   ", got ", found->second);
  }

  // Each part checks itself before it changes anything. What was taken over when a later one does not fit goes back.
  std::vector<std::pair<std::function<void(const Tensors&)>, Tensors>> done;
  const auto take = [&](const char* what, const Tensors& before, const Tensors& state, auto load) {
    try {
      load(state);
      done.emplace_back(load, before);
    } catch (const InvalidArgument& error) {
      for (auto undo = done.rbegin(); undo != done.rend(); ++undo) undo->first(undo->second);
      detail::fail<InvalidArgument>("[Runner] expected the ", what, " of this training, got that of '", path,
                                    "': ", error.what());
    }
  };
  const NoGrad no_grad;
  Tensors model = module_.state_dict();
  for (NamedTensor& named : model) named.tensor = named.tensor.clone();
  take("model", model, part_of(file, "model."), [&](const Tensors& state) { module_.load_state_dict(state); });
  for (std::size_t i = 0; i < schedulers_.size(); ++i) {
    detail::LiveScheduler& scheduler = schedulers_[i];
    take("scheduler", scheduler.state_dict(), part_of(file, cat("scheduler.", i, '.')),
         [&scheduler](const Tensors& state) { scheduler.load_state_dict(state); });
  }
  // The optimizer comes last: its rates are those of the file, not what schedulers compute.
  take("optimizer", optim_wrapper_->state_dict(), part_of(file, "optimizer."),
       [&](const Tensors& state) { optim_wrapper_->load_state_dict(state); });

  for (const NamedParameter& named : module_.named_parameters()) {
    const auto found = gradients.find(named.name);
    named.parameter.set_grad(found == gradients.end() ? Tensor() : found->second.to(named.parameter.device()).clone());
  }
  epoch_ = progress.epoch, iter_ = progress.iter;
  iter_in_epoch_ = progress.in_epoch, iters_per_epoch_ = progress.per_epoch;
  files_ = std::move(progress.files);
  scalars_end_ = iter_;
  thread_context().random_seed = progress.random[0];
  thread_context().random_stream = progress.random[1];
  thread_context().random_counter = progress.random[2];
  call<&RunnerHook::after_take_over>();
}

}  // namespace lockstep
