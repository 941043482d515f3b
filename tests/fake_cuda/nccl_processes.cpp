// Memory that ranks of the fake NCCL share, where they are processes.
#if __has_include(<nccl.h>)
#include "fake_cuda/nccl_processes.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

namespace fake_cuda {
namespace {

constexpr std::size_t kRanks = NcclProcesses::kMostRanks;
constexpr std::size_t kSlots = kRanks + kRanks * kRanks;  // of every rank, and of every pair: from, to
constexpr std::size_t kHeadBytes = std::size_t{1} << 20;
constexpr std::size_t kPayloadBytes = kSlots * NcclProcesses::kMostBytes;  // which nobody has before it is written to

std::size_t bytes_in(const NcclCall& call, std::size_t ranks) {
  return call.count * nccl_bytes(call.type) * (call.kind == NcclCall::reduce_scatter ? ranks : 1);
}

// Zombies count as dead: whoever started them has not asked yet.
bool lives(int process) {
  std::ifstream file(lockstep::cat("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::size_t after_name = text.rfind(')');
  return after_name != text.npos && after_name + 2 < text.size() && text[after_name + 2] != 'Z' &&
         text[after_name + 2] != 'X';
}

bool wait_until(const std::function<bool()>& reached, const std::function<bool()>& stop) {
  for (int i = 0; !reached(); ++i) {
    if (stop()) return false;
    if (i < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace

// All of it is zero at first. What a slot holds belongs to who posts until `posted` says so, and then to the readers,
// until the last of them is done.
struct NcclProcesses::Slot {
  std::atomic<std::uint64_t> posted, done;  // numbers of calls
  NcclCall call;                            // its pointers mean nothing elsewhere
};
struct NcclProcesses::Shared {
  std::atomic<int> size, processes[kRanks], left[kRanks];
  Slot slots[kSlots];
};

std::string NcclProcesses::make_id() {
  static std::atomic<int> ids{0};
  const int file = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kHeadBytes + kPayloadBytes)) != 0) return "";
  return lockstep::cat("fake ", getpid(), ' ', file, ' ', ++ids);
}

std::shared_ptr<NcclProcesses> NcclProcesses::open(const std::string& id) {
  int process = 0, number = -1;
  if (std::sscanf(id.c_str(), "fake %d %d", &process, &number) != 2) return nullptr;
  const int file = process == getpid()
                       ? number
                       : ::open(lockstep::cat("/proc/", process, "/fd/", number).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  auto opened = std::make_shared<NcclProcesses>(file);
  return opened->shared_ ? opened : nullptr;
}

NcclProcesses::NcclProcesses(int file) : file_(file) {
  static_assert(sizeof(Shared) <= kHeadBytes && std::atomic<std::uint64_t>::is_always_lock_free);
  void* const memory = mmap(nullptr, kHeadBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory != MAP_FAILED) shared_ = static_cast<Shared*>(memory);
}

NcclProcesses::~NcclProcesses() {
  if (shared_) munmap(shared_, kHeadBytes);
  if (payloads_) munmap(payloads_, kPayloadBytes);
  close(file_);
}

std::byte* NcclProcesses::payload(std::size_t slot) { return payloads_ + slot * kMostBytes; }

void NcclProcesses::join(int rank, int size) {
  shared_->size = size;
  shared_->processes[rank] = getpid();
}
void NcclProcesses::leave(int rank) { shared_->left[rank] = 1; }

bool NcclProcesses::complete() const {
  for (int r = 0; r < shared_->size; ++r)
    if (shared_->processes[r] == 0) return false;
  return shared_->size > 0;
}
bool NcclProcesses::several() const {
  for (int r = 0; r < shared_->size; ++r)
    if (shared_->processes[r] != getpid()) return true;
  return false;
}
bool NcclProcesses::has_dead() const {
  for (int r = 0; r < shared_->size; ++r)
    if (const int process = shared_->processes[r];
        process != 0 && process != getpid() && !shared_->left[r] && !lives(process))
      return true;
  return false;
}

std::string NcclProcesses::collective(int rank, const NcclCall& call, const std::function<bool()>& stop) {
  const auto ranks = static_cast<std::size_t>(shared_->size.load());
  const auto all = [&](const auto& holds) {
    return [&, holds] {
      for (std::size_t r = 0; r < ranks; ++r)
        if (!holds(shared_->slots[r])) return false;
      return true;
    };
  };
  // Nobody reads what was there before.
  if (!wait_until(all([&](Slot& slot) { return slot.done + 1 >= call.number; }), stop)) return "stopped";
  const auto own = static_cast<std::size_t>(rank);
  Slot& mine = shared_->slots[own];
  mine.call = call;
  if (call.in) std::memcpy(payload(own), call.in, bytes_in(call, ranks));
  mine.posted = call.number;
  if (!wait_until(all([&](Slot& slot) { return slot.posted >= call.number; }), stop)) return "stopped";
  NcclOperation operation;
  for (std::size_t r = 0; r < ranks; ++r) {
    NcclCall other = shared_->slots[r].call;
    if (!agree(other, call))
      return lockstep::cat("rank ", r, " has called ", names_of(other), ", rank ", rank, ' ', names_of(call));
    other.in = payload(r);
    other.out = r == own ? call.out : nullptr;
    operation.calls.push_back(other);
  }
  compute(operation, call.number * 0x9E3779B97F4A7C15u >> 32);  // the same bits on all ranks
  mine.done = call.number;
  return "";
}

std::string NcclProcesses::run(int rank, const std::vector<NcclCall>& calls, const std::function<bool()>& stop) {
  if (!payloads_) {
    void* const memory = mmap(nullptr, kPayloadBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_,
                              static_cast<off_t>(kHeadBytes));
    if (memory == MAP_FAILED) return "cannot map memory";
    payloads_ = static_cast<std::byte*>(memory);
  }
  const auto pair = [&](const NcclCall& call) {
    const int from = call.kind == NcclCall::send ? rank : call.peer,
              to = call.kind == NcclCall::send ? call.peer : rank;
    return kRanks + static_cast<std::size_t>(from) * kRanks + static_cast<std::size_t>(to);
  };
  for (const NcclCall& call : calls) {
    if (bytes_in(call, static_cast<std::size_t>(shared_->size.load())) > kMostBytes)
      return lockstep::cat(names_of(call), " has more than ", kMostBytes, " bytes, which the fake has no room for");
    if (call.kind == NcclCall::recv) continue;
    if (call.kind != NcclCall::send) {
      if (std::string problem = collective(rank, call, stop); !problem.empty()) return problem;
      continue;
    }
    Slot& slot = shared_->slots[pair(call)];
    if (!wait_until([&] { return slot.done + 1 >= call.number; }, stop)) return "stopped";
    slot.call = call;
    std::memcpy(payload(pair(call)), call.in, bytes_in(call, 1));
    slot.posted = call.number;
  }
  for (const NcclCall& call : calls) {
    if (call.kind != NcclCall::recv) continue;
    Slot& slot = shared_->slots[pair(call)];
    if (!wait_until([&] { return slot.posted >= call.number; }, stop)) return "stopped";
    if (!agree(slot.call, call))
      return lockstep::cat("rank ", call.peer, " has called ", names_of(slot.call), ", rank ", rank, ' ',
                           names_of(call));
    std::memcpy(call.out, payload(pair(call)), bytes_in(call, 1));
    slot.done = call.number;
  }
  for (const NcclCall& call : calls)
    if (call.kind == NcclCall::send &&
        !wait_until([&] { return shared_->slots[pair(call)].done >= call.number; }, stop))
      return "stopped";
  return "";
}

}  // namespace fake_cuda
#endif
