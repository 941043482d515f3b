// What the code of a kernel says about itself, read from the fat binary that nvcc put into the program. Private to the
// fake.
#pragma once

#include <cstddef>
#include <string_view>

namespace fake_cuda {

struct KernelNeeds {
  std::size_t static_shared_bytes = 0;
  int max_threads = 1024;  // __launch_bounds__
};

// `wrapper` is what __cudaRegisterFatBinary is given. Code that is compressed tells nothing.
KernelNeeds needs_of(const void* wrapper, std::string_view kernel);

}  // namespace fake_cuda
