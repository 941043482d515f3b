// Marks what the shared library exports; everything else is hidden.
#pragma once

#if defined(LOCKSTEP_SHARED)
#define LOCKSTEP_API __attribute__((visibility("default")))
#else
#define LOCKSTEP_API
#endif
