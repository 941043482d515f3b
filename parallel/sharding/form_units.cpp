#include "lockstep/parallel/sharding/form_units.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/parallel/ddp/agreement.h"
#include "lockstep/parallel/ddp/broadcast_coalesced.h"
#include "lockstep/tensor/nn/member_visitor.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep {

WrapPolicy wrap_names(std::vector<std::string> names) {
  return [names = std::move(names)](const std::string& path, const ModuleBase&, std::int64_t) {
    return std::find(names.begin(), names.end(), path) != names.end();
  };
}

WrapPolicy wrap_by_size(std::int64_t elements) {
  return [elements](const std::string&, const ModuleBase&, std::int64_t here) { return here >= elements; };
}

namespace detail {
namespace {

constexpr std::string_view kWho = "[FullyShardedDataParallel] ";

// A module of the tree, in the order of the walk, and the parameters that it has itself.
struct ModulePlace {
  std::string path;
  ModuleBase* module;
  std::vector<NamedParameter> parameters = {};
  std::size_t around = 0;  // the module around it, among the places
  bool is_unit = false;
  std::int64_t open = 0;  // elements in no unit below
};

std::vector<ModulePlace> walk(ModuleBase& module, const std::unordered_set<std::string>& ignored,
                              std::vector<Parameter>& left) {
  std::vector<ModulePlace> places;
  std::map<std::string, std::size_t> by_path;
  std::unordered_set<std::string> names;
  MemberVisitor visitor;
  visitor.module = [&](ModuleBase& each) {
    const std::string path = visitor.path();
    const std::size_t dot = path.rfind('.');
    std::string outer = dot == std::string::npos ? "" : path.substr(0, dot);
    while (!outer.empty() && !by_path.contains(outer))  // names of lists stand between
      outer = outer.rfind('.') == std::string::npos ? "" : outer.substr(0, outer.rfind('.'));
    const std::size_t around = places.empty() ? 0 : by_path.at(outer);
    by_path[path] = places.size();
    places.push_back({.path = path, .module = &each, .around = around});
  };
  std::unordered_set<const ParameterBody*> leave;
  std::vector<std::pair<std::size_t, NamedParameter>> found;
  visitor.parameter = [&](std::string_view name, Parameter& parameter, bool is_buffer) {
    const std::string full = visitor.full_name(name);
    names.insert(full);
    if (is_buffer) return;
    if (ignored.contains(full) && leave.insert(parameter.body()).second && parameter.requires_grad())
      left.push_back(parameter);
    found.emplace_back(by_path.at(visitor.path()), NamedParameter{full, parameter});
  };
  visitor.visit(module);
  for (const std::string& name : ignored)
    LOCKSTEP_CHECK(names.contains(name), kWho, "expected the ignored names to be the module's, got '", name, "'");
  for (auto& [place, named] : found)
    if (!leave.contains(named.parameter.body())) places[place].parameters.push_back(std::move(named));
  return places;
}

std::string described(const std::string& path) {
  return path.empty() ? "the outermost unit" : cat("unit '", path, "'");
}

struct UnitListing {
  std::vector<std::pair<ModulePlace*, std::vector<NamedParameter>>> units;
  std::string text;
};

UnitListing list_units(std::vector<ModulePlace>& places, const FullyShardedOptions& options) {
  places[0].is_unit = true;
  std::unordered_set<const ParameterBody*> counted;
  for (std::size_t i = places.size(); i-- > 0;) {
    ModulePlace& place = places[i];
    for (const NamedParameter& named : place.parameters)
      if (counted.insert(named.parameter.body()).second) place.open += element_count(named.parameter.shape());
    if (i == 0) break;
    if (place.open > 0 && options.wrap && options.wrap(place.path, *place.module, place.open))
      place.is_unit = true;
    else
      places[place.around].open += place.open;
  }
  UnitListing listing;
  std::unordered_map<const ModulePlace*, std::size_t> number;
  for (ModulePlace& place : places)
    if (place.is_unit) number[&place] = listing.units.size(), listing.units.push_back({&place, {}});
  std::unordered_map<const ParameterBody*, std::pair<const ModulePlace*, std::string>> seen;
  bool trains = false;
  for (ModulePlace& place : places) {
    const ModulePlace* unit = &place;
    while (!unit->is_unit) unit = &places[unit->around];
    for (NamedParameter& named : place.parameters) {
      const Parameter& parameter = named.parameter;
      const auto [first, is_new] = seen.emplace(parameter.body(), std::pair(unit, named.name));
      LOCKSTEP_CHECK(is_new || first->second.first == unit, kWho, "expected a shared parameter in one unit, got '",
                     first->second.second, "' in ", described(first->second.first->path),
                     " and the same parameter as '", named.name, "' in ", described(unit->path),
                     "; let the policy choose a module around both, or neither");
      if (!is_new) continue;
      const ParameterBody& body = *parameter.body();
      LOCKSTEP_CHECK(!body.sparse, kWho, "expected dense gradients, but '", named.name, "' of ", described(unit->path),
                     " gets rows: ignore it, or make its gradient dense");
      LOCKSTEP_CHECK(body.home.defined() || options.initialise, kWho,
                     "expected elements, or the option initialise, but '", named.name, "' of ", described(unit->path),
                     " is uninitialised");
      const bool trained = body.home.defined() ? parameter.requires_grad() : is_floating(parameter.dtype());
      trains |= trained;
      listing.text += cat("parameter '", named.name, "' ", parameter.dtype(), parameter.shape(),
                          trained ? "" : ", frozen", ", in ", described(unit->path), '\n');
      listing.units[number.at(unit)].second.push_back(std::move(named));
    }
  }
  LOCKSTEP_CHECK(trains, kWho, "expected a module with a parameter that requires a gradient, got ", seen.size(),
                 " parameters without");
  return listing;
}

std::string lines_of(const FullyShardedOptions& options) {
  const auto text = [](const std::optional<DType>& dtype) { return dtype ? to_string(*dtype) : "the module's"; };
  const DdpMixedPrecision& mixed = options.mixed_precision;
  return cat("reshard_after_forward ", options.reshard_after_forward, "\nprefetch ", options.prefetch,
             "\nbroadcast_buffers ", options.broadcast_buffers, "\ninit_sync ", options.init_sync,
             "\nmixed_precision with param_dtype ", text(mixed.param_dtype), "\nmixed_precision with reduce_dtype ",
             text(mixed.reduce_dtype), '\n');
}

void agree_to_shard(Communicator& communicator, const FullyShardedOptions& options, const std::string& listing,
                    const std::string& problem) {
  const std::vector<std::string> all =
      compare_notes(communicator, "FullyShardedDataParallel", lines_of(options) + listing, problem);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    const auto [on_first, on_this] = first_difference(all[0], all[r]);
    throw InvalidArgument(cat(kWho, "expected the same options and units on every rank, got on rank 0 ", on_first,
                              ", on rank ", r, " ", on_this));
  }
}

}  // namespace

