#include "lockstep/parallel/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/parallel/checkpoint/meet.h"
#include "lockstep/parallel/checkpoint/write_step.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/service_thread.h"
#include "lockstep/runtime/utf8.h"

namespace lockstep {

constexpr char kWriterName[] = "CheckpointWriter";

class CheckpointWriter::Writing {
 public:
  Writing(const std::string& folder, Communicator& communicator, const CheckpointOptions& options)
      : communicator_(communicator),
        own_(communicator.split(0, communicator.rank())),
        timeout_(options.timeout.value_or(communicator.timeout())),
        skips_(options.busy == CheckpointOptions::Busy::skip),
        step_{folder, *own_, options.files ? *options.files : system_, options.keep},
        files_(options.files) {
    own_->set_timeout(timeout_);
    std::string problem;
    if (own_->rank() == 0) problem = detail::why_no_checkpoints(folder);
    detail::meet(*own_, cat("[", kWriterName, "] "), "", problem);
  }

  static void start(const std::shared_ptr<Writing>& self) {
    const detail::BlockedSignals blocked;
    self->thread_ = std::thread([self] { self->run(); });
  }

  // The thread ends when nothing is being written. What does not get done by then is left to itself.
  void stop() noexcept {
    if (!thread_.joinable()) return;
    {
      std::unique_lock lock(mutex_);
      stop_ = true;
      changed_.notify_all();
      ended_.wait_until(lock, Deadline::after(timeout_).time(), [this] { return done_; });
      if (!done_) {
        thread_.detach();
        return;
      }
    }
    thread_.join();
  }

  bool save(std::int64_t step, const std::vector<CheckpointEntry>& entries,
            const std::map<std::string, std::string>& values) {
    LOCKSTEP_CHECK(thread_.joinable(), "[", kWriterName, "] expected no save after close");
    detail::StepSave next{.step = step, .values = values};
    std::exception_ptr refusal;
    try {
      LOCKSTEP_CHECK(step >= 0, "[", kWriterName, "] expected a step, got ", step);
      detail::check_entries(entries);
      for (const auto& [key, value] : values)
        LOCKSTEP_CHECK(detail::is_utf8(key) && detail::is_utf8(value), "[", kWriterName,
                       "] expected values in UTF-8, got '", detail::replaced_utf8(key), "': '",
                       detail::replaced_utf8(value), '\'');
    } catch (const InvalidArgument& error) {  // thrown below: the other ranks save, and their threads hear of it
      next.refusal = detail::reason_of(error);
      refusal = std::current_exception();
    }
    const bool begins = !(skips_ && any_busy());
    if (begins) begin(std::move(next), entries);
    if (refusal) std::rethrow_exception(refusal);
    return begins;
  }

  void check() {
    const std::lock_guard lock(mutex_);
    if (failure_ && !std::exchange(told_, true)) std::rethrow_exception(failure_);
  }

  // Ranks check at moments of their own. What was told to one of them is thrown again before a save, on all alike: none
  // begins what others do not.
  void finish(bool before_save) {
    std::unique_lock lock(mutex_);
    if (!ended_.wait_until(lock, Deadline::after(timeout_).time(), [this] { return !next_; }))
      throw TimeoutError(cat("[", kWriterName, "] step ", next_->step, " is not written after ", timeout_.count(),
                             " ms in '", step_.folder, '\''));
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    if (failure && (before_save || !told_)) std::rethrow_exception(failure);
  }

  std::optional<std::int64_t> saved_step() const {
    const std::lock_guard lock(mutex_);
    return saved_;
  }

 private:
  bool any_busy() {
    bool busy;
    {
      const std::lock_guard lock(mutex_);
      busy = next_.has_value();
    }
    const auto all = communicator_.all_gather_bytes(busy ? "1" : "0");
    return std::find(all.begin(), all.end(), "1") != all.end();
  }

  void begin(detail::StepSave next, const std::vector<CheckpointEntry>& entries) {
    finish(true);
    if (next.refusal.empty()) take(next, entries);
    const std::lock_guard lock(mutex_);
    next_ = std::move(next);
    changed_.notify_all();
  }

  void take(detail::StepSave& next, const std::vector<CheckpointEntry>& entries) try {
    snapshot_.take(entries, communicator_.rank() == 0);
    next.replicated = detail::replicated_hash(entries);
  } catch (const std::exception& error) {  // the other ranks wait for this one
    next.problem = detail::reason_of(error);
  }

  void run() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return next_ || stop_; });
      if (!next_) break;
      lock.unlock();
      std::exception_ptr failure;
      bool written = false;
      try {
        written = detail::write_step(step_, *next_, snapshot_, timeout_);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (written) saved_ = next_->step;
      failure_ = std::move(failure);
      told_ = !next_->refusal.empty();
      next_.reset();
      ended_.notify_all();
    }
    done_ = true;
    ended_.notify_all();
  }

  Communicator& communicator_;               // of the thread that saves
  const std::unique_ptr<Communicator> own_;  // of the thread that writes
  const Milliseconds timeout_;
  const bool skips_;
  detail::FileLayer system_;
  const detail::StepWriter step_;
  const std::shared_ptr<detail::FileLayer> files_;
  detail::Snapshot snapshot_;
  mutable std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::optional<detail::StepSave> next_;  // until it has been written
  std::exception_ptr failure_;
  bool told_ = false;  // by check(), or by the save() that this rank refused
  std::optional<std::int64_t> saved_;
  bool stop_ = false, done_ = false;
  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(const std::string& folder, Communicator& communicator,
                                   const CheckpointOptions& options) {
  LOCKSTEP_CHECK(!folder.empty(), "[", kWriterName, "] expected a folder, got an empty name");
  LOCKSTEP_CHECK(options.keep >= 1, "[", kWriterName, "] expected to keep at least 1 checkpoint, got ", options.keep);
  writing_ = std::make_shared<Writing>(folder, communicator, options);
  Writing::start(writing_);
}

CheckpointWriter::~CheckpointWriter() { writing_->stop(); }

bool CheckpointWriter::save(std::int64_t step, const std::vector<CheckpointEntry>& entries,
                            const std::map<std::string, std::string>& values) {
  return writing_->save(step, entries, values);
}
void CheckpointWriter::check() { writing_->check(); }
void CheckpointWriter::wait() { writing_->finish(false); }
void CheckpointWriter::close() {
  writing_->finish(false);
  writing_->stop();
}
std::optional<std::int64_t> CheckpointWriter::saved_step() const { return writing_->saved_step(); }

}  // namespace lockstep
