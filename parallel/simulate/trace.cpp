#include "lockstep/parallel/simulate/trace.h"

#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/strings.h"

namespace lockstep::simulate {
namespace {

enum class Process { threads = 1, streams, links };

std::string microseconds(Nanoseconds time) {
  char text[40];
  std::snprintf(text, sizeof text, "%" PRId64 ".%03d", time / 1000, static_cast<int>(time % 1000));
  return text;
}

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

class Writer {
 public:
  void name(Process process, int row, const char* what, const std::string& text) {
    line(cat("{\"ph\":\"M\",\"name\":\"", what, "\",\"pid\":", static_cast<int>(process), ",\"tid\":", row,
             ",\"args\":{\"name\":", quoted(text), "}}"));
  }
  void slice(Process process, int row, const std::string& text, Nanoseconds begin, Nanoseconds end,
             const std::string& arguments) {
    line(cat("{\"ph\":\"X\",\"name\":", quoted(text), ",\"pid\":", static_cast<int>(process), ",\"tid\":", row,
             ",\"ts\":", microseconds(begin), ",\"dur\":", microseconds(end - begin), ",\"args\":{", arguments, "}}"));
  }
  void rate(const std::string& link, const LinkRate& rate) {
    char value[40];
    std::snprintf(value, sizeof value, "%.3f", static_cast<double>(rate.bytes_per_second) * 1e-9);
    line(cat("{\"ph\":\"C\",\"name\":", quoted(link), ",\"pid\":", static_cast<int>(Process::links),
             ",\"tid\":0,\"ts\":", microseconds(rate.time), ",\"args\":{\"GB/s\":", value, "}}"));
  }
  std::string finish(const Result& result) {
    return cat("{\"displayTimeUnit\":\"ns\",\"otherData\":{\"predicted\":true,\"machine\":", quoted(result.machine),
               ",\"recording\":", quoted(result.recording), "},\"traceEvents\":[\n", text_, "\n]}\n");
  }

 private:
  void line(const std::string& line) { text_ += (text_.empty() ? "" : ",\n") + line; }
  std::string text_;
};

std::string place(int device) { return device == kHostMemory ? "host" : cat("device ", device); }

// The name of what an entry does, and its figures.
std::pair<std::string, std::string> shown(const Recording& recording, const Entry& entry) {
  switch (entry.kind) {
    case Kind::kernel: {
      const Kernel& it = recording.kernels[static_cast<std::size_t>(entry.detail)];
      return {it.name, cat("\"dtype\":", quoted(it.dtype), ",\"bytes\":", it.bytes_read + it.bytes_written,
                           ",\"flops\":", it.flops)};
    }
    case Kind::copy: {
      const Copy& it = recording.copies[static_cast<std::size_t>(entry.detail)];
      return {cat("copy ", place(it.source), " to ", place(it.destination)), cat("\"bytes\":", it.bytes)};
    }
    case Kind::collective: {
      const Collective& it = recording.collectives[static_cast<std::size_t>(entry.detail)];
      return {it.op, cat("\"bytes\":", it.bytes, ",\"group\":", quoted(it.group), ",\"rank\":", it.rank)};
    }
    case Kind::fill:
      return {"fill", cat("\"bytes\":", entry.bytes)};
    default:
      return {entry.name.empty() ? name_of(entry.kind) : entry.name, ""};
  }
}

}  // namespace

std::string trace_json(const Recording& recording, const Result& result) {
  Writer out;
  out.name(Process::threads, 0, "process_name", cat("host threads (predicted for ", result.machine, ")"));
  out.name(Process::streams, 0, "process_name", "streams");
  out.name(Process::links, 0, "process_name", "links");
  for (std::size_t t = 0; t < recording.threads.size(); ++t)
    out.name(Process::threads, static_cast<int>(t), "thread_name", recording.threads[t].name);
  for (std::size_t s = 0; s < recording.streams.size(); ++s)
    out.name(Process::streams, static_cast<int>(s), "thread_name",
             cat("device ", recording.streams[s].device, ", stream ", s, " ", recording.streams[s].label));
  std::size_t e = 0;
  for (std::size_t t = 0; t < recording.threads.size(); ++t) {
    for (const Entry& entry : recording.threads[t].entries) {
      const Step& step = result.entries[e++];
      const auto [name, arguments] = shown(recording, entry);
      if (step.call_end > step.call_begin)
        out.slice(Process::threads, static_cast<int>(t), name, step.call_begin, step.call_end, "");
      if (entry.stream >= 0 && step.work_end != kNever && step.work_end > step.work_begin)
        out.slice(Process::streams, entry.stream, name, step.work_begin, step.work_end, arguments);
    }
  }
  for (const LinkRate& rate : result.rates) out.rate(result.link_names[static_cast<std::size_t>(rate.link)], rate);
  return out.finish(result);
}

}  // namespace lockstep::simulate
