#include "lockstep/runtime/edge.h"

#ifdef LOCKSTEP_EDGE_SWITCHES

#include <string_view>

#include "lockstep/runtime/environment.h"

namespace lockstep::detail {
namespace {

struct Removed {
  std::string_view file;
  int line = 0;  // 0: nothing is removed
};

Removed removed_edge() {
  const std::string_view text = environment("LOCKSTEP_REMOVE_EDGE");
  const auto colon = text.rfind(':');
  if (colon == text.npos) return {};
  return {text.substr(0, colon), parse_count("LOCKSTEP_REMOVE_EDGE", text.substr(colon + 1), 1, 1'000'000)};
}

}  // namespace

bool edge_kept(const char* file, int line) {
  static const Removed removed = removed_edge();
  if (line != removed.line) [[likely]]
    return true;
  // `file` is what the compiler was given: an absolute path, or one from the build folder.
  const std::string_view path = file;
  const bool same = path.ends_with(removed.file) &&
                    (path.size() == removed.file.size() || path[path.size() - removed.file.size() - 1] == '/');
  return !same;
}

}  // namespace lockstep::detail

#endif
