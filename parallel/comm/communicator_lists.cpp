// Collectives of several tensors, or of several sends and receives.
#include <numeric>
#include <optional>

#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/tensor_checks.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/runtime/stream/work_scope.h"

namespace lockstep {
namespace {

using Kind = Collective::Kind;
using detail::check_tensor;

std::string item(std::size_t i, std::size_t of) { return cat("tensor ", i, " of ", of); }

void check_tensors(const char* op, std::span<const Tensor> tensors, Device device) {
  LOCKSTEP_CHECK(!tensors.empty(), "[", op, "] expected at least one tensor, got none");
  for (std::size_t i = 0; i < tensors.size(); ++i) check_tensor(op, item(i, tensors.size()), tensors[i], device);
}

void check_counts(const char* what, std::span<const std::int64_t> counts, const Tensor& tensor, int ranks) {
  LOCKSTEP_CHECK(counts.size() == static_cast<std::size_t>(ranks), "[all_to_all] expected a count of the ", what,
                 " for each of ", ranks, " ranks, got ", counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r)
    LOCKSTEP_CHECK(counts[r] >= 0 && counts[r] <= tensor.count(), "[all_to_all] expected counts of the ", what,
                   " from 0 to ", tensor.count(), ", got ", counts[r], " for rank ", r);
  // Each is within the tensor, so that even as many as there are ranks cannot overflow.
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  LOCKSTEP_CHECK(sum == tensor.count(), "[all_to_all] expected counts of the ", what, " with the sum ", tensor.count(),
                 ", got ", sum, " for ", tensor.describe());
}

}  // namespace

void Communicator::all_reduce(std::span<const Tensor> tensors, RedOp reduction) {
  check_tensors("all_reduce", tensors, device_);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    LOCKSTEP_CHECK(reduction != RedOp::avg || is_floating(tensors[i].dtype()),
                   "[all_reduce] expected a floating dtype for avg, got ", tensors[i].dtype(), " in ",
                   item(i, tensors.size()));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    submit({.kind = Kind::all_reduce,
            .reduction = reduction,
            .count = tensors[i].count(),
            .item = static_cast<std::int32_t>(i),
            .items = static_cast<std::int32_t>(tensors.size())},
           tensors[i], tensors[i]);
}

void Communicator::broadcast(std::span<const Tensor> tensors, int root) {
  check_tensors("broadcast", tensors, device_);
  const bool sends = rank_ == root;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    submit({.kind = Kind::broadcast,
            .count = tensors[i].count(),
            .peer = root,
            .item = static_cast<std::int32_t>(i),
            .items = static_cast<std::int32_t>(tensors.size())},
           sends ? tensors[i] : Tensor(), sends ? Tensor() : tensors[i]);
}

void Communicator::all_gather(std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  check_tensors("all_gather", inputs, device_);
  check_tensors("all_gather", outputs, device_);
  LOCKSTEP_CHECK(inputs.size() == outputs.size(), "[all_gather] expected an output for every input, got ",
                 inputs.size(), " inputs and ", outputs.size(), " outputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string op = cat("all_gather, ", item(i, inputs.size()));
    detail::check_pair(op.c_str(), inputs[i], outputs[i], size_, true);
    detail::check_overlap(op.c_str(), inputs[i], outputs[i], rank_ * inputs[i].count());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    submit({.kind = Kind::all_gather,
            .count = inputs[i].count(),
            .item = static_cast<std::int32_t>(i),
            .items = static_cast<std::int32_t>(inputs.size())},
           inputs[i], outputs[i]);
}

void Communicator::all_to_all(const Tensor& input, std::span<const std::int64_t> input_counts, const Tensor& output,
                              std::span<const std::int64_t> output_counts) {
  check_tensor("all_to_all", "input", input, device_);
  check_tensor("all_to_all", "output", output, device_);
  LOCKSTEP_CHECK(input.dtype() == output.dtype(), "[all_to_all] expected one dtype, got ", input.describe(), " and ",
                 output.describe());
  check_counts("input", input_counts, input, size_);
  check_counts("output", output_counts, output, size_);
  detail::check_overlap("all_to_all", input, output, -1);
  const auto own = static_cast<std::size_t>(rank_);
  LOCKSTEP_CHECK(input_counts[own] == output_counts[own], "[all_to_all] expected rank ", rank_,
                 " to receive from itself what it sends to itself, got ", output_counts[own], " and ",
                 input_counts[own], " elements");

  // Also parts without elements are sent: the other side may expect some.
  std::vector<Collective> transfers;
  CopyArgs mine{nullptr, device_, nullptr, device_, 0};
  const auto* from = static_cast<const std::byte*>(input.data());
  auto* to = static_cast<std::byte*>(const_cast<void*>(output.data()));
  for (int r = 0; r < size_; ++r) {
    const std::int64_t sent = input_counts[static_cast<std::size_t>(r)];
    const std::int64_t received = output_counts[static_cast<std::size_t>(r)];
    const std::size_t element_bytes = size_of(input.dtype());
    if (r == rank_) {
      mine = {to, device_, from, device_, static_cast<std::size_t>(sent) * element_bytes};
    } else {
      const DType dtype = input.dtype();
      transfers.push_back({.kind = Kind::send, .dtype = dtype, .count = sent, .peer = r, .input = from});
      transfers.push_back({.kind = Kind::recv, .dtype = dtype, .count = received, .peer = r, .output = to});
    }
    from += static_cast<std::size_t>(sent) * element_bytes;
    to += static_cast<std::size_t>(received) * element_bytes;
  }
  submit_batch("all_to_all", std::move(transfers), {&input, 1}, {&output, 1}, mine);
}

void Communicator::transfer(std::span<const Transfer> transfers) {
  std::vector<Collective> batch;
  std::vector<Tensor> sent, received;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    const auto& [sends, peer, tensor] = transfers[i];
    check_tensor("transfer", item(i, transfers.size()), tensor, device_);
    LOCKSTEP_CHECK(peer >= 0 && peer < size_ && peer != rank_, "[transfer] expected a rank from 0 to ", size_ - 1,
                   " other than this one, ", rank_, ", got ", peer, " for ", item(i, transfers.size()));
    for (std::size_t j = 0; j < i; ++j)
      LOCKSTEP_CHECK((sends && transfers[j].sends) || !detail::overlap(tensor, transfers[j].tensor),
                     "[transfer] expected what is received to be apart from all else, got ", item(j, transfers.size()),
                     " and ", item(i, transfers.size()), " in the same memory");
    void* const memory = const_cast<void*>(tensor.data());
    batch.push_back({.kind = sends ? Kind::send : Kind::recv,
                     .dtype = tensor.dtype(),
                     .count = tensor.count(),
                     .peer = peer,
                     .input = sends ? memory : nullptr,
                     .output = sends ? nullptr : memory});
    (sends ? sent : received).push_back(tensor);
  }
  submit_batch("transfer", std::move(batch), sent, received, {nullptr, device_, nullptr, device_, 0});
}

void Communicator::submit_batch(const char* name, std::vector<Collective> transfers, std::span<const Tensor> inputs,
                                std::span<const Tensor> outputs, const CopyArgs& own) {
  check();
  const Stream stream = current_stream(device_);
  check_capture(name, stream);
  use_on(stream, name, inputs, outputs);
  for (Collective& each : transfers) {
    each.timeout = timeout_;
    if (!lockstep::detail::current_capture) [[likely]]
      each.sequence = ++number_of(each);
  }
  std::optional<trace::WorkScope> scope;
  if (trace::active()) [[unlikely]]
    scope.emplace(stream, trace::Work{.name = name, .kind = trace::Kind::kernel});
  if (own.bytes > 0) copy_bytes(own, stream, stream);
  if (!transfers.empty()) enqueue_batch(std::move(transfers), stream);
}

}  // namespace lockstep
