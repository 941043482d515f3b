// Ranks of the fake NCCL that are processes: they meet in memory that the unique id names, and hand over what they send
// through it. Private to the fake.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fake_cuda/nccl_state.h"

namespace fake_cuda {

class NcclProcesses {
 public:
  static constexpr int kMostRanks = kMostDevices;
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;  // of what one rank brings to a collective

  // Of a new group. The memory has no name and belongs to this process until others have it: nothing is left behind.
  static std::string make_id();
  // Null when whoever made the id is gone.
  static std::shared_ptr<NcclProcesses> open(const std::string& id);

  explicit NcclProcesses(int file);
  NcclProcesses(const NcclProcesses&) = delete;
  NcclProcesses& operator=(const NcclProcesses&) = delete;
  ~NcclProcesses();

  void join(int rank, int size);
  void leave(int rank);
  bool complete() const;  // all ranks have joined
  bool several() const;   // processes
  bool has_dead() const;  // a rank whose process ended before it left

  // One kernel of a rank: all calls of a group, or one. Returns "" when it is through, what the ranks do not agree on,
  // or "stopped" once `stop` says so.
  std::string run(int rank, const std::vector<NcclCall>& calls, const std::function<bool()>& stop);

 private:
  struct Shared;
  struct Slot;
  std::byte* payload(std::size_t slot);
  std::string collective(int rank, const NcclCall& call, const std::function<bool()>& stop);

  const int file_;
  Shared* shared_ = nullptr;
  std::byte* payloads_ = nullptr;  // mapped when it is needed
};

}  // namespace fake_cuda
