// The state of one simulation. Private to the simulator.
#pragma once

#include <deque>
#include <queue>
#include <tuple>

#include "lockstep/parallel/simulate/meetings.h"
#include "lockstep/parallel/simulate/simulation.h"

namespace lockstep::simulate {

class Replay {
 public:
  Replay(const Recording& recording, const Machine& machine, const Options& options);
  Result run();

 private:
  // A time, and the node that it comes from.
  struct Moment {
    Nanoseconds time = 0;
    int node = -1;
    void delay(const Moment& other) {
      if (other.time > time) *this = other;
    }
  };
  struct Thread {
    std::size_t next = 0;
    Moment free;  // the end of the call before
    bool blocked = false;
  };
  struct Stream {
    std::deque<int> work;  // entries that have been issued and are not done
    Moment free;           // the end of the work before
    Moment not_before;     // of events waited for
    bool after_kernel = false, busy = false, blocked = false;
    Nanoseconds asked = -1;  // the time for which it is to be looked at again
  };
  // Something that does one thing at a time (or `servers` things), in the order in which they came.
  struct Server {
    std::deque<int> waiting;
    int running = 0, servers = 1;
    int last = -1;  // node that ended last
  };
  struct Device {
    Server kernels, engines[3];  // h2d, d2h, peer
    // The kernel that runs. A nanosecond of work is kFull units; so many pass in a nanosecond.
    int kernel = -1, version = 0;
    std::int64_t left = 0, rate = 0;
    Nanoseconds since = 0;
    int collectives = 0;  // that run beside it
  };
  enum class What : std::uint8_t {
    call_done,
    thread_on,
    stream_on,
    kernel_done,
    flow_begins,
    copy_done,
    work_done,
    meeting_done
  };
  using Event = std::tuple<Nanoseconds, std::int64_t, What, int, int>;  // time, number, what, of which, version
  static constexpr std::int64_t kFull = 1'000'000;

  const Entry& entry(int e) const { return *entries_[static_cast<std::size_t>(e)]; }
  Step& step(int e) { return steps_[static_cast<std::size_t>(e)]; }
  Stream& stream_of(int e) { return streams_[static_cast<std::size_t>(entry(e).stream)]; }
  int device_of(int e) const { return recording_.streams[static_cast<std::size_t>(entry(e).stream)].device; }
  int number(EntryRef ref) const { return first_[static_cast<std::size_t>(ref.thread)] + ref.entry; }
  static int call_node(int e) { return 2 * e; }
  static int work_node(int e) { return 2 * e + 1; }

  void check() const;
  void at(Nanoseconds time, What what, int which, int version = 0);
  void handle(const Event& event);

  void go_on(int thread);  // its next entry begins
  void call_done(int thread);
  Nanoseconds cost(const Entry& entry) const;

  void advance(int stream);  // begins what can begin
  Moment ready(const Stream& stream, int e) const;
  void begin(int e, const Moment& moment);  // what takes time
  void finish(int e);                       // its work is done, now
  void serve(Server& server, int e, void (Replay::*start)(int));
  void leave(Server& server, int e, void (Replay::*start)(int));
  void start_kernel(int e);
  void take_second_engine(int e);
  void start_copy(int e);
  void end_flow(int e);
  void end_copy(int e);
  void set_rate(int device);
  Nanoseconds kernel_time(int e) const;
  const Route& route(int e) const;
  Server* engine(int e, bool second);

  // Threads have their own numbers here, streams those after them.
  struct Waiting {
    std::string text;
    int on = -1;  // which it waits for; -1: nothing that could come
  };
  Waiting waiting(int who) const;
  int source_of(int e) const;  // what an entry that is not done hangs on
  [[noreturn]] void fail_deadlock() const;
  void read_off(Result& result) const;
  void find_critical_path(Result& result, int last) const;
  void find_use(Result& result) const;

  const Recording& recording_;
  const Machine& machine_;
  const Options options_;
  Nanoseconds now_ = 0;
  std::int64_t events_made_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;

  std::vector<const Entry*> entries_;
  std::vector<int> first_, thread_of_;  // entry of each thread, thread of each entry
  std::vector<Step> steps_;
  std::vector<char> issued_;
  std::vector<int> issue_order_;
  std::vector<std::pair<int, std::size_t>> marks_;               // of steps: entry, and how much had been issued
  std::vector<std::vector<int>> issue_waiters_;                  // threads, by entry
  std::vector<std::vector<int>> done_waiters_, stream_waiters_;  // threads and streams, by entry
  std::vector<Thread> threads_;
  std::vector<Stream> streams_;
  std::vector<Device> devices_;
  Moment lock_;  // one call at a time
  Flows flows_;
  Meetings meetings_;
};

}  // namespace lockstep::simulate
