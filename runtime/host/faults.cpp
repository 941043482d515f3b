#include "lockstep/runtime/host/faults.h"

#include <algorithm>
#include <random>
#include <thread>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep::detail {
namespace {

constexpr const char* kName = "LOCKSTEP_HOST_FAULTS";
constexpr int kLargestCount = 1 << 30;
constexpr std::chrono::microseconds kDelay{2000};

}  // namespace

HostFaults& host_faults() {
  static HostFaults* const faults = new HostFaults;
  return *faults;
}

void HostFaults::fail_allocation(int count, int length) {
  allocations_to_fail_.store(length, std::memory_order_relaxed);
  allocation_.store(count, std::memory_order_relaxed);
}

bool HostFaults::allocation_fails(int device) {
  const int left = allocation_.load(std::memory_order_relaxed);
  if (left == 0) return false;
  if (left > 1) {
    allocation_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  strike(device);
  if (allocations_to_fail_.fetch_sub(1, std::memory_order_relaxed) > 1) return true;
  allocation_.store(0, std::memory_order_relaxed);
  return true;
}

void HostFaults::delay_task(int count, std::chrono::microseconds by) {
  delay_microseconds_.store(by.count(), std::memory_order_relaxed);
  delay_.store(count, std::memory_order_relaxed);
}

void HostFaults::release() {
  {
    std::lock_guard lock(mutex_);
    ++releases_;
  }
  released_.notify_all();
}

void HostFaults::clear() {
  for (std::atomic<int>* countdown : {&allocation_, &throw_, &delay_, &hang_}) {
    countdown->store(0, std::memory_order_relaxed);
  }
  for (auto& row : links_) {
    for (auto& link : row) link.store(0, std::memory_order_relaxed);
  }
  for (std::atomic<bool>& struck : struck_) struck.store(false, std::memory_order_relaxed);
  release();
}

void HostFaults::before_task(Device device) {
  if (hits(delay_)) {
    strike(device.index());
    std::this_thread::sleep_for(std::chrono::microseconds(delay_microseconds_.load(std::memory_order_relaxed)));
  }
  if (hits(hang_)) {
    std::unique_lock lock(mutex_);
    strike(device.index());
    const std::uint64_t seen = releases_;
    const Deadline deadline = Deadline::after(kDefaultTimeout);
    if (!released_.wait_until(lock, deadline.time(), [&] { return releases_ != seen; })) {
      throw TimeoutError(cat("[fault] expected a task that hangs on ", device, " to be released, got the deadline"));
    }
  }
  if (hits(throw_)) {
    strike(device.index());
    throw DeviceError(device, 0, "[fault] expected a task to succeed, got an injected failure");
  }
}

void HostFaults::inject(std::string_view text, int devices) {
  while (!text.empty()) {
    const auto comma = text.find(',');
    const std::string_view item = trim(text.substr(0, comma));
    text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
    const auto equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == item.npos ? std::string_view() : item.substr(equals + 1);
    if (key == "deny" || key == "lose") {
      const auto dash = value.find('-');
      const int from = parse_count(kName, value.substr(0, dash), 0, devices - 1);
      const int to =
          parse_count(kName, dash == value.npos ? std::string_view() : value.substr(dash + 1), 0, devices - 1);
      key == "deny" ? deny_peer(from, to) : lose_writes(from, to);
      continue;
    }
    const bool known = key == "allocation" || key == "throw" || key == "delay" || key == "hang" || key == "seed";
    LOCKSTEP_CHECK(known, "[", kName, "] expected allocation=, throw=, delay=, hang=, deny=, lose= or seed=, got \"",
                   item, "\"");
    const int count = parse_count(kName, value, key == "seed" ? 0 : 1, kLargestCount);
    if (key == "allocation") fail_allocation(count);
    if (key == "throw") throw_in_task(count);
    if (key == "delay") delay_task(count, kDelay);
    if (key == "hang") hang_task(count);
    if (key == "seed") inject(static_cast<std::uint64_t>(count), devices);
  }
}

// Not a hang: who draws at random wants to see the program end.
void HostFaults::inject(std::uint64_t seed, int devices) {
  std::mt19937_64 random(seed);
  const auto below = [&random](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const int kind = below(devices > 1 ? 5 : 3), count = 1 + below(64), first = below(devices);
  const int second = (first + 1 + below(std::max(devices - 1, 1))) % devices;
  switch (kind) {
    case 0:
      return fail_allocation(1 + below(8));
    case 1:
      return throw_in_task(count);
    case 2:
      return delay_task(count, kDelay);
    case 3:
      return deny_peer(first, second);
    default:
      return lose_writes(first, second);
  }
}

}  // namespace lockstep::detail
