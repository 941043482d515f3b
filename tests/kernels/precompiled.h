// What nearly every test of the layer includes, compiled once; a test includes what it uses all the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/kernels/api.h"
#include "lockstep/runtime/memory/allocator.h"
#include "support/catch.h"
#include "support/views.h"
