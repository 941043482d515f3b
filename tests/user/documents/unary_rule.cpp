// What stands above the rules in tensor/ops_math_unary.cpp.
#include "lockstep/tensor/ops_math.h"
#include "lockstep/tensor/ops_support.h"

using lockstep::detail::apply;
using lockstep::detail::Keep;
using lockstep::detail::UnaryRule;
using Of = const lockstep::detail::UnaryOperands&;

// the block

void run() {}
