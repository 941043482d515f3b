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
// dtypes first, then by name. The file appears under `path` complete and synced, or not at all; what stood there is
// replaced. Blocks. Throws InvalidArgument for a name that is used twice, reserved or not UTF-8 and for an undefined
// tensor; Error when the system cannot write.
LOCKSTEP_API void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                                   const std::map<std::string, std::string>& metadata = {});

// Throws FormatError (file, byte) for anything that is not a safetensors file, NotSupported for dtypes of the format
// that Lockstep does not have and for more than 8 dimensions, Error when the system cannot read.
LOCKSTEP_API Safetensors load_safetensors(const std::string& path);

// A module's parameters and buffers. Loading copies them into the slots at home, converting dtypes; it throws
// InvalidArgument before anything is changed when names (only with `strict`) or shapes differ. Returns the metadata.
LOCKSTEP_API void save_model(const ModuleBase& module, const std::string& path,
                             const std::map<std::string, std::string>& metadata = {});
LOCKSTEP_API std::map<std::string, std::string> load_model(ModuleBase& module, const std::string& path,
                                                           bool strict = true);

}  // namespace lockstep
