#include "lockstep/parallel/checkpoint/index.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/io/file.h"
#include "lockstep/tensor/io/safetensors_header.h"

namespace lockstep::detail {
namespace {

using Json = nlohmann::ordered_json;
constexpr char kFormat[] = "lockstep-checkpoint", kStep[] = "step-", kTemporary[] = ".tmp-";
constexpr char kContiguous[] = "contiguous", kChannelsLast[] = "channels_last";
constexpr int kVersion = 1, kMostRanks = 1 << 20;
constexpr std::uint64_t kMostIndexBytes = std::uint64_t{1} << 30;

[[noreturn]] void reject(const std::string& file, const std::string& why) { throw FormatError(file, 0, why); }

// A file that is missing is not whole; one that cannot be read is an error.
std::string read_text(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown) && !unknown) reject(path, "expected a file, there is none");
  const InputFile file("Checkpoint", path);
  if (file.bytes() > kMostIndexBytes)
    reject(path, cat("expected at most ", kMostIndexBytes, " bytes, got ", file.bytes()));
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

// What `read` makes of a file's JSON.
template <class Read>
void with_json(const std::string& path, Read&& read) {
  const std::string text = read_text(path);
  try {
    read(Json::parse(text));
  } catch (const Json::exception& error) {
    reject(path, cat("expected what a CheckpointWriter writes, got: ", error.what()));
  }
}

DType dtype_of_name(const std::string& file, const std::string& name) {
  for (const FileDType& each : kFileDTypes)
    if (each.name == name && each.dtype) return *each.dtype;
  reject(file, cat("expected a dtype, got ", quote_name(name)));
}

const char* name_of_dtype(DType dtype) { return kFileDTypes[dtype_rank(dtype)].name; }

std::string along(const CheckpointIndex::Entry& entry) {
  if (entry.is_elements()) return cat(" of the elements of ", to_string(entry.shape));
  return cat(" along dimension ", entry.dim, " of ", to_string(entry.shape));
}

// Whether the pieces are the whole, each slice once.
void check_pieces(const std::string& path, const std::string& name, CheckpointIndex::Entry& entry) {
  if (entry.is_whole()) return;
  std::sort(entry.pieces.begin(), entry.pieces.end(), [](auto& a, auto& b) { return a.offset < b.offset; });
  std::int64_t end = 0;
  for (const CheckpointIndex::Piece& each : entry.pieces) {
    if (each.offset != end)
      reject(path, cat(quote_name(name), ": expected a part from ", end, along(entry), ", got one from ", each.offset,
                       " of rank ", each.rank));
    if (each.count < 0 || each.count > entry.size() - end)
      reject(path, cat(quote_name(name), ": expected a part of at most ", entry.size() - end, along(entry), " from ",
                       end, ", got one of ", each.count));
    end += each.count;
  }
  if (end != entry.size())
    reject(path,
           cat(quote_name(name), ": expected parts up to ", entry.size(), along(entry), ", got them up to ", end));
}

}  // namespace

std::string step_name(std::int64_t step) {
  char text[32];
  std::snprintf(text, sizeof text, "%s%08lld", kStep, static_cast<long long>(step));
  return text;
}

std::string part_file(int rank, const char* kind) {
  char text[48];
  std::snprintf(text, sizeof text, "rank-%05d.%s", rank, kind);
  return text;
}

std::string join_path(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

std::vector<StepFolder> step_folders(const std::string& folder) {
  std::vector<StepFolder> found;
  std::error_code error;
  std::filesystem::directory_iterator each(folder, error), end;
  if (error == std::errc::no_such_file_or_directory) return found;
  for (; !error && each != end; each.increment(error)) {
    const std::string name = each->path().filename().string();
    if (!name.starts_with(kStep)) continue;
    StepFolder step;
    const char *const digits = name.data() + sizeof kStep - 1, *const stop = name.data() + name.size();
    const auto [rest, failed] = std::from_chars(digits, stop, step.step);
    step.temporary = std::string_view(rest, stop).starts_with(kTemporary);
    if (failed != std::errc() || step.step < 0 || rest - digits < 8 || !(step.temporary || rest == stop)) continue;
    step.path = each->path().string();
    found.push_back(std::move(step));
  }
  if (error) fail_system("newest_checkpoint", "read the folder", folder, error.value());
  std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.step > b.step; });
  return found;
}

std::string part_text(const std::map<std::string, std::string>& values, const std::vector<Snapshot::Piece>& pieces) {
  Json tensors = Json::array();
  for (const Snapshot::Piece& each : pieces) {
    const Shape& whole = each.shard ? each.shard->shape : each.shape;
    Json entry = {{"name", each.name}, {"dtype", name_of_dtype(each.dtype)}, {"shape", Json::array()}};
    for (const std::int64_t size : whole) entry["shape"].push_back(size);
    if (each.shard) {
      const bool elements = each.shard->dim == TensorShard::kElements;
      if (elements)
        entry["elements"] = each.shard->format == MemoryFormat::channels_last ? kChannelsLast : kContiguous;
      else
        entry["dim"] = each.shard->dim;
      entry["offset"] = each.shard->offset;
      entry["count"] = each.shape[elements ? 0 : each.shard->dim];
    }
    tensors.push_back(std::move(entry));
  }
  return Json{{"values", values}, {"tensors", std::move(tensors)}}.dump(1) + '\n';
}

