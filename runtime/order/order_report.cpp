// The texts of the order checker: each names both operations, where they were enqueued, and what is missing.
#include <charconv>
#include <string_view>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order_checker.h"

namespace lockstep::detail {
namespace {

// The file without the folders that only this machine has.
std::string_view short_name(std::string_view file) {
  const auto slash = file.rfind('/');
  if (slash == file.npos || slash == 0) return file;
  const auto folder = file.rfind('/', slash - 1);
  return file.substr(folder == file.npos ? 0 : folder + 1);
}

std::string bytes_text(ByteRun bytes) {
  char hexadecimal[20];
  const auto [end, error] = std::to_chars(hexadecimal, hexadecimal + sizeof hexadecimal, bytes.begin, 16);
  return cat(bytes.end - bytes.begin, " bytes at 0x", std::string_view(hexadecimal, end));
}

const char* verb(bool writes) { return writes ? "writes" : "reads"; }

}  // namespace

std::string OrderChecker::describe(const Operation& operation) const {
  std::string text = cat("'", operation.name, "'");
  if (operation.place.file) text += cat(" (", short_name(operation.place.file), ":", operation.place.line, ")");
  if (operation.actor != operation.thread) text += cat(" on ", actors_[operation.actor].name);
  return text + cat(" by ", actors_[operation.thread].name);
}

std::string OrderChecker::edge_text(const Operation& first, const Operation& second) const {
  const std::string& from = actors_[first.actor].name;
  const std::string& to = actors_[second.actor].name;
  if (second.actor == second.thread) {
    return cat("a wait of ", to, " (before '", second.name, "') for ", from, " (after '", first.name, "')");
  }
  return cat("an event edge from ", from, " (after '", first.name, "') to ", to, " (before '", second.name, "')");
}

std::string OrderChecker::race_text(const Operation& second, bool second_writes, const Operation& first,
                                    bool first_writes, ByteRun bytes) const {
  return cat("[", second.name, "] expected ", edge_text(first, second), ", got none: ", describe(second), " ",
             verb(second_writes), " ", bytes_text(bytes), " that ", describe(first), " ", verb(first_writes));
}

std::string OrderChecker::released_text(const Operation& operation, bool writes, const Operation& release,
                                        ByteRun bytes) const {
  return cat("[", operation.name,
             "] expected memory that is in use, got memory after its release: ", describe(operation), " ", verb(writes),
             " ", bytes_text(bytes), " given back by ", describe(release));
}

std::string OrderChecker::release_text(const Operation& release, const Operation& user, bool reuse,
                                       ByteRun bytes) const {
  return cat("[", release.name, "] expected ", edge_text(user, release), reuse ? "" : " or a record_use",
             ", got none: ", describe(release), reuse ? " hands out " : " gives back ", bytes_text(bytes), " that ",
             describe(user), " may still be using");
}

std::string OrderChecker::free_text(const Operation& user, const HostThread& thread, ByteRun bytes) const {
  const std::string& name = actors_[thread.actor].name;
  return cat("[free] expected a wait of ", name, " for ", actors_[user.actor].name, " (after '", user.name,
             "'), got none: ", name, " frees ", bytes_text(bytes), " in flight, that ", describe(user),
             " may still be using");
}

}  // namespace lockstep::detail
