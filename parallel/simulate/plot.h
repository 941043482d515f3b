// Scaling as a picture.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/simulate/sweep.h"

namespace lockstep::simulate {

// A PNG file: how many times as much work as the first row's the devices do, over their number, both in powers of two,
// beside what all of them would do. Throws NotSupported in a build without libpng, Error where the file cannot be
// written.
void plot_scaling(const std::vector<SweepRow>& rows, const std::string& title, const std::string& path);

}  // namespace lockstep::simulate
