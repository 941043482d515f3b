// What nearly every test of the layer includes, compiled once; a test includes what it uses all the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
