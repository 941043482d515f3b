// Gradients are summed by owners of shares: the bits, the order, and who sends what to whom.
#include "lockstep/tensor/nn/gradient_owners.h"

#include <algorithm>
#include <map>

#include "lockstep/runtime/topology.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::device_at;
using support::devices_at;

namespace {

// Of `devices`, in this order; `home` takes part where it is the first.
void check_sums(const std::vector<Device>& devices, Device home, std::int64_t count, DType dtype,
                std::size_t rounds = 0) {
  CAPTURE(devices.size(), home.index(), count, dtype);
  std::vector<Tensor> sources, parts;
  Tensor expected;
  for (std::size_t d = 0; d < devices.size(); ++d) {
    sources.push_back(uneven(count, static_cast<int>(d), dtype, devices[d]));
    parts.push_back(zeros({count}, {.dtype = dtype, .device = devices[d]}));
    const Tensor there = sources.back().to(home);
    expected = expected.defined() ? expected + there : there;
  }
  Tensor sum = zeros({count}, {.dtype = dtype, .device = home});
  for (int round = 0; round < 3; ++round) {
    for (std::size_t d = 0; d < parts.size(); ++d) parts[d].copy_(sources[d]);  // comes before it is read
    sum.fill_(7);                                                               // comes before the first piece
    detail::sum_by_owners(parts, sum, rounds);
    for (Tensor& part : parts) part.fill_(0);  // comes after it was read
    CHECK(equal(sum, expected));
    sum.fill_(1);  // comes after the last piece
    CHECK(equal(sum, ones({count}, {.dtype = dtype, .device = home})));
  }
}

}  // namespace

TEST_CASE("a sum by owners has the bits of one sum after the other") {
  support::needs_devices(8);
  const std::vector<Device> all = devices_at({3, 1, 5, 2, 4, 0, 7, 6});
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64})
    for (std::size_t n = 2; n <= all.size(); ++n)
      // One element; shares that some owners lack; an odd count.
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{200}, std::int64_t{50'001}})
        check_sums({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n)}, all[0], count, dtype);
}

TEST_CASE("a sum by owners in many rounds, and where home takes no part") {
  support::needs_devices(6);
  check_sums(devices_at({1, 0}), device_at(1), 60'011, DType::f64, 3);  // home owns all
  check_sums(devices_at({2, 4}), device_at(0), 100'003, DType::f32);
  check_sums(devices_at({3, 1, 5, 2}), device_at(4), 100'003, DType::bf16);
  check_sums(devices_at({2, 0, 1}), device_at(2), 240'017, DType::f64, 5);  // more than an owner has room for
  CHECK(detail::owner_rounds(48'000'000, 2) >= 3);
  CHECK(detail::owner_rounds(192'000'000, 3) > 3);
  CHECK(detail::owner_rounds(1'000, 3) == 1);
}

TEST_CASE("who sums by owners depends on the devices and the size") {
  support::needs_devices(5);
  const auto parts = [](const std::vector<Device>& devices, std::int64_t count) {
    std::vector<Tensor> all;
    for (const Device device : devices) all.push_back(empty({1}, {.device = device}).expand({count}));
    return all;
  };
  const Device home = device_at(0);
  // What the links are to be on every kind of device that these cases run on.
  const std::vector<Device> five = devices_at({0, 1, 2, 3, 4}), three = devices_at({0, 1, 2});
  struct Pretended {
    ~Pretended() { detail::forget_topologies(); }
  } const pretended;
  Links shared(5), uneven(5);
  for (std::size_t i = 0; i < 5; ++i)
    for (std::size_t j = 0; j < 5; ++j) shared.at(i, j).shared = true;
  uneven.at(1, 2).speed = 0.5;
  detail::pretend_links(five, shared);
  CHECK_FALSE(detail::sums_by_owners(parts(five, 1 << 20), home));
  detail::pretend_links(five, uneven);
  CHECK_FALSE(detail::sums_by_owners(parts(five, 1 << 20), home));
  detail::pretend_links(five, Links(5));
  detail::pretend_links(three, Links(3));
  CHECK(detail::sums_by_owners(parts(devices_at({0, 1}), 1 << 28), home));
  CHECK(detail::sums_by_owners(parts(devices_at({1, 2}), 1 << 20), home) == reach_each_other(devices_at({1, 2})));
  CHECK(detail::sums_by_owners(parts(five, 1 << 20), home) == reach_each_other(five));
  CHECK_FALSE(detail::sums_by_owners(parts(three, 1 << 27), home));  // a chain is as fast
  CHECK_FALSE(detail::sums_by_owners(parts(devices_at({0}), 1 << 20), home));
  CHECK_FALSE(detail::sums_by_owners(parts(devices_at({1, 0}), 1 << 20), home));
  CHECK_FALSE(detail::sums_by_owners(parts(devices_at({0, 1}), 1 << 20), Device::cpu()));
}

TEST_CASE("home receives the sum once, a share from each owner, and every owner as much as it sends") {
  support::needs_devices(5);
  const std::vector<Device> devices = devices_at({2, 0, 1, 4, 3});
  const std::int64_t count = 4 * 65'536;  // whole pieces for each owner, in every mode
  std::vector<Tensor> parts;
  for (const Device device : devices) parts.push_back(ones({count}, {.device = device}));
  const Tensor sum = zeros({count}, {.device = devices[0]});
  for (const Device device : devices) synchronize(device);
  trace::start();
  detail::sum_by_owners(parts, sum);
  for (const Device device : devices) synchronize(device);
  trace::stop();
  CHECK(equal(sum, full({count}, 5, {.device = devices[0]})));
  std::map<std::pair<Device, Device>, std::size_t> moved;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::copy && span.work.source != span.device)
      moved[{span.work.source, span.device}] += span.work.bytes;
  CHECK(moved.size() == 5 * 4);
  for (const auto& [way, bytes] : moved) CHECK(bytes == sum.bytes() / 4);
}
