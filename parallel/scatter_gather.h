// Dividing a batch among devices and putting the results together.
#pragma once

#include "lockstep/parallel/gather.h"
#include "lockstep/parallel/scatter.h"
