#include "lockstep/runtime/memory/memory_resource.h"

#include <charconv>
#include <cstdint>
#include <utility>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory/alignment.h"
#include "lockstep/runtime/memory/allocator_state.h"
#include "lockstep/runtime/size_classes.h"
#include "lockstep/runtime/stream/growth_lock.h"

namespace lockstep {
namespace detail {
namespace {

static_assert(kGranuleBytes % kMemoryAlignment == 0, "blocks begin at multiples of granules");

thread_local bool in_resource = false;

// While a resource is called.
class ResourceCall {
 public:
  ResourceCall() { in_resource = true; }
  ResourceCall(const ResourceCall&) = delete;
  ResourceCall& operator=(const ResourceCall&) = delete;
  ~ResourceCall() { in_resource = false; }

 private:
  const GrowthLock alone_;
};

std::string hexadecimal(const void* memory) {
  char text[2 * sizeof memory];
  const auto end = std::to_chars(text, text + sizeof text, reinterpret_cast<std::uintptr_t>(memory), 16).ptr;
  return cat("0x", std::string_view(text, static_cast<std::size_t>(end - text)));
}

// Whatever it does, the library goes on.
void call_free(const MemoryResource& resource, Device device, void* memory, std::size_t bytes) noexcept try {
  resource.free(device, memory, bytes);
} catch (...) {
}

}  // namespace

void refuse_in_resource(const char* operation, Device device) {
  LOCKSTEP_CHECK(!in_resource, "[", operation, "] expected no call for memory of ", device,
                 " from inside a memory resource, got one");
}

void* DeviceAllocator::take_raw(const Segment& segment) {
  if (!segment.resource) return backend_.allocate(device_.index(), segment.asked_bytes);
  void* memory = nullptr;
  {
    const ResourceCall call;
    memory = segment.resource->allocate(device_, segment.asked_bytes);
    if (reinterpret_cast<std::uintptr_t>(memory) % kMemoryAlignment != 0) {
      call_free(*segment.resource, device_, memory, segment.asked_bytes);
      throw InvalidArgument(cat("[allocate] expected memory at a multiple of ", kMemoryAlignment,
                                " from the memory resource of ", device_, ", got ", segment.asked_bytes, " bytes at ",
                                hexadecimal(memory), " (they have gone back)"));
    }
  }
  if (memory && checked_) {
    try {
      OrderChecker::active()->add_memory(memory, segment.asked_bytes, device_, false);
    } catch (...) {
      give_raw(segment, memory);
      throw;
    }
  }
  return memory;
}

void DeviceAllocator::give_raw(const Segment& segment, void* memory) noexcept {
  if (!segment.resource) return backend_.free(device_.index(), memory);
  if (checked_) OrderChecker::active()->remove_memory(memory);
  const ResourceCall call;
  call_free(*segment.resource, device_, memory, segment.asked_bytes);
}

void DeviceAllocator::set_resource(std::shared_ptr<const MemoryResource> resource) {
  const Lock lock(mutex_);
  resource_.swap(resource);  // the one before may go with the argument, after the lock
  full_ = false;
}

}  // namespace detail

void set_memory_resource(Device device, MemoryResource resource) {
  LOCKSTEP_CHECK(static_cast<bool>(resource.allocate) == static_cast<bool>(resource.free),
                 "[set_memory_resource] expected both functions or none for ", device, ", got ",
                 resource.allocate ? "allocate without free" : "free without allocate");
  std::shared_ptr<const MemoryResource> shared;
  if (resource.allocate) shared = std::make_shared<const MemoryResource>(std::move(resource));
  detail::DeviceAllocator::of(device).set_resource(std::move(shared));
}

}  // namespace lockstep
