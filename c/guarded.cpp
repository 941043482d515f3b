#include "lockstep/c/guarded.h"

#include <new>

#include "lockstep/parallel/serving/serving_error.h"

namespace lockstep::detail {
namespace {

thread_local std::string last_error;

lockstep_status keep(lockstep_status status, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {  // no memory for the sentence: the status has to do
    last_error.clear();
  }
  return status;
}

}  // namespace

lockstep_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return keep(LOCKSTEP_INVALID_ARGUMENT, error.what());
  } catch (const NotSupported& error) {
    return keep(LOCKSTEP_NOT_SUPPORTED, error.what());
  } catch (const OutOfMemory& error) {
    return keep(LOCKSTEP_OUT_OF_MEMORY, error.what());
  } catch (const std::bad_alloc& error) {
    return keep(LOCKSTEP_OUT_OF_MEMORY, error.what());
  } catch (const DeviceError& error) {
    return keep(LOCKSTEP_DEVICE_ERROR, error.what());
  } catch (const TimeoutError& error) {
    return keep(LOCKSTEP_TIMEOUT, error.what());
  } catch (const Cancelled& error) {
    return keep(LOCKSTEP_CANCELLED, error.what());
  } catch (const Refused& error) {
    return keep(LOCKSTEP_REFUSED, error.what());
  } catch (const FormatError& error) {
    return keep(LOCKSTEP_FORMAT_ERROR, error.what());
  } catch (const std::exception& error) {
    return keep(LOCKSTEP_ERROR, error.what());
  } catch (...) {
    return keep(LOCKSTEP_ERROR, "something was thrown that is no std::exception");
  }
}

Device device_of(const char* text) { return text ? Device::parse(text) : Device::cpu(); }

}  // namespace lockstep::detail

extern "C" const char* lockstep_last_error() { return lockstep::detail::last_error.c_str(); }
