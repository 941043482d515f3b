// Pieces of copies along a chain; and copies in the order of one stream alone, straight and through host memory.
#include "lockstep/runtime/copy/chain.h"

#include <cstring>
#include <vector>

#include "lockstep/runtime/copy/peer.h"
#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using lockstep::detail::chain_piece_bytes;
using lockstep::detail::copy_on;
using lockstep::detail::host_faults;

TEST_CASE("chain: pieces are whole units, at most 32 of them, and short enough to fill the chain") {
  CHECK(chain_piece_bytes(1, 1) == 256);
  CHECK(chain_piece_bytes(256 << 20, 1) == 256 << 20);  // nothing to fill
  for (const std::size_t bytes : {1u, 255u, 256u, 100'000u, 1u << 20, (1u << 20) + 4, 32u << 20, 1'000'000'000u}) {
    for (std::size_t hops = 1; hops <= 64; ++hops) {
      CAPTURE(bytes, hops);
      const std::size_t piece = chain_piece_bytes(bytes, hops), pieces = (bytes + piece - 1) / piece;
      CHECK(piece % 256 == 0);
      CHECK(pieces <= 32);
      CHECK((pieces - 1) * piece < bytes);
      // Not longer than one copy after the other, on any link.
      CHECK((pieces + hops - 1) * piece <= hops * ((bytes + 255) / 256 * 256) + 256 * hops);
    }
  }
  CHECK(chain_piece_bytes(1'000'000'000, 7, 5) == detail::piece_of(1'000'000'000, 5));
  CHECK(detail::piece_of(1025, 4) == 512);
  CHECK(detail::piece_of(1024, 4) == 256);
  // The bound of the engine: eight devices, 1 GB: the last one has it after at most 1.2 times what one copy takes.
  const std::size_t gigabyte = 1'000'000'000, piece = chain_piece_bytes(gigabyte, 7);
  CHECK((gigabyte + piece - 1) / piece + 6 <= 1.2 * static_cast<double>(gigabyte) / static_cast<double>(piece) + 1);
}

TEST_CASE("chain: a copy in the order of one stream, where devices reach each other and where they do not") {
  const Device from = Device::host(0), to = Device::host(1);
  const std::size_t bytes = (5u << 20) + 12;  // several pieces of the detour
  for (const bool denied : {false, true}) {
    CAPTURE(denied);
    if (denied && default_stream(Device::host(0)).synchronous()) return;  // there is one memory, and nothing to reach
    detail::forget_peers();
    if (denied) host_faults().deny_peer(1, 0);
    const Stream writer = default_stream(from), reader = default_stream(to), copies = copy_stream(to);
    MemoryBlock* source = allocate(writer, bytes);
    MemoryBlock* target = allocate(reader, bytes);
    for (int round = 1; round <= 3; ++round) {
      writer.backend().fill_bytes(source->data, round, bytes, writer.handle());
      copies.wait_for(writer);
      copies.wait_for(reader);
      copy_on(copies, {target->data, to, source->data, from, bytes});
      reader.wait_for(copies);
      writer.wait_for(copies);
      writer.backend().fill_bytes(source->data, 99, bytes, writer.handle());  // comes after the copy
      synchronize(reader);
      const auto* found = static_cast<const unsigned char*>(target->data);
      CHECK(static_cast<int>(found[0]) == round);
      CHECK(std::memcmp(found, found + 1, bytes - 1) == 0);
    }
    release(source);
    release(target);
    synchronize(from);
    synchronize(to);
    host_faults().clear();
    detail::forget_peers();
  }
}
