// Several modules in one step, each over other ranks: one along the columns of a mesh of 2 x 2, one along its rows, one
// over all. Bodies run in threads and in processes.
#pragma once

#include "parallel/ddp/support.h"

namespace parallel_test {

inline constexpr int kMeshRanks = 4;

// The parameters that this rank ends with, of all three. The communicator has kMeshRanks.
Doubles train_on_mesh(Communicator& world);
// What each rank must end with: a plain loop over the ranks, with a module for each group.
std::vector<Doubles> train_mesh_alone();

}  // namespace parallel_test
