#include "lockstep/parallel/ddp/distributed_data_parallel.h"

#include <algorithm>

#include "lockstep/parallel/ddp/broadcast_coalesced.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/parallel/ddp/wrapped_members.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {

namespace {

// A line per parameter and buffer that takes part: what the ranks must agree on.
struct Listing {
  std::vector<NamedParameter> parameters, buffers;
  std::string text;
};

bool ignored(const DistributedDataParallelOptions& options, const std::string& name) {
  return std::find(options.ignore.begin(), options.ignore.end(), name) != options.ignore.end();
}

Listing list_members(ModuleBase& module, Device device, const DistributedDataParallelOptions& options) {
  Listing listing;
  std::vector<NamedParameter> parameters = module.named_parameters(), buffers = module.named_buffers();
  for (const std::string& name : options.ignore) {
    const auto named = [&](const NamedParameter& p) { return p.name == name; };
    LOCKSTEP_CHECK(
        std::any_of(parameters.begin(), parameters.end(), named) || std::any_of(buffers.begin(), buffers.end(), named),
        "[DistributedDataParallel] expected the ignored names to be the module's, got '", name, "'");
  }
  const NamedParameter* first = nullptr;
  for (const auto* list : {&parameters, &buffers}) {
    for (const NamedParameter& named : *list) {
      if (ignored(options, named.name)) continue;
      LOCKSTEP_CHECK(named.parameter.body()->home.defined(), "[DistributedDataParallel] expected elements, but '",
                     named.name, "' is uninitialised");
      if (!first) first = &named;
      LOCKSTEP_CHECK(named.parameter.device() == first->parameter.device(),
                     "[DistributedDataParallel] expected all parameters and buffers on one device, got '", first->name,
                     "' on ", first->parameter.device(), " and '", named.name, "' on ", named.parameter.device());
    }
  }
  if (first && first->parameter.device() != device) {
    module.to(device);
    parameters = module.named_parameters(), buffers = module.named_buffers();
  }
  bool trainable = false;
  for (auto* list : {&parameters, &buffers}) {
    for (NamedParameter& named : *list) {
      if (ignored(options, named.name)) continue;
      const Tensor tensor = named.parameter.tensor();
      const bool is_parameter = list == &parameters;
      trainable |= is_parameter && named.parameter.requires_grad();
      listing.text += cat(is_parameter ? "parameter '" : "buffer '", named.name, "' ", tensor.dtype(), tensor.shape(),
                          " with strides ", tensor.strides(), named.parameter.requires_grad() ? "" : ", frozen",
                          named.parameter.body()->sparse ? ", with sparse gradients" : "", '\n');
      (is_parameter ? listing.parameters : listing.buffers).push_back(named);
    }
  }
  LOCKSTEP_CHECK(trainable,
                 "[DistributedDataParallel] expected a module with a parameter that requires a gradient, got ",
                 parameters.size(), " parameters without");
  return listing;
}

// The first line in which two listings differ.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  std::size_t begin = 0, end = 0;
  for (;; begin = end + 1) {
    end = a.find('\n', begin);
    const std::size_t other = b.find('\n', begin);
    const auto line = [&](const std::string& text, std::size_t stop) {
      return begin >= text.size() ? std::string("nothing more") : text.substr(begin, stop - begin);
    };
    if (end == std::string::npos || other != end || a.compare(begin, end - begin, b, begin, end - begin) != 0)
      return {line(a, end), line(b, other)};
  }
}

// Throws the same on every rank, so that none is left waiting.
void verify(Communicator& communicator, const std::string& mine, bool good) {
  const std::vector<std::string> all = communicator.all_gather_bytes((good ? '+' : '-') + mine);
  for (std::size_t r = 0; r < all.size(); ++r)
    LOCKSTEP_CHECK(all[r].starts_with('+'), "[DistributedDataParallel] rank ", r, ": ", all[r].substr(1));
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [on_first, on_this] = first_difference(all[0].substr(1), all[r].substr(1));
    const auto count = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
    throw InvalidArgument(cat("[DistributedDataParallel] expected the same model on every rank, got on rank 0 ",
                              count(all[0]), " parameters and buffers, on rank ", r, " ", count(all[r]),
                              "; the first that differs: on rank 0 ", on_first, ", on rank ", r, " ", on_this));
  }
}

}  // namespace

DdpCore::DdpCore(ModuleBase& module, Communicator& communicator, DistributedDataParallelOptions options)
    : communicator_(communicator), options_(std::move(options)) {
  if (options_.timeout) communicator.set_timeout(*options_.timeout);
  Listing listing;
  std::string failure;
  std::exception_ptr error;
  try {
    LOCKSTEP_CHECK(options_.bucket_cap_mb > 0 && options_.first_bucket_mb > 0,
                   "[DistributedDataParallel] expected positive bucket limits, got bucket_cap_mb ",
                   options_.bucket_cap_mb, ", first_bucket_mb ", options_.first_bucket_mb);
    LOCKSTEP_CHECK(options_.backwards_per_forward > 0,
                   "[DistributedDataParallel] expected at least one backward per forward, got ",
                   options_.backwards_per_forward);
    listing = list_members(module, communicator.device(), options_);
  } catch (const Error& e) {
    failure = e.what();
    error = std::current_exception();
  }
  if (options_.init_sync || error) {
    if (options_.init_sync) {
      try {
        verify(communicator, error ? failure : listing.text, !error);
      } catch (const InvalidArgument&) {
        if (error) std::rethrow_exception(error);  // the rank at fault has it at first hand
        throw;
      }
    }
    if (error) std::rethrow_exception(error);
    std::vector<Tensor> tensors;
    for (const auto* list : {&listing.parameters, &listing.buffers})
      for (const NamedParameter& named : *list) tensors.push_back(named.parameter.tensor());
    broadcast_coalesced(communicator, tensors, 0);
  }
  members_ = std::make_unique<WrappedMembers>(
      module, communicator.device(),
      WrappedMembers::Rules{.ignore = options_.ignore,
                            .follow_buffers = options_.broadcast_buffers,
                            .may_freeze = options_.find_unused_parameters || options_.static_graph});
  std::erase_if(listing.parameters, [](const NamedParameter& named) { return !named.parameter.requires_grad(); });
  reducer_ = Reducer::make(std::move(listing.parameters), communicator, options_);
}

DdpCore::~DdpCore() = default;

bool DdpCore::begin_forward(const ModuleBase& module) {
  if (!GradMode::enabled()) return false;
  try {
    members_->check();
  } catch (const Error& error) {
    communicator_.abort(error.what());  // the other ranks are not left waiting for this one
    throw;
  }
  const bool reduces = *local_depth_ == 0, training = module.is_training();
  reducer_->begin_forward(reduces, training);
  if (reduces && training && options_.broadcast_buffers && !members_->buffers().empty()) {
    std::vector<Tensor> tensors;
    for (const Parameter& buffer : members_->buffers()) tensors.push_back(buffer.tensor());
    broadcast_coalesced(communicator_, tensors, 0);
  }
  return reduces;
}

void DdpCore::end_forward(bool reduces, std::span<const Tensor> outputs) {
  if (GradMode::enabled()) reducer_->end_forward(reduces, outputs);
}

DdpLoggingData DdpCore::logging_data() const {
  DdpLoggingData data;
  reducer_->report(data);
  return data;
}

}  // namespace lockstep::detail
