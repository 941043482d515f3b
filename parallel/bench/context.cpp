// What a figure depends on beside the code: the machine and its load, the build, the settings.
#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "lockstep/parallel/bench/session.h"
#include "lockstep/parallel/build_info.h"
#include "lockstep/runtime/backend.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/strings.h"

namespace lockstep::bench {
namespace {

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "unknown";
}

long cores() { return ::sysconf(_SC_NPROCESSORS_ONLN); }

double load() {
  double average = 0;
  return ::getloadavg(&average, 1) == 1 ? average : 0;
}

std::string utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string decimals(double number) {
  std::ostringstream text;
  text.precision(6);
  text << number;
  return text.str();
}

}  // namespace

std::string context_json(const std::string& program, const Settings& settings, const std::string& indent) {
  std::string out = "{";
  const auto add_raw = [&](const char* name, const std::string& value) {
    out += cat(out.size() > 1 ? "," : "", '\n', indent, "  ", json_text(name), ": ", value);
  };
  const auto add = [&](const char* name, const std::string& value) { add_raw(name, json_text(value)); };
  utsname system{};
  ::uname(&system);
  add("program", program);
  add("date", utc());
  add("host", system.nodename);
  add("system", cat(system.sysname, ' ', system.release));
  add("processor", processor());
  add_raw("cores", std::to_string(cores()));
  add_raw("load", decimals(load()));
  add_raw("memory_bytes",
          std::to_string(static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE)));
  const BuildInfo info = build_info();
  add("lockstep", info.version);
  add("commit", info.commit);
  add("build_type", info.build_type);
  add("compiler", info.compiler);
  add("instruction_set", info.instruction_set);
  add("cuda_architectures", info.cuda_architectures);
  add("sanitizer", info.sanitizer);
  std::string parts;
  for (const BuildInfo::Part& part : info.parts)
    parts += cat(parts.empty() ? "" : ", ", json_text(part.name), ": {\"built_with\": ", json_text(part.built_with),
                 ", \"found\": ", json_text(part.found), "}");
  add_raw("libraries", "{" + parts + "}");
  std::string devices;
  for (const Device device : all_devices())
    devices += cat(devices.empty() ? "" : ", ", json_text(to_string(device)), ": ", json_text(properties(device).name));
  add_raw("devices", "{" + devices + "}");
  std::string variables;
  for (char** each = environ; *each; ++each) {
    const std::string_view text = *each;
    const auto equals = text.find('=');
    if (text.starts_with("LOCKSTEP_") && !text.starts_with("LOCKSTEP_TOKEN") && equals != text.npos)
      variables += cat(variables.empty() ? "" : ", ", json_text(std::string(text.substr(0, equals))), ": ",
                       json_text(std::string(text.substr(equals + 1))));
  }
  add_raw("environment", "{" + variables + "}");
  add_raw("repetitions", settings.repetitions > 0 ? std::to_string(settings.repetitions) : "null");
  add_raw("min_seconds", decimals(settings.min_seconds));
  add_raw("warm_up_samples", "1");
  return out + '\n' + indent + '}';
}

std::string context_line() {
  const BuildInfo info = build_info();
  const double busy = load();
  std::string line = cat("Lockstep ", info.version, info.commit.empty() ? "" : " (" + info.commit + ")", ", ",
                         info.build_type, ", ", processor(), ", ", cores(), cores() == 1 ? " core" : " cores");
  if (busy > 0.5 * static_cast<double>(cores()))
    line += cat("; the machine is busy: load ", decimals(std::round(busy * 10) / 10));
  return line + "\n";
}

}  // namespace lockstep::bench
