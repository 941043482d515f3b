#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/golden.h"

using namespace lockstep;
using test::GoldenCase;
using Results = std::vector<Tensor>;
using support::device_at;

namespace {

std::int64_t number(const GoldenCase& c, const char* name) { return c.get<std::int64_t>(name); }
std::int64_t dim(const GoldenCase& c) { return number(c, "dim"); }
Results operands(const GoldenCase& c) {
  Results result;
  for (std::size_t i = 0; i < c.operands(); ++i) result.push_back(c[i]);
  return result;
}

}  // namespace

TEST_CASE("golden: views, joining and indexing") {
  test::check_golden(
      "shape", device_at(0),
      {{"reshape", [](GoldenCase& c) { return Results{c[0].reshape(Shape(c.integers("shape")))}; }},
       {"flatten", [](GoldenCase& c) { return Results{flatten(c[0], number(c, "start"), number(c, "end"))}; }},
       {"transpose", [](GoldenCase& c) { return Results{c[0].transpose(number(c, "dim0"), number(c, "dim1"))}; }},
       {"permute", [](GoldenCase& c) { return Results{c[0].permute(Dims(c.integers("dims")))}; }},
       {"narrow", [](GoldenCase& c) { return Results{c[0].narrow(dim(c), number(c, "start"), number(c, "length"))}; }},
       {"slice",
        [](GoldenCase& c) {
          return Results{c[0].slice(dim(c), number(c, "start"), number(c, "end"), number(c, "step"))};
        }},
       {"select", [](GoldenCase& c) { return Results{c[0].select(dim(c), number(c, "index"))}; }},
       {"flip", [](GoldenCase& c) { return Results{flip(c[0], Dims(c.integers("dims")))}; }},
       {"contiguous", [](GoldenCase& c) { return Results{c[0].contiguous()}; }},
       {"unsqueeze", [](GoldenCase& c) { return Results{c[0].unsqueeze(dim(c))}; }},
       {"squeeze", [](GoldenCase& c) { return Results{c[0].squeeze(dim(c))}; }},
       {"expand", [](GoldenCase& c) { return Results{c[0].expand(Shape(c.integers("shape")))}; }},
       {"pad", [](GoldenCase& c) { return Results{pad(c[0], dim(c), number(c, "before"), number(c, "after"))}; }},
       {"cat", [](GoldenCase& c) { return Results{cat(operands(c), dim(c))}; }},
       {"stack", [](GoldenCase& c) { return Results{stack(operands(c), dim(c))}; }},
       {"split", [](GoldenCase& c) { return split(c[0], number(c, "length"), dim(c)); }},
       {"chunk", [](GoldenCase& c) { return chunk(c[0], number(c, "chunks"), dim(c)); }},
       {"index_select", [](GoldenCase& c) { return Results{index_select(c[0], dim(c), c[1])}; }},
       {"index_add", [](GoldenCase& c) { return Results{index_add(c[0], dim(c), c[1], c[2])}; }},
       {"gather", [](GoldenCase& c) { return Results{gather(c[0], dim(c), c[1])}; }},
       {"scatter_add", [](GoldenCase& c) { return Results{scatter_add(c[0], dim(c), c[1], c[2])}; }},
       {"unbind", [](GoldenCase& c) { return unbind(c[0], dim(c)); }},
       {"repeat", [](GoldenCase& c) { return Results{repeat(c[0], Dims(c.integers("times")))}; }},
       {"repeat_interleave",
        [](GoldenCase& c) { return Results{repeat_interleave(c[0], number(c, "times"), dim(c))}; }},
       {"roll", [](GoldenCase& c) { return Results{roll(c[0], number(c, "shift"), dim(c))}; }},
       {"tril", [](GoldenCase& c) { return Results{tril(c[0], number(c, "diagonal"))}; }},
       {"triu", [](GoldenCase& c) { return Results{triu(c[0], number(c, "diagonal"))}; }},
       {"pad_all", [](GoldenCase& c) { return Results{pad(c[0], Dims(c.integers("counts")), c.get("number"))}; }},
       {"meshgrid", [](GoldenCase& c) { return meshgrid(operands(c)); }},
       {"squeeze_all", [](GoldenCase& c) { return Results{squeeze(c[0])}; }},
       {"linspace",
        [](GoldenCase& c) {
          return Results{
              linspace(c.get("low"), c.get("high"), number(c, "steps"), {.dtype = DType::f64, .device = device_at(0)})};
        }},
       {"mm", [](GoldenCase& c) { return Results{mm(c[0], c[1])}; }},
       {"bmm", [](GoldenCase& c) { return Results{bmm(c[0], c[1])}; }},
       {"mv", [](GoldenCase& c) { return Results{mv(c[0], c[1])}; }},
       {"dot", [](GoldenCase& c) { return Results{dot(c[0], c[1])}; }},
       {"outer", [](GoldenCase& c) { return Results{outer(c[0], c[1])}; }},
       {"one_hot", [](GoldenCase& c) { return Results{one_hot(c[0], number(c, "classes"))}; }}});
}