std::vector<ShardedUnit> form_units(ModuleBase& module, Communicator& communicator, const FullyShardedOptions& options,
                                    std::vector<Parameter>& ignored) {
  std::vector<ModulePlace> places;
  UnitListing listing;
  std::string problem;
  std::exception_ptr error;
  try {
    LOCKSTEP_CHECK(options.units_in_flight > 0, kWho, "expected at least one unit in flight, got ",
                   options.units_in_flight);
    for (const auto& dtype : {options.mixed_precision.param_dtype, options.mixed_precision.reduce_dtype,
                              options.mixed_precision.buffer_dtype})
      LOCKSTEP_CHECK(!dtype || is_floating(*dtype), kWho, "expected floating dtypes for mixed_precision, got ", *dtype);
    places = walk(module, {options.ignore.begin(), options.ignore.end()}, ignored);
    listing = list_units(places, options);
  } catch (const Error& e) {
    problem = e.what();
    error = std::current_exception();
  }
  try {
    agree_to_shard(communicator, options, listing.text, problem);
  } catch (const InvalidArgument&) {
    if (error) std::rethrow_exception(std::exchange(error, nullptr));  // the rank at fault has it at first hand
    throw;
  }
  std::vector<ShardedUnit> units;
  for (auto& [place, parameters] : listing.units) {
    ShardedUnit& unit = units.emplace_back(ShardedUnit{.name = place->path, .module = place->module});
    std::map<std::pair<bool, DType>, std::vector<ShardedMember>> kinds;
    for (NamedParameter& named : parameters) {
      const ParameterBody& body = *named.parameter.body();
      const bool trained = body.home.defined() ? named.parameter.requires_grad() : is_floating(body.dtype);
      const MemoryFormat format =
          body.home.defined() ? body.home.memory_format() : body.format.value_or(MemoryFormat::contiguous);
      const Shape shape = body.shape;
      kinds[{!trained, body.dtype}].push_back(
          {.name = std::move(named.name), .parameter = named.parameter, .shape = shape, .format = format});
    }
    for (auto& [kind, members] : kinds)
      unit.flats.emplace_back(unit.described(), std::move(members), !kind.first, communicator, options);
  }
  module.to(communicator.device());
  if (options.init_sync) {
    std::unordered_set<const ParameterBody*> sharded;
    for (const ShardedUnit& unit : units)
      for (const ShardedFlat& flat : unit.flats)
        for (const ShardedMember& member : flat.members()) sharded.insert(member.parameter.body());
    std::vector<Tensor> rest;
    for (const NamedParameter& buffer : module.named_buffers()) rest.push_back(buffer.parameter.tensor());
    for (const NamedParameter& named : module.named_parameters())
      if (!sharded.contains(named.parameter.body())) rest.push_back(named.parameter.tensor());
    if (!rest.empty()) broadcast_coalesced(communicator, rest, 0);
  }
  return units;
}

}  // namespace detail
}  // namespace lockstep
