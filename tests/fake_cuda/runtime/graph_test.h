// What the tests of captures and graphs share.
#pragma once

#include <memory>
#include <string>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/copy/copy.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"

namespace graph_test {

using namespace lockstep;

inline const Device kDevice = Device::cuda(2);

struct Release {
  void operator()(MemoryBlock* block) const { release(block); }
};
using Owned = std::unique_ptr<MemoryBlock, Release>;

inline void fill(const MemoryBlock& block, int value, const Stream& stream) {
  stream.backend().fill_bytes(block.data, value, block.bytes, stream.handle());
}

// The first byte, once `stream` is through.
inline int first_byte(const MemoryBlock& block, const Stream& stream) {
  unsigned char byte = 0;
  copy_bytes({&byte, Device::cpu(), block.data, block.device, 1}, stream, default_stream(Device::cpu()));
  return byte;
}

inline std::string broken_rules() {
  std::string text;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) text += to_string(failure) + '\n';
  return text;
}

// Stream and thread are as they were.
inline void check_usable(const Stream& stream) {
  const Owned block(allocate(stream, 1000));
  fill(*block, 7, stream);
  CHECK(first_byte(*block, stream) == 7);
  Graph graph = capture(stream, [&] { fill(*block, 8, stream); });
  CHECK(first_byte(*block, stream) == 7);
  graph.replay(stream);
  CHECK(first_byte(*block, stream) == 8);
  CHECK(broken_rules() == "");
}

}  // namespace graph_test
