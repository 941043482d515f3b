#include "lockstep/runtime/trace/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/environment.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/trace/trace_environment.h"
#include "lockstep/runtime/trace/traced_device.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::trace {
namespace {

struct Record {
  Span span;  // without the track's name
  int track;
};

// All of it under one mutex: this is for looking, not for speed.
struct Recorder {
  std::mutex mutex;
  std::uint64_t generation = 0;  // of start()
  std::uint64_t sequence = 0;
  Clock::time_point origin;
  std::size_t most = 0;
  std::uint64_t dropped = 0;
  std::vector<Record> records;
  std::vector<std::string> tracks;
  std::unordered_map<const void*, int> track_of;

  std::int64_t now() const { return std::chrono::nanoseconds(Clock::now() - origin).count(); }
  int track(const void* stream, const char* kind) {
    const auto [found, made] = track_of.try_emplace(stream, static_cast<int>(tracks.size()));
    if (made) tracks.push_back(cat(kind, ' ', tracks.size()));
    return found->second;
  }
  Token add(const void* stream, const char* track_kind, Device device, const Work& work) {
    if (records.size() >= most) {
      ++dropped;
      return 0;
    }
    Record& record = records.emplace_back();
    record.track = track(stream, track_kind);
    record.span.work = work;
    record.span.device = device;
    record.span.enqueued = ++sequence;
    record.span.enqueued_nanoseconds = now();
    return generation << 32 | records.size();
  }
  // Null when it was forgotten.
  Span* find(Token token) { return token >> 32 == generation ? &records[(token & 0xffffffffu) - 1].span : nullptr; }
};

Recorder& recorder() {
  static Recorder* const made = new Recorder;
  return *made;
}

// What a token says besides: there is a range of this thread to end.
constexpr Token kRange = Token{1} << 63;

std::atomic<bool> recording{false};
bool ranges_always = false;
lockstep::trace::detail::Ranges ranges{nullptr, nullptr};

bool push_range(const char* name) {
  if (!ranges.push || !active()) return false;
  ranges.push(name);
  return true;
}

thread_local Work current_work;
thread_local char thread_track;  // its address stands for the thread

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + '"';
}

const char* to_string(Kind kind) {
  constexpr const char* kNames[] = {"kernel", "copy", "fill", "task", "host"};
  return kNames[static_cast<int>(kind)];
}

std::string microseconds(std::int64_t nanoseconds) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(nanoseconds) / 1e3);
  return text;
}

// One event: complete ("X") when it has ended, else the begin alone ("B").
std::string event_of(const Span& span, int process, int track) {
  std::string text = cat("{\"name\":", quoted(span.work.name), ",\"cat\":\"", to_string(span.work.kind), "\",\"ph\":\"",
                         span.ended ? 'X' : 'B', "\",\"pid\":", process, ",\"tid\":", track,
                         ",\"ts\":", microseconds(span.began_nanoseconds));
  if (span.ended) text += cat(",\"dur\":", microseconds(span.ended_nanoseconds - span.began_nanoseconds));
  text += cat(",\"args\":{\"enqueued\":", span.enqueued, ",\"began\":", span.began, ",\"ended\":", span.ended,
              ",\"waited_us\":", microseconds(span.began_nanoseconds - span.enqueued_nanoseconds));
  if (span.work.bytes > 0) text += cat(",\"bytes\":", span.work.bytes);
  if (span.work.kind == Kind::copy) text += cat(",\"from\":\"", span.work.source, '"');
  return text + "}}";
}

std::string name_event(const char* what, int process, int track, const std::string& name) {
  return cat("{\"name\":\"", what, "\",\"ph\":\"M\",\"pid\":", process, ",\"tid\":", track,
             ",\"args\":{\"name\":", quoted(name), "}}");
}

}  // namespace

void start(std::size_t most) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  ++r.generation;
  r.sequence = r.dropped = 0;
  r.most = std::min<std::size_t>(most, 0xffffffffu);
  r.records.clear();
  r.origin = Clock::now();
  recording.store(true, std::memory_order_relaxed);
  detail::on.store(true, std::memory_order_relaxed);
}

void stop() {
  recording.store(false, std::memory_order_relaxed);
  detail::on.store(ranges_always, std::memory_order_relaxed);
}

std::vector<Span> spans() {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  std::vector<Span> result;
  result.reserve(r.records.size());
  for (const Record& record : r.records) {
    result.push_back(record.span);
    result.back().track = r.tracks[static_cast<std::size_t>(record.track)];
  }
  return result;
}

std::uint64_t dropped() {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  return r.dropped;
}

