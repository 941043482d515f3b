#include "lockstep/runtime/device.h"

#include <algorithm>
#include <charconv>

#include "lockstep/runtime/device_table.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

using detail::trim;

[[gnu::cold, noreturn]] void fail_absent(const char* op, std::string_view got) {
  const bool no_cuda =
      got.find("cuda") != got.npos && detail::device_table().count[static_cast<int>(DeviceType::cuda)] == 0;
  throw InvalidArgument(cat("[", op, "] expected one of ", to_string(all_devices()), ", got ", got,
                            no_cuda ? cat("; there are no CUDA devices: ", detail::device_table().why_no_cuda()) : ""));
}

bool parse_type(std::string_view text, DeviceType& type) {
  for (int i = 0; i < detail::kDeviceTypes; ++i) {
    type = static_cast<DeviceType>(i);
    if (type != DeviceType::cpu && text == to_string(type)) return true;  // cpu has no index
  }
  return false;
}

bool parse_number(std::string_view text, int& number) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

// "host:3" into its type and what follows the colon.
bool split(std::string_view text, DeviceType& type, std::string_view& index) {
  const auto colon = text.find(':');
  if (colon == text.npos || !parse_type(text.substr(0, colon), type)) return false;
  index = text.substr(colon + 1);
  return true;
}

Device make_device(DeviceType type, int index) {
  switch (type) {
    case DeviceType::cpu:
      return Device::cpu();
    case DeviceType::host:
      return Device::host(index);
    case DeviceType::cuda:
      return Device::cuda(index);
  }
  return Device::cpu();
}

bool exists(Device device) {
  const auto type = static_cast<int>(device.type());
  return device.index() >= 0 && device.index() < detail::device_table().count[type];
}

Device parse_one(const char* op, std::string_view text) {
  if (text == "cpu") return Device::cpu();
  DeviceType type;
  std::string_view index_text;
  int index = 0;
  if (split(text, type, index_text) && parse_number(index_text, index)) {
    const Device device = make_device(type, index);
    if (exists(device)) return device;
  }
  fail_absent(op, cat('"', text, '"'));
}

std::vector<Device> all_of(DeviceType type) {
  std::vector<Device> found;
  std::copy_if(all_devices().begin(), all_devices().end(), std::back_inserter(found),
               [type](Device device) { return device.type() == type; });
  return found;
}

std::vector<Device> first_of(const char* op, std::string_view text, std::vector<Device> devices, int count) {
  LOCKSTEP_CHECK(count >= 1 && count <= static_cast<int>(devices.size()), "[", op,
                 "] expected a number of devices from 1 to ", devices.size(), " of ", to_string(devices), ", got \"",
                 text, "\"", count == 0 ? " (for the one device of index 0 write a comma after it)" : "");
  devices.resize(static_cast<std::size_t>(count), Device::cpu());
  return devices;
}

std::vector<Device> hardware_accelerators() {
  std::vector<Device> devices = all_of(DeviceType::cuda);
  return devices.empty() ? all_of(DeviceType::host) : devices;
}

// `accelerators` is what a bare count counts.
std::vector<Device> parse_list(const char* op, std::string_view whole, std::vector<Device> (*accelerators)()) {
  std::string_view text = trim(whole);
  LOCKSTEP_CHECK(!text.empty(), "[", op,
                 "] expected a device list such as \"host:0,host:1\", \"host:2\" or \"2\", got \"", whole, "\"");
  if (text.find(',') == text.npos) {
    DeviceType type;
    std::string_view index;
    int number = 0;
    if (parse_number(text, number)) return first_of(op, text, accelerators(), number);
    if (split(text, type, index)) {
      if (index == "all" || parse_number(index, number)) {
        const std::vector<Device> devices = all_of(type);
        if (devices.empty()) fail_absent(op, cat('"', text, '"'));
        return index == "all" ? devices : first_of(op, text, devices, number);
      }
    }
    return {parse_one(op, text)};
  }
  if (text.back() == ',') text.remove_suffix(1);  // "host:3," is the one device host:3
  std::vector<Device> devices;
  for (;;) {
    const auto comma = text.find(',');
    const Device device = parse_one(op, trim(text.substr(0, comma)));
    LOCKSTEP_CHECK(std::find(devices.begin(), devices.end(), device) == devices.end(), "[", op,
                   "] expected distinct devices, got ", device, " twice in \"", whole, "\"");
    devices.push_back(device);
    if (comma == text.npos) return devices;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace

std::string to_string(DeviceType type) {
  switch (type) {
    case DeviceType::cpu:
      return "cpu";
    case DeviceType::host:
      return "host";
    case DeviceType::cuda:
      return "cuda";
  }
  return cat("device type ", static_cast<int>(type));
}

std::string to_string(Device device) {
  return device.is_cpu() ? std::string("cpu") : cat(device.type(), ':', device.index());
}

std::string to_string(const std::vector<Device>& devices) {
  std::string text = "[";
  for (const Device& device : devices) {
    if (text.size() > 1) text += ", ";
    text += to_string(device);
  }
  return text + ']';
}

Device Device::parse(std::string_view text) { return parse_one("Device::parse", text); }

std::vector<Device> parse_devices(std::string_view text) { return parse_list("parse_devices", text, accelerators); }

std::vector<Device> accelerators() {
  const std::string_view text = detail::environment("LOCKSTEP_DEVICES");
  return text.empty() ? hardware_accelerators() : parse_list("LOCKSTEP_DEVICES", text, hardware_accelerators);
}

const std::vector<Device>& all_devices() { return detail::device_table().all; }

int ordinal(Device device) {
  const detail::DeviceTable& table = detail::device_table();
  const auto type = static_cast<int>(device.type());
  if (static_cast<unsigned>(device.index()) >= static_cast<unsigned>(table.count[type])) [[unlikely]] {
    fail_absent("device", to_string(device));
  }
  return table.first[type] + device.index();
}

const DeviceProperties& properties(Device device) {
  ordinal(device);  // throws for an absent device
  return backend(device).properties(device.index());
}

}  // namespace lockstep
