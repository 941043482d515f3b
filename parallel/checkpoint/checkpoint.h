// Checkpoints of a training: a folder per step, written by all ranks, that is whole or is passed over.
//
//   runs/step-00000120/checkpoint.json        the marker: which files there are, their sizes and checksums
//                      rank-00000.json        what rank 0 wrote: names, shapes, places; its values
//                      rank-00000.safetensors its tensors, for any reader of the format
//
// The folder has another name until everything in it is on the disk. See docs/checkpoints.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/kernels/memory_format.h"
#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// What a tensor is a part of: of one of shape `shape`, the slices along `dim` from `offset` on, as many as it has. Or,
// of one dimension, a run of its elements, from the `offset`th on in the order of `format`: then `dim` is kElements.
struct TensorShard {
  static constexpr int kElements = -2;
  Shape shape;
  int dim = 0;
  std::int64_t offset = 0;
  MemoryFormat format = MemoryFormat::contiguous;
};

struct CheckpointEntry {
  std::string name;
  Tensor tensor;
  // Without: it is the same on every rank, and rank 0 writes it. With: whoever gives it writes it; all parts together
  // are the whole, each once. An empty part (of 0 slices) may be given or not.
  std::optional<TensorShard> shard = std::nullopt;
};

namespace detail {
struct CheckpointIndex;
class MappedParts;
}  // namespace detail

// A checkpoint that is whole. Reads of files what is asked for. Of several threads at a time. Copies share the files,
// which stay mapped once something has been loaded of them: they may be deleted then, and must not be shortened.
class LOCKSTEP_API Checkpoint {
 public:
  // The folder of one step. Throws FormatError where something is missing, short or not understood; Error when the
  // system cannot read. The bytes of the tensors are not looked at: verify() does.
  explicit Checkpoint(const std::string& path);

  const std::string& path() const;
  std::int64_t step() const;
  int ranks() const;  // that wrote it
  // What that rank gave to be kept beside the tensors. InvalidArgument for one that there was not.
  const std::map<std::string, std::string>& values(int rank = 0) const;

  std::vector<std::string> names() const;  // sorted
  bool has(const std::string& name) const;
  // The whole tensor's. These throw InvalidArgument for a name that is not there.
  const Shape& shape(const std::string& name) const;
  DType dtype(const std::string& name) const;
  // On cpu, contiguous: the whole tensor, or `count` slices along a dimension from `offset` on, wherever the ranks that
  // wrote them cut it. InvalidArgument for what lies outside. Blocks.
  Tensor load(const std::string& name) const;
  Tensor load(const std::string& name, int dim, std::int64_t offset, std::int64_t count) const;
  // `count` elements from the `offset`th on in the order of `format`, in one dimension, as TensorShard has them.
  Tensor load_elements(const std::string& name, std::int64_t offset, std::int64_t count,
                       MemoryFormat format = MemoryFormat::contiguous) const;
  // Whole, all whose names begin with `prefix`, without it.
  std::vector<NamedTensor> load_all(const std::string& prefix = "") const;

  // Compares the checksums of the files, or of every `every`-th from `first` on. FormatError that names the file.
  void verify(int first = 0, int every = 1) const;

 private:
  std::shared_ptr<const detail::CheckpointIndex> index_;
  std::shared_ptr<detail::MappedParts> parts_;
};

// The whole checkpoint with the highest step, with checksums compared; nothing where there is none, or no folder.
// Folders that are not whole (of writers that were killed, torn by a full disk, changed since) are passed over with a
// warning in the log. Throws Error when the system cannot read. Blocks.
LOCKSTEP_API std::optional<Checkpoint> newest_checkpoint(const std::string& folder);

// The same for all ranks, each of which compares its share of the checksums. Every rank calls it. Where they do not
// find the same one, as with folders that they do not share, it is an Error on every rank, with the ranks and their
// steps; so is what one of them cannot read.
LOCKSTEP_API std::optional<Checkpoint> newest_checkpoint(const std::string& folder, Communicator& communicator);

}  // namespace lockstep
