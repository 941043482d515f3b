#include "lockstep/tensor/nn/shard.h"

#include <algorithm>
#include <numeric>

#include "lockstep/runtime/error.h"
#include "lockstep/tensor/nn/parameter_body.h"
#include "lockstep/tensor/ops/shape_ops.h"

namespace lockstep {
namespace {

std::int64_t share(std::int64_t size, int ranks) { return (size + ranks - 1) / ranks; }

// What a rank's share has of a section.
struct Range {
  std::int64_t begin, count;
};
Range range_of(std::int64_t size, int rank, int ranks) {
  const std::int64_t each = share(size, ranks), begin = std::min(size, rank * each);
  return {begin, std::min(size, begin + each) - begin};
}

}  // namespace

std::int64_t Shard::whole_size() const { return std::accumulate(sections.begin(), sections.end(), std::int64_t{0}); }

std::int64_t Shard::part_size() const {
  std::int64_t size = 0;
  for (const std::int64_t section : sections) size += share(section, ranks);
  return size;
}

Shape Shard::whole_shape(Shape part) const {
  part[dim] = whole_size();
  return part;
}

Shape Shard::part_shape(Shape whole) const {
  whole[dim] = part_size();
  return whole;
}

Tensor Shard::part_of(const Tensor& whole) const {
  LOCKSTEP_CHECK(dim < whole.rank() && whole.size(dim) == whole_size(), "[Shard] expected ", whole_size(),
                 " along dimension ", dim, " of a whole tensor, got ", whole);
  std::vector<Tensor> shares;
  std::int64_t at = 0;
  for (const std::int64_t section : sections) {
    const Range range = range_of(section, rank, ranks);
    const Tensor own = whole.narrow(dim, at + range.begin, range.count);
    const std::int64_t missing = share(section, ranks) - range.count;
    shares.push_back(missing > 0 ? pad(own, dim, 0, missing) : own);
    at += section;
  }
  return shares.size() == 1 ? shares[0] : cat(shares, dim);
}

Tensor Shard::whole_of(std::span<const Tensor> parts) const {
  std::vector<Tensor> shares;
  std::int64_t at = 0;
  for (const std::int64_t section : sections) {
    for (int r = 0; r < ranks; ++r)
      shares.push_back(parts[static_cast<std::size_t>(r)].narrow(dim, at, range_of(section, r, ranks).count));
    at += share(section, ranks);
  }
  return cat(shares, dim);
}

Parameter Shard::take(const Tensor& whole) const {
  const NoGrad no_grad;
  Parameter parameter(part_of(whole).clone());
  set_shard(parameter, *this);
  return parameter;
}

const Shard* shard_of(const Parameter& parameter) {
  return parameter.defined() ? parameter.body()->shard.get() : nullptr;
}

void set_shard(const Parameter& parameter, const Shard& shard) {
  parameter.body()->shard = std::make_shared<const Shard>(shard);
}

}  // namespace lockstep
