// The files of a state that several ranks write, as the field names them. Private to the library.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace lockstep::detail {

// "model-00002-of-00004.safetensors": of rank 1.
std::string shard_file(const std::string& stem, int rank, int ranks);
// Writes <stem>.safetensors.index.json into the folder, complete or not at all: which file beside it has which tensor,
// and the bytes of all. Throws Error when the system cannot.
void write_index(const std::string& folder, const std::string& stem, const std::map<std::string, std::string>& files,
                 std::int64_t total_bytes);

// Without it the files beside it are no set. Nothing where there is none. Throws Error when the system cannot.
void remove_index(const std::string& folder, const std::string& stem);

}  // namespace lockstep::detail
