// What nearly every test of the layer includes, compiled once; a test includes what it uses all the same.
#pragma once

#include <string>
#include <vector>

#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
