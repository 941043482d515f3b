// Batches of sequences of different lengths: packed without padding for the recurrent layers, or padded to one length.
// After torch.nn.utils.rnn.
//
//   const PackedSequence packed = pack_padded_sequence(x, lengths, {.enforce_sorted = false});
//   const PackedLstmResult r = lstm(packed);
//   const PaddedSequences padded = pad_packed_sequence(r.output);   // in the order of x
//
// The elements are differentiable any number of times, keep their dtype and stay on their device. What brings them into
// another order is one kernel, on the current stream of the device; its indices are copied there from the host, as
// from_data copies. Where the order is the same already, what comes out is a view of what went in: sequences of one
// length that are packed or padded in place, or a single one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Sequences side by side, longest first: element 0 of every sequence, then element 1 of those that have one, and so on.
// Only `data` is on a device. The rest is the host's, so that nobody waits for a device to learn the lengths.
//
// Its sequences are a batch: scatter divides them in the caller's order, gather joins them again, and what moves
// tensors moves `data`. A function of single elements goes through with_data: packed.with_data(embedding(packed.data)).
struct LOCKSTEP_API PackedSequence {
  Tensor data;                            // [sum of the lengths, ..]
  std::vector<std::int64_t> batch_sizes;  // at each time, how many sequences are that long: at least 1, never growing
  // Packed sequence i is the caller's sorted_indices[i], and the caller's sequence i is packed as unsorted_indices[i].
  // Both are empty where the two orders are one.
  std::vector<std::int64_t> sorted_indices, unsorted_indices;

  std::int64_t sample_count() const { return batch_sizes.empty() ? 0 : batch_sizes[0]; }  // sequences
  std::vector<std::int64_t> lengths() const;                                              // in the caller's order

  PackedSequence with_data(const Tensor& other) const { return {other, batch_sizes, sorted_indices, unsorted_indices}; }
  // As Tensor::to.
  PackedSequence to(Device device) const { return with_data(data.to(device)); }
  PackedSequence to(DType dtype) const { return with_data(data.to(dtype)); }

  // Throws InvalidArgument, naming `op`, where the members do not fit together. All that takes one calls this.
  void check(const char* op) const;

  // ---- for walks (tensor/tree.h), scatter and gather
  template <class F>
  void for_each_tensor(F&& f) {
    if (!data.defined()) return;
    if constexpr (requires { f.sequences(*this); })
      f.sequences(*this);
    else
      f(data);
  }
  // The rows of `data`, those of the caller's first shares[0] sequences first, each group packed by itself; and how
  // many rows each group has. All three throw InvalidArgument for what does not fit.
  std::pair<Tensor, std::vector<std::int64_t>> group(std::span<const std::int64_t> shares) const;
  // The caller's sequences first, first + 1, …, with the rows that group() gave them.
  PackedSequence part(std::int64_t first, std::int64_t count, const Tensor& rows) const;
  // The sequences of all parts, one part after the other; `rows` are theirs.
  static PackedSequence join(std::span<const PackedSequence* const> parts, const Tensor& rows);
};

struct PackOptions {
  bool batch_first = false;    // the input is [batch, time, ..] instead of [time, batch, ..]
  bool enforce_sorted = true;  // the lengths must not grow; else the sequences are sorted, and their order is kept
};
// input [T, B, ..], of whose sequence i the first lengths[i] elements count. Throws InvalidArgument for an empty batch,
// a length that is not in 1 … T, not as many lengths as sequences, and lengths that grow under enforce_sorted.
LOCKSTEP_API PackedSequence pack_padded_sequence(const Tensor& input, const std::vector<std::int64_t>& lengths,
                                                 const PackOptions& options = {});
// Integers [B], on any device: one that is not cpu is waited for.
LOCKSTEP_API PackedSequence pack_padded_sequence(const Tensor& input, const Tensor& lengths,
                                                 const PackOptions& options = {});
// From tensors [length, ..] of one dtype and device, at least one, none of length 0.
LOCKSTEP_API PackedSequence pack_sequence(const std::vector<Tensor>& sequences, bool enforce_sorted = true);

struct PadOptions {
  bool batch_first = false;  // the result is [batch, time, ..] instead of [time, batch, ..]
  double padding_value = 0;  // which the dtype must have, if it is one of integers
  // How long the result is; the longest sequence. Replicas need one that does not depend on their piece.
  std::optional<std::int64_t> total_length = std::nullopt;
};
struct PaddedSequences {
  Tensor output;   // [T, B, ..], in the caller's order
  Tensor lengths;  // i64[B] on cpu
  void fields(auto& f) { f(output, lengths); }
};
// The inverse of pack_padded_sequence. Throws InvalidArgument for a total_length below the longest sequence.
LOCKSTEP_API PaddedSequences pad_packed_sequence(const PackedSequence& sequences, const PadOptions& options = {});
// From tensors [length, ..] of one dtype and device, at least one; lengths of 0 are all padding.
LOCKSTEP_API Tensor pad_sequence(const std::vector<Tensor>& sequences, const PadOptions& options = {});

// The sequences, each [length, ..], in the caller's order: views of one copy, or of `data` where its rows are in that
// order already (one sequence, or all of length 1).
LOCKSTEP_API std::vector<Tensor> unpack_sequence(const PackedSequence& sequences);
// The same of padded ones [T, B, ..]: views.
LOCKSTEP_API std::vector<Tensor> unpad_sequence(const Tensor& padded, const std::vector<std::int64_t>& lengths,
                                                bool batch_first = false);

}  // namespace lockstep
