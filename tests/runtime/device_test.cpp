#include "lockstep/runtime/device.h"

#include <cstdlib>
#include <set>

#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_backend.h"
#include "lockstep/runtime/host/host_options.h"
#include "runtime/text.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

const std::string kEverything = "[cpu, host:0, host:1, host:2, host:3, host:4, host:5, host:6, host:7, cuda:0, cuda:1]";

// Sets an environment variable for as long as it lives.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

std::vector<Device> hosts(std::initializer_list<int> indices) {
  std::vector<Device> devices;
  for (const int index : indices) devices.push_back(Device::host(index));
  return devices;
}

}  // namespace

TEST_CASE("devices have names") {
  CHECK(to_string(Device()) == "cpu");
  CHECK(to_string(Device::host(3)) == "host:3");
  CHECK(to_string(Device::cuda(12)) == "cuda:12");
  CHECK(to_string(hosts({1, 0})) == "[host:1, host:0]");
  CHECK(to_string(std::vector<Device>{}) == "[]");
}

TEST_CASE("an index that does not fit does not name another device") {
  CHECK(Device::host(65536) != Device::host(0));
  CHECK(Device::host(65536 + 3).index() > 100);
  CHECK(Device::host(-65536).index() < 0);
  CHECK_THROWS_AS(ordinal(Device::host(65536)), InvalidArgument);
}

TEST_CASE("a device is parsed from its name") {
  for (const Device device : all_devices()) CHECK(Device::parse(to_string(device)) == device);
}

TEST_CASE("a bad device name is an error that lists what exists") {
  for (const std::string text :
       {"", "cpu:0", "cpu ", "CUDA:0", "host", "host:", "host:x", "host:1x", "host:-1", "host:8", "host:65536",
        "host:99999999999999999999", "cuda:2", "gpu:0", ":0", "host:all", "3"}) {
    CHECK(message_of<InvalidArgument>([&] { Device::parse(text); }) ==
          "[Device::parse] expected one of " + kEverything + ", got \"" + text + "\"");
  }
}

TEST_CASE("device lists") {
  CHECK(parse_devices("host:3,host:1") == hosts({3, 1}));
  CHECK(parse_devices(" host:3 , host:1 ") == hosts({3, 1}));
  CHECK(parse_devices("host:4") == hosts({0, 1, 2, 3}));
  CHECK(parse_devices("host:8").size() == 8);
  CHECK(parse_devices("host:4,") == hosts({4}));
  CHECK(parse_devices("host:all") == hosts({0, 1, 2, 3, 4, 5, 6, 7}));
  CHECK(parse_devices("cuda:all") == std::vector<Device>{Device::cuda(0), Device::cuda(1)});
  CHECK(parse_devices("cuda:0,host:0") == std::vector<Device>{Device::cuda(0), Device::host(0)});
  CHECK(parse_devices("cpu") == std::vector<Device>{Device::cpu()});
  CHECK(parse_devices("2") == std::vector<Device>{Device::cuda(0), Device::cuda(1)});
}

TEST_CASE("bad device lists are errors that say what was expected") {
  CHECK(message_of<InvalidArgument>([] { parse_devices("host:1,host:2,host:1"); }) ==
        "[parse_devices] expected distinct devices, got host:1 twice in \"host:1,host:2,host:1\"");
  CHECK(message_of<InvalidArgument>([] { parse_devices("host:1,host:8"); }) ==
        "[parse_devices] expected one of " + kEverything + ", got \"host:8\"");
  CHECK(message_of<InvalidArgument>([] { parse_devices("host:9"); }) ==
        "[parse_devices] expected a number of devices from 1 to 8 of [host:0, host:1, host:2, host:3, host:4, host:5, "
        "host:6, host:7], got \"host:9\"");
  CHECK(message_of<InvalidArgument>([] { parse_devices("host:0"); }) ==
        "[parse_devices] expected a number of devices from 1 to 8 of [host:0, host:1, host:2, host:3, host:4, host:5, "
        "host:6, host:7], got \"host:0\" (for the one device of index 0 write a comma after it)");
  CHECK(message_of<InvalidArgument>([] { parse_devices("3"); }) ==
        "[parse_devices] expected a number of devices from 1 to 2 of [cuda:0, cuda:1], got \"3\"");
  CHECK(message_of<InvalidArgument>([] { parse_devices(""); }) ==
        "[parse_devices] expected a device list such as \"host:0,host:1\", \"host:2\" or \"2\", got \"\"");
  for (const char* text : {"-1", "0", "host:-1", ",", "host:1,,host:2", "host:1,2", "host:1,host:all", "cuda:3", "all",
                           "host:1 host:2", "99999999999999999999"}) {
    CHECK_THROWS_AS(parse_devices(text), InvalidArgument);
  }
}

