#include "lockstep/parallel/serving/replica_pool.h"

#include <algorithm>
#include <utility>

#include "lockstep/kernels/api.h"
#include "lockstep/parallel/serving/serving_context.h"
#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/log.h"

namespace lockstep {
namespace detail {

bool cancel_request(ServingRequest& request) {
  const auto pool = request.pool.lock();
  return pool && pool->cancel(request);
}

}  // namespace detail

bool Canceller::operator()() const {
  const auto request = request_.lock();
  return request && detail::cancel_request(*request);
}

namespace detail {

void await_answer(ServingRequest* request) {
  if (!request) throw Error("[Answer] expected the answer to a request, got one that was fetched or never asked for");
  // Requests end at their deadlines; this wait has one of its own for a pool that was cut off, as by a fork.
  const Milliseconds longest = request->timeout > Milliseconds::max() - kDefaultTimeout
                                   ? Milliseconds::max()
                                   : request->timeout + kDefaultTimeout;
  if (!request->ended_by(Deadline::after(longest)))
    throw TimeoutError("[Answer] expected the pool to end the request at its deadline, got nothing");
  if (auto error = request->take_error()) std::rethrow_exception(std::move(error));
}

void receive(const Tensor& tensor) {
  if (tensor.device().is_cpu()) return;
  LOCKSTEP_EDGE(tensor.storage()->record_use(current_stream(tensor.device())));
}

void check_serving(const ReplicaPoolOptions& options) {
  LOCKSTEP_CHECK(!options.devices.empty(), "[ReplicaPool] expected at least one device, got none");
  for (const Device device : options.devices) ordinal(device);
  ordinal(options.output_device);
  LOCKSTEP_CHECK(options.max_batch_samples >= 1 && options.max_queued >= 1,
                 "[ReplicaPool] expected batches of at least 1 sample and room for at least 1 request, got ",
                 options.max_batch_samples, " and ", options.max_queued);
  LOCKSTEP_CHECK(options.max_delay.count() >= 0, "[ReplicaPool] expected a window of 0 microseconds or more, got ",
                 options.max_delay.count());
  LOCKSTEP_CHECK(options.timeout.count() > 0 && options.hang_timeout.count() > 0,
                 "[ReplicaPool] expected timeouts above 0 ms, got ", options.timeout.count(), " for requests and ",
                 options.hang_timeout.count(), " for replicas");
  LOCKSTEP_CHECK(options.clock, "[ReplicaPool] expected a clock, got none");
  for (const std::vector<int>& cpus : options.threads.cpus)
    LOCKSTEP_CHECK(!cpus.empty(), "[ReplicaPool] expected at least one core for each thread, got none");
  if (!options.padding) return;
  const Padding& padding = *options.padding;
  LOCKSTEP_CHECK(padding.dim > 0, "[ReplicaPool] expected padding of a dimension from 1 on, got ", padding.dim);
  LOCKSTEP_CHECK(!padding.tensors.empty(), "[ReplicaPool] expected padding of at least one tensor, got none");
  std::int64_t before = 0;
  for (const std::int64_t size : padding.sizes) {
    LOCKSTEP_CHECK(size > 0 && size >= before,
                   "[ReplicaPool] expected sizes to pad to in ascending order, above 0, got ", size, " after ", before);
    before = size;
  }
}

void prepare_serving(const std::vector<Device>& devices) {
  for (const Device device : devices) kernels::prepare(device);
}

std::vector<Device> distinct(const std::vector<Device>& devices) {
  std::vector<Device> each;
  for (const Device device : devices)
    if (std::find(each.begin(), each.end(), device) == each.end()) each.push_back(device);
  return each;
}

ServingStreams::ServingStreams(const std::vector<Device>& devices) : written_(devices.size()) {
  for (const Device device : devices) places_.push_back({device.is_cpu() ? default_stream(device) : Stream(device)});
}

void ServingStreams::written() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (!places_[i].stream.synchronous()) LOCKSTEP_EDGE(written_[i].record(current_stream(places_[i].stream.device())));
  ++writes_;
}

const Stream& ServingStreams::next(int replica) {
  const auto index = static_cast<std::size_t>(replica);
  Place& place = places_[index];
  const std::lock_guard lock(mutex_);
  if (std::exchange(place.seen, writes_) != writes_ && written_[index].recorded())
    LOCKSTEP_EDGE(place.stream.wait(written_[index]));
  return place.stream;
}

ServingContext::ServingContext(const Stream& stream, Device output, Milliseconds timeout)
    : evaluation_(false), stream_(stream), output_(output), timeout_(timeout) {
  scope_.emplace(stream_);
}

ServingContext::~ServingContext() {
  if (finished_) return;
  try {
    finish();
  } catch (...) {  // what is on its way out says why
  }
}

void ServingContext::finish() const {
  finished_ = true;
  wait_for(stream_);
  if (!output_.is_cpu() && output_ != stream_.device()) wait_for(current_stream(output_));
}

void ServingContext::wait_for(const Stream& stream) const {
  if (stream.synchronous()) return;
  for (;;) {
    try {
      LOCKSTEP_EDGE(synchronize(stream, timeout_));
      return;
    } catch (const TimeoutError&) {  // the pool's watch says that the replica hangs
    }
  }
}

void guard_callback(const std::function<void()>& call) noexcept {
  try {
    call();
  } catch (...) {
    try {
      log(LogLevel::warning, cat("[ReplicaPool] a callback threw: ", describe(std::current_exception())));
    } catch (...) {  // nothing is to be done about a message that cannot be written
    }
  }
}

}  // namespace detail
}  // namespace lockstep
