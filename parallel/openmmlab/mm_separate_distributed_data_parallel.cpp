#include "lockstep/parallel/openmmlab/mm_separate_distributed_data_parallel.h"

#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/parallel/openmmlab/optim/optim_wrapper.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {
namespace {

constexpr const char* kWrapperName = "[MMSeparateDistributedDataParallel]";

// What a module lists itself.
class DirectMembers : public Members {
 public:
  std::vector<NamedParameter> parameters;
  std::vector<std::pair<std::string, ModuleBase*>> modules;

 protected:
  void on_parameter(std::string_view name, Parameter& parameter, bool is_buffer) override {
    if (!is_buffer && parameter.requires_grad()) parameters.push_back({std::string(name), parameter});
  }
  void on_module(std::string_view name, ModuleBase& module) override { modules.emplace_back(name, &module); }
};

struct Plan {
  std::vector<std::pair<std::string, ModuleBase*>> averaged;
  std::string text;  // what the ranks must agree on
};

Plan plan_for(ModuleBase& root) {
  root.named_parameters();  // names them from here, not from a child
  DirectMembers direct;
  root.members(direct);
  Plan plan;
  std::map<const ParameterBody*, std::string> owners;
  for (const auto& [name, child] : direct.modules) {
    bool trainable = false;
    for (const NamedParameter& named : child->named_parameters()) {
      if (!named.parameter.requires_grad()) continue;
      trainable = true;
      const auto [known, added] = owners.emplace(named.parameter.body(), cat(name, '.', named.name));
      LOCKSTEP_CHECK(added, kWrapperName, " expected each trainable parameter in one child, got '", known->second,
                     "', which is '", name, '.', named.name, "' too");
    }
    if (trainable) plan.averaged.emplace_back(name, child);
    plan.text += cat(name, trainable ? " (averaged), " : " (moved), ");
  }
  std::string own;
  for (const NamedParameter& named : direct.parameters)
    if (!owners.contains(named.parameter.body())) own += cat(own.empty() ? "'" : ", '", named.name, "'");
  LOCKSTEP_CHECK(own.empty(), kWrapperName, " expected all trainable parameters in children, got ", own,
                 " of the module itself, which nobody would average");
  LOCKSTEP_CHECK(!plan.averaged.empty(), kWrapperName,
                 " expected a child with a parameter that requires a gradient, got ", direct.modules.size(),
                 " children without");
  return plan;
}

// The same plan on every rank, or the same error.
Plan agreed_plan(ModuleBase& root, Communicator& communicator) {
  Plan plan;
  std::string mine;
  try {
    plan = plan_for(root);
    mine = '+' + plan.text;
  } catch (const InvalidArgument& error) {
    communicator.all_gather_bytes(cat('-', error.what()));
    throw;
  }
  const std::vector<std::string> all = communicator.all_gather_bytes(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    LOCKSTEP_CHECK(all[rank].starts_with('+'), kWrapperName, " rank ", rank, ": ", all[rank].substr(1));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    LOCKSTEP_CHECK(all[rank] == all[0], kWrapperName, " expected the same children on every rank, got on rank 0 ",
                   all[0].substr(1), "on rank ", rank, ' ', all[rank].substr(1, all[rank].size() - 3));
  return plan;
}

}  // namespace

SeparateCore::SeparateCore(ModuleBase& root, Communicator& communicator, const DistributedDataParallelOptions& options)
    : communicator_(communicator), options_(options) {
  LOCKSTEP_CHECK(!options.mixed_precision.on(), kWrapperName,
                 " expected no mixed_precision, which casts the arguments of the whole module");
  const Plan plan = agreed_plan(root, communicator);
  for (const std::string& ignored : options_.ignore)
    LOCKSTEP_CHECK(std::any_of(plan.averaged.begin(), plan.averaged.end(),
                               [&](const auto& child) { return ignored.starts_with(child.first + '.'); }),
                   kWrapperName, " expected the ignored names to be those of averaged children, got '", ignored, "'");
  root.to(communicator.device());
  for (const auto& [name, module] : plan.averaged) {
    const auto child = std::make_shared<Child>(Child{.name = name, .module = module});
    // Of its own: the collectives of two children may be under way on two streams at a time.
    child->communicator = communicator.split(0);
    DistributedDataParallelOptions own = options_;
    own.ignore.clear();
    for (const std::string& ignored : options_.ignore)
      if (ignored.starts_with(name + '.')) own.ignore.push_back(ignored.substr(name.size() + 1));
    child->core = std::make_unique<DdpCore>(*module, *child->communicator, std::move(own));
    children_.push_back(child);
  }
  for (const std::shared_ptr<Child>& child : children_) attach(child, root);
}

void SeparateCore::attach(const std::shared_ptr<Child>& child, const ModuleBase& root) {
  // Copies of the child have its hooks, and may outlive this.
  child->before = child->module->register_forward_pre_hook(
      [weak = std::weak_ptr(child), &root](const ModuleBase& module, std::span<const Tensor> /*inputs*/) {
        const std::shared_ptr<Child> self = weak.lock();
        if (!self || &module != self->module) return;
        std::optional<NoSync> quiet;
        if (LocalGradients::of(module) || LocalGradients::of(root)) quiet.emplace(self->core->no_sync());
        self->reduces = self->core->begin_forward(module);
      });
  child->after = child->module->register_forward_hook([weak = std::weak_ptr(child)](const ModuleBase& module,
                                                                                    std::span<const Tensor> /*inputs*/,
                                                                                    std::span<const Tensor> outputs) {
    const std::shared_ptr<Child> self = weak.lock();
    if (self && &module == self->module) self->core->end_forward(self->reduces, outputs);
  });
}

SeparateCore::~SeparateCore() {
  for (const std::shared_ptr<Child>& child : children_) {
    child->module->remove_hook(child->before);
    child->module->remove_hook(child->after);
  }
}

std::vector<std::string> SeparateCore::names() const {
  std::vector<std::string> names;
  for (const std::shared_ptr<Child>& child : children_) names.push_back(child->name);
  return names;
}

std::vector<NoSync> SeparateCore::no_sync() const {
  std::vector<NoSync> scopes;
  for (const std::shared_ptr<Child>& child : children_) scopes.push_back(child->core->no_sync());
  return scopes;
}

DdpLoggingData SeparateCore::logging_data(const std::string& name) const {
  for (const std::shared_ptr<Child>& child : children_)
    if (child->name == name) return child->core->logging_data();
  std::string known;
  for (const std::string& child : names()) known += cat(known.empty() ? "" : ", ", child);
  fail<InvalidArgument>(kWrapperName, " expected a child out of (", known, "), got '", name, "'");
}

}  // namespace lockstep::detail
