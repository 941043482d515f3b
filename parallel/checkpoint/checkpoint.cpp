#include "lockstep/parallel/checkpoint/checkpoint.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "lockstep/parallel/checkpoint/crc32.h"
#include "lockstep/parallel/checkpoint/index.h"
#include "lockstep/parallel/checkpoint/meet.h"
#include "lockstep/runtime/log.h"
#include "lockstep/tensor/io/file.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/io/safetensors_header.h"
#include "lockstep/tensor/ops/factory.h"

namespace lockstep {
namespace {

// Of a piece, as it lies in the file of its rank.
Shape shape_of(const detail::CheckpointIndex::Piece& piece, const detail::CheckpointIndex::Entry& entry) {
  if (entry.is_whole()) return entry.shape;
  if (entry.is_elements()) return {piece.count};
  Shape shape = entry.shape;
  shape[entry.dim] = piece.count;
  return shape;
}

}  // namespace

// Tensors over the pages of the ranks' files. Each file is opened when it is first needed, and read through once,
// however many tensors it has.
class detail::MappedParts {
 public:
  Tensor find(const CheckpointIndex& index, const CheckpointIndex::Piece& piece, const std::string& name) {
    const int rank = piece.rank;
    const std::string path = join_path(index.path, part_file(rank, "safetensors"));
    const std::lock_guard lock(mutex_);
    auto file = files_.find(rank);
    if (file == files_.end()) {
      std::unordered_map<std::string, Tensor> tensors;
      for (NamedTensor& each : load_safetensors(path, {.map = true}).tensors)
        tensors.emplace(std::move(each.name), std::move(each.tensor));
      file = files_.emplace(rank, std::move(tensors)).first;
    }
    const auto found = file->second.find(name);
    if (found == file->second.end())
      throw FormatError(path, 0, cat("expected a tensor ", quote_name(name), ", there is none"));
    const CheckpointIndex::Entry& entry = index.entries.at(name);
    const Shape shape = shape_of(piece, entry);
    if (const Tensor& there = found->second; there.dtype() != entry.dtype || there.shape() != shape)
      throw FormatError(path, 0,
                        cat("expected ", quote_name(name), " to be ", entry.dtype, shape,
                            ", as the rank says beside it, got ", there.dtype(), there.shape()));
    return found->second;
  }

 private:
  std::mutex mutex_;
  std::map<int, std::unordered_map<std::string, Tensor>> files_;  // by rank
};

namespace {

using detail::CheckpointIndex;
using detail::quote_name;

const CheckpointIndex::Entry& entry_of(const CheckpointIndex& index, const std::string& name) {
  const auto found = index.entries.find(name);
  LOCKSTEP_CHECK(found != index.entries.end(), "[Checkpoint] expected a name of '", index.path, "', got ",
                 quote_name(name));
  return found->second;
}

// Throws FormatError.
void verify_file(const CheckpointIndex& index, const std::string& name, const detail::FileSum& sum) {
  const detail::InputFile file("Checkpoint", detail::join_path(index.path, name));
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  std::vector<char> bytes(std::min(kPiece, file.bytes()));
  std::uint32_t crc32 = 0;
  for (std::uint64_t at = 0; at < file.bytes(); at += kPiece) {
    const std::uint64_t count = std::min(kPiece, file.bytes() - at);
    file.read(at, bytes.data(), count);
    crc32 = detail::crc32(bytes.data(), count, crc32);
  }
  if (file.bytes() != sum.bytes || crc32 != sum.crc32)
    throw FormatError(
        file.path(), 0,
        cat("expected ", sum.bytes, " bytes with CRC-32 ", sum.crc32, ", got ", file.bytes(), " with ", crc32));
}

// The newest below a step that is whole by its marker and sizes.
std::optional<Checkpoint> newest_below(const std::string& folder, std::int64_t step) {
  for (const detail::StepFolder& each : detail::step_folders(folder)) {
    if (each.temporary || each.step >= step) continue;
    try {
      Checkpoint found(each.path);
      if (found.step() == each.step) return found;
      throw FormatError(each.path, 0, cat("expected step ", each.step, ", got one of step ", found.step()));
    } catch (const FormatError& error) {
      log(LogLevel::warning, cat("a checkpoint that is not whole is passed over: ", error.what()));
    }
  }
  return std::nullopt;
}

constexpr std::int64_t kNoStep = std::numeric_limits<std::int64_t>::max();

}  // namespace

Checkpoint::Checkpoint(const std::string& path)
    : index_(std::make_shared<const CheckpointIndex>(detail::read_index(path))),
      parts_(std::make_shared<detail::MappedParts>()) {}

const std::string& Checkpoint::path() const { return index_->path; }
std::int64_t Checkpoint::step() const { return index_->step; }
int Checkpoint::ranks() const { return index_->ranks; }

const std::map<std::string, std::string>& Checkpoint::values(int rank) const {
  LOCKSTEP_CHECK(rank >= 0 && rank < ranks(), "[Checkpoint] expected one of the ", ranks(), " ranks that wrote '",
                 path(), "', got rank ", rank);
  return index_->values[static_cast<std::size_t>(rank)];
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : index_->entries) names.push_back(name);
  return names;
}

