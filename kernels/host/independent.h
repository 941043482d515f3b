// A hint for loops that should become vector code.
#pragma once

// Tells the compiler that iterations do not depend on each other: an output may be the very input (in place), but never
// a shifted part of it. Without it, in-place calls would fall to the scalar version of the loop.
#if defined(__clang__)
#define LOCKSTEP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT _Pragma("GCC ivdep")
#endif
