// Checkpoints as they are published: a safetensors file, or several with an index.
#pragma once

#include <optional>
#include <string>

#include "lockstep/tensor/io/safetensors.h"

namespace lockstep {

// What a module implements besides whose checkpoints have other names than it has, or more than it needs.
class LOCKSTEP_API CheckpointNames {
 public:
  virtual ~CheckpointNames() = default;
  // What the module calls the tensor that a checkpoint has under `name`; nothing for one that it does not need.
  virtual std::optional<std::string> name_in_module(const std::string& name) const = 0;
};

// All tensors of a checkpoint: a file in the format safetensors; an index (*.index.json), whose shards lie beside it;
// or a folder with model.safetensors or model.safetensors.index.json (the first where both are there). In the order of
// the files' names, and in a file of their bytes; with the metadata of the first file that has any. Throws what
// load_safetensors throws; FormatError for an index that names a file outside of its folder, or a tensor that its shard
// does not have; Error for a folder without a checkpoint. Blocks.
LOCKSTEP_API Safetensors read_checkpoint(const std::string& path, const LoadSafetensorsOptions& options = {});

struct LoadCheckpointOptions {
  bool strict = true;  // the checkpoint and the module must have the same names and shapes
  // The elements of parameters on cpu, where the checkpoint has them in their dtype, are the files' pages, which are
  // read when they are first touched; see LoadSafetensorsOptions. What is written to them stays in memory.
  bool map = false;
};
// Puts the tensors of a checkpoint into the module's parameters and buffers as load_model does with `adopt`: nobody may
// use the module meanwhile, and a module whose parameters have no elements yet gets them without a second copy. Asks
// the module for its names where it is a CheckpointNames. Throws what read_checkpoint throws, and InvalidArgument for
// what does not fit, or two tensors for one name, before anything is changed. Blocks.
//
// Of a parameter of which the module has a part (a model that ranks have together) that part is taken, out of a file
// that is mapped: a rank reads and holds its own parts. InvalidArgument where the file has another shape than the
// whole.
LOCKSTEP_API LoadReport load_checkpoint(ModuleBase& module, const std::string& path,
                                        const LoadCheckpointOptions& options = {});
// The same of what read_checkpoint gave; `name` is the checkpoint's in messages.
LOCKSTEP_API LoadReport load_checkpoint(ModuleBase& module, Safetensors checkpoint, const std::string& name,
                                        bool strict = true);

namespace detail {
// Whether the module has parts of parameters: its files are mapped, then.
bool has_parts(const ModuleBase& module);
// With `keep_pages` the elements may stay pages of the files, where they are.
LoadReport load_checkpoint(ModuleBase& module, Safetensors checkpoint, const std::string& name, bool strict,
                           bool keep_pages);
}  // namespace detail

}  // namespace lockstep