TEST_CASE("the accelerators are the CUDA devices, or what LOCKSTEP_DEVICES says") {
  CHECK(accelerators() == std::vector<Device>{Device::cuda(0), Device::cuda(1)});
  {
    Environment list("LOCKSTEP_DEVICES", "host:3,host:1");
    CHECK(accelerators() == hosts({3, 1}));
    CHECK(parse_devices("1") == hosts({3}));
  }
  {
    Environment count("LOCKSTEP_DEVICES", "2");
    CHECK(accelerators().size() == 2);
  }
  {
    Environment nonsense("LOCKSTEP_DEVICES", "gpu");
    CHECK(message_of<InvalidArgument>([] { accelerators(); }) ==
          "[LOCKSTEP_DEVICES] expected one of " + kEverything + ", got \"gpu\"");
  }
  Environment unset("LOCKSTEP_DEVICES", "");
  CHECK(accelerators().size() == 2);
}

TEST_CASE("a variable that is a switch is 0, 1, empty or an error") {
  const char* name = "LOCKSTEP_TF32";
  CHECK_FALSE(detail::environment_flag(name));
  for (const char* text : {"", "0", "1"}) {
    Environment given(name, text);
    CHECK(detail::environment_flag(name) == (*text == '1'));
  }
  Environment nonsense(name, "true");
  CHECK(message_of<InvalidArgument>([&] { detail::environment_flag(name); }) ==
        "[LOCKSTEP_TF32] expected 0 or 1, got \"true\"");
}

TEST_CASE("ordinals are dense and in the order of all_devices") {
  const std::vector<Device>& devices = all_devices();
  REQUIRE(to_string(devices) == kEverything);
  for (std::size_t i = 0; i < devices.size(); ++i) CHECK(ordinal(devices[i]) == static_cast<int>(i));
  CHECK(message_of<InvalidArgument>([] { ordinal(Device::host(8)); }) ==
        "[device] expected one of " + kEverything + ", got host:8");
  CHECK_THROWS_AS(ordinal(Device::host(-1)), InvalidArgument);
  CHECK_THROWS_AS(properties(Device::cuda(2)), InvalidArgument);
}

TEST_CASE("host devices have the properties they were configured with") {
  CHECK(properties(Device::host(0)).multiprocessors == 2);
  CHECK(properties(Device::host(1)).multiprocessors == 1);
  CHECK(properties(Device::host(6)).multiprocessors == 1);  // the last one repeats
  CHECK(properties(Device::host(0)).total_memory_bytes == std::size_t{1} << 30);
  CHECK(properties(Device::host(7)).total_memory_bytes == std::size_t{16} << 20);
  CHECK(properties(Device::cpu()).synchronous);
  CHECK(properties(Device::cpu()).total_memory_bytes > 0);
  CHECK(properties(Device::host(5)).name == "virtual host device 5");
}

TEST_CASE("the layout cannot be changed once it is in use") {
  (void)all_devices();
  CHECK(message_of<Error>([] { configure_host({.devices = 2}); }) ==
        "[configure_host] expected to be called before anything uses a device, got a call after that");
  CHECK_THROWS_AS(detail::install_backend(backend(DeviceType::host)), Error);
  CHECK(all_devices().size() == 11);
}