bool Checkpoint::has(const std::string& name) const { return index_->entries.count(name) > 0; }
const Shape& Checkpoint::shape(const std::string& name) const { return entry_of(*index_, name).shape; }
DType Checkpoint::dtype(const std::string& name) const { return entry_of(*index_, name).dtype; }

Tensor Checkpoint::load(const std::string& name) const {
  const CheckpointIndex::Entry& entry = entry_of(*index_, name);
  if (entry.is_whole()) return parts_->find(*index_, entry.pieces.front(), name).clone();
  if (!entry.is_elements()) return load(name, entry.dim, 0, entry.shape[entry.dim]);
  const Tensor elements = load_elements(name, 0, entry.size(), entry.format);
  return Tensor::over(elements.storage(), entry.dtype, entry.shape, format_strides(entry.shape, entry.format))
      .contiguous();
}

Tensor Checkpoint::load(const std::string& name, int dim, std::int64_t offset, std::int64_t count) const {
  const CheckpointIndex::Entry& entry = entry_of(*index_, name);
  LOCKSTEP_CHECK(dim >= 0 && dim < entry.shape.rank() && offset >= 0 && offset <= entry.shape[dim] && count >= 0 &&
                     count <= entry.shape[dim] - offset,
                 "[Checkpoint] expected a part of ", entry.shape, " for ", quote_name(name), ", got ", count, " from ",
                 offset, " along dimension ", dim);
  const NoGrad no_grad;
  if (entry.is_whole()) return parts_->find(*index_, entry.pieces.front(), name).narrow(dim, offset, count).clone();
  if (entry.is_elements()) return load(name).narrow(dim, offset, count).clone();
  Shape shape = entry.shape;
  shape[dim] = count;
  Tensor out = empty(shape, {.dtype = entry.dtype});
  for (const CheckpointIndex::Piece& each : entry.pieces) {
    // What the two have in common along the dimension in which it was cut.
    const bool same = entry.dim == dim;
    const std::int64_t begin = std::max(each.offset, same ? offset : 0);
    const std::int64_t end = std::min(each.offset + each.count, same ? offset + count : entry.shape[entry.dim]);
    if (begin >= end || element_count(shape) == 0) continue;
    Tensor from = parts_->find(*index_, each, name).narrow(entry.dim, begin - each.offset, end - begin);
    if (!same) from = from.narrow(dim, offset, count);
    out.narrow(entry.dim, same ? begin - offset : begin, end - begin).copy_(from);
  }
  return out;
}

