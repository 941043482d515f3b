// Which modules are wrappers around a model. After mmengine's function of that name and its registry MODEL_WRAPPERS.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// Whether `module` is a wrapper: it says so itself (ModuleBase::wrapped_module), as all of Lockstep's do, or a
// registered predicate does. Predicates are called in the order of their registration, in the calling thread.
LOCKSTEP_API bool is_model_wrapper(const ModuleBase& module);

// For wrappers that cannot override wrapped_module. May be called from any thread, from a predicate too. Throws
// InvalidArgument for a name that is taken, and for an empty predicate.
LOCKSTEP_API void register_model_wrapper(std::string name, std::function<bool(const ModuleBase&)> predicate);
// Takes a registration back; InvalidArgument that lists the names there are when there is none of that name. A call of
// the predicate that is under way goes on.
LOCKSTEP_API void unregister_model_wrapper(const std::string& name);
// The names that are registered, in order.
LOCKSTEP_API std::vector<std::string> model_wrappers();

}  // namespace lockstep
