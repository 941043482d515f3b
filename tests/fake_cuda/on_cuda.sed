# Makes tests of virtual host devices into tests of CUDA devices.
s/DeviceType::host\b/DeviceType::cuda/g
s/\b(lockstep::)?Device::host\(/support::cuda_device(/g
s/\bhost:([0-9a-z])/cuda:\1/g
