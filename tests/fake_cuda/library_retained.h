// What the library keeps until the process ends, for programs on the fake that check what is left alive.
#pragma once

#include "fake_cuda/fake_cuda.h"

namespace fake_cuda {

// Lets the library give back its caches; returns what it keeps on purpose after that (docs/fake-cuda.md has the list).
Alive library_retained();

}  // namespace fake_cuda
