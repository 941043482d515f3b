#include "lockstep/parallel/comm/factory/backends.h"

#include <set>

#include "lockstep/parallel/build_info.h"
#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/runtime/error.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using support::missing;

TEST_CASE("backends: each is made under its name, or its error says it") {
  int made = 0;
  std::set<std::string> names;
  for (const detail::CommunicatorBackend& backend : detail::communicator_backends()) {
    INFO(backend.name);
    CHECK(names.insert(backend.name).second);
    try {
      const auto alone = make_communicator({.device = accelerators().at(0), .backend = backend.name});
      CHECK(std::string(alone->backend()) == backend.name);
      CHECK(alone->size() == 1);
      ++made;
    } catch (const NotSupported& error) {
      CHECK(missing(error.what(), {cat("[make_communicator] ", backend.name, " ")}) == "");
    }
  }
  CHECK(made >= 2);  // peer and loopback need nothing
}

TEST_CASE("backends: build_info tells of the libraries that they use") {
  std::string parts;
  for (const BuildInfo::Part& part : build_info().parts) parts += cat(part.name, ';');
  for (const detail::CommunicatorBackend& backend : detail::communicator_backends()) {
    CHECK((backend.library == nullptr) == (backend.library_version == nullptr));
    if (backend.library) CHECK(missing(parts, {cat(backend.library, ';')}) == "");
  }
}
