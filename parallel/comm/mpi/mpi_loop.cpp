#include "lockstep/parallel/comm/mpi/mpi_loop.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "lockstep/runtime/strings.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one message of MPI's, which counts with ints
constexpr Milliseconds kCancelTime{5'000};                // for what is on its way when a transfer is given up
// At the end, after a failure: for ranks that may still save what they have, and for those that were silent before.
constexpr Milliseconds kPatience{120'000}, kPatienceWithSilent{2'000};

// What a member that has failed or left tells the others, followed by the text of the failure. One that leaves
// because another has failed says so: its message may be here before the other's.
struct ControlMessage {
  bool failed = false;
  int rank = 0;
  MpiProgress done;
};

}  // namespace

std::string MpiEngine::Loop::message_of(int code) const {
  char text[1024] = {};
  mpi_.describe(code, text, sizeof text);
  return text;
}

std::string MpiEngine::Loop::begin() {
  int ready = 0, over = 0, level = mpi::kSingle;
  mpi_.state(&ready, &over);
  if (over) return "expected MPI to be in use, but it was finalised before";
  if (ready) {
    mpi_.level(&level);
    if (level < mpi::kSerialized)
      return "expected the application to initialise MPI with MPI_THREAD_SERIALIZED at least";
  } else {
    if (const int code = mpi_.init(mpi::kFunneled, &level)) return cat("MPI_Init_thread: ", message_of(code));
    own_ = true;
    if (level < mpi::kFunneled) return "expected an MPI that allows threads (MPI_THREAD_FUNNELED)";
  }
  if (const int code = mpi_.open(&engine_.rank_, &engine_.size_, &max_tag_))
    return cat("MPI_Comm_dup: ", message_of(code));
  std::vector<int> everybody(static_cast<std::size_t>(engine_.size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  engine_.ending_ = engine_.open(engine_.context(engine_.size_, 0), std::move(everybody), engine_.rank_);
  return "";
}

void MpiEngine::Loop::run() {
  for (int idle = 0; take_commands();) {
    bool moved = listen();
    for (const auto& active : active_) moved = advance(*active) || moved;
    std::erase_if(active_, [](const auto& active) { return active->batch == nullptr; });
    moved = progress_detached() || moved;
    // More ranks than cores: the others need them.
    idle = moved ? 0 : idle + 1;
    if (idle > 20'000) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    } else if (idle > 50) {
      ::sched_yield();
    }
  }
  if (!own_) return;
  // Who waits for this rank need not wait for its deadline: communicators that are left over go now.
  for (const auto& [context, control] : controls_)
    if (control->group != engine_.ending_) notify_members(*control->group);
  notify_members(*engine_.ending_);
  const bool all = await_endings();
  for (const auto& [context, control] : controls_) cancel(*control);
  const Deadline deadline = Deadline::after(kCancelTime);
  while (!detached_.empty() && !deadline.passed()) progress_detached();
  if (all) mpi_.finalize();
}

bool MpiEngine::Loop::await_endings() {
  const Deadline patience = Deadline::after(kPatience), with_silent = Deadline::after(kPatienceWithSilent);
  for (;;) {
    listen();
    progress_detached();
    {
      const std::lock_guard lock(engine_.mutex_);
      if (!engine_.failed_) return true;  // MPI_Finalize waits for the others
      bool missing = false, only_silent = true;
      for (int r = 0; r < engine_.size_; ++r) {
        if (r == engine_.rank_ || engine_.ending_->gone[static_cast<std::size_t>(r)]) continue;
        missing = true;
        only_silent &= engine_.silent_.contains(r);
      }
      if (!missing) return true;
      if (patience.passed() || (only_silent && with_silent.passed())) return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void MpiEngine::Loop::cancel(Control& control) {
  if (control.request == 0) return;
  mpi_.cancel(&control.request);
  mpi_.finish(&control.request);
}

bool MpiEngine::Loop::take_commands() {
  std::unique_lock lock(engine_.mutex_);
  if (active_.empty() && engine_.batches_.empty() && engine_.commands_.empty()) {
    const auto wanted = [&] { return !engine_.batches_.empty() || !engine_.commands_.empty(); };
    if (detached_.empty()) {
      engine_.wanted_.wait(lock, wanted);
    } else {
      engine_.wanted_.wait_for(lock, Milliseconds(1), wanted);
    }
  }
  const std::vector<Command> commands = std::exchange(engine_.commands_, {});
  const std::vector<Batch*> batches = std::exchange(engine_.batches_, {});
  lock.unlock();
  bool go_on = true;
  for (const Command& command : commands) {
    const auto& group = command.group;
    if (command.kind == Command::Kind::stop) {
      go_on = false;
    } else if (command.kind == Command::Kind::open) {
      auto& control = controls_[group->context];
      control = std::make_unique<Control>();
      control->group = group;
      if ((group->context + 1) * kTagsPerContext > max_tag_) {
        engine_.fail(group, {group->index, "expected no more communicators than MPI has tags for"}, true);
      } else {
        receive_control(*control);
      }
    } else {
      notify_members(*group);
      if (command.kind == Command::Kind::close) {
        const auto found = controls_.find(group->context);
        cancel(*found->second);
        controls_.erase(found);
      }
    }
  }
  for (Batch* batch : batches) {
    active_.push_back(std::make_unique<Active>(Active{.batch = batch}));
    post(*active_.back());
  }
  return go_on;
}

// ---- what members tell each other besides their messages

void MpiEngine::Loop::receive_control(Control& control) {
  const int code = mpi_.irecv(control.bytes.data(), static_cast<int>(kControlBytes), mpi::kAnySource,
                              tag_number(*control.group, MpiTag::control), &control.request);
  if (code != 0) error(control.group, "MPI_Irecv", code);
}

bool MpiEngine::Loop::listen() {
  bool moved = false;
  for (const auto& [context, control] : controls_) {
    if (control->request == 0) continue;
    int done = 0;
    mpi::Status status{};
    if (const int code = mpi_.test(&control->request, &done, &status)) {
      error(control->group, "MPI_Test", code);
      continue;
    }
    if (!done) continue;
    moved = true;
    const int bytes = status.bytes;
    MpiGroup& group = *control->group;
    const auto& members = group.members;
    const auto from = std::find(members.begin(), members.end(), status.source);
    if (from != members.end() && bytes >= static_cast<int>(sizeof(ControlMessage))) {
      ControlMessage message;
      std::memcpy(&message, control->bytes.data(), sizeof message);
      const std::lock_guard lock(engine_.mutex_);
      group.gone[static_cast<std::size_t>(from - members.begin())] = true;
      if (message.failed) {
        if (!group.failure) {
          group.failure = {message.rank,
                           {control->bytes.data() + sizeof message, static_cast<std::size_t>(bytes) - sizeof message}};
          group.still = message.done;
          engine_.failed_ = true;
        }
        group.still.collectives = std::min(group.still.collectives, message.done.collectives);
        group.still.exchanges = std::min(group.still.exchanges, message.done.exchanges);
        engine_.changed_.notify_all();
      }
    }
    receive_control(*control);
  }
  return moved;
}

void MpiEngine::Loop::notify_members(const MpiGroup& group) {
  std::string text;
  {
    const std::lock_guard lock(engine_.mutex_);
    const MpiFailure failure = group.failure.value_or(MpiFailure{});
    const ControlMessage message{.failed = group.failure.has_value(), .rank = failure.rank, .done = group.done};
    text.assign(reinterpret_cast<const char*>(&message), sizeof message).append(failure.text);
  }
  text.resize(std::min(text.size(), kControlBytes));
  for (std::size_t m = 0; m < group.members.size(); ++m) {
    if (static_cast<int>(m) == group.index) continue;
    DetachedRequest detached{0, std::make_unique<std::string>(text)};
    // Who cannot be told finds out at its deadline.
    if (mpi_.isend(detached.text->data(), static_cast<int>(text.size()), group.members[m],
                   tag_number(group, MpiTag::control), &detached.request) == 0)
      detached_.push_back(std::move(detached));
  }
}

void MpiEngine::Loop::error(const std::shared_ptr<MpiGroup>& group, const char* call, int code) {
  engine_.fail(group, {group->index, cat(call, ": ", message_of(code), "; an MPI job does not survive this")}, true);
}

bool MpiEngine::Loop::progress_detached() {
  return std::erase_if(detached_, [this](DetachedRequest& detached) {
           int done = 0;
           mpi::Status status{};
           return mpi_.test(&detached.request, &done, &status) != 0 || done;
         }) > 0;
}

// ---- transfers

void MpiEngine::Loop::post(Active& active) {
  const auto& group = active.batch->group;
  for (const MpiMessage& message : active.batch->messages) {
    std::size_t at = 0;
    do {
      const std::size_t bytes = std::min(kMostBytes, message.bytes - at);
      char* const data = static_cast<char*>(message.data) + at;
      const int peer = group->members[static_cast<std::size_t>(message.member)];
      const int number = tag_number(*group, message.tag), count = static_cast<int>(bytes);
      mpi::Request request = 0;
      const int code = message.send ? mpi_.isend(data, count, peer, number, &request)
                                    : mpi_.irecv(data, count, peer, number, &request);
      if (code != 0) return error(group, message.send ? "MPI_Isend" : "MPI_Irecv", code);
      active.requests.push_back(request);
      active.of.push_back(&message);
      ++active.pending;
      at += bytes;
    } while (at < message.bytes);
  }
  active.cancelled.assign(active.requests.size(), false);
}

void MpiEngine::Loop::stop(Active& active, Outcome outcome, std::vector<int> members) {
  if (active.stopping) return;
  active.stopping = true;
  active.give_up = Clock::now() + kCancelTime;
  active.batch->result = {outcome, std::move(members)};
  for (std::size_t i = 0; i < active.requests.size(); ++i) {
    if (active.requests[i] == 0) continue;
    if (active.of[i]->send) {
      // It cannot be taken back; who has been promised it still gets it.
      detached_.push_back({std::exchange(active.requests[i], 0), nullptr});
      --active.pending;
    } else if (!active.cancelled[i]) {
      mpi_.cancel(&active.requests[i]);
      active.cancelled[i] = true;
    }
  }
}

bool MpiEngine::Loop::advance(Active& active) {
  Batch& batch = *active.batch;
  bool moved = false;
  std::vector<bool> gone;
  bool stopped;
  {
    const std::lock_guard lock(engine_.mutex_);
    stopped = batch.group->stopped(batch.messages[0].tag, batch.sequence);
    gone = batch.group->gone;
  }
  if (stopped) stop(active, Outcome::failed, {});
  for (std::size_t i = 0; i < active.requests.size() && active.pending > 0; ++i) {
    if (active.requests[i] == 0) continue;
    const auto member = static_cast<std::size_t>(active.of[i]->member);
    // Messages overtake none of before: what one who is gone has sent is here by now, and cannot be cancelled.
    if (gone[member] && !active.of[i]->send && !active.cancelled[i]) {
      mpi_.cancel(&active.requests[i]);
      active.cancelled[i] = true;
    }
    int done = 0;
    mpi::Status status{};
    if (const int code = mpi_.test(&active.requests[i], &done, &status)) {
      active.requests[i] = 0;
      --active.pending;
      error(batch.group, "MPI_Test", code);
      stop(active, Outcome::failed, {});
      continue;
    }
    if (!done) continue;
    moved = true;
    --active.pending;
    if (!active.cancelled[i] || !status.cancelled) continue;
    const bool has_failed = engine_.failure(*batch.group).has_value();
    stop(active, has_failed ? Outcome::failed : Outcome::left, {static_cast<int>(member)});
  }
  if (active.pending > 0 && !active.stopping && batch.deadline.passed()) {
    std::vector<int> late;
    for (std::size_t i = 0; i < active.requests.size(); ++i)
      if (active.requests[i] != 0) late.push_back(active.of[i]->member);
    std::sort(late.begin(), late.end());
    late.erase(std::unique(late.begin(), late.end()), late.end());
    stop(active, Outcome::late, std::move(late));
  }
  if (active.pending > 0 && Clock::now() < active.give_up) return moved;
  const std::lock_guard lock(engine_.mutex_);
  batch.done = true;
  active.batch = nullptr;
  engine_.changed_.notify_all();
  return true;
}

}  // namespace lockstep::detail
