#include "lockstep/runtime/error.h"

#include <cstdlib>
#include <limits>

#include "runtime/text.h"
#include "support/catch.h"

using namespace lockstep;

TEST_CASE("errors say what happened and carry the figures") {
  const OutOfMemory memory(Device::host(2), std::size_t{3} << 30, 1536, 512);
  CHECK(std::string(memory.what()) ==
        "[allocate] expected 3 GiB on host:2, got out of memory (1.5 KiB in use, 512 bytes cached)");
  CHECK(memory.device == Device::host(2));
  CHECK(memory.requested_bytes == std::size_t{3} << 30);
  CHECK(memory.in_use_bytes == 1536);
  CHECK(memory.cached_bytes == 512);

  const DeviceError device(Device::cuda(1), 700, "[matmul] expected success, got an illegal address");
  CHECK(std::string(device.what()) == "[matmul] expected success, got an illegal address (cuda:1, code 700)");
  CHECK(device.code == 700);
  CHECK(std::string(DeviceError(Device::host(1), 0, "gone").what()) == "gone (host:1)");

  CHECK(std::string(CommError(1, "all_reduce", "rank 1 died before it came to it").what()) ==
        "[all_reduce] rank 1 died before it came to it");
  CHECK(std::string(CommError(1, "all_reduce", "rank 12 died").what()) == "[all_reduce] rank 1: rank 12 died");
  const CommError comm(3, "all_reduce", "expected 8 elements as on rank 0, got 7");
  CHECK(std::string(comm.what()) == "[all_reduce] rank 3: expected 8 elements as on rank 0, got 7");
  CHECK(comm.rank == 3);
  CHECK(comm.collective == "all_reduce");

  const FormatError format("net.safetensors", 8, "expected '{', got 'x'");
  CHECK(std::string(format.what()) == "net.safetensors: at byte 8: expected '{', got 'x'");
  CHECK(format.offset == 8);
  CHECK(format.file == "net.safetensors");
}

TEST_CASE("a replica error lists every failed replica, the lowest first") {
  const ReplicaError one({{.replica = 2, .device = Device::host(5), .message = "bad"}});
  CHECK(std::string(one.what()) == "[parallel_apply] a replica failed: replica 2 on host:5: bad");
  const ReplicaError two({{.replica = 0, .device = Device::host(3), .message = "first"},
                          {.replica = 2, .device = Device::host(1), .message = "second"}});
  CHECK(std::string(two.what()) ==
        "[parallel_apply] 2 replicas failed: replica 0 on host:3: first; replica 2 on host:1: second");
  CHECK(two.replica() == 0);
  CHECK(two.device() == Device::host(3));
  CHECK(two.failures.size() == 2);
}

TEST_CASE("every error is an Error and a std::exception") {
  CHECK_THROWS_AS(throw InvalidArgument("x"), Error);
  CHECK_THROWS_AS(throw NotSupported("x"), Error);
  CHECK_THROWS_AS(throw TimeoutError("x"), Error);
  CHECK_THROWS_AS(throw OutOfMemory(Device::cpu(), 1, 2, 3), Error);
  CHECK_THROWS_AS(throw CommError(0, "x", "y"), std::exception);
}

TEST_CASE("LOCKSTEP_CHECK throws InvalidArgument with its parts joined") {
  const int rows = 3;
  CHECK_NOTHROW([&] { LOCKSTEP_CHECK(rows == 3, "[f] never"); }());
  CHECK(message_of<InvalidArgument>([&] { LOCKSTEP_CHECK(rows == 4, "[f] expected ", 4, " rows, got ", rows); }) ==
        "[f] expected 4 rows, got 3");
}

TEST_CASE("captured exceptions can be described") {
  CHECK(detail::describe(std::make_exception_ptr(InvalidArgument("text"))) == "text");
  CHECK(detail::describe(std::make_exception_ptr(std::runtime_error("other"))) == "other");
  CHECK(detail::describe(std::make_exception_ptr(3)) == "an exception that is not a std::exception");
  CHECK(detail::describe(nullptr) == "no exception");
}

TEST_CASE("messages hold numbers, devices, characters and booleans") {
  CHECK(cat(1, ' ', -2L, ' ', std::uint8_t{200}, ' ', true, ' ', Device::host(1), ' ', std::string("s")) ==
        "1 -2 200 true host:1 s");
  CHECK(cat(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  CHECK(cat(0.1) == "0.1");
  CHECK(cat(0.1f) == "0.1");
  CHECK(number_to_string(3e-5) == "3e-05");
  CHECK(number_to_string(1.0 / 3) == "0.3333333333333333");
  CHECK(number_to_string(-0.0) == "-0");
  CHECK(number_to_string(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(std::strtod(number_to_string(std::numeric_limits<double>::denorm_min()).c_str(), nullptr) ==
        std::numeric_limits<double>::denorm_min());
}

TEST_CASE("byte counts are readable") {
  CHECK(bytes_to_string(0) == "0 bytes");
  CHECK(bytes_to_string(1) == "1 byte");
  CHECK(bytes_to_string(1023) == "1023 bytes");
  CHECK(bytes_to_string(1024) == "1 KiB");
  CHECK(bytes_to_string(1536) == "1.5 KiB");
  CHECK(bytes_to_string(10 << 20) == "10 MiB");
  CHECK(bytes_to_string((std::uint64_t{5} << 30) / 4) == "1.25 GiB");
  CHECK(bytes_to_string(~std::uint64_t{0}) == "16 EiB");
}
