#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

Dims dims_of(const GoldenCase& c) { return Dims(c.integers("dims")); }
bool keep(const GoldenCase& c) { return c.get("keep", false); }

using Over = Tensor (*)(const Tensor&, const Dims&, bool);
// Over all dimensions, or over some.
GoldenCase::Function reduction(Tensor (*whole)(const Tensor&), Over some) {
  return [=](GoldenCase& c) { return Results{c.has("dims") ? some(c[0], dims_of(c), keep(c)) : whole(c[0])}; };
}
GoldenCase::Function extreme(ValuesAndIndices (*function)(const Tensor&, std::int64_t, bool)) {
  return [=](GoldenCase& c) {
    auto [values, indices] = function(c[0], c.get<int>("dim"), keep(c));
    return Results{values, indices};
  };
}
GoldenCase::Function along(Tensor (*function)(const Tensor&, std::int64_t, bool)) {
  return [=](GoldenCase& c) { return Results{function(c[0], c.get<int>("dim"), keep(c))}; };
}
GoldenCase::Function whole(Tensor (*function)(const Tensor&)) {
  return [=](GoldenCase& c) { return Results{function(c[0])}; };
}

}  // namespace

TEST_CASE("golden: reductions") {
  test::check_golden(
      "reduce", device_at(0),
      {{"sum", reduction(sum, sum)},
       {"mean", reduction(mean, mean)},
       {"var", [](GoldenCase& c) { return Results{var(c[0], dims_of(c), c.get("correction", 1.0), keep(c))}; }},
       {"stddev", [](GoldenCase& c) { return Results{stddev(c[0], dims_of(c), c.get("correction", 1.0), keep(c))}; }},
       {"logsumexp", [](GoldenCase& c) { return Results{logsumexp(c[0], dims_of(c), keep(c))}; }},
       {"amax", [](GoldenCase& c) { return Results{amax(c[0], dims_of(c), keep(c))}; }},
       {"amin", [](GoldenCase& c) { return Results{amin(c[0], dims_of(c), keep(c))}; }},
       {"norm", reduction(norm, norm)},
       {"vector_norm",
        [](GoldenCase& c) { return Results{vector_norm(c[0], std::stod(c.text("p")), dims_of(c), keep(c))}; }},
       {"prod", whole(prod)},
       {"prod_dim", along(prod)},
       {"max", whole(max)},
       {"min", whole(min)},
       {"max_dim", extreme(max)},
       {"min_dim", extreme(min)},
       {"argmax", whole(argmax)},
       {"argmin", whole(argmin)},
       {"argmax_dim", along(argmax)},
       {"argmin_dim", along(argmin)},
       {"any", whole(any)},
       {"all", whole(all)},
       {"any_dims", reduction(any, any)},
       {"all_dims", reduction(all, all)}});
}
