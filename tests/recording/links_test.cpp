// How far from what the links allow the engine's two big movements are on described machines: parameters to all
// mirrors, gradients home. In virtual time, of what the library really enqueues.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/simulate/device_links.h"
#include "lockstep/parallel/simulate/simulation.h"
#include "lockstep/runtime/copy/chain.h"
#include "lockstep/runtime/record/record.h"
#include "lockstep/tensor/nn/gradient_chain.h"
#include "lockstep/tensor/nn/module_slots.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::first_devices;

namespace {

constexpr std::int64_t kGigabyte = 1'000'000'000;

// As many parameters of f32 as make `bytes`.
struct Weights : Module<Weights> {
  std::vector<Parameter> all;
  Weights(int count, std::int64_t bytes, Device home) {
    for (int i = 0; i < count; ++i) all.emplace_back(empty({bytes / 4 / count}, {.device = home}));
  }
  // The gradient of a sum is one element everywhere: a pass over memory for each parameter.
  Tensor forward(const Tensor& x) const {
    Tensor total;
    for (const Parameter& parameter : all) {
      const Tensor part = sum(parameter.on(x.device()));
      total = total.defined() ? total + part : part;
    }
    return total.reshape({1});
  }
  void members(Members& m) override { m("all", all); }
};

struct Seconds {
  double refresh, gradients;
};

simulate::Machine machine_of(const std::string& file) {
  return simulate::load_machine(std::string(LOCKSTEP_MACHINES_FOLDER "/") + file + ".json");
}

// The first devices that record stand for those of a machine while it lives.
class LinkedAs {
 public:
  explicit LinkedAs(const simulate::Machine& machine) {
    const auto all = static_cast<std::size_t>(support::device_count());
    const std::size_t some = std::min(all, machine.devices.size());
    const std::vector<DeviceLink> known = simulate::device_links(machine, static_cast<int>(some));
    std::vector<DeviceLink> links(all * all);
    for (std::size_t i = 0; i < some * some; ++i) links[i / some * all + i % some] = known[i];
    record::set_links(links);
  }
  LinkedAs(const LinkedAs&) = delete;
  LinkedAs& operator=(const LinkedAs&) = delete;
  ~LinkedAs() {
    const auto all = static_cast<std::size_t>(support::device_count());
    record::set_links(std::vector<DeviceLink>(all * all));
  }
};

Seconds predicted(const simulate::Machine& machine, const std::vector<Device>& devices, int parameters,
                  std::int64_t bytes) {
  const int device_count = static_cast<int>(devices.size());
  const LinkedAs linked(machine);
  const auto seconds = [&] {
    record::mark("step");
    return static_cast<double>(simulate::simulate(simulate::parse_recording(record::text(), "links"), machine).step()) *
           1e-9;
  };
  Weights net(parameters, bytes, devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  const auto change = [&] {
    for (const Parameter& parameter : net.all) parameter.tensor().mark_changed();
  };
  Seconds found{};
  for (int round = 0; round < 2; ++round) {  // the first makes streams and events
    change();
    record::restart();
    record::mark("step");
    slots.refresh(devices);
    found.refresh = seconds();
  }
  DataParallel model(std::move(net), {.devices = devices});
  const Tensor x = zeros({device_count, 1}, {.device = devices[0]});
  for (int round = 0; round < 3; ++round) {
    const Tensor total = sum(model(x));
    model.zero_grad();
    record::restart();
    record::mark("step");
    total.backward();
    found.gradients = seconds();
  }
  return found;
}

}  // namespace

TEST_CASE("8 GPUs on a switch: a refresh and the gradients take little more than the bytes over one port") {
  const double port = static_cast<double>(kGigabyte) / 396e9;
  // Of the gradients' time 0.08 are until the first ones are there, since home's thread enqueues copies to all others.
  for (const auto& [parameters, most] : {std::pair(16, 1.57), std::pair(161, 1.55)}) {
    const Seconds found = predicted(machine_of("8xh200-nvswitch"), first_devices(8), parameters, kGigabyte);
    CAPTURE(parameters, found.refresh / port, found.gradients / port);
    CHECK(found.refresh >= port);
    CHECK(found.refresh <= 1.25 * port);
    CHECK(found.gradients >= port);
    CHECK(found.gradients <= most * port);
  }
}

// Pieces start 5 us each. The first one is added on seven devices, each of which takes it from the one before when that
// one's addition is seen there.
TEST_CASE("8 GPUs on a switch: a sum along a chain takes the bytes over one port, the starts and one piece's way") {
  const simulate::Machine machine = machine_of("8xh200-nvswitch");
  const std::vector<Device> devices = first_devices(8);
  const LinkedAs linked(machine);
  std::vector<Tensor> parts;
  for (const Device device : devices) parts.push_back(empty({kGigabyte / 4}, {.device = device}));
  const Tensor sum = empty({kGigabyte / 4}, {.device = devices[0]});
  double found = 0;
  for (int round = 0; round < 2; ++round) {  // the first makes streams and events
    record::restart();
    record::mark("step");
    detail::sum_along_chain(parts, sum);
    record::mark("step");
    found = static_cast<double>(simulate::simulate(simulate::parse_recording(record::text(), "sum"), machine).step()) *
            1e-9;
  }
  const double port = static_cast<double>(kGigabyte) / 396e9, start = 5e-6, seen = 5e-6, floor = 2e-6;
  const auto piece = static_cast<double>(detail::chain_piece_bytes(kGigabyte, 8, 50));
  const double pieces = std::ceil(static_cast<double>(kGigabyte) / piece), copy = start + piece / 396e9;
  const double hop = copy + floor + 3 * piece / (0.88 * 4800e9) + seen;  // an addition reads two and writes one
  const double formula = port + pieces * start + 7 * hop;
  CAPTURE(found / port, formula / port, pieces);
  CHECK(pieces > 45);
  CHECK(found >= formula);
  CHECK(found <= 1.08 * formula);  // the host's calls, which a backward before it hides in part
  CHECK(found <= 1.42 * port);
}

// The backward itself and the calls of the host are in it, which weigh more the fewer bytes there are: this backward
// has one kernel for each parameter, while a section of 8 devices takes the host 0.4 ms. All at once after the backward
// 64, 250 and 500 MB took 5.5, 2.3 and 1.85, 1 GB of two devices 1.2.
TEST_CASE("GPUs on a switch: gradients of middling size come home by owners, or along short chains") {
  struct Row {
    int devices;
    std::int64_t bytes;
    double most;
  };
  for (const Row& row :
       {Row{8, 16'000'000, 20}, Row{8, 64'000'000, 6.8}, Row{8, 250'000'000, 3.8}, Row{8, 500'000'000, 1.95},
        Row{6, 600'000'000, 1.68}, Row{4, 250'000'000, 1.84}, Row{3, 100'000'000, 2.2}, Row{2, kGigabyte, 1.1}}) {
    const double port = static_cast<double>(row.bytes) / 396e9;
    const double gradients =
        predicted(machine_of("8xh200-nvswitch"), first_devices(row.devices), 16, row.bytes).gradients;
    CAPTURE(row.devices, row.bytes, gradients / port);
    CHECK(gradients >= port);
    CHECK(gradients <= row.most * port);
  }
}

// Layers of which each computes for longer than its gradient is on its way. After the backward one section is left to
// be summed, a ninth of all. Were all summed after the backward, 1.63 would not be hidden.
TEST_CASE("8 GPUs on a switch: the gradients of all but the first layers come home while the backward computes") {
  struct Layers : Module<Layers> {
    std::vector<Linear> all;
    Layers() {
      for (int i = 0; i < 20; ++i) all.emplace_back(Linear(2048, 2048));
    }
    Tensor forward(const Tensor& x) const {
      Tensor y = x;
      for (const Linear& layer : all) y = relu(layer(y));
      return sum(y, {1});
    }
    void members(Members& m) override { m("all", all); }
  };
  const simulate::Machine machine = machine_of("8xh200-nvswitch");
  const LinkedAs linked(machine);
  const std::vector<Device> devices = first_devices(8);
  Layers layers;
  std::size_t bytes = 0;
  for (const Parameter& parameter : layers.parameters()) bytes += parameter.tensor().bytes();
  DataParallel model(std::move(layers), {.devices = devices});
  const Tensor x = zeros({8 * 2048, 2048}, {.device = devices[0]});
  simulate::Nanoseconds exposed = 0;
  for (int round = 0; round < 3; ++round) {
    const Tensor loss = sum(model(x));
    model.zero_grad();
    for (const Device device : devices) synchronize(device);
    record::restart();
    record::mark("step");
    loss.backward();
    for (const Device device : devices) synchronize(device);
    record::mark("step");
    exposed = simulate::simulate(simulate::parse_recording(record::text(), "layers"), machine).exposed();
  }
  const double port = static_cast<double>(bytes) / 396e9;
  CAPTURE(static_cast<double>(exposed) * 1e-9 / port);
  CHECK(static_cast<double>(exposed) * 1e-9 <= 0.5 * port);
}

// A mirror that passes on what it receives has 1.43 of a slot's rate for both: 2 / 1.43 = 1.40 of the time of one way.
// So has home, which sends its gradients and receives the sum.
TEST_CASE("4 GPUs on PCIe: the same against a slot's rate, which copies both ways at once share") {
  const double slot = static_cast<double>(kGigabyte) / 26e9;
  const Seconds found = predicted(machine_of("4xl40s-p2p"), first_devices(4), 161, kGigabyte);
  CAPTURE(found.refresh / slot, found.gradients / slot);
  CHECK(found.refresh >= slot);
  CHECK(found.refresh <= 1.45 * slot);
  CHECK(found.gradients >= slot);
  CHECK(found.gradients <= 1.07 * 2 / 1.43 * slot);
}

// Gradients go from neighbour to neighbour in the list. From 3 to 4 and from 7 to 0 there is no line, and the ways over
// a third device are 3-0-4 and 3-7-4, 7-4-0 and 7-3-0: all of them pass 3-0 or 7-4, of two lines each. Four lines for
// two hops: no chain over such ways has more than two lines of the six, a third of what home could receive.
TEST_CASE("a hybrid mesh: a refresh takes all lines out of home, gradients two of every hop") {
  const double ports = static_cast<double>(kGigabyte) / 143.4e9;  // six lines of 23.9 GB/s out of a device
  const Seconds found = predicted(machine_of("dgx-1v"), first_devices(8), 161, kGigabyte);
  CAPTURE(found.refresh / ports, found.gradients / ports);
  CHECK(found.refresh >= ports);
  CHECK(found.refresh <= 1.45 * ports);
  CHECK(found.gradients >= ports);
  CHECK(found.gradients <= 3.8 * ports);
}

// Each way between two switches, and the one between the sockets, carries the bytes once, whatever the list looks like.
TEST_CASE("PCIe switches on two sockets: a refresh of devices in any order takes what the sockets' link does") {
  nlohmann::json json = nlohmann::json::parse(std::ifstream(LOCKSTEP_MACHINES_FOLDER "/dgx-1v.json"));
  json["topology"].erase(0);  // without the mesh
  json["topology"][0]["peers"] = "p2p";
  const simulate::Machine machine = simulate::parse_machine(json.dump());
  const double sockets = static_cast<double>(kGigabyte) / 6e9;
  for (const std::vector<Device>& devices : {first_devices(8), support::devices_at({5, 0, 3, 6, 1, 4, 2, 7})}) {
    const Seconds found = predicted(machine, devices, 161, kGigabyte);
    CAPTURE(to_string(devices), found.refresh / sockets, found.gradients / sockets);
    CHECK(found.refresh >= sockets);
    CHECK(found.refresh <= 1.3 * sockets);
  }
}

TEST_CASE("what goes to many devices by turns changes the current device once a turn") {
  const std::vector<Device> devices = first_devices(8);
  Weights net(40, 40 << 20, devices[0]);
  const ModuleSlots slots(net);
  slots.refresh(devices);
  for (const Parameter& parameter : net.all) parameter.tensor().mark_changed();
  record::restart();
  slots.refresh(devices);
  (void)ones({1}, {.device = devices[0]});  // on the thread's own device, which it has again
  const std::string text = record::text();
  CHECK(text.find("call set_device\nkernel 0 fill") != text.npos);
  int changes = 0, copies = 0;
  for (std::size_t at = 0; (at = text.find("\ncall set_device\n", at)) != text.npos; ++at) ++changes;
  for (std::size_t at = 0; (at = text.find("\ncopy ", at)) != text.npos; ++at) ++copies;
  CHECK(copies >= 2 * 7);
  CHECK(changes <= copies + 3);  // a turn is a copy with what it waits for and its event; home's event is one besides
}

TEST_CASE("parameters that change move when their wrapper is called, and at no other time") {
  const std::vector<Device> devices = first_devices(4);
  DataParallel model(Weights(10, 10 << 20, devices[0]), {.devices = devices});
  const DataParallel idle(Weights(10, 10 << 20, devices[0]), {.devices = devices});
  const Tensor x = zeros({4, 1}, {.device = devices[0]});
  const NoGrad off;
  const auto copied = [&](const auto& work) {  // of parameters
    record::restart();
    work();
    const std::string text = record::text();
    std::int64_t bytes = 0;
    for (std::size_t at = 0; (at = text.find("\ncopy ", at)) != text.npos; ++at) {
      const std::size_t end = text.find('\n', at + 1);
      const std::int64_t size = std::stoll(text.substr(text.rfind(' ', end)));
      if (size > 1024) bytes += size;
    }
    return bytes;
  };
  const auto step = [](const auto& of) {
    for (const Parameter& parameter : of.parameters()) Tensor(parameter.tensor()).add_(1.0);
  };
  (void)model(x), (void)idle(x);
  CHECK(copied([&] { (void)model(x); }) == 0);
  CHECK(copied([&] { step(model), step(idle); }) == 0);
  CHECK(copied([&] { (void)model(x); }) >= 3 * (10 << 20));
  CHECK(copied([&] { (void)model(x); }) == 0);
  CHECK(copied([&] { (void)idle(x); }) >= 3 * (10 << 20));
}