Tensor Checkpoint::load_elements(const std::string& name, std::int64_t offset, std::int64_t count,
                                 MemoryFormat format) const {
  const CheckpointIndex::Entry& entry = entry_of(*index_, name);
  const std::int64_t all = element_count(entry.shape);
  LOCKSTEP_CHECK(offset >= 0 && offset <= all && count >= 0 && count <= all - offset,
                 "[Checkpoint] expected a run of the elements of ", entry.shape, " for ", quote_name(name), ", got ",
                 count, " from ", offset);
  const NoGrad no_grad;
  if (!entry.is_elements() || entry.format != format) {
    const Tensor whole = entry.is_whole() ? parts_->find(*index_, entry.pieces.front(), name) : load(name);
    const Tensor dense = whole.contiguous(format);
    return Tensor::over(dense.storage(), entry.dtype, {dense.count()}, {1}, dense.storage_offset())
        .narrow(0, offset, count)
        .clone();
  }
  Tensor out = empty({count}, {.dtype = entry.dtype});
  for (const CheckpointIndex::Piece& each : entry.pieces) {
    const std::int64_t begin = std::max(each.offset, offset), end = std::min(each.offset + each.count, offset + count);
    if (begin >= end) continue;
    out.narrow(0, begin - offset, end - begin)
        .copy_(parts_->find(*index_, each, name).narrow(0, begin - each.offset, end - begin));
  }
  return out;
}

std::vector<NamedTensor> Checkpoint::load_all(const std::string& prefix) const {
  std::vector<NamedTensor> all;
  for (const auto& [name, entry] : index_->entries)
    if (name.starts_with(prefix)) all.push_back({name.substr(prefix.size()), load(name)});
  return all;
}

void Checkpoint::verify(int first, int every) const {
  int number = 0;
  for (const auto& [name, sum] : index_->files)
    if (number++ % every == first) verify_file(*index_, name, sum);
}

std::optional<Checkpoint> newest_checkpoint(const std::string& folder) {
  for (std::int64_t below = kNoStep;;) {
    std::optional<Checkpoint> found = newest_below(folder, below);
    if (!found) return found;
    try {
      found->verify();
      return found;
    } catch (const FormatError& error) {
      log(LogLevel::warning, cat("a checkpoint that is not whole is passed over: ", error.what()));
      below = found->step();
    }
  }
}

std::optional<Checkpoint> newest_checkpoint(const std::string& folder, Communicator& communicator) {
  constexpr char kOp[] = "[newest_checkpoint] ", kNone[] = "none";
  for (std::int64_t below = kNoStep;;) {
    std::optional<Checkpoint> found;
    std::string problem;
    try {
      found = newest_below(folder, below);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::vector<std::string> steps =
        detail::meet(communicator, kOp, found ? std::to_string(found->step()) : kNone, problem);
    if (std::any_of(steps.begin(), steps.end(), [&](auto& step) { return step != steps[0]; })) {
      std::string all;
      for (std::size_t rank = 0; rank < steps.size(); ++rank)
        all += cat(rank == 0 ? "" : ", ", steps[rank] == kNone ? "none" : "step " + steps[rank], " on rank ", rank);
      throw Error(cat(kOp, "expected the same newest checkpoint in '", folder, "' on every rank, got ", all,
                      ": is it one folder that all ranks share?"));
    }
    if (!found) return found;
    std::string torn;
    try {
      found->verify(communicator.rank(), communicator.size());
    } catch (const FormatError& error) {
      torn = error.what();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    const std::vector<std::string> verdicts = detail::meet(communicator, kOp, torn, problem);
    const auto bad = std::find_if(verdicts.begin(), verdicts.end(), [](auto& each) { return !each.empty(); });
    if (bad == verdicts.end()) return found;
    if (communicator.rank() == 0) log(LogLevel::warning, cat("a checkpoint that is not whole is passed over: ", *bad));
    below = found->step();
  }
}

}  // namespace lockstep
