// The store of a job, and the launchers of its other machines.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/parallel/comm/internal/socket.h"
#include "lockstep/parallel/comm/tcp_store.h"
#include "lockstep/parallel/launch/options.h"

namespace lockstep::launch {

// Node 0's launcher serves the store. Every launcher shows in it that it is alive; the first end that one of them
// reports is the end for all. An own thread watches, and makes `event()` readable when there is something to see.
class Nodes {
 public:
  // Blocks until the other launchers' store is there. Throws Error for what does not fit.
  Nodes(const Options& options, std::string token, const std::string& run_id);
  ~Nodes();

  // Starts to look after the other launchers, in a thread that inherits the mask of signals.
  void watch();

  const std::string& address() const { return address_; }
  int event() const { return event_.get(); }
  // This machine's ranks have ended, well or not. With one machine that is all.
  void report(const End& end);
  // How the job has ended, once it has.
  std::optional<End> end() const;
  // Waits until the other launchers know the end too; briefly for those that have not come yet, if at all.
  void leave(bool wait_for_late);

 private:
  bool look();
  void conclude(End end);
  std::string key(const char* name, int node) const;

  Options options_;
  std::string token_, address_;
  std::unique_ptr<TcpStoreServer> server_;
  std::shared_ptr<Store> store_;
  detail::Fd event_;
  mutable std::mutex mutex_;
  std::optional<End> end_;
  std::atomic<bool> stop_{false}, lost_{false};  // lost: the store cannot be reached any more
  struct Beat {
    std::string count;
    Clock::time_point since = Clock::now();
  };
  std::vector<Beat> beats_;
  std::thread watcher_;
};

}  // namespace lockstep::launch
