// What Catch2, version 2 or 3, calls when cases begin and end. Version 2 takes the runner from the one source that
// defines CATCH_CONFIG_RUNNER before it includes this.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
namespace support {
using Listener = Catch::EventListenerBase;
}
#else
#if !defined(CATCH_CONFIG_RUNNER) && !defined(CATCH_CONFIG_EXTERNAL_INTERFACES)
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#endif
#include <catch2/catch.hpp>
namespace support {
using Listener = Catch::TestEventListenerBase;
}
#endif
