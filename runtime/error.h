// The exceptions that Lockstep throws. Messages read "[op] expected X, got Y".
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/runtime/api.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/strings.h"

namespace lockstep {

class LOCKSTEP_API Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// The caller passed something that does not fit; nothing was changed.
class LOCKSTEP_API InvalidArgument : public Error {
 public:
  using Error::Error;
};

// The operation exists but not for this dtype, device or build.
class LOCKSTEP_API NotSupported : public Error {
 public:
  using Error::Error;
};

class LOCKSTEP_API OutOfMemory : public Error {
 public:
  OutOfMemory(Device device, std::size_t requested_bytes, std::size_t in_use_bytes, std::size_t cached_bytes,
              std::size_t limit_bytes = 0);
  Device device;
  std::size_t requested_bytes, in_use_bytes, cached_bytes;
  std::size_t limit_bytes;  // what the device may hold (set_memory_limit, a share of a GPU); 0: no limit
};

// A device failed or does not answer. `code` is the vendor's error code (0 where there is none).
class LOCKSTEP_API DeviceError : public Error {
 public:
  DeviceError(Device device, int code, std::string message);
  Device device;
  int code;
};

// A wait ended at its deadline.
class LOCKSTEP_API TimeoutError : public Error {
 public:
  using Error::Error;
};

// One or more replicas of a parallel call threw. Thrown with the original exception of the lowest failed replica
// nested in it (std::rethrow_if_nested).
class LOCKSTEP_API ReplicaError : public Error {
 public:
  struct Failure {
    int replica;
    Device device;
    std::string message;
  };
  explicit ReplicaError(std::vector<Failure> failures);  // lowest replica first, not empty
  int replica() const { return failures.front().replica; }
  Device device() const { return failures.front().device; }
  std::vector<Failure> failures;
};

// A collective failed: a rank threw, died, disagreed, or was silent beyond the deadline. Rank -1: none in particular.
class LOCKSTEP_API CommError : public Error {
 public:
  CommError(int rank, std::string collective, std::string message);
  int rank;
  std::string collective;
};

// Two operations use the same memory and nothing orders them (host mode strict; see runtime/order/order.h). The
// operation that was about to be enqueued was not.
class LOCKSTEP_API RaceError : public Error {
 public:
  using Error::Error;
};

// A file does not follow its format.
class LOCKSTEP_API FormatError : public Error {
 public:
  FormatError(std::string file, std::uint64_t offset, const std::string& message);
  std::string file;
  std::uint64_t offset;  // of the first byte that does not fit
};

namespace detail {
template <class E, class... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void fail(const Parts&... parts) {
  throw E(cat(parts...));
}
LOCKSTEP_API std::string describe(const std::exception_ptr& error);  // what(), or a word for foreign exceptions
}  // namespace detail

}  // namespace lockstep

// For the user's errors: stays in release builds. The parts after the condition are concatenated.
#define LOCKSTEP_CHECK(condition, ...)                                    \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::lockstep::detail::fail<::lockstep::InvalidArgument>(__VA_ARGS__); \
  } while (false)
