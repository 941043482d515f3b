#include "lockstep/parallel/ddp/wrapped_members.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {
namespace {

constexpr const char* kWrapAgain = "; wrap the module again";

std::string describe(bool is_buffer, const std::string& name) {
  return cat(is_buffer ? "buffer '" : "parameter '", name, "'");
}
std::string describe(const Parameter& member) {
  return member.body()->home.defined() ? member.tensor().describe() : "an uninitialised one";
}

}  // namespace

WrappedMembers::WrappedMembers(ModuleBase& module, Rules rules)
    : module_(module), rules_(std::move(rules)), members_(list()) {
  collect();
}

std::vector<WrappedMembers::Member> WrappedMembers::list() const {
  std::vector<Member> members;
  const std::unordered_set<std::string_view> ignore(rules_.ignore.begin(), rules_.ignore.end());
  std::unordered_set<const ParameterBody*> named;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view name, Parameter& member, bool is_buffer) {
    Member listed{.name = visitor.full_name(name),
                  .member = member,
                  .shape = member.shape(),
                  .dtype = member.dtype(),
                  .device = member.body()->home.defined() ? member.device() : Device::cpu(),
                  .is_buffer = is_buffer,
                  .trained = member.requires_grad()};
    if (ignore.contains(listed.name)) named.insert(member.body());
    listed.ignored = is_buffer && !rules_.follow_buffers;
    members.push_back(std::move(listed));
  };
  visitor.visit(module_);
  for (Member& member : members)  // under every name
    if (named.contains(member.member.body())) member.named = member.ignored = true;
  return members;
}

// Whether every object is where it was: the usual case, which joins no names.
bool WrappedMembers::unchanged() const {
  std::size_t at = 0;
  bool same = true;
  MemberVisitor visitor;
  visitor.parameter = [&](std::string_view, Parameter& member, bool) {
    same = same && at < members_.size() && members_[at].member == member;
    ++at;
  };
  visitor.visit(module_);
  return same && at == members_.size();
}

void WrappedMembers::follow() {
  if (!unchanged()) follow_to(list());
}

void WrappedMembers::check() {
  follow();
  for (const Member& member : members_)
    if (!member.ignored) check_same(member);
  check_trained();
}

// The objects of now, under the names of before.
void WrappedMembers::follow_to(std::vector<Member> now) {
  std::unordered_set<std::string_view> names;
  for (const Member& before : members_) names.insert(before.name);
  std::unordered_map<std::string_view, Member*> found;
  for (Member& member : now) found.emplace(member.name, &member);
  for (const Member& member : now)
    if (!member.ignored && !names.contains(member.name))
      throw Error(cat("[DistributedDataParallel] expected the members that were wrapped, but ",
                      describe(member.is_buffer, member.name), " was added after that", kWrapAgain));
  for (const Member& before : members_) {
    if (before.ignored) continue;
    const auto at = found.find(before.name);
    if (at == found.end())
      throw Error(cat("[DistributedDataParallel] expected the members that were wrapped, but ",
                      describe(before.is_buffer, before.name), " was removed after that", kWrapAgain));
    Member* const after = at->second;
    if (!(after->member == before.member) && !(before.is_buffer && after->is_buffer))
      throw Error(cat("[DistributedDataParallel] expected the parameters that were wrapped, but ",
                      describe(before.is_buffer, before.name),
                      " was replaced by another object, whose gradient nobody would average", kWrapAgain,
                      " (or assign() to the parameter that is there)"));
    after->shape = before.shape;
    after->dtype = before.dtype;
    after->device = before.device;
    after->trained = before.trained;
  }
  members_ = std::move(now);
  collect();
}

void WrappedMembers::check_same(const Member& before) const {
  const ParameterBody& body = *before.member.body();
  if (body.home.defined() && body.home.shape() == before.shape && body.home.dtype() == before.dtype &&
      body.home.device() == before.device)
    return;
  throw Error(cat("[DistributedDataParallel] expected ", describe(before.is_buffer, before.name), " to stay ",
                  before.dtype, before.shape, " on ", before.device, ", as it was wrapped, got ",
                  describe(before.member), kWrapAgain));
}

void WrappedMembers::check_trained() const {
  std::string frozen, thawed;
  for (const Member& member : members_) {
    if (member.ignored || member.is_buffer || member.member.requires_grad() == member.trained) continue;
    if (member.trained && rules_.may_freeze) continue;
    std::string& list = member.trained ? frozen : thawed;
    list += cat(list.empty() ? "'" : ", '", member.name, "'");
  }
  if (!frozen.empty())
    throw Error(
        cat("[DistributedDataParallel] expected the trained parameters to stay those that were wrapped, but ", frozen,
            " was frozen after that: wrap the module again, or set find_unused_parameters, and freeze it on every "
            "rank"));
  if (!thawed.empty())
    throw Error(cat("[DistributedDataParallel] expected the trained parameters to stay those that were wrapped, but ",
                    thawed, " was frozen then and is not now, so that nobody would average its gradient", kWrapAgain));
}

void WrappedMembers::collect() {
  parameters_.clear(), buffers_.clear(), all_buffers_.clear();
  std::unordered_set<const ParameterBody*> known[2];
  for (const Member& member : members_) {
    if (member.named || !known[member.is_buffer].insert(member.member.body()).second) continue;
    (member.is_buffer ? all_buffers_ : parameters_).push_back(member.member);
    if (member.is_buffer && !member.ignored) buffers_.push_back({member.name, member.member});
  }
}

}  // namespace lockstep::detail
