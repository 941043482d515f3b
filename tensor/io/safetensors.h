// Tensors in files: the safetensors format, which other frameworks read and write too.
//
// Files are read with suspicion: whatever breaks a rule of the format is a FormatError that names the byte, in time
// and memory proportional to the size of the file.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

struct Safetensors {
  std::vector<NamedTensor> tensors;             // on cpu, contiguous, in the order of their bytes in the file
  std::map<std::string, std::string> metadata;  // free text
};

// Writes the tensors (any device, dtype and layout) in the order in which the reference implementation does: larger
// dtypes first, then by name. The file appears under `path` complete and synced, or not at all; a file that stood
// there is replaced and keeps its permissions, links are followed. Blocks. Throws InvalidArgument for a name that is
// used twice, reserved or not UTF-8 and for an undefined tensor; Error when the system cannot write.
LOCKSTEP_API void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

struct LoadSafetensorsOptions {
  // Maps the file instead of reading it: the tensors' elements are the file's pages, which are read when they are first
  // touched (no copy, but for elements that the file does not align). What is written to the tensors stays in memory
  // of this process. The last tensor closes the map. While it is open nobody may shorten the file: touching a page that
  // is gone ends the process (SIGBUS).
  bool map = false;
};

// Throws FormatError (file, byte) for anything that is not a safetensors file, NotSupported for dtypes of the format
// that Lockstep does not have and for more than 8 dimensions, Error when the system cannot read. The rules are those of
// the reference implementation (https://github.com/huggingface/safetensors): a header of at most 100 MB that begins
// with '{', UTF-8, each name once, tensors that lie one after the other without holes from the first byte of the data
// to the last of the file, with as many bytes as shape and dtype say. Stricter: a name of metadata comes once too, a
// tensor has no other fields than dtype, shape and data_offsets, the sizes other than 0 do not overflow beside a 0
// either, and bools are 0 or 1. Blocks.
LOCKSTEP_API Safetensors load_safetensors(const std::string& path, const LoadSafetensorsOptions& options = {});

// A module's parameters and buffers.
LOCKSTEP_API void save_model(const ModuleBase& module, const std::string& path,
                             const std::map<std::string, std::string>& metadata = {});

struct LoadModelOptions {
  bool strict = true;  // the file and the module must have the same names and shapes
  bool map = false;    // as in LoadSafetensorsOptions, while loading
  // The tensors of the file become the parameters, without a copy where the dtype is the module's and its parameters
  // are on cpu: with `map` its pages. Parameters move as they do in ModuleBase::to, and nobody may use the module
  // meanwhile. The elements of a module that has none yet (Parameter::uninitialized) are never there twice.
  bool adopt = false;
};
// What did not fit, in the module's and the file's order.
struct LOCKSTEP_API LoadReport {
  struct Mismatch {
    std::string name;
    Shape expected, got;
  };
  std::vector<std::string> missing;     // names of the module that the file does not have
  std::vector<std::string> unexpected;  // names of the file that the module does not have
  std::vector<Mismatch> mismatched;     // names with another shape
  std::map<std::string, std::string> metadata;
  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
  std::string describe() const;  // "missing: a.weight; unexpected: none; other shapes: none"
};
// Copies the file's tensors into the module's slots at home, or puts them there, converting dtypes; what does not fit
// is left as it is and reported. With `strict` that is an InvalidArgument, before anything is changed; so is, always,
// that nothing fits. A file with an entry model_prefix in its metadata (a Runner's checkpoint: "model.") has the model
// under the names that begin with it, and only they count, without it. Where all names of one side begin with "module."
// and none of the other does (a wrapper was or was not saved), the prefix is passed over. Of a tied parameter one name
// is enough. Throws what load_safetensors throws too, before anything is changed. Blocks.
LOCKSTEP_API LoadReport load_model(ModuleBase& module, const std::string& path, const LoadModelOptions& options);
// The same of what load_safetensors gave; `name` is that of the file in messages.
LOCKSTEP_API LoadReport load_model(ModuleBase& module, Safetensors file, const std::string& name,
                                   const LoadModelOptions& options);
// The metadata alone; shapes that differ are an InvalidArgument also when not `strict`.
LOCKSTEP_API std::map<std::string, std::string> load_model(ModuleBase& module, const std::string& path,
                                                           bool strict = true);

}  // namespace lockstep
