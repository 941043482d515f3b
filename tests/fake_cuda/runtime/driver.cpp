// Machines whose driver is too old, or which have none. Each is alone in its program: devices are counted once.
#include <string>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

// What the first use of a device logs, and what is said to who asks for a CUDA device.
struct Said {
  std::string warning, error;
};

Said count_devices() {
  Said said;
  const LogLevel before = log_level();
  set_log_level(LogLevel::warning);
  const LogSink sink = set_log_sink([&](LogLevel, std::string_view message) { said.warning += message; });
  for (const Device device : all_devices()) CHECK(device.type() != DeviceType::cuda);
  set_log_sink(sink);
  set_log_level(before);
  try {
    ordinal(Device::cuda(0));
  } catch (const InvalidArgument& error) {
    said.error = error.what();
  }
  return said;
}

}  // namespace

// ctest: fake_cuda/old_driver
TEST_CASE("a driver that is too old is warned of, with its version and the one needed", "[.old_driver]") {
  const Said said = count_devices();
  for (const std::string& text : {said.warning, said.error}) {
    CHECK(text.find("the NVIDIA driver is for CUDA 11.8, and this build of Lockstep needs one for CUDA ") != text.npos);
    CHECK(text.find(".0 or later") != text.npos);
  }
}

// ctest: fake_cuda/no_driver
TEST_CASE("a machine without a driver is nothing to warn of", "[.no_driver]") {
  const Said said = count_devices();
  CHECK(said.warning.empty());
  CHECK(said.error.find("there is no NVIDIA driver") != said.error.npos);
}
