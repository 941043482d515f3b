// One run of the drill in this process, which must not have used a device before.
#pragma once

#include <string>

#include "plan.h"

namespace drill {

enum class Verdict { good, wrong, leak, misreported };

struct Result {
  Verdict verdict = Verdict::good;
  bool struck = false;  // the fault met something
  bool thrown = false;  // and an exception told of it
  std::string message;  // what was wrong
};

// How long the waits of a run last at most, in proportion: sanitizers make everything slower.
struct Patience {
  int factor = 1;
};

Result run(const Plan& plan, Patience patience);

}  // namespace drill
