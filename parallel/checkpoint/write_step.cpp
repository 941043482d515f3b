#include "lockstep/parallel/checkpoint/write_step.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "lockstep/parallel/checkpoint/index.h"
#include "lockstep/parallel/checkpoint/meet.h"
#include "lockstep/parallel/comm/sha256.h"
#include "lockstep/tensor/io/safetensors_header.h"

namespace lockstep::detail {
namespace {

// What `work` does, or why it did not.
template <class Work>
std::string problem_of(Work&& work) {
  try {
    work();
    return "";
  } catch (const std::exception& error) {
    return reason_of(error);
  }
}

constexpr char kRefusal = '!';  // no step begins so

// Whether no rank has anything to save. Throws where some have.
bool all_refuse(const std::string& prefix, const std::vector<std::string>& said) {
  const auto refuses = [](const std::string& each) { return each.starts_with(kRefusal); };
  const auto first = std::find_if(said.begin(), said.end(), refuses);
  if (first == said.end()) return false;
  if (std::all_of(first, said.end(), refuses) && first == said.begin()) return true;
  throw Error(cat(prefix, "rank ", first - said.begin(), ": ", first->substr(1)));
}

// What ranks say before they write: step and hash, and in another line rank 0's folder.
void check_same(const std::string& prefix, std::int64_t step, const std::vector<std::string>& said) {
  const auto head = [&](std::size_t rank) { return said[rank].substr(0, said[rank].find('\n')); };
  const std::string mine = cat(step, ' ');
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    if (!head(rank).starts_with(head(0).substr(0, head(0).find(' ') + 1)))
      throw Error(cat(prefix, "expected the same step on every rank, got ", head(0).substr(0, head(0).find(' ')),
                      " on rank 0, ", head(rank).substr(0, head(rank).find(' ')), " on rank ", rank));
    if (head(rank) != head(0) && head(rank) != mine)  // one that gives no whole tensors leaves them to rank 0
      throw Error(cat(
          prefix, "expected the whole tensors of rank 0 (names, shapes, dtypes) or none, got others on rank ", rank));
  }
}

// Rank 0: the folder to write to, for a step that comes after what is there.
std::string begin_step(const StepWriter& writer, std::int64_t step) {
  for (const StepFolder& each : step_folders(writer.folder)) {
    if (each.temporary || each.step < step || !index_if_whole(each.path)) continue;
    throw Error(cat("expected a step after ", each.step, ", which is in '", writer.folder, "' already"));
  }
  std::string name = cat(step_name(step), ".tmp-", to_hex(random_bytes(6)));
  writer.files.make_folder(join_path(writer.folder, name));
  return name;
}

// The pieces as a safetensors file: larger dtypes first, then by name.
FileSum write_tensors(FileLayer& files, const std::string& path, const std::vector<Snapshot::Piece>& pieces) {
  std::vector<const Snapshot::Piece*> ordered;
  for (const Snapshot::Piece& each : pieces) ordered.push_back(&each);
  std::sort(ordered.begin(), ordered.end(), [](auto* a, auto* b) {
    const int rank_a = dtype_rank(a->dtype), rank_b = dtype_rank(b->dtype);
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });
  std::vector<HeaderEntry> entries;
  std::uint64_t end = 0;
  for (const Snapshot::Piece* each : ordered) {
    HeaderEntry& entry = entries.emplace_back();
    entry.name = each->name;
    entry.dtype = each->dtype;
    entry.shape = each->shape;
    entry.begin = end;
    entry.end = end += each->bytes;
  }
  const std::string header = format_header(entries, {});
  std::vector<FilePart> parts{{header.data(), header.size()}};
  for (const Snapshot::Piece* each : ordered) parts.push_back({each->data, each->bytes});
  return write_file(files, path, parts);
}

// This rank's files in the folder, on the disk: "<name> <bytes> <checksum>" for each.
std::string write_own(const StepWriter& writer, const std::string& folder, const StepSave& save,
                      const Snapshot& snapshot) {
  std::string said;
  const auto note = [&](const std::string& name, const FileSum& sum) {
    said += cat(name, ' ', sum.bytes, ' ', sum.crc32, '\n');
  };
  const int rank = writer.communicator.rank();
  const std::string part = part_text(save.values, snapshot.pieces());
  const FilePart whole{part.data(), part.size()};
  const std::string part_name = part_file(rank, "json"), tensors_name = part_file(rank, "safetensors");
  if (!snapshot.pieces().empty())
    note(tensors_name, write_tensors(writer.files, join_path(folder, tensors_name), snapshot.pieces()));
  note(part_name, write_file(writer.files, join_path(folder, part_name), {&whole, 1}));
  writer.files.sync_folder(folder);
  return said;
}

// Rank 0: all files are on the disk. The marker, and then the name.
void commit(const StepWriter& writer, const std::string& folder, std::int64_t step,
            const std::vector<std::string>& said) {
  FileSums sums;
  for (const std::string& each : said) {
    std::istringstream lines(each);
    for (std::string name; lines >> name;) lines >> sums[name].bytes >> sums[name].crc32;
  }
  CheckpointIndex index;
  index.path = folder;
  index.ranks = writer.communicator.size();
  read_parts(index);  // whether they are the whole, and in one folder
  const std::string marker = marker_text(step, index.ranks, sums);
  const FilePart text{marker.data(), marker.size()};
  write_file(writer.files, join_path(folder, kMarker), {&text, 1});
  writer.files.sync_folder(folder);
  const std::string final = join_path(writer.folder, step_name(step));
  if (std::filesystem::exists(final)) remove_checkpoint(writer.files, final);  // it is not whole: see begin_step
  writer.files.rename(folder, final);
  writer.files.sync_folder(writer.folder);
}

// Rank 0, once a checkpoint is on the disk: what it makes superfluous.
void prune(const StepWriter& writer, std::int64_t newest) {
  int whole = 0;
  for (const StepFolder& each : step_folders(writer.folder)) {
    if (!each.temporary && each.step >= newest) {
      ++whole;
      continue;
    }
    if (!each.temporary && index_if_whole(each.path) && ++whole <= writer.keep) continue;
    remove_checkpoint(writer.files, each.path);
  }
}

}  // namespace

