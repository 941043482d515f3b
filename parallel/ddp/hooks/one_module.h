// The state of a hook belongs to the module whose parameters it saw first.
#pragma once

#include <set>

#include "lockstep/parallel/ddp/comm_hook.h"

namespace lockstep::detail {

// Sees every bucket of a hook. Of one module are the parameters of one iteration; the first one may fail, and begin
// again.
class OneModule {
 public:
  // Throws Error, as "[who] …", for a bucket with a parameter of another module.
  void check(const char* who, const GradBucket& bucket) {
    const bool complete = complete_ || (bucket.index() == 0 && !parameters_.empty());
    for (const auto& [name, parameter] : bucket.parameters()) {
      if (!complete) parameters_.insert(parameter.body());
      if (!parameters_.contains(parameter.body()))
        throw Error(cat("[", who, "] expected the hook of one module, got another one's parameter '", name,
                        "': each wrapped module needs a hook of its own"));
    }
    complete_ = complete_ || bucket.is_last();
  }

 private:
  std::set<const ParameterBody*> parameters_;
  bool complete_ = false;
};

}  // namespace lockstep::detail
