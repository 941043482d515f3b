#include "lockstep/runtime/copy.h"

#include <cstring>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/peer.h"
#include "manual_backend.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

using Bytes = std::vector<unsigned char>;

CopyArgs args_for(Bytes& destination, Device to, const Bytes& source, Device from) {
  return {.destination = destination.data(),
          .destination_device = to,
          .source = source.data(),
          .source_device = from,
          .bytes = source.size()};
}

void fill(Stream& stream, Bytes& bytes, int value) {
  stream.backend().fill_bytes(bytes.data(), value, bytes.size(), stream.handle());
}

}  // namespace

TEST_CASE("host devices copy") {
  const std::vector<Device> devices{Device::cpu(), Device::host(0), Device::host(5)};
  for (const Device from : devices) {
    for (const Device to : devices) {
      Bytes source(1000), destination(1000);
      for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<unsigned char>(i * 7);
      copy_bytes(args_for(destination, to, source, from), current_stream(from), current_stream(to));
      synchronize(current_stream(to));
      CHECK(destination == source);
    }
  }
}

TEST_CASE("pieces of one memory may overlap") {
  Bytes bytes(20'000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i);
  const Device device = Device::host(0);
  Stream& stream = current_stream(device);
  copy_bytes({bytes.data() + 1, device, bytes.data(), device, 19'000}, stream, stream);
  synchronize(stream);
  bool right = true;
  for (std::size_t i = 1; i <= 19'000; ++i) right = right && bytes[i] == static_cast<unsigned char>(i - 1);
  CHECK(right);
}

TEST_CASE("a copy of nothing touches nothing") {
  Stream& stream = current_stream(Device::host(0));
  CHECK_NOTHROW(copy_bytes({nullptr, Device::host(0), nullptr, Device::host(0), 0}, stream, stream));
}

TEST_CASE("the streams must be of the devices") {
  Bytes source(4), destination(4);
  CHECK_THROWS_AS(copy_bytes(args_for(destination, Device::host(1), source, Device::host(0)),
                             current_stream(Device::host(1)), current_stream(Device::host(0))),
                  InvalidArgument);
}

// The four edges: the source is written, the destination's earlier readers are done, and later work on both streams
// comes after the copy. Each order of the streams must give the same bytes.
TEST_CASE("a copy between devices is ordered with the work on both sides") {
  for (unsigned order = 0; order < 40; ++order) {
    Stream from(Device::cuda(0)), to(Device::cuda(1));
    Bytes source(16, 0), destination(16, 9), read_before(16, 0), read_after(16, 0);
    fill(from, source, 1);  // written before the copy
    to.enqueue([&] { read_before = destination; });
    copy_bytes(args_for(destination, Device::cuda(1), source, Device::cuda(0)), from, to);
    fill(from, source, 2);  // overwritten after the copy
    to.enqueue([&] { read_after = destination; });
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(read_before == Bytes(16, 9));
    CHECK(read_after == Bytes(16, 1));
    CHECK(source == Bytes(16, 2));
  }
  manual::backend().reset();
}

TEST_CASE("a copy within one device is ordered with both streams") {
  const Device device = Device::cuda(0);
  for (unsigned order = 0; order < 40; ++order) {
    Stream from(device), to(device);
    Bytes source(16, 0), destination(16, 9), read_before, read_after;
    fill(from, source, 1);
    to.enqueue([&] { read_before = destination; });
    copy_bytes(args_for(destination, device, source, device), from, to);
    fill(from, source, 2);
    to.enqueue([&] { read_after = destination; });
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(read_before == Bytes(16, 9));
    CHECK(read_after == Bytes(16, 1));
    Bytes third(16, 0);
    copy_bytes(args_for(third, device, source, device), to, to);
    CHECK(manual::backend().run_all(order) == 0);
    CHECK(third == Bytes(16, 2));
  }
}

TEST_CASE("a copy between devices leaves the compute streams free") {
  manual::ManualBackend& backend = manual::backend();
  Stream from(Device::cuda(0)), to(Device::cuda(1));
  Bytes source(16, 3), destination(16, 0);
  REQUIRE(peer_copies(Device::cuda(0), Device::cuda(1)));
  backend.reset();
  copy_bytes(args_for(destination, Device::cuda(1), source, Device::cuda(0)), from, to);
  backend.run(from.handle());
  backend.run(to.handle());
  CHECK(destination == Bytes(16, 0));
  backend.run(copy_stream(Device::cuda(1)).handle());  // the destination's
  CHECK(destination == Bytes(16, 3));
  CHECK(backend.host_waits == 0);
  backend.reset();
}

TEST_CASE("a copy into plain memory has finished when the call returns") {
  Stream from(Device::cuda(0));
  Bytes source(16, 0), destination(16, 0);
  fill(from, source, 5);
  copy_bytes(args_for(destination, Device::cpu(), source, Device::cuda(0)), from, current_stream(Device::cpu()));
  CHECK(destination == Bytes(16, 5));
  manual::backend().reset();
}

TEST_CASE("a copy from plain memory does not block") {
  Stream to(Device::cuda(0));
  Bytes source(16, 6), destination(16, 0);
  bool waited = manual::backend().host_waits != 0;
  copy_bytes(args_for(destination, Device::cuda(0), source, Device::cpu()), current_stream(Device::cpu()), to);
  // The caller's stream is of plain memory, where work runs at once: it can only wait by blocking.
  CHECK_FALSE(waited);
  CHECK(manual::backend().run_all() == 0);
  CHECK(destination == Bytes(16, 6));
  manual::backend().reset();
}

// More pieces than there are, twice, so that each is used again.
TEST_CASE("copies from and to pageable memory are ordered with the pinned pieces they go through") {
  manual::ManualBackend& backend = manual::backend();
  backend.all_pageable = true;
  const std::size_t bytes = (std::size_t{6} << 20) + 5;
  for (unsigned order = 0; order < 6; ++order) {
    Stream stream(Device::cuda(0));
    Stream& plain = current_stream(Device::cpu());
    Bytes sent(bytes), there(bytes, 0), back(bytes, 0), received(bytes, 0);
    for (std::size_t i = 0; i < bytes; ++i) sent[i] = static_cast<unsigned char>(i * 7 + (i >> 20) * 37 + order);
    const Bytes expected = sent;
    fill(stream, there, 9);
    copy_bytes(args_for(there, Device::cuda(0), sent, Device::cpu()), plain, stream);
    sent.assign(bytes, 0);  // it has been read
    stream.enqueue([&] { back = there; });
    CHECK(backend.run_all(order) == 0);
    CHECK(back == expected);

    copy_bytes(args_for(received, Device::cpu(), there, Device::cuda(0)), stream, plain);
    CHECK(received == expected);  // nothing else has run the streams
    CHECK(backend.run_all(order) == 0);
    // From the one to the other, with nothing in between.
    copy_bytes(args_for(there, Device::cuda(0), back, Device::cpu()), plain, stream);
    received.assign(bytes, 0);
    copy_bytes(args_for(received, Device::cpu(), there, Device::cuda(0)), stream, plain);
    CHECK(received == expected);
  }
  backend.reset();
}
