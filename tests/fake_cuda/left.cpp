// What is alive, and should not be.
#include <chrono>
#include <thread>

#include "fake_cuda/state.h"
#include "lockstep/runtime/strings.h"

namespace fake_cuda {
namespace {

std::function<Alive()>& keeps() {
  static auto* const made = new std::function<Alive()>;
  return *made;
}

void compare(const Alive& now, const Alive& allowed, const char* when) {
  const auto check = [when](const char* what, auto is, auto most) {
    if (is <= most) return;
    record_failure(Rule::left_alive, when, lockstep::cat("expected at most ", most, " ", what, ", got ", is), -1,
                   nullptr);
  };
  check("streams", now.streams, allowed.streams);
  check("events", now.events, allowed.events);
  check("allocations on devices", now.device_allocations, allowed.device_allocations);
  check("pinned allocations", now.pinned_allocations, allowed.pinned_allocations);
  check("handles", now.handles, allowed.handles);
  check("bytes on devices", now.device_bytes, allowed.device_bytes);
}

}  // namespace

Alive alive() {
  State& machine = state();
  std::lock_guard lock(machine.mutex);
  const auto lives = [&](int device) { return device < 0 || machine.broken_by(device) == cudaSuccess; };
  Alive now;
  for (const auto& [handle, stream] : machine.streams) now.streams += lives(stream.device);
  for (const auto& [handle, event] : machine.events) now.events += lives(event.device);
  for (const auto& [handle, device] : machine.handles) now.handles += lives(device);
  for (const auto& [handle, pool] : machine.pools) now.handles += pool.made && !pool.destroyed && lives(pool.device);
  for (const auto& [begin, piece] : machine.pieces) {
    if (piece.freed) continue;
    if (piece.pinned) {
      ++now.pinned_allocations;
    } else if (lives(piece.device)) {
      ++now.device_allocations;
      now.device_bytes += piece.bytes;
    }
  }
  return now;
}

NothingLeft::~NothingLeft() {
  Alive allowed{.streams = before_.streams + kept_.streams,
                .events = before_.events + kept_.events,
                .device_allocations = before_.device_allocations + kept_.device_allocations,
                .pinned_allocations = before_.pinned_allocations + kept_.pinned_allocations,
                .handles = before_.handles + kept_.handles,
                .device_bytes = before_.device_bytes + kept_.device_bytes};
  const Alive now = alive();
  if (kept_.device_allocations > 0 && kept_.device_bytes == 0) allowed.device_bytes = now.device_bytes;
  compare(now, allowed, "the end of the scope");
}

void keep_at_end(std::function<Alive()> kept) { keeps() = std::move(kept); }

void check_end(int patience_milliseconds) {
  if (!keeps()) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_milliseconds);
  Alive kept = keeps()();
  while (alive() != kept && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kept = keeps()();
  }
  compare(alive(), kept, "the end of the program");
}

}  // namespace fake_cuda
