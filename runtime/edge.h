// Edges: the places where the library puts work or memory in order (an event is recorded or waited for, a block's use
// by another stream is noted, a stream is made current, a gate is passed). Each stands in LOCKSTEP_EDGE, on a line of
// its own, and is nothing but its statement. In a build with LOCKSTEP_EDGE_SWITCHES the environment can leave one out,
// and scripts/edges shows that a test goes red then. Private to the library.
#pragma once

#ifdef LOCKSTEP_EDGE_SWITCHES

#include <optional>

namespace lockstep::detail {

// False for the place that LOCKSTEP_REMOVE_EDGE names: "runtime/copy/copy.cpp:52".
bool edge_kept(const char* file, int line);

}  // namespace lockstep::detail

#define LOCKSTEP_EDGE(...)                                              \
  do {                                                                  \
    if (::lockstep::detail::edge_kept(__FILE__, __LINE__)) [[likely]] { \
      __VA_ARGS__;                                                      \
    }                                                                   \
  } while (false)
// An object that lives to the end of the scope: LOCKSTEP_EDGE_SCOPE(StreamScope, scope, stream).
#define LOCKSTEP_EDGE_SCOPE(Type, name, ...)                        \
  std::optional<Type> name;                                         \
  if (::lockstep::detail::edge_kept(__FILE__, __LINE__)) [[likely]] \
  name.emplace(__VA_ARGS__)

#else

#define LOCKSTEP_EDGE(...) __VA_ARGS__
#define LOCKSTEP_EDGE_SCOPE(Type, name, ...) Type name(__VA_ARGS__)

#endif