std::string why_no_checkpoints(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return cat("cannot make the folder '", folder, "': ", error.message());
  if (::access(folder.c_str(), R_OK | W_OK | X_OK) != 0)
    return cat("cannot write to the folder '", folder, "': ", std::strerror(errno));
  return "";
}

std::string replicated_hash(const std::vector<CheckpointEntry>& entries) {
  std::vector<std::string> lines;
  for (const CheckpointEntry& each : entries)
    if (!each.shard)
      lines.push_back(cat(quote_name(each.name), ' ', static_cast<int>(each.tensor.dtype()), each.tensor.shape()));
  if (lines.empty()) return "";
  std::sort(lines.begin(), lines.end());
  Sha256 hash;
  for (const std::string& line : lines) hash.update(line);
  return to_hex(hash.digest());
}

std::string reason_of(const std::exception& error) {
  const std::string_view what = error.what(), prefix = "[CheckpointWriter] ";
  if (what.empty()) return "failed";
  return std::string(what.substr(what.starts_with(prefix) ? prefix.size() : 0));
}

bool write_step(const StepWriter& writer, const StepSave& save, Snapshot& snapshot, Milliseconds timeout) {
  Communicator& communicator = writer.communicator;
  const std::string prefix = cat("[CheckpointWriter] step ", save.step, ": ");
  const bool first = communicator.rank() == 0;

  // ---- the ranks save the same, and have it; rank 0 has a folder
  std::string name, problem = save.problem;
  const bool refuses = !save.refusal.empty();
  if (problem.empty() && !refuses) problem = problem_of([&] { snapshot.await(Deadline::after(timeout)); });
  if (problem.empty() && !refuses && first) problem = problem_of([&] { name = begin_step(writer, save.step); });
  const std::string folder_of_first = join_path(writer.folder, name);
  const auto clean_up = [&] {  // what cannot be removed now is later
    if (first && !name.empty()) problem_of([&] { remove_checkpoint(writer.files, folder_of_first); });
  };
  try {
    const std::string own = refuses ? kRefusal + save.refusal : cat(save.step, ' ', save.replicated, '\n', name);
    const std::vector<std::string> all = meet(communicator, prefix, own, problem);
    if (all_refuse(prefix, all)) return false;
    name = all[0].substr(all[0].find('\n') + 1);
    check_same(prefix, save.step, all);
    const std::string folder = join_path(writer.folder, name);

    // ---- everybody's files
    std::string said;
    problem = problem_of([&] { said = write_own(writer, folder, save, snapshot); });
    const std::vector<std::string> files = meet(communicator, prefix, said, problem);

    // ---- the marker and the name
    problem.clear();
    if (first) problem = problem_of([&] { commit(writer, folder, save.step, files); });
    meet(communicator, prefix, "", problem);
  } catch (...) {
    clean_up();
    throw;
  }
  // ---- what is older
  problem.clear();
  if (first) problem = problem_of([&] { prune(writer, save.step); });
  if (!problem.empty()) problem = "the checkpoint is whole, but older ones are left: " + problem;
  meet(communicator, prefix, "", problem);
  return true;
}

}  // namespace lockstep::detail
