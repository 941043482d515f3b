#include "lockstep/parallel/launch/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::launch {
namespace {

constexpr std::size_t kMaxPending = 1 << 20;  // more is not read from the ranks
constexpr std::size_t kMaxLine = 1 << 20;     // what is longer is broken
constexpr std::size_t kMostKept = 500;        // of a line that may be told again

}  // namespace

void Output::log_to(int rank, const std::string& path, bool append) {
  detail::Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | (append ? O_APPEND : O_TRUNC) | O_CLOEXEC | O_NOCTTY, 0666));
  if (!fd) throw Error(cat("cannot write '", path, "': ", std::strerror(errno)));
  // A full disk is noticed now, and not by the first line.
  struct stat status {};
  if (!append && ::fstat(fd.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    const int full = ::posix_fallocate(fd.get(), 0, 4096);
    if (full == ENOSPC || full == EDQUOT || full == EFBIG)
      throw Error(cat("cannot write '", path, "': ", std::strerror(full)));
    if (::ftruncate(fd.get(), 0) != 0) throw Error(cat("cannot write '", path, "': ", std::strerror(errno)));
  }
  files_[rank] = {path, std::move(fd)};
}

void Output::add(detail::Fd pipe, int rank, int target) {
  ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
  sources_.push_back({std::move(pipe), rank, {}, target - 1});
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
      if (sink.fd == poll.fd && !sink.pending.empty()) write(sink);
    for (Source& source : sources_)
      if (source.pipe.get() == poll.fd) read(source);
  }
}

bool Output::all_read() const {
  return std::none_of(sources_.begin(), sources_.end(), [](const Source& source) { return bool(source.pipe); });
}

void Output::read(Source& source) {
  char bytes[64 << 10];
  const ssize_t got = ::read(source.pipe.get(), bytes, sizeof bytes);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) source.line.append(bytes, static_cast<std::size_t>(got));
  std::size_t end;
  while ((end = source.line.find('\n')) != std::string::npos || source.line.size() >= kMaxLine) {
    const bool whole = end != std::string::npos;
    if (!whole) end = source.line.size();
    pass_on(source, end);
    source.line.erase(0, end + whole);
  }
  if (got <= 0) {  // of a terminal whose other end is closed: EIO
    if (!source.line.empty()) pass_on(source, source.line.size());
    source.line.clear();
    source.pipe.close();
  }
}

void Output::end_lines() {
  for (Source& source : sources_) {
    if (!source.line.empty()) pass_on(source, source.line.size());
    source.line.clear();
  }
}

void Output::pass_on(Source& source, std::size_t count) {
  const std::string_view line = std::string_view(source.line).substr(0, count);
  if (line.find_first_not_of(" \t\r") != line.npos) source.last = line.substr(0, kMostKept);
  write_to_file(source.rank, line);
  if (!shown_.shows(source.rank, source.sink + 1) && !without_file_.contains(source.rank)) return;
  std::string& pending = sinks_[source.sink].pending;
  if (prefix_) pending += cat('[', source.rank, "] ");
  pending.append(line).append("\n");
}

void Output::write_to_file(int rank, std::string_view line) {
  const auto found = files_.find(rank);
  if (found == files_.end()) return;
  const std::string text = cat(line, '\n');
  const int failed = detail::write_all(found->second.fd.get(), text.data(), text.size());
  if (failed == 0) return;
  // The work is worth more than its log.
  say(cat("lockstep-run: cannot write '", found->second.path, "': ", std::strerror(failed), ": the lines of rank ",
          rank, " follow here\n"));
  files_.erase(found);
  without_file_.insert(rank);
}

std::string Output::last_error(int rank) const {
  for (const Source& source : sources_)
    if (source.rank == rank && source.sink == 1) return source.last;
  return "";
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

Channel::Channel(bool terminal) {
  if (terminal) {
    read = detail::Fd(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
    char name[64];
    if (read && ::grantpt(read.get()) == 0 && ::unlockpt(read.get()) == 0 &&
        ::ptsname_r(read.get(), name, sizeof name) == 0)
      write = detail::Fd(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
    termios settings{};
    if (write && ::tcgetattr(write.get(), &settings) == 0) {
      ::cfmakeraw(&settings);
      ::tcsetattr(write.get(), TCSANOW, &settings);
      winsize window{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
      ::ioctl(1, TIOCGWINSZ, &window);  // where this one is a terminal
      ::ioctl(write.get(), TIOCSWINSZ, &window);
      return;
    }
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(cat("cannot make a pipe: ", std::strerror(errno)));
  read = detail::Fd(ends[0]);
  write = detail::Fd(ends[1]);
}

}  // namespace lockstep::launch
