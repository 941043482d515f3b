#include "lockstep/runtime/record/record.h"

void run() {
  const Tensor batch = ones({2, 3});
  const auto train = [](const Tensor& x) { return sum(x); };
  // the block
}
