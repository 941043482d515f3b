// Collectives of an NCCL rank in graphs: NCCL records what it is asked for on a stream that is captured, and each
// replay is work on the way as a call is, under the name and the number of its first collective.
#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/parallel/comm/nccl/nccl_rank.h"
#include "lockstep/runtime/cuda/current_device.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep::nccl {
namespace {

// Ranks that are open, with the tokens of their processes: tests have several processes in one.
struct OpenRanks {
  std::mutex mutex;
  std::map<const Rank*, std::string> processes;
};
OpenRanks& open_ranks() {
  static auto* const made = new OpenRanks;
  return *made;
}

}  // namespace

void Rank::enter_process() const {
  OpenRanks& all = open_ranks();
  const std::lock_guard lock(all.mutex);
  all.processes[this] = detail::process_token();
}

void Rank::leave_process() const noexcept {
  OpenRanks& all = open_ranks();
  const std::lock_guard lock(all.mutex);
  all.processes.erase(this);
}

bool Rank::alone_in_process() const {
  OpenRanks& all = open_ranks();
  const std::lock_guard lock(all.mutex);
  const auto own = all.processes.find(this);
  return std::all_of(all.processes.begin(), all.processes.end(), [&](const auto& each) {
    return each.first == this || own == all.processes.end() || each.second != own->second;
  });
}

// NCCL may deadlock where the graphs of several of its ranks in a process are launched one after the other.
std::string Rank::why_not_recorded() const {
  if (place_->size() > 1)
    return cat("a collective of ", place_->size(), " ranks in one process, whose replays may wait for each other for ",
               "ever; it takes a process for each GPU");
  if (!alone_in_process())
    return "a collective beside another communicator over nccl in this process, for which replays may wait for ever";
  return "";
}

// What a graph has of the rank.
class Rank::InGraph final : public detail::Replayed {
 public:
  InGraph(std::shared_ptr<Rank> rank, const detail::Capture* capture) : capture_(capture), rank_(std::move(rank)) {
    ++rank_->graphs_;
  }
  InGraph(const InGraph&) = delete;
  InGraph& operator=(const InGraph&) = delete;
  ~InGraph() override {
    --rank_->graphs_;
    rank_->graphs_.notify_all();
  }

  void add(std::span<const Collective> calls) {
    for (const Collective& each : calls) {
      timeout_ = std::max(timeout_, each.timeout);
      if (!each.pairwise()) {
        if (++numbered_ > 1) continue;
        first_ = fingerprint(each);
        peers_.clear();
      } else if (numbered_ == 0) {
        if (peers_.empty()) first_ = fingerprint(each);
        peers_.push_back(each.peer);
      }
    }
  }
  bool of(const detail::Capture* capture) const { return capture == capture_; }
  PendingWork work() const {
    return {.fingerprint = first_, .peers = peers_, .deadline = Deadline::after(timeout_).time(), .timeout = timeout_};
  }
  std::uint64_t numbered() const { return numbered_; }  // those that are not between two ranks

  void captured() noexcept override { rank_->recording_ = nullptr; }
  void write(std::byte*) override { rank_->begin_replay(); }
  void replayed(const Stream& on) noexcept override { rank_->end_replay(*this, on); }
  void given_up() noexcept override { detail::end_collective(); }

 private:
  const detail::Capture* const capture_;
  const std::shared_ptr<Rank> rank_;
  Fingerprint first_;  // of those with numbers, if there are any
  std::vector<int> peers_;
  std::uint64_t numbered_ = 0;
  Milliseconds timeout_{};
};

void Rank::record(std::span<const Collective> calls, const Stream& stream) {
  check();
  const Collective& first = calls[0];
  detail::Capture& capture = *detail::current_capture;
  if (!recording_) {
    auto made = std::make_unique<InGraph>(shared_from_this(), &capture);
    InGraph* const place = made.get();
    (void)capture.add(std::move(made), 0);
    recording_ = place;
  } else if (!recording_->of(&capture)) {
    capture.refuse(to_string(first.kind), "a collective of a communicator that another thread captures");
  }
  recording_->add(calls);
  if (std::all_of(calls.begin(), calls.end(), [](const Collective& each) { return each.count == 0; })) return;
  const Deadline deadline = Deadline::after(first.timeout);
  const cuda::CurrentDevice current(device_);
  issue_and_wait(calls, stream,
                 {.fingerprint = fingerprint(first), .deadline = deadline.time(), .timeout = first.timeout}, deadline);
}

void Rank::begin_replay() {
  check();
  LOCKSTEP_CHECK(!closed_, "[replay] expected the communicator whose collectives the graph has, got it after its end");
  if (const std::string why = why_not_recorded(); !why.empty())
    throw NotSupported(cat("[replay] expected one rank over nccl in this process, got ", why));
  detail::begin_collective();
}

void Rank::end_replay(const InGraph& graph, const Stream& stream) noexcept try {
  PendingWork entry = graph.work();
  entry.done.record(stream);
  const std::lock_guard lock(state_);
  if (graph.numbered() > 0) {
    entry.fingerprint.sequence = last_number_ + 1;
    last_number_ += graph.numbered();
    replayed_ += graph.numbered();
  }
  last_enqueued_ = entry.fingerprint;
  pending_.push_back(std::move(entry));
} catch (...) {  // the device is lost
  detail::end_collective();
  fail(CommError(oob_.rank(), "replay", detail::describe(std::current_exception())));
}

}  // namespace lockstep::nccl
