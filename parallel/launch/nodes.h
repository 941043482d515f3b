// The store of a job, and the launchers of its other machines.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/fd.h"
#include "lockstep/parallel/launch/ends.h"
#include "lockstep/parallel/launch/job_store.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

// Node 0's launcher serves the store. Every launcher shows in it that it is alive and leaves a will, says when the job
// is going to end, and how its ranks have ended; from that of all node 0's finds the end of the job. Where ranks go on
// when one fails, those of a node that is gone or silent are lost, and the others go on; without node 0 nobody does. An
// own thread watches, tells the others what this launcher has to say, and makes `event()` readable when there is
// something to see: nobody else waits for a store that may be out of reach.
class Nodes {
 public:
  // `options` are those of the round, and of one node that has its number in the store.
  Nodes(const Options& options, JobStore job_store);
  ~Nodes();

  // Starts to look after the other launchers, in a thread that inherits the mask of signals. On node 0 that also asks
  // `newcomers`, where there is such a function, why the round is to end so that other nodes can be taken in.
  void watch(std::function<std::optional<End>()> newcomers = nullptr);

  const std::string& address() const { return job_store_.address; }
  const std::string& token() const { return job_store_.token; }  // what ranks show to the store
  int event() const { return event_.get(); }
  void clear_event();
  // The job is going to end before all ranks have ended well: because of a rank, or for this reason. The first counts.
  struct Ending {
    std::optional<End> reason;
  };
  void begin_to_end(std::optional<End> reason);
  std::optional<Ending> ending() const;
  // What is to be said of other nodes, once.
  std::vector<std::string> take_news();
  // For ranks that wait for this one. Where ranks go on when one fails, and too few of them are left, the job is going
  // to end.
  void rank_ended(const RankEnd& rank);
  // This machine's ranks have ended, well or not. With one machine that is all.
  void report(std::vector<RankEnd> ranks);
  // How the job has ended, once it has.
  std::optional<End> end() const;
  // Waits until the other launchers know the end too; briefly for those that have not come yet, if at all. How each
  // rank has ended, as far as this machine can learn it.
  std::vector<RankEnd> leave(bool wait_for_late, Leaving how);
  // Node 0, then: the places of those that knew it in time, and would take part in another round.
  const std::vector<int>& there() const { return there_; }

 private:
  void defer(std::function<void()> action);  // to the thread that watches
  void run_deferred();
  bool look();
  void watch_over();
  void lose(int node);
  void count_failures(int count);
  void wait_for_others(bool wait_for_late);
  std::vector<RankEnd> all_ends();
  End judge(const std::optional<Ending>& ending, const std::vector<RankEnd>& ranks) const;
  void conclude(Ending ending);
  void conclude(End end);
  void conclude_alone();
  void part(const std::string& why);  // from the others, for good
  void wake();

  Options options_;
  JobStore job_store_;
  const std::shared_ptr<Store> store_;
  detail::Fd event_;
  mutable std::mutex mutex_;
  std::vector<std::string> news_;
  std::vector<std::function<void()>> deferred_;
  std::optional<Ending> own_ending_, ending_;  // what this machine wants the job to end for, and what it does
  std::optional<std::vector<RankEnd>> mine_;   // how the ranks of this machine have ended
  std::optional<End> end_;
  std::atomic<bool> stop_{false}, lost_{false};  // lost: the store cannot be reached any more
  struct Beat {
    std::string count;
    Clock::time_point since = Clock::now();
    std::string silent;  // why it is not waited for any more
    bool lost = false;   // the others go on without it
  };
  std::vector<Beat> beats_;
  std::function<std::optional<End>()> newcomers_;
  std::vector<int> there_;
  std::thread watcher_;
};

}  // namespace lockstep::launch
