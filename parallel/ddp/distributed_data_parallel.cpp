#include "lockstep/parallel/ddp/distributed_data_parallel.h"

#include <algorithm>
#include <unordered_set>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/parallel/ddp/agreement.h"
#include "lockstep/parallel/ddp/broadcast_coalesced.h"
#include "lockstep/parallel/ddp/mixed_precision.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/wrapped_members.h"
#include "lockstep/parallel/sync_norm/convert_sync_batchnorm.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {

namespace {

// Steps that are announced.
constexpr std::string_view kBuffers = "buffers", kNorms = "norms";

// A line per parameter and buffer that takes part: what the ranks must agree on.
struct Listing {
  std::vector<NamedParameter> parameters, buffers;
  std::string text;
  bool spread = false;  // over several devices
};

Listing list_members(ModuleBase& module, Device device, const DistributedDataParallelOptions& options) {
  Listing listing;
  std::vector<NamedParameter> parameters = module.named_parameters(), buffers = module.named_buffers();
  const std::unordered_set<std::string> ignored(options.ignore.begin(), options.ignore.end());
  std::unordered_set<std::string> names;
  for (const auto* list : {&parameters, &buffers})
    for (const NamedParameter& named : *list) names.insert(named.name);
  for (const std::string& name : options.ignore)
    LOCKSTEP_CHECK(names.contains(name),
                   "[DistributedDataParallel] expected the ignored names to be the module's, got '", name, "'");
  std::vector<Device> devices;  // in the order in which members have them: the same on every rank
  const NamedParameter *first = nullptr, *on_cpu = nullptr;
  for (const auto* list : {&parameters, &buffers}) {
    for (const NamedParameter& named : *list) {
      if (ignored.contains(named.name)) continue;
      LOCKSTEP_CHECK(named.parameter.body()->home.defined(), "[DistributedDataParallel] expected elements, but '",
                     named.name, "' is uninitialised");
      const Device there = named.parameter.device();
      if (std::find(devices.begin(), devices.end(), there) == devices.end()) devices.push_back(there);
      if (!there.is_cpu() && !first) first = &named;
      if (there.is_cpu() && !on_cpu) on_cpu = &named;
    }
  }
  LOCKSTEP_CHECK(!first || !on_cpu,
                 "[DistributedDataParallel] expected all parameters and buffers on one device, or none of them on the "
                 "cpu, got '",
                 on_cpu->name, "' on ", on_cpu->parameter.device(), " and '", first->name, "' on ",
                 first->parameter.device());
  listing.spread = devices.size() > 1;
  if (devices.size() == 1 && devices[0] != device) {
    module.to(device);
    parameters = module.named_parameters(), buffers = module.named_buffers();
  }
  bool trainable = false;
  for (auto* list : {&parameters, &buffers}) {
    for (NamedParameter& named : *list) {
      if (ignored.contains(named.name)) continue;
      const Tensor tensor = named.parameter.tensor();
      const bool is_parameter = list == &parameters;
      trainable |= is_parameter && named.parameter.requires_grad();
      LOCKSTEP_CHECK(!options.mixed_precision.on() || !named.parameter.body()->sparse,
                     "[DistributedDataParallel] expected no sparse gradients with mixed_precision, got '", named.name,
                     "', which has them");
      listing.text += cat(is_parameter ? "parameter '" : "buffer '", named.name, "' ", tensor.dtype(), tensor.shape(),
                          " with strides ", tensor.strides(), named.parameter.requires_grad() ? "" : ", frozen",
                          named.parameter.body()->sparse ? ", with sparse gradients" : "");
      if (listing.spread)
        listing.text +=
            cat(", on device ", std::find(devices.begin(), devices.end(), tensor.device()) - devices.begin(), " of ",
                devices.size());
      listing.text += '\n';
      (is_parameter ? listing.parameters : listing.buffers).push_back(named);
    }
  }
  LOCKSTEP_CHECK(trainable,
                 "[DistributedDataParallel] expected a module with a parameter that requires a gradient, got ",
                 parameters.size(), " parameters without");
  return listing;
}

}  // namespace

