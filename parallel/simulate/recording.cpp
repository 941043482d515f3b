#include "lockstep/parallel/simulate/recording.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/whole_file.h"

namespace lockstep::simulate {
namespace {

constexpr std::array kWords{"kernel", "copy",       "fill", "record", "wait", "host_wait", "after",
                            "point",  "collective", "task", "call",   "item", "mark"};

std::optional<Kind> kind_of(std::string_view word) {
  for (std::size_t i = 0; i < kWords.size(); ++i)
    if (word == kWords[i]) return static_cast<Kind>(i);
  return std::nullopt;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    if (end == text.size()) return parts;
    begin = end + 1;
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text) { recording_.file = file; }

  Recording parse() {
    next_line();
    if (words_.size() != 2 || words_[0] != "lockstep-recording" || words_[1] != "1")
      fail("the first line 'lockstep-recording 1'", line_text_);
    while (next_line(), words_[0] != "end") line();
    expect_words(1);
    if (at_ != text_.size()) fail("nothing after 'end'", text_.substr(at_, 40));
    for (const RecordedThread& thread : recording_.threads)
      for (const Entry& entry : thread.entries) check_other(entry);
    return std::move(recording_);
  }

 private:
  [[noreturn]] void fail(const std::string& expected, std::string_view got) const {
    throw InvalidArgument(cat("[simulate] ", recording_.file, ", line ", number_, ": expected ", expected, ", got '",
                              std::string(got), "'"));
  }

  void next_line() {
    ++number_;
    if (at_ >= text_.size()) fail("a last line 'end': the recording is not whole", "the end of the file");
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    line_text_ = text_.substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
    words_ = split(line_text_, ' ');
  }

  void expect_words(std::size_t count) const {
    if (words_.size() != count) fail(cat(count, " words"), line_text_);
  }

  std::int64_t number(std::string_view word, const char* what, std::int64_t least = 0) const {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || value < least)
      fail(cat(what, " (a number of at least ", least, ")"), word);
    return value;
  }
  int small(std::string_view word, const char* what, int least = 0) const {
    const std::int64_t value = number(word, what, least);
    if (value > 1'000'000'000) fail(cat(what, " of at most 1000000000"), word);
    return static_cast<int>(value);
  }

  int device(std::string_view word) const {
    if (word == "cpu") return kHostMemory;
    const std::size_t colon = word.find(':');
    if (colon == 0 || colon == std::string_view::npos) fail("a device such as host:0, or cpu", word);
    const int index = small(word.substr(colon + 1), "the number of a device");
    if (index >= 65536) fail("the number of a device below 65536", word);
    return index;
  }

  int stream(std::string_view word) const {
    const int index = small(word, "the number of a stream");
    if (index >= static_cast<int>(recording_.streams.size()))
      fail(cat("one of the ", recording_.streams.size(), " streams listed"), word);
    return index;
  }

  EntryRef reference(std::string_view word) const {
    const auto parts = split(word, ':');
    if (parts.size() != 2) fail("thread:entry", word);
    return {small(parts[0], "the number of a thread"), small(parts[1], "the number of an entry")};
  }

  std::vector<std::vector<std::int64_t>> shapes(std::string_view word) const {
    std::vector<std::vector<std::int64_t>> all;
    if (word == "-") return all;
    for (const std::string_view shape : split(word, ',')) {
      all.emplace_back();
      if (shape.empty()) continue;  // of a scalar
      for (const std::string_view extent : split(shape, 'x')) all.back().push_back(number(extent, "an extent"));
    }
    return all;
  }

  void line() {
    if (words_[0] == "stream") {
      expect_words(4);
      if (!recording_.threads.empty()) fail("streams before the first thread", line_text_);
      in_order(recording_.streams.size());
      const int on = device(words_[2]);
      if (on == kHostMemory) fail("a stream of a device", words_[2]);
      recording_.streams.push_back({on, std::string(words_[3])});
    } else if (words_[0] == "thread") {
      expect_words(3);
      in_order(recording_.threads.size());
      recording_.threads.push_back({std::string(words_[2]), {}});
    } else {
      entry();
    }
  }

  void in_order(std::size_t expected) const {
    if (number(words_[1], "a number") != static_cast<std::int64_t>(expected))
      fail(cat("the number ", expected), words_[1]);
  }

  void entry() {
    const std::optional<Kind> kind = kind_of(words_[0]);
    if (!kind) fail("a word of version 1 of the format", words_[0]);
    if (recording_.threads.empty()) fail("a line 'thread' before the first entry", line_text_);
    constexpr std::array<std::size_t, kWords.size()> counts{8, 5, 3, 2, 3, 2, 2, 1, 9, 3, 2, 2, 2};
    expect_words(counts[static_cast<std::size_t>(*kind)]);
    Entry made{.kind = *kind, .line = number_};
    switch (*kind) {
      case Kind::kernel:
        made.stream = stream(words_[1]);
        made.detail = static_cast<int>(recording_.kernels.size());
        recording_.kernels.push_back({std::string(words_[2]), std::string(words_[3]), number(words_[4], "bytes read"),
                                      number(words_[5], "bytes written"), number(words_[6], "operations"),
                                      shapes(words_[7])});
        break;
      case Kind::copy:
        made.stream = stream(words_[1]);
        made.detail = static_cast<int>(recording_.copies.size());
        recording_.copies.push_back({device(words_[2]), device(words_[3]), number(words_[4], "bytes")});
        break;
      case Kind::fill:
        made.stream = stream(words_[1]);
        made.bytes = number(words_[2], "bytes");
        break;
      case Kind::record:
        made.stream = stream(words_[1]);
        break;
      case Kind::wait:
        made.stream = stream(words_[1]);
        made.other = reference(words_[2]);
        break;
      case Kind::host_wait:
      case Kind::after:
        made.other = reference(words_[1]);
        break;
      case Kind::collective: {
        made.stream = stream(words_[1]);
        made.detail = static_cast<int>(recording_.collectives.size());
        const Collective it{.op = std::string(words_[2]),
                            .dtype = std::string(words_[3]),
                            .group = std::string(words_[5]),
                            .bytes = number(words_[4], "bytes"),
                            .rank = small(words_[6], "a rank"),
                            .size = small(words_[7], "the number of ranks", 1),
                            .root = small(words_[8], "a root, or -1", -1)};
        if (it.rank >= it.size) fail(cat("a rank below ", it.size), words_[6]);
        if (it.root >= it.size) fail(cat("a root below ", it.size), words_[8]);
        recording_.collectives.push_back(it);
        break;
      }
      case Kind::task:
        made.stream = stream(words_[1]);
        made.name = words_[2];
        break;
      case Kind::call:
      case Kind::mark:
        made.name = words_[1];
        break;
      case Kind::item:
        made.bytes = number(words_[1], "bytes");
        break;
      case Kind::point:
        break;
    }
    recording_.threads.back().entries.push_back(std::move(made));
  }

  void check_other(const Entry& entry) {
    if (entry.other.thread < 0) return;
    number_ = entry.line;
    const std::string shown = cat(entry.other.thread, ':', entry.other.entry);
    if (entry.other.thread >= static_cast<int>(recording_.threads.size()) ||
        entry.other.entry >=
            static_cast<int>(recording_.threads[static_cast<std::size_t>(entry.other.thread)].entries.size()))
      fail("an entry that the recording has", shown);
    if (entry.kind != Kind::after && recording_.at(entry.other).kind != Kind::record)
      fail(cat("the entry of a record, for ", name_of(entry.kind)), shown);
  }

  std::string_view text_, line_text_;
  std::size_t at_ = 0;
  int number_ = 0;
  std::vector<std::string_view> words_;
  Recording recording_;
};

}  // namespace

