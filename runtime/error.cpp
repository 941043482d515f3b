#include "lockstep/runtime/error.h"

namespace lockstep {
namespace {

std::string describe_device_error(Device device, int code, const std::string& message) {
  return code ? cat(message, " (", device, ", code ", code, ")") : cat(message, " (", device, ")");
}

std::string describe_failures(const std::vector<ReplicaError::Failure>& failures) {
  std::string text = failures.size() == 1 ? std::string("[parallel_apply] a replica failed")
                                          : cat("[parallel_apply] ", failures.size(), " replicas failed");
  const char* separator = ": ";
  for (const ReplicaError::Failure& failure : failures) {
    text += cat(separator, "replica ", failure.replica, " on ", failure.device, ": ", failure.message);
    separator = "; ";
  }
  return text;
}

// Which rank a message is about, unless it begins with that itself.
std::string before_message(int rank, const std::string& message) {
  return rank < 0 || message.starts_with(cat("rank ", rank, ' ')) ? "" : cat("rank ", rank, ": ");
}

}  // namespace

OutOfMemory::OutOfMemory(Device on, std::size_t requested, std::size_t in_use, std::size_t cached, std::size_t limit)
    : Error(cat("[allocate] expected ", bytes_to_string(requested), " on ", on, ", got out of memory (",
                bytes_to_string(in_use), " in use, ", bytes_to_string(cached), " cached",
                limit > 0 ? cat(", limit ", bytes_to_string(limit)) : "", ")")),
      device(on),
      requested_bytes(requested),
      in_use_bytes(in_use),
      cached_bytes(cached),
      limit_bytes(limit) {}

// Messages are made for the error; a copy would not hurt either.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
DeviceError::DeviceError(Device on, int vendor_code, std::string message)
    : Error(describe_device_error(on, vendor_code, message)), device(on), code(vendor_code) {}

ReplicaError::ReplicaError(std::vector<Failure> list) : Error(describe_failures(list)), failures(std::move(list)) {}

// NOLINTNEXTLINE(performance-unnecessary-value-param)
CommError::CommError(int on_rank, std::string of_collective, std::string message)
    : Error(cat("[", of_collective, "] ", before_message(on_rank, message), message)),
      rank(on_rank),
      collective(std::move(of_collective)) {}

FormatError::FormatError(std::string in_file, std::uint64_t at_offset, const std::string& message)
    : Error(cat(in_file, ": at byte ", at_offset, ": ", message)), file(std::move(in_file)), offset(at_offset) {}

namespace detail {

std::string describe(const std::exception_ptr& error) {
  if (!error) return "no exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

}  // namespace detail
}  // namespace lockstep
