#include "lockstep/runtime/cuda/cuda_copy.h"

#include <algorithm>

#include "lockstep/runtime/cuda/cuda_check.h"
#include "lockstep/runtime/cuda/cuda_graph.h"
#include "lockstep/runtime/cuda/cuda_stream.h"
#include "lockstep/runtime/cuda/host_task.h"
#include "lockstep/runtime/trace/trace_environment.h"

namespace lockstep::cuda {
namespace {

// On one GPU. Ranges that overlap go in pieces that do not, in the order in which nothing is overwritten unread.
void copy_within(const CopyArgs& args, CudaStream& stream) {
  auto* to = static_cast<std::byte*>(args.destination);
  const auto* from = static_cast<const std::byte*>(args.source);
  const std::size_t distance = static_cast<std::size_t>(to < from ? from - to : to - from);
  if (distance == 0) return;
  const std::size_t piece = std::min(distance, args.bytes);
  constexpr std::size_t kMostPieces = 4096;
  if (args.bytes / piece > kMostPieces) {
    throw NotSupported(cat("[copy] expected overlapping ranges at least ", args.bytes / kMostPieces + 1,
                           " bytes apart, got ", distance, " (", stream.device.device, ")"));
  }
  const bool upwards = to < from;
  for (std::size_t done = 0; done < args.bytes;) {
    const std::size_t bytes = std::min(piece, args.bytes - done);
    const std::size_t at = upwards ? done : args.bytes - done - bytes;
    LOCKSTEP_CUDA(stream.device.device,
                  cudaMemcpyAsync(to + at, from + at, bytes, cudaMemcpyDeviceToDevice, stream.native));
    done += bytes;
  }
}

}  // namespace

void enqueue_copy(const CopyArgs& args, StreamHandle handle) {
  CudaStream& stream = as_stream(handle);
  const Device device = stream.device.device;
  check_records(stream, "copy");
  const CurrentDevice current(device);
  const trace::detail::RangeScope range("copy");
  const TraceSpan span(stream, handle,
                       {.name = "copy", .kind = trace::Kind::copy, .bytes = args.bytes, .source = args.source_device});
  const bool to_gpu = args.destination_device.type() == DeviceType::cuda;
  const bool from_gpu = args.source_device.type() == DeviceType::cuda;
  if (to_gpu && from_gpu) {
    const int to = static_cast<int>(ordinal_of(args.destination_device));
    const int from = static_cast<int>(ordinal_of(args.source_device));
    if (to == from) return copy_within(args, stream);
    LOCKSTEP_CUDA(device, cudaMemcpyPeerAsync(args.destination, to, args.source, from, args.bytes, stream.native));
    return;
  }
  const cudaMemcpyKind kind = to_gpu     ? cudaMemcpyHostToDevice
                              : from_gpu ? cudaMemcpyDeviceToHost
                                         : cudaMemcpyHostToHost;
  LOCKSTEP_CUDA(device, cudaMemcpyAsync(args.destination, args.source, args.bytes, kind, stream.native));
}

}  // namespace lockstep::cuda
