#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

std::int64_t sort_dim(const GoldenCase& c) { return c.get<std::int64_t>("dim"); }
Results both(const ValuesAndIndices& found) { return {found.values, found.indices}; }

}  // namespace

TEST_CASE("golden: order along a dimension") {
  test::check_golden(
      "order", device_at(0),
      {{"cumsum", [](GoldenCase& c) { return Results{cumsum(c[0], sort_dim(c))}; }},
       {"cumprod", [](GoldenCase& c) { return Results{cumprod(c[0], sort_dim(c))}; }},
       {"sort", [](GoldenCase& c) { return both(sort(c[0], sort_dim(c), c.get<bool>("descending"))); }},
       {"argsort", [](GoldenCase& c) { return Results{argsort(c[0], sort_dim(c), c.get<bool>("descending"))}; }},
       {"topk", [](GoldenCase& c) { return both(topk(c[0], c.get<int>("k"), sort_dim(c), c.get<bool>("largest"))); }}});
}
