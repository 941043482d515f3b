#include "fake_cuda/fatbin.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace fake_cuda {
namespace {

constexpr std::uint32_t kFatbinMagic = 0xBA55ED50;
constexpr std::uint16_t kElfCode = 2;
constexpr std::size_t kReservedShared = 1024;
constexpr std::uint8_t kMaxThreads = 0x05, kWithSize = 0x04;  // of an attribute in .nv.info: EIATTR_MAX_THREADS

struct Wrapper {
  int magic, version;
  const std::byte* data;
};
struct FatbinHeader {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;  // of what follows
};
struct EntryHeader {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
};

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

int max_threads(const std::byte* info, std::size_t bytes) {
  for (std::size_t at = 0; at + 4 <= bytes;) {
    const auto format = static_cast<std::uint8_t>(info[at]), attribute = static_cast<std::uint8_t>(info[at + 1]);
    const std::size_t size = format == kWithSize ? read<std::uint16_t>(info + at + 2) : 0;
    if (format == kWithSize && attribute == kMaxThreads && size >= 12 && at + 16 <= bytes) {
      const std::uint64_t threads = std::uint64_t{read<std::uint32_t>(info + at + 4)} *
                                    read<std::uint32_t>(info + at + 8) * read<std::uint32_t>(info + at + 12);
      return static_cast<int>(std::min<std::uint64_t>(threads, 1024));
    }
    at += 4 + size;
  }
  return 1024;
}

KernelNeeds needs_in_elf(const std::byte* elf, std::string_view kernel) {
  KernelNeeds needs;
  const auto header = read<Elf64_Ehdr>(elf);
  const auto section = [&](unsigned i) { return read<Elf64_Shdr>(elf + header.e_shoff + i * sizeof(Elf64_Shdr)); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  const std::string shared = ".nv.shared." + std::string(kernel), info = ".nv.info." + std::string(kernel);
  bool reserves = false;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr each = section(i);
    const std::string_view name = reinterpret_cast<const char*>(elf + names.sh_offset + each.sh_name);
    if (name == shared)
      needs.static_shared_bytes = each.sh_size;
    else if (name == ".nv.shared.reserved.0")
      reserves = true;
    else if (name == info)
      needs.max_threads = max_threads(elf + each.sh_offset, each.sh_size);
  }
  // Since sm_80 a part that belongs to the system comes first; it does not count against what a block may have.
  if (reserves) needs.static_shared_bytes -= std::min(needs.static_shared_bytes, kReservedShared);
  return needs;
}

}  // namespace

KernelNeeds needs_of(const void* wrapper, std::string_view kernel) {
  const std::byte* data = static_cast<const Wrapper*>(wrapper)->data;
  const auto header = read<FatbinHeader>(data);
  if (header.magic != kFatbinMagic) return {};
  const std::byte* at = data + header.header_bytes;
  const std::byte* const end = at + header.bytes;
  while (at + sizeof(EntryHeader) <= end) {
    const auto entry = read<EntryHeader>(at);
    const std::byte* code = at + entry.header_bytes;
    if (entry.kind == kElfCode && std::memcmp(code, ELFMAG, SELFMAG) == 0) return needs_in_elf(code, kernel);
    at = code + entry.bytes;
  }
  return {};
}

}  // namespace fake_cuda
