// What the files of a checkpoint say of it. Private to the library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/kernels/dtype.h"
#include "lockstep/parallel/checkpoint/file_layer.h"
#include "lockstep/parallel/checkpoint/snapshot.h"

namespace lockstep::detail {

inline constexpr char kMarker[] = "checkpoint.json";

std::string step_name(std::int64_t step);           // "step-00000120"
std::string part_file(int rank, const char* kind);  // "rank-00003.json"
std::string join_path(const std::string& folder, const std::string& name);

// A folder that is or was to be a checkpoint.
struct StepFolder {
  std::int64_t step = 0;
  std::string path;
  bool temporary = false;  // it has not been renamed: its writer is at work, or was killed
};
// Newest first; none where there is no folder. Throws Error when the system cannot read it.
std::vector<StepFolder> step_folders(const std::string& folder);

// What rank 0 may be sure of once all ranks have written: names, sizes and checksums by file.
using FileSums = std::map<std::string, FileSum>;

// What one rank writes beside its tensors: values and pieces, as JSON.
std::string part_text(const std::map<std::string, std::string>& values, const std::vector<Snapshot::Piece>& pieces);
std::string marker_text(std::int64_t step, int ranks, const FileSums& files);

struct CheckpointIndex {
  struct Piece {
    int rank = 0;
    std::int64_t offset = 0, count = 0;
  };
  struct Entry {
    DType dtype = DType::f32;
    Shape shape;
    int dim = kWhole;  // along which it is cut
    MemoryFormat format = MemoryFormat::contiguous;
    std::vector<Piece> pieces;  // by offset

    bool is_whole() const { return dim == kWhole; }
    bool is_elements() const { return dim == TensorShard::kElements; }
    std::int64_t size() const { return is_elements() ? element_count(shape) : shape[dim]; }  // along it
  };
  static constexpr int kWhole = -1;
  std::string path;
  std::int64_t step = 0;
  int ranks = 0;
  FileSums files;
  std::map<std::string, Entry> entries;
  std::vector<std::map<std::string, std::string>> values;
};

// The parts of `ranks` ranks: FormatError for what is not understood, and for pieces that are not the whole of a
// tensor, or not of one shape.
void read_parts(CheckpointIndex& index);
// The marker, the sizes of the files, and the parts. FormatError unless all of it is there.
CheckpointIndex read_index(const std::string& path);
// The same as a question, when the folder is not whole: nothing. Other errors are thrown.
std::optional<CheckpointIndex> index_if_whole(const std::string& path);

// The marker first: what is left of it after a kill is not whole.
void remove_checkpoint(FileLayer& files, const std::string& path);

}  // namespace lockstep::detail
