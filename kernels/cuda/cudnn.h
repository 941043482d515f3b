// cuDNN, found at run time: one binary runs with and without it.
#pragma once

#include "lockstep/kernels/cuda/cudnn_abi.h"
#include "lockstep/runtime/device.h"

namespace lockstep::cudnn {

// The functions of the library that are used here.
struct Library {
  std::size_t (*version)();
  const char* (*error_string)(Status);
  Status (*create)(Handle*);
  Status (*set_stream)(Handle, NativeStream);
  Status (*descriptor_create)(DescriptorKind, Descriptor*);
  Status (*descriptor_destroy)(Descriptor);
  Status (*set)(Descriptor, Attribute, AttributeType, std::int64_t, const void*);
  Status (*finalize)(Descriptor);
  Status (*get)(Descriptor, Attribute, AttributeType, std::int64_t, std::int64_t*, void*);
  Status (*execute)(Handle, Descriptor, Descriptor);
};

// What the program has linked already, else the library that LOCKSTEP_CUDNN_LIBRARY names, else cuDNN 9 where the
// loader finds it. Null without one, and with LOCKSTEP_CUDNN_LIBRARY=none. Throws NotSupported where a library is named
// that is of no use.
const Library* library();

inline bool unsupported(Status status) { return status >= kNotSupported && status < kNotSupported + 1000; }
// Throws DeviceError "[op] expected success of cudnnXxx, got …" for anything but success.
void check(const Library& library, Status status, Device device, const char* op, const char* call);

}  // namespace lockstep::cudnn