const char* name_of(Kind kind) { return kWords[static_cast<std::size_t>(kind)]; }

int Recording::device_count() const {
  int last = -1;
  for (const RecordedThread& thread : threads)
    for (const Entry& entry : thread.entries)
      if (entry.stream >= 0) last = std::max(last, streams[static_cast<std::size_t>(entry.stream)].device);
  for (const Copy& copy : copies) last = std::max({last, copy.source, copy.destination});
  return last + 1;
}

const Entry& Recording::at(EntryRef ref) const {
  return threads[static_cast<std::size_t>(ref.thread)].entries[static_cast<std::size_t>(ref.entry)];
}

EntryRef Recording::add(int thread, Entry entry) {
  std::vector<Entry>& entries = threads[static_cast<std::size_t>(thread)].entries;
  entries.push_back(std::move(entry));
  return {thread, static_cast<int>(entries.size()) - 1};
}

EntryRef Recording::add_kernel(int thread, int stream, Kernel kernel) {
  kernels.push_back(std::move(kernel));
  return add(thread, {.kind = Kind::kernel, .stream = stream, .detail = static_cast<int>(kernels.size()) - 1});
}

EntryRef Recording::add_copy(int thread, int stream, Copy copy) {
  copies.push_back(copy);
  return add(thread, {.kind = Kind::copy, .stream = stream, .detail = static_cast<int>(copies.size()) - 1});
}

EntryRef Recording::add_collective(int thread, int stream, Collective collective) {
  collectives.push_back(std::move(collective));
  return add(thread, {.kind = Kind::collective, .stream = stream, .detail = static_cast<int>(collectives.size()) - 1});
}

Recording parse_recording(std::string_view text, const std::string& file) { return Parser(text, file).parse(); }

Recording read_recording(const std::string& path) {
  try {
    return parse_recording(detail::read_all(path), path);
  } catch (const detail::FileError& error) {
    throw Error(cat("[simulate] cannot read the recording '", path, "': ", std::strerror(error.code)));
  }
}

}  // namespace lockstep::simulate
