#include "lockstep/runtime/copy/peer.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/record/recorder.h"

namespace lockstep {
namespace {

enum Verdict : unsigned char { unknown, direct, staged };

// Of each pair: the number of devices times the source's ordinal, and the destination's.
std::atomic<unsigned char>* verdicts() {
  static auto* const all = new std::atomic<unsigned char>[all_devices().size() * all_devices().size()]();
  return all;
}

constexpr std::size_t kProbeBytes = 64 << 10;
std::atomic<std::int64_t> trial_milliseconds{detail::kTrialTimeout.count()};

struct Release {
  void operator()(MemoryBlock* block) const noexcept { release(block); }
};
using OwnedBlock = std::unique_ptr<MemoryBlock, Release>;

// Writes a pattern through the link and looks whether it has arrived.
bool bytes_arrive(Device source, Device destination) {
  Backend& backend = lockstep::backend(destination);
  // Where the device copies from plain memory only while the host waits, and then without a deadline, pinned memory.
  // It outlives the work, or goes with it; pinned memory is given up when something fails.
  const bool pinned = properties(destination).stages_pageable;
  auto memory = std::make_unique<std::vector<unsigned char>>(pinned ? 0 : 2 * kProbeBytes);
  unsigned char* const sent =
      pinned ? static_cast<unsigned char*>(backend.allocate_pinned(2 * kProbeBytes)) : memory->data();
  if (!sent) throw DeviceError(destination, 0, "no pinned memory to try the link with");
  unsigned char* const received = sent + kProbeBytes;
  for (std::size_t i = 0; i < kProbeBytes; ++i) sent[i] = static_cast<unsigned char>(i * 151 + 7);

  Stream out(source), in(destination);
  const OwnedBlock from(allocate(out, kProbeBytes)), to(allocate(in, kProbeBytes));
  backend.copy({from->data, source, sent, Device::cpu(), kProbeBytes}, out.handle());
  LOCKSTEP_EDGE(in.wait_for(out));
  backend.fill_bytes(to->data, 0, kProbeBytes, in.handle());
  LOCKSTEP_EDGE(record_use(from.get(), in));  // whatever fails from here on
  backend.copy({to->data, destination, from->data, source, kProbeBytes}, in.handle());
  backend.copy({received, Device::cpu(), to->data, destination, kProbeBytes}, in.handle());
  try {
    LOCKSTEP_EDGE(synchronize(in, Milliseconds(trial_milliseconds.load(std::memory_order_relaxed))));
  } catch (const TimeoutError&) {
    in.enqueue([last = std::move(memory)] {});
    throw;
  }
  const bool arrived = std::equal(sent, received, received);
  if (pinned) backend.free_pinned(sent);
  return arrived;
}

Verdict try_out(Device source, Device destination) {
  Backend& of_both = backend(destination);
  // The destination's copy stream fetches.
  if (!of_both.can_access_peer(destination.index(), source.index())) return staged;
  if (detail::Recorder::active()) return direct;  // nothing arrives that could be looked at
  std::string problem = "other bytes";
  try {
    of_both.enable_peer_access(destination.index(), source.index());
    if (bytes_arrive(source, destination)) return direct;
  } catch (const DeviceError& error) {
    problem = error.what();
  } catch (const TimeoutError& error) {
    problem = error.what();
  }
  log(LogLevel::warning, cat("[peer] expected what is copied from ", source, " to ", destination, " to arrive, got ",
                             problem, "; copies between them go through host memory"));
  return staged;
}

}  // namespace

bool peer_copies(Device source, Device destination) {
  if (source == destination) return true;
  const std::size_t row = static_cast<std::size_t>(ordinal(source)) * all_devices().size();
  std::atomic<unsigned char>& verdict = verdicts()[row + static_cast<std::size_t>(ordinal(destination))];
  unsigned char found = verdict.load(std::memory_order_acquire);
  if (found == unknown) [[unlikely]] {
    LOCKSTEP_CHECK(source.type() == destination.type(), "[peer_copies] expected two devices of one kind, got ", source,
                   " and ", destination);
    found = try_out(source, destination);
    verdict.store(found, std::memory_order_release);
  }
  return found == direct;
}

void detail::forget_peers(Milliseconds trial_timeout) {
  trial_milliseconds.store(trial_timeout.count(), std::memory_order_relaxed);
  const std::size_t pairs = all_devices().size() * all_devices().size();
  for (std::size_t i = 0; i < pairs; ++i) verdicts()[i].store(unknown, std::memory_order_release);
}

}  // namespace lockstep
