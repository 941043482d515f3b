#include "lockstep/parallel/checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "lockstep/runtime/edge.h"
#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/utf8.h"
#include "lockstep/tensor/io/safetensors_header.h"

namespace lockstep::detail {
namespace {

constexpr std::size_t kBufferAlignment = 64;

std::size_t aligned(std::size_t bytes) { return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment; }
int key_of(Device device) { return static_cast<int>(device.type()) * 4096 + device.index(); }

}  // namespace

void check_entries(const std::vector<CheckpointEntry>& entries) {
  std::set<std::string> names;
  for (const CheckpointEntry& each : entries) {
    const std::string name = quote_name(each.name);
    LOCKSTEP_CHECK(is_utf8(each.name), "[CheckpointWriter] expected names in UTF-8, got '", replaced_utf8(each.name),
                   '\'');
    LOCKSTEP_CHECK(each.tensor.defined(), "[CheckpointWriter] expected a tensor for ", name, ", got an undefined one");
    LOCKSTEP_CHECK(names.insert(each.name).second, "[CheckpointWriter] expected every name once, got ", name, " twice");
    if (!each.shard) continue;
    const TensorShard& shard = *each.shard;
    const Shape& part = each.tensor.shape();
    if (shard.dim == TensorShard::kElements) {
      LOCKSTEP_CHECK(part.rank() == 1 && shard.offset >= 0 && part[0] <= element_count(shard.shape) &&
                         shard.offset <= element_count(shard.shape) - part[0] &&
                         (shard.format == MemoryFormat::contiguous || shard.shape.rank() == 4),
                     "[CheckpointWriter] expected a run of the elements of ", shard.shape, " from ", shard.offset,
                     " for ", name, ", got ", part);
      continue;
    }
    bool fits = shard.dim >= 0 && shard.dim < shard.shape.rank() && part.rank() == shard.shape.rank() &&
                shard.offset >= 0 && part[shard.dim] <= shard.shape[shard.dim] &&
                shard.offset <= shard.shape[shard.dim] - part[shard.dim];
    for (int dim = 0; fits && dim < part.rank(); ++dim) fits = dim == shard.dim || part[dim] == shard.shape[dim];
    LOCKSTEP_CHECK(fits, "[CheckpointWriter] expected a part of ", shard.shape, " along dimension ", shard.dim,
                   " from ", shard.offset, " for ", name, ", got ", part);
  }
}

Snapshot::~Snapshot() {
  for (auto& [key, each] : buffers_)
    if (each.second.memory) backend(each.first).free_pinned(each.second.memory);
}

void Snapshot::reserve(Device device, std::size_t bytes) {
  auto& [of, buffer] = buffers_.try_emplace(key_of(device)).first->second;
  of = device;
  if (buffer.bytes >= bytes) return;
  Backend& owner = backend(device);
  if (buffer.memory) owner.free_pinned(buffer.memory);
  buffer.bytes = 0;
  buffer.memory = static_cast<std::byte*>(owner.allocate_pinned(bytes));
  if (!buffer.memory) throw OutOfMemory(Device::cpu(), bytes, 0, 0);
  buffer.bytes = bytes;
}

void Snapshot::take(const std::vector<CheckpointEntry>& entries, bool with_replicated) {
  take_over(this);
  pieces_.clear();
  std::vector<Tensor> sources;
  std::vector<std::size_t> places;
  std::map<int, std::pair<Device, std::size_t>> totals;
  for (const CheckpointEntry& each : entries) {
    if (each.shard ? each.tensor.shape()[std::max(each.shard->dim, 0)] == 0 : !with_replicated) continue;
    const NoGrad no_grad;
    sources.push_back(each.tensor.detach().contiguous());
    const Tensor& source = sources.back();
    pieces_.push_back({each.name, source.dtype(), source.shape(), each.shard, nullptr, source.bytes()});
    auto& [device, total] = totals[key_of(source.device())];
    device = source.device();
    places.push_back(total);
    total += aligned(source.bytes());
  }
  for (const auto& [key, total] : totals) reserve(total.first, std::max(total.second, kBufferAlignment));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Tensor& source = sources[i];
    std::byte* const to = buffers_.at(key_of(source.device())).second.memory + places[i];
    pieces_[i].data = to;
    if (source.bytes() == 0) continue;
    if (source.device().is_cpu()) {
      std::memcpy(to, source.data(), source.bytes());
      continue;
    }
    const Stream stream = current_stream(source.device());
    LOCKSTEP_EDGE(source.storage()->record_use(stream));
    stream.backend().copy({to, Device::cpu(), source.data(), source.device(), source.bytes()}, stream.handle());
  }
  for (const auto& [key, total] : totals)
    if (!total.first.is_cpu()) LOCKSTEP_EDGE(buffers_.at(key).second.copied.record(current_stream(total.first)));
  hand_over(this);
}

void Snapshot::await(Deadline deadline) {
  take_over(this);
  for (auto& [key, each] : buffers_)
    if (each.second.copied.recorded()) LOCKSTEP_EDGE(lockstep::wait(each.second.copied, deadline));
  hand_over(this);  // to whoever takes the next one
}

}  // namespace lockstep::detail
