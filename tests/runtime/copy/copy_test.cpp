#include "lockstep/runtime/copy/copy.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/compute_threads.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/set_threads.h"

using namespace lockstep;
using support::device_at;

namespace {

using Bytes = std::vector<unsigned char>;

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};

// Memory of a device, for work on its current stream.
class Memory {
 public:
  Memory(Device device, std::size_t bytes) : device_(device), block_(allocate(current_stream(device), bytes)) {}
  unsigned char* data() const { return static_cast<unsigned char*>(block_->data); }
  void put(const Bytes& bytes) const {
    copy_bytes({data(), device_, bytes.data(), Device::cpu(), bytes.size()}, current_stream(Device::cpu()),
               current_stream(device_));
  }
  Bytes get(std::size_t count) const {
    Bytes bytes(count);
    copy_bytes({bytes.data(), Device::cpu(), data(), device_, count}, current_stream(device_),
               current_stream(Device::cpu()));
    return bytes;
  }

 private:
  Device device_;
  std::unique_ptr<MemoryBlock, Release> block_;
};

}  // namespace

TEST_CASE("host devices copy") {
  support::needs_devices(6);
  const std::vector<Device> devices{Device::cpu(), device_at(0), device_at(5)};
  for (const Device from : devices) {
    for (const Device to : devices) {
      Bytes sent(1000);
      for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 7);
      const Memory source(from, sent.size()), destination(to, sent.size());
      source.put(sent);
      destination.put(Bytes(sent.size(), 3));
      copy_bytes({destination.data(), to, source.data(), from, sent.size()}, current_stream(from), current_stream(to));
      CHECK(destination.get(sent.size()) == sent);
    }
  }
}

TEST_CASE("pieces of one memory may overlap") {
  constexpr std::size_t kBytes = 2'000, kMoved = 1'900, kShift = 10;
  Bytes bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  const Device device = device_at(0);
  const Stream stream = current_stream(device);
  for (const bool upwards : {true, false}) {
    const Memory memory(device, kBytes);
    memory.put(bytes);
    const std::size_t from = upwards ? 0 : kShift, to = upwards ? kShift : 0;
    copy_bytes({memory.data() + to, device, memory.data() + from, device, kMoved}, stream, stream);
    const Bytes got = memory.get(kBytes);
    CHECK(std::equal(got.begin() + to, got.begin() + to + kMoved, bytes.begin() + from));
  }
}

TEST_CASE("large copies arrive whole, whoever helps, also where the memories overlap") {
  support::needs_devices(2);
  const support::Threads set(3);
  constexpr std::size_t kPiece = std::size_t{1} << 18;
  for (const std::size_t bytes : {kPiece - 1, kPiece, kPiece + 1, 5 * kPiece, 3 * kPiece + 77}) {
    for (const std::size_t distance : {std::size_t{0}, std::size_t{4096}, kPiece, bytes}) {  // 0: another device's
      for (const bool upwards : {true, false}) {
        CAPTURE(bytes, distance, upwards);
        const Device from = device_at(0), to = device_at(distance == 0 ? 1 : 0);
        Bytes sent(bytes + distance);
        for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i % 251 + i / kPiece);
        const Memory source(from, sent.size()), elsewhere(to, bytes);
        source.put(sent);
        const std::size_t first = upwards ? 0 : distance, second = distance - first;
        unsigned char* const there = distance == 0 ? elsewhere.data() : source.data() + second;
        const std::uint32_t divided = detail::divided_calls();
        copy_bytes({there, to, source.data() + first, from, bytes}, current_stream(from), current_stream(to));
        const bool apart = distance == 0 || distance >= bytes;
        if (properties(from).synchronous) CHECK((detail::divided_calls() != divided) == (apart && bytes > kPiece));
        const Bytes got = distance == 0 ? elsewhere.get(bytes) : source.get(sent.size());
        const auto begin = got.begin() + static_cast<std::ptrdiff_t>(distance == 0 ? 0 : second);
        CHECK(std::equal(begin, begin + static_cast<std::ptrdiff_t>(bytes),
                         sent.begin() + static_cast<std::ptrdiff_t>(first)));
      }
    }
  }
}

TEST_CASE("a copy of nothing touches nothing") {
  const Stream stream = current_stream(device_at(0));
  CHECK_NOTHROW(copy_bytes({nullptr, device_at(0), nullptr, device_at(0), 0}, stream, stream));
}

TEST_CASE("the streams must be of the devices") {
  support::needs_devices(2);
  const Memory source(device_at(0), 4), destination(device_at(1), 4);
  CHECK_THROWS_AS(copy_bytes({destination.data(), device_at(1), source.data(), device_at(0), 4},
                             current_stream(device_at(1)), current_stream(device_at(0))),
                  InvalidArgument);
}
