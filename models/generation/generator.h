// Text for many callers: a thread that computes, a bounded queue before it, tokens as they come.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/models/generation/generation.h"
#include "lockstep/parallel/serving/replica_pool_options.h"
#include "lockstep/parallel/serving/serving_stats.h"

namespace lockstep {

struct GeneratorOptions {
  ContinuousBatchOptions batch;            // its number of pages is required
  std::size_t max_queued = 1024;           // requests that wait to join the batch
  WhenFull when_full = WhenFull::wait;     // drop_oldest: the one that has waited for longest
  Milliseconds timeout = kDefaultTimeout;  // of a request that names none, from submit() to its last token
  std::string thread_name = "generate";    // 15 characters are seen
};

struct SubmitOptions {
  Milliseconds timeout{0};  // until the last token; 0: that of the generator
  // Called with each token by the generator's thread, between two calls of the model: keep it short. False cancels the
  // text. What it throws is what the text ends in.
  std::function<bool(std::int64_t token)> on_token = {};
};

struct GeneratorStats {
  // Of requests. Each that was submitted is one of the others, queued or running.
  std::uint64_t submitted = 0, finished = 0, failed = 0, cancelled = 0, late = 0, dropped = 0;
  std::uint64_t queued = 0, running = 0;
  // Beside those: requests that submit() did not take, and submitters that wait for room.
  std::uint64_t refused = 0, waiting = 0;
  std::uint64_t updates = 0, waiting_updates = 0;       // exchanges of weights
  std::uint64_t tokens = 0;                             // that were given out
  Histogram first_token_seconds{Histogram::seconds()};  // from submit() on
  Histogram token_seconds{Histogram::seconds()};        // between two tokens of a text
  Histogram step_seconds{Histogram::seconds()};         // of calls of the model
  ContinuousBatchStats batch;
};
// As lines of Prometheus' text format 0.0.4, with label model="name"; what is no UTF-8 in the name becomes U+FFFD.
LOCKSTEP_API std::string to_prometheus(const GeneratorStats& stats, const std::string& model);

// A ContinuousBatch with a thread of its own. Thread-safe. The thread works on the device's default stream.
//
// A text that throws ends alone; when the model throws, those that it computed end in that, and the others go on; after
// a DeviceError no other is taken. In a child of fork() calls throw Error.
class LOCKSTEP_API Generator {
 public:
  // Shares the model, which nobody else may change from now on but in update(). Throws what ContinuousBatch does.
  Generator(std::shared_ptr<const LanguageModel> model, const GeneratorOptions& options);
  // Cancels what has not ended, and waits for the call of the model that is being made.
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Throws at once what ContinuousBatch::add throws, and Refused when the generator is closed, or full with
  // WhenFull::refuse. With WhenFull::wait it blocks while it is full, at most until the deadline: TimeoutError; in a
  // callback it is Refused.
  Generation submit(std::vector<std::int64_t> prompt, GenerateOptions options = {}, SubmitOptions how = {});

  // Takes no more requests; those that wait end in Cancelled, those that are computed go on. Wakes submit().
  void close();
  // Takes no more requests, and waits until all have ended. False when they have not in that time.
  bool drain(Milliseconds timeout);
  // Calls `change` in the generator's thread when nothing is being computed, and shares no prefix with what was before:
  // for new weights. Requests that are computed end first, those that wait go on after it, so that no text has tokens
  // of both. Blocks; throws what `change` throws (which may have changed weights before: no prefix is shared then
  // either), and TimeoutError when it has not begun in that time, which calls it off.
  void update(const std::function<void()>& change, Milliseconds timeout = kDefaultTimeout);

  GeneratorStats stats() const;

 private:
  struct Body;
  std::shared_ptr<Body> body_;
};

}  // namespace lockstep
