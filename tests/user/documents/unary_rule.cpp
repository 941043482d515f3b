// What stands above the rules in tensor/ops/unary.cpp.
#include "lockstep/tensor/ops/math_ops.h"
#include "lockstep/tensor/ops/support.h"

using lockstep::detail::apply;
using lockstep::detail::Save;
using lockstep::detail::UnaryRule;
using Of = const lockstep::detail::UnaryOperands&;

// the block

void run() {}
