#include "lockstep/parallel/openmmlab/mm_data_parallel.h"

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

void check_one_device(const char* step, const std::vector<Device>& devices) {
  LOCKSTEP_CHECK(devices.size() <= 1, "[", step, "] expected one device, got ", devices.size(), " (", devices,
                 "): MMDataParallel trains on one device; to train on several, use MMDistributedDataParallel");
}

}  // namespace lockstep::detail
