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
  // All but what is ignored has elements.
  WrappedMembers(ModuleBase& module, Rules rules);

  // buffers() are the module's of now; throws Error where its members are others otherwise.
  void follow();
  // The same, and throws Error where the module is not what it was, naming what differs: a parameter that is another
  // object, frozen or unfrozen; a member that came, went or has another dtype, shape or device. Else buffers() are the
  // module's of now.
  void check();
  // Each once, but for those that may be anything.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<NamedParameter>& buffers() const { return buffers_; }
  const std::vector<Parameter>& all_buffers() const { return all_buffers_; }  // those that are not followed too

 private:
  struct Member {
    std::string name;
    Parameter member;
    Shape shape;
    DType dtype;
    Device device;
    bool is_buffer = false, trained = false;
    bool named = false;    // by the rules, to be left alone
    bool ignored = false;  // may be anything
  };
  std::vector<Member> list() const;
  bool unchanged() const;
  void follow_to(std::vector<Member> now);
  void check_same(const Member& before) const;
  void check_trained() const;
  void collect();

  ModuleBase& module_;
  const Rules rules_;
  std::vector<Member> members_;
  std::vector<Parameter> parameters_, all_buffers_;
  std::vector<NamedParameter> buffers_;
};

}  // namespace lockstep::detail
