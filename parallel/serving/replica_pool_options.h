// How a pool of replicas works, and what its requests may ask for.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/serving/serving_clock.h"
#include "lockstep/runtime/deadline.h"
#include "lockstep/runtime/device.h"

namespace lockstep {

// What happens to a request that comes while `max_queued` wait.
enum class WhenFull : std::uint8_t {
  wait,         // submit() blocks until there is room, at most until the request's deadline
  refuse,       // submit() throws Refused
  drop_oldest,  // of those of the lowest priority the oldest ends in Refused; submit() throws where all are above
};

// Requests whose tensors differ in one dimension are computed together: they get elements at its end.
struct Padding {
  std::int64_t dim = 1;                    // not 0, which counts the samples
  std::vector<std::size_t> tensors = {0};  // which of the inputs' tensors, in order
  double value = 0;                        // submit() throws InvalidArgument where a tensor of integers cannot have it
  // To the first of these sizes, in ascending order, that is large enough; what is larger than the last is not padded.
  // None: to the largest of the batch.
  std::vector<std::int64_t> sizes = {};
  std::vector<std::size_t> cropped = {};  // which of the answer's tensors get the request's own size back there
};

// The pool's threads, one for each replica and one that watches the time.
struct ServingThreads {
  std::string name = "serve";  // 8 characters are seen, before the replica's number
  // The cores that replica i's thread may run on: cpus[i % cpus.size()]. None: those of the thread that makes the pool.
  std::vector<std::vector<int>> cpus = {};
  int nice = 0;                              // added to the priority of the process; below 0 needs the right to do so
  std::function<void(int replica)> started;  // called first in each replica's thread
};

struct ReplicaPoolOptions {
  // A replica on each; a device that comes several times has as many. devices[0] is home, where the parameters are.
  std::vector<Device> devices = accelerators();
  std::int64_t max_batch_samples = 32;  // a request of more is computed alone
  // How long the first request of a batch waits for others while a replica is idle. 0: not at all; what comes while all
  // replicas compute goes together.
  std::chrono::microseconds max_delay{0};
  std::size_t max_queued = 1024;  // requests
  WhenFull when_full = WhenFull::wait;
  Milliseconds timeout = kDefaultTimeout;  // of a request that names none, from submit() to its answer
  // A replica that computes for longer is taken out until it returns, and its requests go to others.
  Milliseconds hang_timeout{60'000};
  std::optional<Padding> padding = std::nullopt;
  bool prepared = false;                 // computes with prepare(module): norms folded, weights packed
  Device output_device = Device::cpu();  // where answers are
  ServingThreads threads = {};
  // Outlives the pool and its threads, also one that was left to itself because it did not return.
  ServingClock* clock = &ServingClock::real();
};

struct RequestOptions {
  std::optional<Milliseconds> timeout = std::nullopt;  // for waiting and computing together; default: the pool's
  int priority = 0;                                    // higher ones first, always: low ones may starve
};

}  // namespace lockstep
