// Virtual host devices in mode strict.
#include <atomic>
#include <chrono>
#include <thread>

#include "judge.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/host/host_options.h"
#include "plan.h"

namespace drill {
namespace {

using detail::host_faults;

constexpr int kDevices = 8;

HostOptions draw_host(std::uint64_t seed, Draw& draw) {
  constexpr std::size_t kMegabyte = std::size_t{1} << 20;
  HostOptions options{.devices = kDevices, .mode = HostMode::strict, .seed = seed + 1};
  options.memory_bytes = {256 * kMegabyte};
  if (draw.chance(50)) {  // unequal memories
    options.memory_bytes.clear();
    for (int i = 0; i < kDevices; ++i) {
      options.memory_bytes.push_back((64 << draw.below(3)) * kMegabyte);
    }
  }
  const int links = draw.below(4);
  if (links == 1) options.latency_microseconds = draw.between(10, 200);
  if (links == 2) options.bandwidth_bytes_per_second = static_cast<std::size_t>(draw.between(5, 50)) * kMegabyte;
  if (links == 3) {  // one slow link in one direction
    const int from = draw.below(kDevices);
    options.links.push_back({Device::host(from), Device::host((from + draw.between(1, kDevices - 1)) % kDevices),
                             kMegabyte, draw.between(0, 500)});
  }
  return options;
}

class HostMachine final : public Machine {
 public:
  HostMachine(std::uint64_t seed, Draw& draw) : Machine(DeviceType::host, kDevices), host_(draw_host(seed, draw)) {}
  ~HostMachine() override { finish_watch(); }

  FaultTime draw_fault(Draw& draw, int steps) override {
    const int kind = draw.below(100);
    kind_ = kind < 22   ? Kind::allocation
            : kind < 60 ? Kind::throws
            : kind < 68 ? Kind::delay
            : kind < 78 ? Kind::hang
            : kind < 89 ? Kind::deny
                        : Kind::lose;
    const FaultTime time{.step = static_cast<std::size_t>(draw.below(steps)), .from_empty_caches = draw.chance(70)};
    count_ = kind_ == Kind::allocation ? draw.between(1, 3) : draw.between(1, draw.chance(50) ? 12 : 80);
    from_ = draw.below(kDevices);
    to_ = (from_ + draw.between(1, kDevices - 1)) % kDevices;
    return time;
  }
  std::string fault() const override {
    constexpr const char* kNames[] = {"", "allocation", "throw", "delay", "hang", "deny", "lose"};
    return kNames[static_cast<int>(kind_)];
  }
  std::string text() const override {
    const std::string devices_text = cat(kDevices, " host devices");
    return kind_ == Kind::none ? devices_text
                               : cat(devices_text, "; fault ", fault(), " number ", count_, " (", from_, "-", to_, ")");
  }

  void start(const Plan& plan, int patience) override {
    hang_time_ = patience * std::chrono::milliseconds(plan.peeks ? 3000 : 1000);
    configure_host(host_);
  }
  void arm() override {
    // Links are looked at when they are first used; what fails then is only taken for a link that does not work.
    if (lasts()) detail::forget_peers();
    switch (kind_) {
      case Kind::allocation:
        return host_faults().fail_allocation(count_);
      case Kind::throws:
        return host_faults().throw_in_task(count_);
      case Kind::delay:
        return host_faults().delay_task(count_, std::chrono::microseconds(5000));
      case Kind::deny:
        return host_faults().deny_peer(from_, to_);
      case Kind::lose:
        return host_faults().lose_writes(from_, to_);
      case Kind::hang:
        host_faults().hang_task(count_);
        // Some waits inside the library last ten minutes; that the drill sees them end, the fault does.
        watch_ = std::thread([this] { release_in_the_end(); });
        return;
      case Kind::none:
        return;
    }
  }
  bool struck() const override {
    for (int i = 0; i < 32; ++i) {
      if (host_faults().struck(i)) return true;
    }
    return false;
  }
  void clear() override {
    host_faults().clear();
    finish_watch();
  }
  bool lasts() const override { return kind_ == Kind::deny || kind_ == Kind::lose; }
  bool may_hang() const override { return kind_ == Kind::hang; }
  void release() override { host_faults().release(); }

  std::string judge(const OutOfMemory& failed, const Plan&) const override {
    if (kind_ != Kind::allocation) return cat("OutOfMemory: ", failed.what());
    if (!was_struck(failed.device)) return cat("OutOfMemory names ", failed.device, ", which was not struck");
    return contains(failed.what(), to_string(failed.device)) ? "" : cat("no device in: ", failed.what());
  }
  std::string judge(const DeviceError& failed, const Plan& plan) const override {
    // A device whose replica is late answers so too.
    const bool late = kind_ == Kind::hang && names_replica(failed.what(), plan);
    if (kind_ != Kind::throws && !late) return cat("DeviceError: ", failed.what());
    if (!late && !was_struck(failed.device)) return cat("DeviceError names ", failed.device, ", which was not struck");
    return contains(failed.what(), to_string(failed.device)) ? "" : cat("no device in: ", failed.what());
  }
  std::string judge(const TimeoutError& failed, const Plan& plan) const override {
    if (kind_ != Kind::hang) return cat("TimeoutError: ", failed.what());
    return contains(failed.what(), "[parallel_apply]") && names_replica(failed.what(), plan)
               ? ""
               : cat("TimeoutError that names no replica: ", failed.what());
  }

 private:
  enum class Kind { none, allocation, throws, delay, hang, deny, lose };

  static bool was_struck(Device device) {
    return device.type() == DeviceType::host && host_faults().struck(device.index());
  }
  void release_in_the_end() {
    while (!watched_ && !struck()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const auto until = Clock::now() + hang_time_;
    while (!watched_ && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    host_faults().release();
  }
  void finish_watch() {
    watched_ = true;
    if (watch_.joinable()) watch_.join();
  }

  const HostOptions host_;
  Kind kind_ = Kind::none;
  int count_ = 1;          // the count-th task or allocation from the arming on
  int from_ = 0, to_ = 1;  // of links
  std::chrono::milliseconds hang_time_{0};
  std::thread watch_;
  std::atomic<bool> watched_{false};
};

}  // namespace

std::shared_ptr<Machine> draw_machine(std::uint64_t seed, Draw& draw) {
  return std::make_shared<HostMachine>(seed, draw);
}

}  // namespace drill
