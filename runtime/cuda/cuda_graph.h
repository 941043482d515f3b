// What is behind the handles of graphs of CUDA devices, and captures in progress. Private to the library.
#pragma once

#include <list>
#include <vector>

#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/unique_function.h"

namespace lockstep::cuda {

struct CudaGraph;

// Work of the host in a graph. It runs at each launch, so the graph keeps it.
struct GraphTask {
  UniqueFunction task;
  CudaGraph& graph;
};

struct CudaGraph {
  explicit CudaGraph(CudaDevice& of) : device(of) {}
  CudaDevice& device;
  cudaGraphExec_t native = nullptr;
  std::list<GraphTask> tasks;
  DeviceSet depends_on = 0;
  CallerSet callers = 0;  // whose kernels are in it
  // Of the launch that runs; its tasks look at it.
  DeviceSet launch_depends_on = 0;
  std::uint64_t sequence = 0, caller = 0;
  bool failed = false;  // a task of it
};

// Of a thread, from begin to end.
struct CudaCapture {
  CudaStream& origin;
  std::vector<CudaStream*> streams;  // that record, the origin first
  std::unique_ptr<CudaGraph> graph;
  const std::uint64_t number;  // never 0, and no other one's
};
inline constinit thread_local CudaCapture* this_capture = nullptr;

// Throws where the calling thread captures, and work on the stream would not get into the graph; and where another
// thread captures the stream.
void check_records(const CudaStream& stream, const char* call);

// Throws for a stream, and for an event, that is part of a capture: nothing can be said of its work.
[[noreturn]] void refuse_query(const CudaStream& stream);
[[noreturn]] void refuse_captured(const char* call, const CudaEvent& event);

void begin_capture(CudaStream& stream);
CudaGraph* end_capture(CudaStream& stream, bool discard);
void capture_task(CudaStream& stream, UniqueFunction task);
void launch_graph(CudaGraph& graph, CudaStream& stream);
void destroy_graph(CudaGraph* graph) noexcept;

}  // namespace lockstep::cuda
