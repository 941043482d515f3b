// The devices that tests name. Which kind they are the program's setup says (setup.cpp and its like, device_type): the
// same compiled cases run on virtual host devices, on the fake's CUDA devices and on real GPUs. The tests know of 8, of
// which number 6 has half the memory of the others; a machine with GPUs may have fewer, and equal ones. There, who
// names a device that is not there ends the case with a sentence instead of a verdict. The thread of the case must do
// so, outside of assertions and before anything is left behind: a case begins with needs_devices, unless the first
// device that it names is the last one.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "lockstep/runtime/device.h"

namespace support {

// DeviceType::host or DeviceType::cuda; every program defines it, beside what it configures.
lockstep::DeviceType device_type();

lockstep::Device device_at(int index);
std::vector<lockstep::Device> devices_at(std::initializer_list<int> indices);
std::vector<lockstep::Device> first_devices(int count);

// "host:1" or "cuda:1", for messages. The device need not be there.
std::string device_name(int index);

// How many devices of that kind there are.
int device_count();

// Ends the case without a verdict, unless there are as many devices.
void needs_devices(int count);

// The same, unless device 6 has less memory and device 7 fewer multiprocessors than the others.
void needs_unequal_devices();

// Ends the case without a verdict.
[[noreturn]] void skip(const std::string& why);

// The lists over which everything that works on several devices is tested: 1, 2, 3, 5 and 8 devices; shuffled ones,
// which have another home than the first device; unequal memories. Without those that name devices which are not there.
const std::vector<std::vector<lockstep::Device>>& device_sets();

}  // namespace support
