// A walk over all members below a module. For the library's own traversals; see ModuleBase for those of users.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/nn/module.h"

namespace lockstep {

// Visits every parameter, buffer and module below one, depth first, in the order of `members`; ties as often as they
// are listed. Set what is to be called.
class MemberVisitor final : public Members {
 public:
  // `name` as the module around it lists the member.
  std::function<void(std::string_view name, Parameter&, bool is_buffer)> parameter;
  std::function<void(ModuleBase&)> module;  // the root first

  void visit(const ModuleBase& root);

  // While one of the functions runs: the name from the root, "blocks.0.weight".
  std::string full_name(std::string_view name) const;
  // The same of the module that is being visited; empty for the root.
  std::string path() const;

  using Members::replace;  // rebinds a handle

 private:
  void on_parameter(std::string_view name, Parameter& member, bool is_buffer) override;
  void on_module(std::string_view name, ModuleBase& member) override;

  std::vector<std::string_view> path_;  // names of the modules around
};

}  // namespace lockstep
