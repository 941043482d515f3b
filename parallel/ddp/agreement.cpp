#include "lockstep/parallel/ddp/agreement.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "lockstep/parallel/comm/agree.h"
#include "lockstep/parallel/comm/machine_id.h"
#include "lockstep/parallel/ddp/bucket_cap.h"
#include "lockstep/parallel/ddp/reducer.h"
#include "lockstep/tensor/nn/parameter_body.h"

namespace lockstep::detail {
namespace {

// A line for each option that makes ranks communicate, or sum, in another way.
std::string lines_of(const DistributedDataParallelOptions& options) {
  const DdpMixedPrecision& mixed = options.mixed_precision;
  const std::optional<DType> reduced = mixed.reduce_dtype ? mixed.reduce_dtype : mixed.param_dtype;
  return cat("bucket_cap_mb ", options.bucket_cap_mb == kAutoBucketCap ? "auto" : cat(options.bucket_cap_mb),
             "\nfirst_bucket_mb ", options.first_bucket_mb, "\nbroadcast_buffers ", options.broadcast_buffers,
             "\nfind_unused_parameters ", options.find_unused_parameters, "\nstatic_graph ", options.static_graph,
             "\ninit_sync ", options.init_sync, "\nbackwards_per_forward ", options.backwards_per_forward,
             "\nmixed_precision that reduces in ", reduced ? to_string(*reduced) : "the parameters' dtypes", '\n');
}

// Bytes of all dense gradients that are reduced: in the module's dtypes, and as they travel.
struct GradientBytes {
  std::uint64_t held = 0, reduced = 0;
};
GradientBytes bytes_of(const std::vector<NamedParameter>& parameters, const DdpMixedPrecision& mixed) {
  GradientBytes bytes;
  for (const NamedParameter& named : parameters) {
    const Parameter& parameter = named.parameter;
    if (!parameter.requires_grad() || parameter.body()->sparse) continue;
    const auto count = static_cast<std::uint64_t>(element_count(parameter.shape()));
    bytes.held += count * size_of(parameter.dtype());
    bytes.reduced += count * size_of(mixed.reduces(parameter.dtype()));
  }
  return bytes;
}

// What a rank says, in this order.
enum Part { kOptions, kMachine, kFacts, kModel, kParts };

// The facts of rank 0, from which all make the same choice.
std::string facts_of(const GradientBytes& bytes, const RankLinks& links, int hosts) {
  return cat(bytes.held, ' ', bytes.reduced, ' ', static_cast<int>(links.within), ' ', links.network_gbits, ' ', hosts);
}

std::size_t choose(const std::string& facts, int ranks, const std::set<std::string>& machines) {
  double numbers[5] = {};
  const char *at = facts.data(), *const end = at + facts.size();
  for (double& number : numbers) at = std::from_chars(at == end || *at != ' ' ? at : at + 1, end, number).ptr;
  const auto [held, reduced, within, gbits, known_hosts] = numbers;
  const int hosts = known_hosts > 0 ? static_cast<int>(known_hosts) : static_cast<int>(machines.size());
  const std::size_t cap = choose_bucket_cap({.bytes = static_cast<std::uint64_t>(reduced),
                                             .ranks = ranks,
                                             .hosts = hosts,
                                             .links = {static_cast<HostLink>(static_cast<int>(within)), gbits}});
  if (held == 0 || held == reduced) return cap;
  return static_cast<std::size_t>(static_cast<double>(cap) * held / reduced);  // limits are of what is held
}

std::vector<std::string> parts_of(const std::string& note) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (int part = kOptions; part < kModel; ++part) {
    const std::size_t end = std::min(note.find('\f', begin), note.size());
    parts.push_back(note.substr(begin, end - begin));
    begin = std::min(end + 1, note.size());
  }
  parts.push_back(note.substr(begin));
  return parts;
}

}  // namespace

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

std::size_t agree_to_wrap(Communicator& communicator, const DistributedDataParallelOptions& options,
                          const std::vector<NamedParameter>& parameters, const std::string& listing,
                          const std::string& problem) {
  const bool chooses = options.bucket_cap_mb == kAutoBucketCap;
  std::string facts, trouble = problem;
  if (chooses) try {
      facts = facts_of(bytes_of(parameters, options.mixed_precision), links_of(communicator.device()),
                       communicator.host_count());
    } catch (const Error& error) {
      if (trouble.empty()) trouble = error.what();  // the others are not left waiting
    }
  const std::string mine =
      cat(lines_of(options), '\f', chooses ? machine_id() : "", '\f', facts, '\f', options.init_sync ? listing : "");
  const std::vector<std::string> all = compare_notes(communicator, "DistributedDataParallel", mine, trouble);
  const std::vector<std::string> first = parts_of(all[0]);
  std::set<std::string> machines;
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::vector<std::string> parts = parts_of(all[r]);
    machines.insert(parts[kMachine]);
    if (parts[kOptions] != first[kOptions]) {
      const auto [on_first, on_this] = first_difference(first[kOptions], parts[kOptions]);
      throw InvalidArgument(cat("[DistributedDataParallel] expected the same options on every rank, got on rank 0 ",
                                on_first, ", on rank ", r, ' ', on_this));
    }
    if (parts[kModel] == first[kModel]) continue;
    const auto [on_first, on_this] = first_difference(first[kModel], parts[kModel]);
    const auto count = [](const std::string& lines) { return std::count(lines.begin(), lines.end(), '\n'); };
    throw InvalidArgument(cat("[DistributedDataParallel] expected the same model on every rank, got on rank 0 ",
                              count(first[kModel]), " parameters and buffers, on rank ", r, " ", count(parts[kModel]),
                              "; the first that differs: on rank 0 ", on_first, ", on rank ", r, " ", on_this));
  }
  return chooses ? choose(first[kFacts], communicator.size(), machines) : mebibytes(options.bucket_cap_mb);
}

}  // namespace lockstep::detail