std::string marker_text(std::int64_t step, int ranks, const FileSums& files) {
  Json all = Json::object();
  for (const auto& [name, sum] : files) all[name] = {{"bytes", sum.bytes}, {"crc32", sum.crc32}};
  return Json{{"format", kFormat}, {"version", kVersion}, {"step", step}, {"ranks", ranks}, {"files", std::move(all)}}
             .dump(1) +
         '\n';
}

void read_parts(CheckpointIndex& index) {
  index.values.resize(static_cast<std::size_t>(index.ranks));
  for (int rank = 0; rank < index.ranks; ++rank) {
    const std::string file = join_path(index.path, part_file(rank, "json"));
    with_json(file, [&](const Json& part) {
      part.at("values").get_to(index.values[static_cast<std::size_t>(rank)]);
      for (const Json& each : part.at("tensors")) {
        const auto name = each.at("name").get<std::string>();
        CheckpointIndex::Entry entry;
        entry.dtype = dtype_of_name(file, each.at("dtype").get<std::string>());
        const Json& shape = each.at("shape");
        std::int64_t elements = 1;
        bool valid = shape.size() <= static_cast<std::size_t>(kMaxRank);
        for (std::size_t i = 0; valid && i < shape.size(); ++i) {
          const auto size = shape[i].get<std::int64_t>();
          valid = size >= 0 && !__builtin_mul_overflow(elements, size, &elements);
          entry.shape.push_back(size);
        }
        if (!valid) reject(file, cat(quote_name(name), ": expected a shape of a tensor, got ", shape.dump()));
        if (each.contains("elements")) {
          entry.dim = TensorShard::kElements;
          if (each.at("elements") == kChannelsLast) entry.format = MemoryFormat::channels_last;
        } else if (each.contains("dim")) {
          entry.dim = each.at("dim").get<int>();
          if (entry.dim < 0 || entry.dim >= entry.shape.rank())
            reject(file, cat(quote_name(name), ": expected a dimension it has"));
        }
        CheckpointIndex::Piece piece{rank, 0, 1};
        if (!entry.is_whole()) {
          piece.offset = each.at("offset").get<std::int64_t>();
          piece.count = each.at("count").get<std::int64_t>();
        }
        const auto [found, fresh] = index.entries.try_emplace(name, entry);
        CheckpointIndex::Entry& known = found->second;
        if (!fresh && (known.is_whole() || known.dim != entry.dim || known.dtype != entry.dtype ||
                       known.format != entry.format || !(known.shape == entry.shape)))
          reject(file, cat(quote_name(name), ": expected a part", along(known), " as on rank ",
                           known.pieces.front().rank, ", got one", along(entry)));
        known.pieces.push_back(piece);
      }
    });
  }
  for (auto& [name, entry] : index.entries) check_pieces(index.path, name, entry);
}

CheckpointIndex read_index(const std::string& path) {
  CheckpointIndex index;
  index.path = path;
  const std::string marker = join_path(path, kMarker);
  with_json(marker, [&](const Json& text) {
    if (text.at("format") != kFormat) reject(marker, "expected the marker of a checkpoint");
    if (text.at("version") != kVersion)
      throw NotSupported(
          cat("[Checkpoint] expected version ", kVersion, " in '", marker, "', got ", text.at("version").dump()));
    text.at("step").get_to(index.step);
    text.at("ranks").get_to(index.ranks);
    if (index.ranks < 1 || index.ranks > kMostRanks) reject(marker, cat("expected ranks, got ", index.ranks));
    for (const auto& [name, sum] : text.at("files").items()) {
      if (name.find('/') != std::string::npos) reject(marker, "expected files of its own folder");
      index.files[name] = {sum.at("bytes").get<std::uint64_t>(), sum.at("crc32").get<std::uint32_t>()};
    }
  });
  for (const auto& [name, sum] : index.files) {
    const std::string file = join_path(path, name);
    std::error_code error;
    const std::uint64_t bytes = std::filesystem::file_size(file, error);
    if (error == std::errc::no_such_file_or_directory) reject(file, "expected a file, there is none");
    if (error) fail_system("Checkpoint", "read", file, error.value());
    if (bytes != sum.bytes) reject(file, cat("expected ", sum.bytes, " bytes, got ", bytes));
  }
  read_parts(index);
  return index;
}

std::optional<CheckpointIndex> index_if_whole(const std::string& path) try {
  return read_index(path);
} catch (const FormatError&) {
  return std::nullopt;
}

void remove_checkpoint(FileLayer& files, const std::string& path) {
  files.remove(join_path(path, kMarker));
  files.sync_folder(path);
  std::vector<std::string> rest;
  for (const auto& each : std::filesystem::directory_iterator(path)) rest.push_back(each.path().string());
  for (const std::string& each : rest) files.remove(each);
  files.remove(path);
}

}  // namespace lockstep::detail
