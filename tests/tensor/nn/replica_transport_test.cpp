// Mirrors that are filled, and gradients that are summed, by something else than copies.
#include <algorithm>

#include "lockstep/runtime/copy/chain.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/nn/slab_set.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "tensor/nn/replicated_net.h"

using namespace replicated;
using support::device_at;
using support::devices_at;

namespace {

// Does on the current streams, and on no others, what a collective does.
class Collectives final : public ReplicaTransport {
 public:
  explicit Collectives(std::vector<Device> devices) : devices_(std::move(devices)) {}

  const char* name() const override { return "test"; }
  std::span<const Device> devices() const override { return devices_; }

  void broadcast(std::span<const std::vector<Tensor>> ranges) override {
    ++broadcasts;
    if (broken) throw Error("no link");
    const Stream home = current_stream(devices_[0]);
    for (std::size_t d = 1; d < devices_.size(); ++d) {
      const Stream stream = current_stream(devices_[d]);
      stream.wait_for(home);
      for (const std::vector<Tensor>& range : ranges) {
        elements += range[d].count();
        detail::copy_on(stream, {.destination = const_cast<void*>(range[d].data()),
                                 .destination_device = devices_[d],
                                 .source = range[0].data(),
                                 .source_device = devices_[0],
                                 .bytes = range[0].bytes()});
      }
    }
    for (std::size_t d = 1; d < devices_.size(); ++d) home.wait_for(current_stream(devices_[d]));
  }

  void sum(const std::vector<Tensor>& parts, const Tensor& sum) override {
    ++sums;
    REQUIRE(parts.size() == devices_.size());
    for (std::size_t d = 0; d < parts.size(); ++d) CHECK(parts[d].device() == devices_[d]);
    Tensor total = sum;
    total.copy_(parts.back());
    for (std::size_t d = parts.size() - 1; d-- > 0;)
      total.add_(parts[d].to(devices_[0]));  // from the last to the first
  }

  std::uint64_t failures() const override { return failed; }

  int broadcasts = 0, sums = 0;
  std::uint64_t failed = 0;
  std::int64_t elements = 0;
  bool broken = false;

