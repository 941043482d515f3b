// Tables with a value per device. Private to the library.
#pragma once

#include <atomic>
#include <cstddef>

#include "lockstep/runtime/device.h"

namespace lockstep::detail {

// As many values as there are devices: made at the first use, which settles the set of devices, and kept for ever.
// Reading takes no lock. A static one needs no construction.
template <class T>
class PerDevice {
 public:
  // Throws InvalidArgument for an absent device.
  T& operator[](Device device) {
    const int at = ordinal(device);
    T* values = values_.load(std::memory_order_acquire);
    return (values ? values : make())[at];
  }
  // What was made so far: all values or none.
  T* begin() const { return values_.load(std::memory_order_acquire); }
  T* end() const {
    T* const values = begin();
    return values ? values + all_devices().size() : nullptr;
  }

 private:
  [[gnu::noinline, gnu::cold]] T* make() {
    T* const made = new T[all_devices().size()]();
    T* first = nullptr;
    if (values_.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return made;
    delete[] made;
    return first;
  }

  std::atomic<T*> values_{nullptr};
};

}  // namespace lockstep::detail
