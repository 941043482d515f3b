#include "lockstep/parallel/parallel_apply.h"

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

void fail_counts(std::size_t replicas, const char* what, std::size_t count) {
  fail<InvalidArgument>("[parallel_apply] expected as many ", what, " as replicas, got ", count, " ", what, " for ",
                        replicas, replicas == 1 ? " replica" : " replicas");
}

void fail_no_device(std::size_t replica) {
  fail<InvalidArgument>(
      "[parallel_apply] expected devices, or a tensor in every input to tell the device by, got "
      "neither for replica ",
      replica);
}

void fail_replica_device(std::size_t replica, Device expected, Device got) {
  fail<InvalidArgument>("[parallel_apply] expected replica ", replica, " on its own device ", expected, ", got ", got);
}

}  // namespace lockstep::detail