DdpCore::DdpCore(ModuleBase& module, Communicator& communicator, DistributedDataParallelOptions options)
    : module_(module), communicator_(communicator), options_(std::move(options)) {
  if (options_.timeout) communicator.set_timeout(*options_.timeout);
  Listing listing;
  std::string failure;
  std::exception_ptr error;
  try {
    LOCKSTEP_CHECK(
        (options_.bucket_cap_mb > 0 || options_.bucket_cap_mb == kAutoBucketCap) && options_.first_bucket_mb > 0,
        "[DistributedDataParallel] expected positive bucket limits, or kAutoBucketCap, got bucket_cap_mb ",
        options_.bucket_cap_mb, ", first_bucket_mb ", options_.first_bucket_mb);
    LOCKSTEP_CHECK(options_.backwards_per_forward > 0,
                   "[DistributedDataParallel] expected at least one backward per forward, got ",
                   options_.backwards_per_forward);
    const DdpMixedPrecision& mixed = options_.mixed_precision;
    for (const auto& [name, dtype] : {std::pair("param_dtype", mixed.param_dtype),
                                      {"reduce_dtype", mixed.reduce_dtype},
                                      {"buffer_dtype", mixed.buffer_dtype}})
      LOCKSTEP_CHECK(!dtype || is_floating(*dtype),
                     "[DistributedDataParallel] expected a floating dtype for mixed_precision, got ", *dtype,
                     " as its ", name);
    listing = list_members(module, communicator.device(), options_);
  } catch (const Error& e) {
    failure = e.what();
    error = std::current_exception();
  }
  const std::size_t first = mebibytes(options_.first_bucket_mb);
  std::size_t cap = 0;
  try {
    cap = agree_to_wrap(communicator, options_, listing.parameters, listing.text, failure);
  } catch (const InvalidArgument&) {
    if (error) std::rethrow_exception(error);  // the rank at fault has it at first hand
    throw;
  }
  if (options_.init_sync) {
    std::vector<Tensor> tensors;
    for (const auto* list : {&listing.parameters, &listing.buffers})
      for (const NamedParameter& named : *list) tensors.push_back(named.parameter.tensor());
    broadcast_coalesced(communicator, tensors, 0);
  }
  spread_ = listing.spread;
  members_ = std::make_unique<WrappedMembers>(
      module, WrappedMembers::Rules{.ignore = options_.ignore,
                                    .follow_buffers = options_.broadcast_buffers,
                                    .may_freeze = options_.find_unused_parameters || options_.static_graph});
  std::erase_if(listing.parameters, [](const NamedParameter& named) { return !named.parameter.requires_grad(); });
  reducer_ = Reducer::make(std::move(listing.parameters), communicator, options_, {first, cap},
                           [this](std::string_view step) { return announce(step); });
}

DdpCore::~DdpCore() = default;

bool DdpCore::begin_forward(const ModuleBase& module) {
  if (joined()) announce_norms();
  if (!GradMode::enabled()) return false;
  try {
    members_->check();
  } catch (const Error& error) {
    communicator_.abort(error.what());  // the other ranks are not left waiting for this one
    throw;
  }
  const bool reduces = *local_depth_ == 0, training = module.is_training();
  // A rank that does not use a parameter has its bucket ready early, maybe before a norm of the same backward at which
  // the others already wait for it: so none goes before the end.
  const bool holds = options_.find_unused_parameters && reduces && norm_that_waits(module_).has_value();
  reducer_->begin_forward(reduces, training, holds);
  shares_buffers_ = reduces && training && options_.broadcast_buffers && !members_->buffers().empty();
  if (!shares_buffers_) return reduces;
  if (buffer_hook_.call) {
    if (current_capture)
      current_capture->refuse("DistributedDataParallel", cat("the buffer hook '", buffer_hook_.name,
                                                             "', which is the program's code on the host"));
    if (joined())
      refuse(cat("expected buffers that are broadcast, but the buffer hook '", buffer_hook_.name,
                 "' is registered, of which nobody knows what it does with fewer ranks"));
    if (buffer_hook_.when == BufferHook::When::before_forward) call_buffer_hook();
  } else {
    broadcast_buffers(announce(kBuffers).root);
  }
  return reduces;
}

void DdpCore::end_forward(bool reduces, std::span<const Tensor> outputs) {
  if (!GradMode::enabled()) return;
  reducer_->end_forward(reduces, outputs);
  if (shares_buffers_ && buffer_hook_.call && buffer_hook_.when == BufferHook::When::after_forward) call_buffer_hook();
}

