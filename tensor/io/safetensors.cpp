#include "lockstep/tensor/io/safetensors.h"

#include <algorithm>
#include <bit>

#include "lockstep/runtime/whole_file.h"
#include "lockstep/tensor/io/file.h"
#include "lockstep/tensor/io/safetensors_header.h"

namespace lockstep {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) try {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& each : tensors) {
    LOCKSTEP_CHECK(each.tensor.defined(), "[save_safetensors] expected a tensor for ", detail::quote_name(each.name),
                   ", got an undefined one");
    ordered.push_back(&each);
  }
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedTensor* a, const NamedTensor* b) {
    const int rank_a = detail::dtype_rank(a->tensor.dtype()), rank_b = detail::dtype_rank(b->tensor.dtype());
    return rank_a != rank_b ? rank_a > rank_b : a->name < b->name;
  });

  std::vector<detail::HeaderEntry> entries;
  std::uint64_t end = 0;
  for (const NamedTensor* each : ordered) {
    detail::HeaderEntry& entry = entries.emplace_back();
    entry.name = each->name;
    entry.dtype = each->tensor.dtype();
    entry.shape = each->tensor.shape();
    entry.begin = end;
    entry.end = end += each->tensor.bytes();
  }
  const std::string header = detail::format_header(entries, metadata);

  detail::WholeFile file(path, detail::WholeFile::Special::refused);
  file.write(header.data(), header.size());
  const NoGrad no_grad;
  for (const NamedTensor* each : ordered) {  // one at a time: no second copy of all of them
    const Tensor tensor = each->tensor.detach().contiguous().to(Device::cpu());
    file.write(tensor.data(), tensor.bytes());
  }
  file.commit_to_disk();
} catch (const detail::FileError& error) {
  detail::fail_system("save_safetensors", error.what, path, error.code);
}

Safetensors load_safetensors(const std::string& path, const LoadSafetensorsOptions& options) {
  const detail::InputFile file("load_safetensors", path);
  if (file.bytes() < detail::kLengthBytes)
    throw FormatError(path, file.bytes(), "expected a header length of 8 bytes, the file is shorter");
  unsigned char length[detail::kLengthBytes];
  file.read(0, length, detail::kLengthBytes);
  std::uint64_t header_bytes = 0;
  for (std::uint64_t i = 0; i < detail::kLengthBytes; ++i) header_bytes |= std::uint64_t{length[i]} << (8 * i);
  if (header_bytes > detail::kMaxHeaderBytes)
    throw FormatError(path, 0,
                      cat("expected a safetensors file, whose first 8 bytes are the length of its header, at most ",
                          detail::kMaxHeaderBytes, " bytes, got ", header_bytes, ": this is another kind of file"));
  if (header_bytes > file.bytes() - detail::kLengthBytes)
    throw FormatError(path, file.bytes(), cat("expected a header of ", header_bytes, " bytes, the file ends in it"));
  std::string text(header_bytes, '\0');
  file.read(detail::kLengthBytes, text.data(), header_bytes);
  detail::Header header = detail::parse_header(path, text, file.bytes());

  Safetensors result;
  Ref<Storage> mapping;
  if (options.map) mapping = file.map();
  for (detail::HeaderEntry& entry : header.entries) {
    const std::uint64_t offset = detail::kLengthBytes + header_bytes + entry.begin, bytes = entry.end - entry.begin;
    // The format promises no alignment; elements that lie across their natural one are copied.
    const bool zero_copy = mapping && offset % size_of(entry.dtype) == 0;
    const Tensor tensor =
        Tensor::over(zero_copy ? Storage::slice(mapping, offset, bytes) : Storage::allocate(Device::cpu(), bytes),
                     entry.dtype, entry.shape, contiguous_strides(entry.shape));
    if (!zero_copy) file.read(offset, tensor.storage()->data(), bytes);
    if (entry.dtype == DType::boolean) detail::check_bools(path, tensor, offset);
    result.tensors.push_back({std::move(entry.name), tensor});
  }
  result.metadata = std::move(header.metadata);
  return result;
}

}  // namespace lockstep
