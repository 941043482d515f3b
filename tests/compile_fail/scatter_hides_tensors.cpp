// tensors in here would be passed over: a struct must list its fields
#include "lockstep/parallel/scatter.h"
#include "lockstep/tensor/ops/factory.h"

using namespace lockstep;

struct Sample {
  Tensor image;
  int label = 0;
};

int main() { scatter(Sample{zeros({4})}, {Device::host(0)}); }
