#include "lockstep/runtime/record/record.h"

#include <unistd.h>

#include <cstdlib>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/record/recorder.h"
#include "lockstep/runtime/topology.h"
#include "lockstep/runtime/trace/trace_environment.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::record {
namespace {

lockstep::detail::Recorder& recorder(const char* op) {
  (void)all_devices();
  lockstep::detail::Recorder* const found = lockstep::detail::Recorder::active();
  if (!found) throw Error(cat("[", op, "] expected the host devices in mode record, got another mode"));
  return *found;
}

}  // namespace

bool active() {
  (void)all_devices();
  return lockstep::detail::Recorder::active() != nullptr;
}

void mark(std::string_view name) {
  if (lockstep::detail::Recorder* const found = lockstep::detail::Recorder::active()) found->mark(name);
}

void restart() {
  if (lockstep::detail::Recorder* const found = lockstep::detail::Recorder::active()) found->restart();
}

void set_links(const std::vector<DeviceLink>& links) {
  lockstep::detail::Recorder& recording = recorder("record::set_links");
  const int devices = backend(DeviceType::host).device_count();
  const std::size_t expected = static_cast<std::size_t>(devices) * static_cast<std::size_t>(devices);
  LOCKSTEP_CHECK(links.size() == expected, "[record::set_links] expected ", expected, " links of ", devices,
                 " devices, got ", links.size());
  recording.set_links(links, devices);
  lockstep::detail::forget_topologies();
}

std::string text() { return recorder("record::text").text(); }

void write(const std::string& path) { lockstep::detail::write_whole_file("record::write", path, text()); }

void detail::start_from_environment() {
  static const std::string* const path =
      new std::string(trace::detail::file_of_process(std::string(lockstep::detail::environment("LOCKSTEP_RECORD"))));
  if (path->empty()) return;
  if (!lockstep::detail::Recorder::active())
    throw InvalidArgument("[LOCKSTEP_RECORD] expected LOCKSTEP_HOST_MODE=record beside it, got another mode");
  if (const std::string reason = lockstep::detail::why_not_writable(*path); !reason.empty())
    throw InvalidArgument(cat("[LOCKSTEP_RECORD] expected a file that can be written, got \"", *path, "\": ", reason));
  static const pid_t process = ::getpid();
  std::atexit([] {
    if (::getpid() != process) return;  // forked: the file is its parent's
    try {
      lockstep::detail::write_whole_file("LOCKSTEP_RECORD", *path, lockstep::detail::Recorder::active()->text());
    } catch (const Error& error) {
      log(LogLevel::error, error.what());
    }
  });
}

}  // namespace lockstep::record