void write(const std::string& path) {
  const std::vector<Device>& devices = all_devices();
  std::string text = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
  for (std::size_t i = 0; i < devices.size(); ++i) {
    text += cat(i ? ",\n" : "\n", name_event("process_name", static_cast<int>(i), 0, lockstep::to_string(devices[i])));
  }
  {
    Recorder& r = recorder();
    std::lock_guard lock(r.mutex);
    std::vector<std::vector<bool>> named(devices.size(), std::vector<bool>(r.tracks.size()));
    for (const Record& record : r.records) {
      if (!record.span.began) continue;
      const int process = ordinal(record.span.device);
      const auto track = static_cast<std::size_t>(record.track);
      auto seen = named[static_cast<std::size_t>(process)].begin() + record.track;
      if (!*seen) text += ",\n" + name_event("thread_name", process, record.track, r.tracks[track]);
      *seen = true;
      text += ",\n" + event_of(record.span, process, record.track);
    }
    text += cat("\n],\"otherData\":{\"dropped\":", r.dropped, "}}\n");
  }
  lockstep::detail::write_whole_file("trace", path, text);
}

Token enqueued(const void* stream, Device device, Work work) {
  if (!recording.load(std::memory_order_relaxed)) return 0;
  if (!work.name) work = current_work;
  if (!work.name) work.name = "task";
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  return r.add(stream, "stream", device, work);
}

void began(Token token) {
  if (token == 0) return;
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (Span* span = r.find(token)) {
    span->began = ++r.sequence;
    span->began_nanoseconds = r.now();
  }
}

void ended(Token token) {
  if (token & kRange) ranges.pop();
  token &= ~kRange;
  if (token == 0) return;
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  if (Span* span = r.find(token)) {
    span->ended = ++r.sequence;
    span->ended_nanoseconds = r.now();
  }
}

void name_track(const void* stream, const char* name) {
  Recorder& r = recorder();
  std::lock_guard lock(r.mutex);
  r.tracks[static_cast<std::size_t>(r.track(stream, "stream"))] = name;
}

Token Scope::begin(const char* name) {
  Recorder& r = recorder();
  Token token = 0;
  if (recording.load(std::memory_order_relaxed)) {
    std::lock_guard lock(r.mutex);
    token = r.add(&thread_track, "thread", lockstep::detail::thread_device, {.name = name, .kind = Kind::host});
  }
  began(token);
  return push_range(name) ? token | kRange : token;
}

namespace detail {

void use_ranges(const Ranges& with, bool always) {
  ranges = with;
  ranges_always = always;
  if (always) on.store(true, std::memory_order_relaxed);
}

RangeScope::RangeScope(const char* name) : pushed_(push_range(name)) {}
RangeScope::~RangeScope() {
  if (pushed_) ranges.pop();
}

Work exchange_work(const Work& work) { return std::exchange(current_work, work); }

Token push_work_range(const char* name, Token token) { return push_range(name) ? token | kRange : token; }

Token without_range(Token token) { return token & ~kRange; }

bool in_work_scope() { return current_work.name != nullptr; }

std::string file_of_process(std::string path) {
  if (path.empty()) return path;
  bool numbered = false;
  for (std::size_t at = 0; (at = path.find("%p", at)) != path.npos; numbered = true)
    path.replace(at, 2, std::to_string(::getpid()));
  struct Launcher {
    const char *rank, *size;
  };
  constexpr Launcher kLaunchers[] = {{"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE"},
                                     {"RANK", "WORLD_SIZE"},
                                     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                     {"PMI_RANK", "PMI_SIZE"},
                                     {"SLURM_PROCID", "SLURM_NTASKS"}};
  using lockstep::detail::environment;
  const auto* launcher = std::find_if(std::begin(kLaunchers), std::end(kLaunchers), [](const Launcher& each) {
    return !environment(each.rank).empty() && !environment(each.size).empty();
  });
  if (numbered || launcher == std::end(kLaunchers) || environment(launcher->size) == "1") return path;
  const std::size_t slash = path.rfind('/'), dot = path.rfind('.');
  const std::size_t name = slash == path.npos ? 0 : slash + 1;
  return path.insert(dot == path.npos || dot <= name ? path.size() : dot, cat(".rank", environment(launcher->rank)));
}

void start_from_environment() {
  static const std::string* const path =
      new std::string(file_of_process(std::string(lockstep::detail::environment("LOCKSTEP_TRACE"))));
  if (path->empty()) return;
  // What cannot be written is better known now than when the work is done.
  if (const std::string reason = lockstep::detail::why_not_writable(*path); !reason.empty())
    throw InvalidArgument(cat("[LOCKSTEP_TRACE] expected a file that can be written, got \"", *path, "\": ", reason));
  start();
  static const pid_t process = ::getpid();
  std::atexit([] {
    if (::getpid() != process) return;  // forked: the file is its parent's
    stop();
    try {
      write(*path);
    } catch (const Error& error) {
      log(LogLevel::error, error.what());
    }
  });
}

}  // namespace detail
}  // namespace lockstep::trace
