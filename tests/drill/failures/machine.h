// The devices and communicators of a rank: virtual host devices, or CUDA devices on the fake runtime.
#pragma once

#include <memory>
#include <string>

#include "cell.h"
#include "lockstep/parallel/comm/communicator.h"
#include "lockstep/parallel/comm/store/store.h"

namespace failures {

using namespace lockstep;

// Why the cells over NCCL cannot occur in this build; "" where they can.
std::string why_no_fake_nccl();

// Before anything uses a device of this process.
void set_up_devices(Layout layout);
Device device_of(const Cell& cell, int rank);

// `group` tells groups of one store apart.
std::unique_ptr<Communicator> make_ranks(Layout layout, const std::shared_ptr<Store>& store, const std::string& group,
                                         int rank, int size, Device device, Milliseconds timeout);

// What the fake has to say at the end of the process; `expected` is a rule that the cell breaks on purpose, or "".
std::string broken_rules(Layout layout, const std::string& expected);

}  // namespace failures
