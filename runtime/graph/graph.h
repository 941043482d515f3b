// Graphs: work that is recorded once and then enqueued as a whole, again and again, for the price of one launch. What
// it reads and writes stays where it was: a replay computes with what is in the same memory by then.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/check_function.h"
#include "lockstep/runtime/stream/stream.h"

namespace lockstep {
namespace detail {
class GraphWork {
 public:
  virtual ~GraphWork() = default;
  virtual Device device() const = 0;
  virtual void replay(const Stream& stream) = 0;
};
}  // namespace detail

// What capture() has recorded. Used by one thread at a time. When it goes it waits for its replays; its memory is kept
// until then, and that of tensors that f has returned or stored for as long as they live.
class LOCKSTEP_API Graph {
 public:
  Graph() = default;  // none
  explicit Graph(std::unique_ptr<detail::GraphWork> work) : work_(std::move(work)) {}

  explicit operator bool() const { return work_ != nullptr; }
  Device device() const;
  // Enqueues all of it on a stream of the device, after what is there, after what the work was recorded behind, and
  // after earlier replays, on whichever streams those are. Does not block the host. Throws InvalidArgument for a stream
  // of another device, without a graph, and when a communicator of its collectives has gone, NotSupported when the
  // process has another communicator over NCCL by now, Error in a capture, DeviceError, and the CommError of a
  // communicator that is broken.
  void replay(const Stream& stream);
  void replay();  // on the current stream

 private:
  std::unique_ptr<detail::GraphWork> work_;
};

// Whether capture() works there: on CUDA devices. Elsewhere it throws NotSupported, and a program calls f every time.
LOCKSTEP_API bool can_capture(Device device);

namespace detail {
LOCKSTEP_API Graph capture(const Stream& stream, const std::function<void()>& f);
}

// Calls `f` once, with `stream` as the current one of its device, and records what f enqueues there; none of it runs
// before the first replay. Gives the graph, or a pair of it and what f returns. Streams that wait for `stream` inside
// belong to the graph too. Memory that is allocated inside is the graph's own, and the memory of tensors from outside
// that f uses is kept with it. What f waits for that is not part of it, replays come after. Only this thread records:
// others go on meanwhile.
//
// Throws InvalidArgument for a default stream, which other threads use too, and in a capture; NotSupported for a device
// without graphs and, naming the call, when f does what cannot be recorded: a wait of the host (item(), synchronize(),
// wait(), copies into host memory), a copy from host memory that is not pinned, work of another device or stream, a
// collective other than NCCL's in a process with one GPU. Also when f has caught that. What f throws comes through. In
// all these cases nothing is recorded, and nothing has run; stream, memory and thread are as before.
template <class F>
auto capture(const Stream& stream, F&& f) {
  detail::check_function("capture", f);
  using Result = std::invoke_result_t<F&>;
  if constexpr (std::is_void_v<Result>) {
    return detail::capture(stream, std::ref(f));
  } else {
    std::optional<std::decay_t<Result>> result;
    Graph graph = detail::capture(stream, [&] { result.emplace(f()); });
    return std::pair<Graph, std::decay_t<Result>>(std::move(graph), std::move(*result));
  }
}

}  // namespace lockstep
