// How far from what the links allow a batch's way to the devices, and the outputs' way back, are on a described
// machine: in virtual time, of what the library really enqueues.
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/simulate/simulation.h"
#include "lockstep/runtime/record/record.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::first_devices;

TEST_CASE("a batch is scattered, and outputs are gathered, in little more than their bytes over home's port") {
  const simulate::Machine machine = simulate::load_machine(LOCKSTEP_MACHINES_FOLDER "/8xh200-nvswitch.json");
  const auto seconds = [&] {
    record::mark("step");
    return static_cast<double>(simulate::simulate(simulate::parse_recording(record::text(), "links"), machine).step()) *
           1e-9;
  };
  for (const std::int64_t dim : {0, 1}) {
    const std::vector<Device> devices = first_devices(8);
    const Tensor batch = empty(dim == 0 ? Shape{8, 31'250'000} : Shape{1000, 250'000}, {.device = devices[0]});
    const double bytes = static_cast<double>(batch.bytes()) * 7 / 8, port = bytes / 396e9;
    double scattered = 0, gathered = 0;
    for (int round = 0; round < 2; ++round) {  // the first makes streams
      record::restart();
      record::mark("step");
      const std::vector<Tensor> pieces = scatter(batch, devices, dim);
      scattered = seconds();
      REQUIRE(pieces.size() == 8);
      record::restart();
      record::mark("step");
      const Tensor whole = gather(pieces, devices[0], dim);
      gathered = seconds();
    }
    CAPTURE(dim, scattered / port, gathered / port);
    CHECK(scattered >= port);
    CHECK(gathered >= port);
    // Along another dimension than the first a kernel makes each piece one, before or after.
    CHECK(scattered <= (dim == 0 ? 1.1 : 1.3) * port);
    CHECK(gathered <= (dim == 0 ? 1.1 : 1.3) * port);
  }
}
