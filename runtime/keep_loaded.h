// A plug-in that contains the library may be closed while its threads sleep, or while a device has functions of it to
// call. Private to the library.
#pragma once

namespace lockstep::detail {

// The code of the library stays in memory until the process ends, whoever calls dlclose. Called before the first thing
// that outlives its caller: a thread that is not joined, a device that calls back. Does nothing in a program that links
// the library itself.
void keep_loaded() noexcept;

}  // namespace lockstep::detail
