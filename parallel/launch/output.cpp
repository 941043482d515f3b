#include "lockstep/parallel/launch/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::launch {
namespace {

constexpr std::size_t kMaxPending = 1 << 20;  // more is not read from the ranks
constexpr std::size_t kMaxLine = 1 << 20;     // what is longer is broken

}  // namespace

void Output::add(detail::Fd pipe, std::string prefix, int target) {
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  sources_.push_back({std::move(pipe), std::move(prefix), {}, target - 1});
}

void Output::prepare(std::vector<pollfd>& polls) const {
  for (const Sink& sink : sinks_)
    if (!sink.pending.empty()) polls.push_back({.fd = sink.fd, .events = POLLOUT, .revents = 0});
  for (const Source& source : sources_)
    if (source.pipe && sinks_[source.sink].pending.size() < kMaxPending)
      polls.push_back({.fd = source.pipe.get(), .events = POLLIN, .revents = 0});
}

void Output::handle(const std::vector<pollfd>& polls) {
  for (const pollfd& poll : polls) {
    if (poll.revents == 0) continue;
    for (Sink& sink : sinks_)
      if (sink.fd == poll.fd) write(sink);
    for (Source& source : sources_)
      if (source.pipe.get() == poll.fd) read(source);
  }
}

bool Output::finished() const {
  return written() && std::none_of(sources_.begin(), sources_.end(), [](const Source& s) { return bool(s.pipe); });
}

void Output::read(Source& source) {
  char bytes[64 << 10];
  const ssize_t got = ::read(source.pipe.get(), bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  std::string& pending = sinks_[source.sink].pending;
  const auto pass_on = [&](std::size_t count) {
    pending.append(source.prefix).append(source.line, 0, count).append("\n");
  };
  if (got > 0) source.line.append(bytes, static_cast<std::size_t>(got));
  std::size_t end;
  while ((end = source.line.find('\n')) != std::string::npos || source.line.size() >= kMaxLine) {
    const bool whole = end != std::string::npos;
    if (!whole) end = source.line.size();
    pass_on(end);
    source.line.erase(0, end + whole);
  }
  if (got <= 0) {
    if (!source.line.empty()) pass_on(source.line.size());
    source.line.clear();
    source.pipe.close();
  }
}

void Output::write(Sink& sink) {
  // A pipe that poll calls writable takes a page at once, a file everything.
  struct stat status {};
  const bool file = ::fstat(sink.fd, &status) == 0 && S_ISREG(status.st_mode);
  const std::size_t count = file ? sink.pending.size() : std::min<std::size_t>(sink.pending.size(), 4096);
  const ssize_t written = ::write(sink.fd, sink.pending.data(), count);
  if (written > 0) {
    sink.pending.erase(0, static_cast<std::size_t>(written));
  } else if (errno != EAGAIN && errno != EINTR) {
    sink.closed = true;
    sink.pending.clear();
    sink.pending.shrink_to_fit();
  }
}

}  // namespace lockstep::launch