TEST_CASE("bad host options are refused") {
  CHECK(message_of<InvalidArgument>([] { configure_host({.devices = -1}); }) ==
        "[configure_host] expected from 1 to 256 devices, or 0 for the default, got -1");
  CHECK_THROWS_AS(configure_host({.devices = 257}), InvalidArgument);
  CHECK_THROWS_AS(configure_host({.memory_bytes = {1024, 0}}), InvalidArgument);
  CHECK_THROWS_AS(configure_host({.multiprocessors = {0}}), InvalidArgument);
}

TEST_CASE("the environment lays out the host devices") {
  {
    Environment count("LOCKSTEP_HOST_DEVICES", "5");
    Environment memory("LOCKSTEP_HOST_MEMORY", "2G, 512M,4096");
    const std::unique_ptr<Backend> made(detail::make_host_backend({}));
    REQUIRE(made->device_count() == 5);
    CHECK(made->properties(0).total_memory_bytes == std::size_t{2} << 30);
    CHECK(made->properties(1).total_memory_bytes == std::size_t{512} << 20);
    CHECK(made->properties(2).total_memory_bytes == 4096);
    CHECK(made->properties(4).total_memory_bytes == 4096);
    const std::unique_ptr<Backend> explicitly(detail::make_host_backend({.devices = 3, .memory_bytes = {777}}));
    CHECK(explicitly->device_count() == 3);
    CHECK(explicitly->properties(2).total_memory_bytes == 777);
  }
  const std::unique_ptr<Backend> plain(detail::make_host_backend({}));
  CHECK(plain->device_count() >= 1);
  CHECK(plain->device_count() <= 8);
  for (const char* text : {"0", "257", "-1", "two", "1.5", "4 "}) {
    Environment count("LOCKSTEP_HOST_DEVICES", text);
    CHECK(message_of<InvalidArgument>([] { detail::make_host_backend({}); }) ==
          cat("[LOCKSTEP_HOST_DEVICES] expected a number from 1 to 256, got \"", text, "\""));
  }
  for (const char* text : {"0", "-1", "1X", "G", "1GB", "99999999999T", "1G,,2G", "99999999999999999999999"}) {
    Environment memory("LOCKSTEP_HOST_MEMORY", text);
    CHECK_THROWS_AS(detail::make_host_backend({}), InvalidArgument);
  }
  Environment memory("LOCKSTEP_HOST_MEMORY", "1GB");
  CHECK(message_of<InvalidArgument>([] { detail::make_host_backend({}); }) ==
        "[LOCKSTEP_HOST_MEMORY] expected a positive number of bytes such as 1073741824, 512M or 8G, got \"1GB\"");
}

TEST_CASE("the environment chooses the host mode, and the options come before it") {
  {
    Environment mode("LOCKSTEP_HOST_MODE", "inline");
    const std::unique_ptr<Backend> made(detail::make_host_backend({}));
    CHECK(made->properties(0).synchronous);
    CHECK_FALSE(made->properties(0).checked);
    const std::unique_ptr<Backend> other(detail::make_host_backend({.mode = HostMode::async}));
    CHECK_FALSE(other->properties(0).synchronous);
  }
  {
    Environment mode("LOCKSTEP_HOST_MODE", "async");
    const std::unique_ptr<Backend> made(detail::make_host_backend({}));
    CHECK_FALSE(made->properties(0).synchronous);
    CHECK_FALSE(made->properties(0).checked);
    const std::unique_ptr<Backend> other(detail::make_host_backend({.mode = HostMode::inlined}));
    CHECK(other->properties(0).synchronous);
  }
  Environment mode("LOCKSTEP_HOST_MODE", "Inline");
  CHECK(message_of<InvalidArgument>([] { detail::make_host_backend({}); }) ==
        "[LOCKSTEP_HOST_MODE] expected inline, async, strict or record, got \"Inline\"");
}
