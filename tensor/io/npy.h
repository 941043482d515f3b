// NumPy's file format for one array: versions 1.0, 2.0 and 3.0 of
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// The array in the file: on cpu, contiguous, with a copy of the data (arrays in Fortran order are transposed). Blocks.
// Throws FormatError (file, byte) for anything that is not a whole npy file and nothing else after it, and for bools
// that are neither 0 nor 1; NotSupported for dtypes that Lockstep does not have, big-endian data, arrays of objects
// (they are Python programs), structured arrays and more than 8 dimensions; Error when the system cannot read. Takes
// time and memory proportional to the file's size.
LOCKSTEP_API Tensor load_npy(const std::string& path);

}  // namespace lockstep
