// The replicas of one call, as those that meet: what one of them knows reaches all others. Private to the library.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::detail {

// Shared by the replicas of a call, which have numbers from 0. Nobody waits for a replica that does not come: one that
// has returned, has thrown or was not started, and replicas that wait for each other at different places, end the
// waits of all with a Failure that names them; so does the deadline of the call.
class ReplicaGroup {
 public:
  explicit ReplicaGroup(std::vector<Device> devices) : devices_(std::move(devices)), members_(devices_.size()) {}
  ReplicaGroup(const ReplicaGroup&) = delete;
  ReplicaGroup& operator=(const ReplicaGroup&) = delete;

  // What this thread is in that group: a replica beside others. Null elsewhere, and for a lone replica.
  struct Membership {
    ReplicaGroup* group;
    int replica;
  };
  static const Membership* current();
  // Makes this thread a replica of the group until the scope ends.
  class Scope {
   public:
    Scope(ReplicaGroup& group, int replica);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    const Membership mine_;
    const Membership* before_;
  };

  // Where replicas meet. Its address says which place it is; the members are for errors: who wants them to meet, and
  // what it is called.
  struct Place {
    const char* op;
    std::string name;
  };
  // What is thrown to replicas that did not fail themselves.
  class Failure final : public Error {
   public:
    using Error::Error;
  };
  // Blocks until every replica has come to `place` (as often as this one has). The last one calls `combine` with what
  // they have brought, by replica, while the others wait, and each gets its element of what that returns. `combine`
  // works on the stream that is current for each replica on the device of what it brings, and records a graph if any of
  // them does; all go on from the same number of graph nodes: so it makes no difference who came last. What `combine`
  // throws, the last one throws too, and the others a Failure with the same words.
  using Combine = std::function<std::vector<Tensor>(const std::vector<Tensor>& brought)>;
  Tensor meet(const Place& place, int replica, const Tensor& mine, const Combine& combine);

  // The replica does not come any more: it has thrown `error` or, where that is null, returned.
  void leave(int replica, const std::exception_ptr& error) noexcept;
  // Ends the waits of all. Returns which replicas waited.
  std::vector<bool> fail(const char* reason);

 private:
  struct Table {
    explicit Table(std::size_t replicas) : tensors(replicas), streams(replicas), missing(replicas) {}
    std::vector<Tensor> tensors;       // brought, then combined
    std::vector<StreamBody*> streams;  // of those who brought them
    std::size_t missing;
    bool records = false;             // a graph, for one of them
    bool over = false, done = false;  // combined, or not; and well
    std::uint64_t sequence = 0;       // the largest of those who came
  };
  struct Member {
    const Place* waits_at = nullptr;  // its argument
    bool left = false;
    std::string how;
  };
  std::shared_ptr<Table> table_at(const Place& place);
  static void combine_all(Table& table, const Combine& combine);
  std::string describe(std::size_t replica) const;
  bool is_stuck() const;
  std::string why_stuck() const;
  template <class Reason>
  void fail_once(Reason&& reason) noexcept;
  [[noreturn]] void throw_failure() const;

  const std::vector<Device> devices_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::map<const Place*, std::shared_ptr<Table>> tables_;  // where some are missing, by place
  bool failed_ = false;
  std::string failure_;  // empty where there was no memory for it
};

}  // namespace lockstep::detail
