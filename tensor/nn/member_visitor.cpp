#include "lockstep/tensor/nn/member_visitor.h"

namespace lockstep {

void MemberVisitor::visit(const ModuleBase& root) {
  auto& mutable_root = const_cast<ModuleBase&>(root);  // NOLINT: members() lists, it changes nothing by itself
  if (module) module(mutable_root);
  mutable_root.members(*this);
}

std::string MemberVisitor::full_name(std::string_view name) const {
  std::string full;
  for (const std::string_view part : path_) full.append(part).append(1, '.');
  return full.append(name);
}

std::string MemberVisitor::path() const {
  std::string full = full_name({});
  if (!full.empty()) full.pop_back();
  return full;
}

void MemberVisitor::on_parameter(std::string_view name, Parameter& member, bool is_buffer) {
  if (parameter) parameter(name, member, is_buffer);
}

void MemberVisitor::on_module(std::string_view name, ModuleBase& member) {
  path_.push_back(name);
  if (module) module(member);
  member.members(*this);
  path_.pop_back();
}

}  // namespace lockstep