 private:
  const std::vector<Device> devices_;
};

struct Wide : Module<Wide> {
  Parameter weight{zeros({400'000})};  // more than 1 MiB
  Parameter other{zeros({7}, {.dtype = DType::f64})};
  Buffer state{zeros({5})};
  void members(Members& m) override { m("weight", weight), m("other", other), m("state", state); }
};

struct Filled {
  explicit Filled(std::vector<Device> on) : devices(std::move(on)), slots((net.to(devices[0]), net)) { set(1); }
  void set(double value) {
    const NoGrad off;
    for (const Parameter& each : {net.weight, net.other, static_cast<const Parameter&>(net.state)})
      each.tensor().fill_(value);
  }
  void refresh() { stats = slots.refresh(devices, kDefaultTimeout, transport); }
  // That all mirrors hold `value` everywhere.
  bool holds(double value) const {
    const NoGrad off;
    bool all = true;
    for (const Device device : devices)
      for (const Parameter& each : {net.weight, net.other, static_cast<const Parameter&>(net.state)})
        all = all && min(each.on(device)).item<double>() == value && max(each.on(device)).item<double>() == value;
    return all;
  }

  Wide net;
  std::vector<Device> devices;
  ModuleSlots slots;
  std::shared_ptr<Collectives> transport = std::make_shared<Collectives>(devices);
  TransferStats stats;
};

}  // namespace

TEST_CASE("a transport brings mirrors what they lack, and nothing else") {
  Filled f(devices_at({0, 2, 1}));
  f.refresh();
  CHECK(f.holds(1));
  CHECK(f.transport->broadcasts == 1);
  CHECK(f.transport->elements == 2 * (400'000 + 7 + 5));
  CHECK(f.stats.bytes == 2 * (400'000 * 4 + 7 * 8 + 5 * 4));
  f.refresh();
  CHECK(f.transport->broadcasts == 1);
  {
    const NoGrad off;
    f.net.other.tensor().fill_(2);
  }
  f.refresh();
  CHECK(f.transport->broadcasts == 2);
  CHECK(f.transport->elements == 2 * (400'000 + 7 + 5) + 2 * 7);
  f.set(3);
  f.refresh();
  CHECK(f.holds(3));
}

TEST_CASE("mirrors that lack different things, or are fewer than a transport's, are filled by copies") {
  Filled f(devices_at({0, 1, 2}));
  const std::vector<Device> two = devices_at({0, 1});
  f.slots.refresh(two, kDefaultTimeout, f.transport);
  CHECK(f.transport->broadcasts == 0);
  {
    const NoGrad off;
    f.net.other.tensor().fill_(1);
  }
  f.refresh();
  CHECK(f.transport->broadcasts == 0);
  CHECK(f.holds(1));
  f.set(2);
  f.refresh();
  CHECK(f.transport->broadcasts == 1);
  CHECK(f.holds(2));
}

TEST_CASE("readers of a mirror on any stream wait for a transport, and it for them; so does who writes at home") {
  Filled f(devices_at({0, 1}));
  f.refresh();
  const NoGrad off;
  const Stream reader(f.devices[1]), writer(f.devices[0]);
  for (int round = 2; round < 5; ++round) {
    Tensor seen;
    {
      const StreamScope scope(reader);
      seen = f.net.weight.on(f.devices[1]) + 0.0;
    }
    f.set(round);
    f.refresh();
    {
      const StreamScope scope(writer);
      f.net.weight.tensor().fill_(100);  // comes after the refresh has read it
    }
    {
      const StreamScope scope(reader);
      CHECK(max(seen).item<double>() == (round == 2 ? 1 : round - 1));
      CHECK(max(f.net.weight.on(f.devices[1])).item<double>() == round);
    }
    synchronize(writer);
  }
}

TEST_CASE("a transport that fails leaves the mirrors as they were to be filled") {
  Filled f(devices_at({0, 1, 2}));
  f.refresh();
  f.set(2);
  f.transport->broken = true;
  CHECK_THROWS_AS(f.refresh(), Error);
  f.transport->broken = false;
  f.refresh();
  CHECK(f.transport->broadcasts == 3);
  CHECK(f.holds(2));
}

TEST_CASE("mirrors are filled anew when a transport has failed since, also by another one") {
  Filled f(devices_at({0, 1, 2}));
  f.refresh();
  ++f.transport->failed;
  f.refresh();
  CHECK(f.transport->broadcasts == 2);
  CHECK(f.transport->elements == 2 * 2 * (400'000 + 7 + 5));
  f.refresh();
  CHECK(f.transport->broadcasts == 2);
  ++f.transport->failed;
  CHECK(f.slots.refresh(f.devices).bytes == 2 * (400'000 * 4 + 7 * 8 + 5 * 4));  // by copies
  CHECK(f.holds(1));
}

TEST_CASE("large gradients are summed by the transport of the last refresh, small ones in replica order") {
  Filled f(devices_at({0, 1, 2}));
  const auto backward = [&] {
    f.net.weight.zero_grad(), f.net.other.zero_grad();
    Tensor total;
    for (std::size_t d = 0; d < f.devices.size(); ++d) {
      const Device device = f.devices[d];
      const double scale = d == 0 ? 1 : d == 1 ? 0x1p-24 : -1;  // in f32 the order of the sum shows
      const Tensor part = (sum(f.net.weight.on(device)) * scale).to(f.devices[0]).to(DType::f64) +
                          sum(f.net.other.on(device)).to(f.devices[0]);
      total = total.defined() ? total + part : part;
    }
    total.backward();
    CHECK(max(f.net.other.grad()).item<double>() == 3);
    return max(f.net.weight.grad()).item<double>();
  };
  f.refresh();
  CHECK(backward() == 0x1p-24);  // (-1 + 2^-24) + 1
  CHECK(f.transport->sums == 1);
  f.slots.refresh(f.devices);  // by copies: nothing has changed, but sums are in replica order again
  CHECK(backward() == 0);      // (1 + 2^-24) - 1
  CHECK(f.transport->sums == 1);
  f.refresh();
  CHECK(backward() == 0x1p-24);
  CHECK(f.transport->sums == 2);
  CHECK(f.transport->broadcasts == 1);
}
