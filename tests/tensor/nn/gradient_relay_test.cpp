// The sum of gradients on its way home, where two devices of the chain have no straight way to each other.
#include <map>
#include <utility>

#include "lockstep/runtime/topology.h"
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/nn/gradient_chain.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::devices_at;

namespace {

constexpr std::int64_t kLargeRelay = 4'000'000;

// Sums of these depend on the order.
std::vector<Tensor> uneven_parts(const std::vector<Device>& devices) {
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < devices.size(); ++i)
    parts.push_back((sin(arange(0, kLargeRelay, 1, {.dtype = DType::f64}) * (1.0 + 0.37 * static_cast<double>(i))) *
                     (i % 3 == 1 ? 1e4 : 1.0))
                        .to(DType::f32)
                        .to(devices[i]));
  return parts;
}

}  // namespace

TEST_CASE("the chain of gradients goes over a third device where there is no straight way") {
  support::needs_devices(6);
  const std::vector<Device> devices = devices_at({0, 3, 1, 5});
  for (const auto& [from, to] : {std::pair(1, 2), std::pair(0, 1), std::pair(3, 0)}) {
    CAPTURE(from, to);
    Links links(devices.size());
    for (std::size_t i = 0; i < devices.size(); ++i)
      for (std::size_t j = 0; j < devices.size(); ++j) links.at(i, j) = {.speed = 1};
    links.at(static_cast<std::size_t>(from), static_cast<std::size_t>(to)) = {.speed = 0};
    links.at(static_cast<std::size_t>(to), static_cast<std::size_t>(from)) = {.speed = 0};
    std::vector<Tensor> parts = uneven_parts(devices);
    const Tensor straight = zeros({kLargeRelay}, {.device = devices[0]}),
                 over = zeros({kLargeRelay}, {.device = devices[0]});
    detail::sum_along_chain(parts, straight);
    for (const Device device : devices) synchronize(device);
    parts = uneven_parts(devices);  // the first sum was formed in them
    for (const Device device : devices) synchronize(device);
    detail::pretend_links(devices, links);
    trace::start();
    detail::sum_along_chain(parts, over);
    for (const Device device : devices) synchronize(device);
    trace::stop();
    detail::forget_topologies();
    CHECK(equal(over, straight));  // the same order, so the same bits
    if (!asynchronous()) continue;
    std::size_t copies = 0, not_straight = 0;
    for (const trace::Span& span : trace::spans()) {
      if (span.work.kind != trace::Kind::copy || span.device.is_cpu() || span.work.bytes < (1 << 20))
        continue;  // trials of links
      ++copies;
      CHECK(std::pair(span.work.source, span.device) !=
            std::pair(devices[static_cast<std::size_t>(from)], devices[static_cast<std::size_t>(to)]));
      if (span.work.source == devices[static_cast<std::size_t>(from)]) ++not_straight;
    }
    CHECK(copies > 0);
    CHECK(copies == 5 * not_straight);  // hops of the chain, and one more
  }
}

TEST_CASE("the sum of gradients goes home on as many lanes as lines of their own allow, each piece on one") {
  support::needs_devices(4);
  const std::vector<Device> devices = devices_at({0, 3, 1, 2});
  // Double lines around, single ones across: each hop has its own two, or one of them and a detour.
  Links links(devices.size());
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = 0; j < devices.size(); ++j)
      links.at(i, j) = {.speed = (i + j) % 2 == 1 ? 1 : 0.5, .own = true};
  links.at(0, 1).speed = 0.5;
  std::vector<Tensor> parts = uneven_parts(devices);
  Tensor expected = parts[0].to(devices[0]);
  for (std::size_t i = 1; i < parts.size(); ++i) expected = expected + parts[i].to(devices[0]);
  const Tensor sum = zeros({kLargeRelay}, {.device = devices[0]});
  for (const Device device : devices) synchronize(device);
  detail::pretend_links(devices, links);
  trace::start();
  detail::sum_along_chain(parts, sum);
  for (Tensor& part : parts) part.fill_(0);  // comes after it was read
  for (const Device device : devices) synchronize(device);
  trace::stop();
  detail::forget_topologies();
  CHECK(equal(sum, expected));
  if (!asynchronous()) return;
  std::map<std::pair<Device, Device>, std::size_t> moved;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::copy && !span.device.is_cpu() && span.work.bytes >= (1 << 18))
      moved[{span.work.source, span.device}] += span.work.bytes;
  const auto share = [&](std::size_t from, std::size_t to) {
    return static_cast<double>(moved[{devices[from], devices[to]}]) / static_cast<double>(sum.bytes());
  };
  CHECK(share(0, 1) == Approx(0.5).margin(0.1));  // half of it straight, half over the third device
  CHECK(share(0, 2) == Approx(0.5).margin(0.1));
  CHECK(share(2, 1) == Approx(0.5).margin(0.1));
  CHECK(share(1, 2) == Approx(1));
  CHECK(share(2, 3) == Approx(1));
  CHECK(share(3, 0) == Approx(1));
}
