// Copies that share a port: at what pace each moves. Times are made up, nothing sleeps.
#include "lockstep/runtime/host/links.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "support/catch.h"

using namespace lockstep;
using detail::HostLinks;

namespace {

constexpr std::size_t kRate = 1'000'000, kPiece = 4'000;

struct Copy {
  int source, destination;
  std::size_t bytes;
  Clock::time_point before{}, through{};  // the ends of the last two pieces
  double seconds = 0;                     // that it took
};

// As threads that carry copies do: each asks for its next piece when the last but one is through.
std::vector<double> run(HostLinks& links, std::vector<Copy> copies) {
  for (;;) {
    Copy* next = nullptr;
    for (Copy& each : copies)
      if (each.bytes > 0 && (next == nullptr || each.before < next->before)) next = &each;
    if (next == nullptr) break;
    const std::size_t piece = std::min(next->bytes, kPiece);
    next->before = std::exchange(
        next->through, links.pass(Device::host(next->source), Device::host(next->destination), piece, next->before));
    next->bytes -= piece;
  }
  std::vector<double> seconds;
  for (const Copy& each : copies)
    seconds.push_back(std::chrono::duration<double>(each.through.time_since_epoch()).count());
  return seconds;
}

// A port out and a port in for each of four devices.
HostOptions ports() {
  HostOptions options{.devices = 4};
  for (int i = 0; i < 4; ++i) {
    HostShared out{kRate, {}}, in{kRate, {}};
    for (int j = 0; j < 4; ++j) {
      if (i == j) continue;
      out.links.emplace_back(Device::host(i), Device::host(j));
      in.links.emplace_back(Device::host(j), Device::host(i));
    }
    options.shared.push_back(out);
    options.shared.push_back(in);
  }
  return options;
}

void check_close(const std::vector<double>& seconds, const std::vector<double>& expected) {
  REQUIRE(seconds.size() == expected.size());
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    CAPTURE(i);
    CHECK(seconds[i] == Approx(expected[i]).epsilon(0.03));
  }
}

}  // namespace

TEST_CASE("copies that share a port move at equal paces") {
  constexpr std::size_t kSecond = kRate;  // bytes of a copy that takes a second alone
  const auto seconds = [](std::vector<Copy> copies) {
    HostLinks links(ports(), 4);
    return run(links, std::move(copies));
  };
  check_close(seconds({{0, 1, kSecond}}), {1});
  check_close(seconds({{0, 1, kSecond}, {1, 0, kSecond}}), {1, 1});                      // both ways: other ports
  check_close(seconds({{0, 1, kSecond}, {2, 3, kSecond}}), {1, 1});                      // other devices
  check_close(seconds({{0, 1, kSecond}, {0, 2, kSecond}, {0, 3, kSecond}}), {3, 3, 3});  // one port out
  check_close(seconds({{1, 0, kSecond}, {2, 0, kSecond}, {3, 0, kSecond / 2}}), {2.5, 2.5, 1.5});  // one port in
  // A chain of shared ports, where the middle copy is half as long: all at a half, then both others alone.
  check_close(seconds({{0, 1, kSecond}, {0, 2, kSecond / 2}, {3, 2, kSecond}}), {1.5, 1, 1.5});
}

TEST_CASE("a link that passes something twice has half of it") {
  HostOptions options{.devices = 4};
  options.shared.push_back({kRate, {{Device::host(0), Device::host(1)}, {Device::host(0), Device::host(1)}}});
  HostLinks links(options, 4);
  check_close(run(links, {{0, 1, kRate}}), {2});
}

TEST_CASE("two copies through one port take at least as long as all of their bytes") {
  HostOptions options = ports();
  for (HostShared& port : options.shared) port.bandwidth_bytes_per_second = 2 * kRate;
  options.links.push_back({Device::host(0), Device::host(1), 0, 5000});
  HostLinks links(options, 4);
  const Clock::time_point begin = Clock::now();
  Clock::time_point ends[2];
  std::thread other([&] { ends[1] = links.carry(Device::host(0), Device::host(2), 40'000); });
  ends[0] = links.carry(Device::host(0), Device::host(1), 40'000);
  other.join();
  CHECK(ends[0] - begin >= std::chrono::milliseconds(25));  // alone, and the latency
  CHECK(ends[1] - begin >= std::chrono::milliseconds(20));
  CHECK(std::max(ends[0], ends[1] + std::chrono::milliseconds(5)) - begin >= std::chrono::milliseconds(40));
}

TEST_CASE("what links share is checked") {
  HostOptions options{.devices = 2};
  options.shared.push_back({0, {}});
  CHECK_THROWS_WITH(HostLinks(options, 2), "[configure_host] expected a bandwidth above 0 of what links share, got 0");
  options.shared[0] = {1, {{Device::host(0), Device::host(2)}}};
  CHECK_THROWS_WITH(HostLinks(options, 2),
                    "[configure_host] expected links between cpu and 2 host devices, got one of host:2");
}

TEST_CASE("what the options say of links is what chains and lanes go by") {
  const auto described = [](const HostOptions& options, int source, int destination) {
    return HostLinks(options, options.devices).described(Device::host(source), Device::host(destination));
  };
  CHECK(described({.devices = 4}, 0, 1) == DeviceLink{});
  CHECK(described({.devices = 4, .bandwidth_bytes_per_second = 5}, 0, 1) == DeviceLink{});  // of all: alike
  CHECK(described(ports(), 0, 3) == DeviceLink{.speed = 1, .distance = 2, .own = false});

  HostOptions lines{.devices = 3, .bandwidth_bytes_per_second = 100};
  lines.links.push_back({Device::host(0), Device::host(2), 400, 0});
  CHECK(described(lines, 0, 2) == DeviceLink{.speed = 1, .own = true});
  CHECK(described(lines, 0, 1) == DeviceLink{.speed = 0.25, .own = true});
  lines.shared.push_back({50, {{Device::host(1), Device::host(2)}}});
  lines.shared.push_back({100, {{Device::host(2), Device::host(0)}, {Device::host(2), Device::host(0)}}});
  lines.shared.push_back({400, {{Device::host(0), Device::host(1)}, {Device::host(1), Device::host(0)}}});
  CHECK(described(lines, 1, 2) == DeviceLink{.speed = 0.125, .own = true});
  CHECK(described(lines, 2, 0) == DeviceLink{.speed = 0.125, .distance = 2, .own = true});  // passed twice
  CHECK(described(lines, 0, 1) == DeviceLink{.speed = 0.25, .own = false});                 // both directions share it
}
