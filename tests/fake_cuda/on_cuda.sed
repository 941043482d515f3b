# Makes tests of virtual host devices into tests of CUDA devices.
s/Device(Type)?::host\b/Device\1::cuda/g
s/\bhost:([0-9a-z])/cuda:\1/g
