// One rank of a PeerGroup. Private to the library.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/comm/peer/peer_group.h"

namespace lockstep::detail {

class PeerCommunicator final : public Communicator {
 public:
  PeerCommunicator(std::shared_ptr<PeerGroup> group, int rank, const PeerOptions& options);
  ~PeerCommunicator() override;
  const char* backend() const override { return "peer"; }

 private:
  struct Work;

  void enqueue(const Collective& collective, const Stream& stream) override;
  void enqueue_batch(std::vector<Collective> transfers, const Stream& stream) override;
  std::vector<std::string> exchange(const Collective& collective, const std::string& mine) override;
  std::unique_ptr<Communicator> make_split(const std::vector<int>& members, int index, const std::string& id) override;
  RollCall roll_call() override;
  void on_broken(const CommError& error) override;

  Meeting next_meeting(const Collective& collective);
  template <class Body>
  void guarded(const Collective& collective, Body&& body);
  Work work_of(const Collective& collective, const Stream& stream);
  void run(const Collective& collective, const Stream& stream);
  void copy_own(const Collective& collective, const Stream& stream);
  Contribution announcement(const Work& work);
  void begin(Work& work);
  void move(Work& work);
  void reduce_all(Work& work);
  void reduce_range(Work& work, std::int64_t offset, std::int64_t count, void* out);
  void collect_ranges(Work& work);
  void pull(const Work& work, int from, const void* source, void* destination, std::size_t bytes);
  void meet_again(Work& work, std::exception_ptr own_error, void* output);
  void come_again(Work& work, std::exception_ptr& own_error, void* output);
  void collect(Work& work);
  void part(Work& work);
  bool step(Work& work, std::exception_ptr& first_error);

  const std::shared_ptr<PeerGroup> group_;
  const std::size_t scratch_bytes_;
  // What comes from other ranks arrives on it, so that pieces of the next chunk come while this one is added up.
  Stream pulls_;
  std::uint64_t meetings_ = 0;  // of the whole group
};

}  // namespace lockstep::detail
