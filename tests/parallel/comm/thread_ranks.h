// Ranks for the conformance checks that are threads of this program.
#pragma once

#include <exception>
#include <memory>
#include <thread>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/stream/stream.h"
#include "parallel/comm/conformance.h"

namespace conformance {

// What `body` returns; "threw: " and the message when it throws.
inline std::string outcome(const Body& body, Communicator& comm) {
  try {
    return body(comm);
  } catch (...) {
    return "threw: " + detail::describe(std::current_exception());
  }
}

// Takes the errors that collectives have left on streams which nobody has any more, so that they are not another
// test's.
inline void drain_devices() {
  for (const Device device : accelerators()) {
    for (int tries = 0; tries < 20; ++tries) {
      try {
        synchronize(device);
        break;
      } catch (const Error&) {
      }
    }
  }
}

// Each communicator is given to a thread of its own with a stream of its own, and destroyed by it.
inline std::vector<std::string> run_on_threads(std::vector<std::unique_ptr<Communicator>> ranks, const Body& body) {
  std::vector<std::string> said(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&body, comm = std::move(ranks[r]), &text = said[r]]() mutable {
      Stream stream(comm->device());
      const StreamScope scope(stream);
      text = outcome(body, *comm);
      comm.reset();
      try {  // what still fails there has been looked at, and must not surface in another check
        synchronize(stream, kPatience);
      } catch (const Error&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  drain_devices();
  return said;
}

}  // namespace conformance
