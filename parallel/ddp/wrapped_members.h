// What a module listed when DistributedDataParallel wrapped it: its parameters must stay those, its buffers are
// followed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep::detail {

// Belongs to the thread of its rank. The module outlives it.
class WrappedMembers {
 public:
  struct Rules {
    std::vector<std::string> ignore;  // names that may be anything
    bool follow_buffers = true;       // else they may be anything too
    bool may_freeze = false;          // parameters that were trained may be frozen, and thawed
  };
  // All but what is ignored has elements, on `device`.
  WrappedMembers(ModuleBase& module, Device device, Rules rules);

  // Throws Error where the module is not what it was, naming what differs: a parameter that is another object, frozen
  // or unfrozen; a member that came, went or has another dtype, shape or device. Else buffers() are the module's of
  // now.
  void check();
  const std::vector<Parameter>& buffers() const { return buffers_; }  // each once

 private:
  struct Member {
    std::string name;
    Parameter member;
    Shape shape;
    DType dtype;
    bool is_buffer = false, ignored = false, trained = false;
  };
  std::vector<Member> list() const;
  bool unchanged() const;
  void follow(std::vector<Member> now);
  void check_same(const Member& before) const;
  void check_trained() const;
  void collect_buffers();

  ModuleBase& module_;
  const Device device_;
  const Rules rules_;
  std::vector<Member> members_;
  std::vector<Parameter> buffers_;
};

}  // namespace lockstep::detail