void DdpCore::call_buffer_hook() {
  try {
    const NoGrad no_grad;
    buffer_hook_.call(members_->buffers(), communicator_);
  } catch (...) {
    const std::string error = describe(std::current_exception());
    communicator_.check();
    const std::string message = cat("[DistributedDataParallel] buffer hook '", buffer_hook_.name, "' failed on rank ",
                                    communicator_.rank(), ": ", error);
    communicator_.abort(message);
    throw Error(message);
  }
}

void DdpCore::register_buffer_hook(BufferHook hook) {
  std::string problem;
  if (!hook.call) {
    problem = "expected a hook that can be called, got an empty function";
  } else if (buffer_hook_.call) {
    problem = cat("expected one hook, got '", hook.name, "' where '", buffer_hook_.name, "' is registered");
  } else if (!options_.broadcast_buffers) {
    problem = "expected the option broadcast_buffers, in whose place the hook works, got false";
  }
  agree(communicator_, "register_buffer_hook",
        cat(hook.name, hook.when == BufferHook::When::before_forward ? " before" : " after", " the forward"), problem);
  buffer_hook_ = std::move(hook);
}

void DdpCore::register_comm_hook(CommHook hook) {
  agree(communicator_, "register_comm_hook", hook.name, reducer_->hook_problem(hook));
  reducer_->set_hook(std::move(hook));
}

void DdpCore::broadcast_buffers(int root) {
  std::vector<Tensor> tensors;
  for (const NamedParameter& buffer : members_->buffers()) tensors.push_back(buffer.parameter.tensor());
  broadcast_coalesced(communicator_, tensors, root);
}

// ---- mixed precision

Tensor DdpCore::prepare_argument(const Tensor& argument) const {
  const Tensor there = spread_ ? argument : argument.to(communicator_.device());
  const std::optional<DType> dtype = options_.mixed_precision.param_dtype;
  return dtype && there.defined() && is_floating(there.dtype()) ? there.to(*dtype) : there;
}

std::unique_ptr<MixedPrecisionScope> DdpCore::precision_scope() const {
  const DdpMixedPrecision& dtypes = options_.mixed_precision;
  if (!dtypes.param_dtype && !dtypes.buffer_dtype) return nullptr;
  if (!GradMode::enabled()) members_->follow();  // else begin_forward has checked them
  return std::make_unique<MixedPrecisionScope>(members_->parameters(), members_->all_buffers(), dtypes);
}

// ---- uneven inputs

// The other ranks are not left waiting for this one.
void DdpCore::refuse(const std::string& why) {
  const std::string message = cat("[join] ", why);
  communicator_.abort(message);
  throw NotSupported(message);
}

// Norms that ranks share communicate in the forward, by themselves and without a shadow: a rank that has run out has to
// be noticed before the others wait for it there.
void DdpCore::announce_norms() {
  const std::optional<std::string> norm = norm_that_waits(module_);
  if (!norm) return;
  if (!ends_early())
    refuse(cat("expected norms that a rank can shadow, but '", *norm,
               "' shares its statistics among the ranks (convert_sync_batchnorm): set throw_on_early_termination, or "
               "enable = false where inputs are even"));
  announce(kNorms);
}

void DdpCore::shadow(std::string_view step, const JoinTurn& turn) {
  if (step != kBuffers) return reducer_->shadow(step, turn);
  members_->check();
  broadcast_buffers(turn.root);
}

void DdpCore::take_over(int root) {
  members_->follow();
  std::vector<Tensor> tensors;
  for (const Parameter& parameter : members_->parameters()) tensors.push_back(parameter.tensor());
  for (const NamedParameter& buffer : members_->buffers()) tensors.push_back(buffer.parameter.tensor());
  broadcast_coalesced(communicator_, tensors, root);
}

// ---- checkpoints

DdpBucketState DdpCore::bucket_state() const { return reducer_->bucket_state(); }

void DdpCore::check_bucket_state(const DdpBucketState& state) const {
  const std::string problem = reducer_->bucket_state_problem(state);
  LOCKSTEP_CHECK(problem.empty(), "[load_bucket_state] ", problem);
}

void DdpCore::load_bucket_state(const DdpBucketState& state) {
  agree(communicator_, "load_bucket_state", to_string(state), reducer_->bucket_state_problem(state));
  reducer_->load_bucket_state(state);
}

DdpLoggingData DdpCore::logging_data() const {
  DdpLoggingData data;
  data.join_uneven_inputs = joined();
  reducer_->report(data);
  return data;
}

}  // namespace lockstep::detail
