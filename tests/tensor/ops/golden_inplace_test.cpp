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

double alpha(const GoldenCase& c) { return c.get("alpha", 1.0); }
double number(const GoldenCase& c) { return c.get("number"); }

void write(const std::string& how, Tensor view, const Tensor& b) {
  if (how == "add_")
    view.add_(b);
  else if (how == "mul_")
    view.mul_(b);
  else
    view.copy_(b);
}
Results into_view(GoldenCase& c) {
  const Tensor whole = c[0].clone();
  write(c.text("how"), whole.narrow(0, 1, 2).transpose(0, 1).select(0, 2), c[1]);
  write(c.text("how"), whole.reshape({2, -1}).narrow(1, 3, 4), c[1].sum());
  return {whole};
}
Results chain(GoldenCase& c) {
  Tensor y = c[0] * 2;
  y *= c[1];
  y.add_(c[2], 3) /= abs(c[1]) + 1;
  y -= c[0];
  y.mul_(y);
  return {y.narrow(0, 1, 2).transpose(0, 1), exp(y.reshape({-1}).narrow(0, 2, 7) * c[2].sum())};
}
Results filled(GoldenCase& c) {
  Tensor y = zeros({3, 4}, {.dtype = c[0].dtype(), .device = c[0].device()});
  y.copy_(c[0]).mul_(c[1]) += 1;
  const Tensor z = y * c[0];
  y = y.detach().clone().fill_(0.5);
  return {z, y += c[1]};
}

}  // namespace

TEST_CASE("golden: operations in place") {
  test::check_golden("inplace", device_at(0),
                     {{"add_", [](GoldenCase& c) { return Results{c[0].clone().add_(c[1], alpha(c))}; }},
                      {"sub_", [](GoldenCase& c) { return Results{c[0].clone().sub_(c[1], alpha(c))}; }},
                      {"mul_", [](GoldenCase& c) { return Results{c[0].clone().mul_(c[1])}; }},
                      {"div_", [](GoldenCase& c) { return Results{c[0].clone().div_(c[1])}; }},
                      {"copy_", [](GoldenCase& c) { return Results{c[0].clone().copy_(c[1])}; }},
                      {"add_number_", [](GoldenCase& c) { return Results{c[0].clone().add_(number(c))}; }},
                      {"sub_number_", [](GoldenCase& c) { return Results{c[0].clone().sub_(number(c))}; }},
                      {"mul_number_", [](GoldenCase& c) { return Results{c[0].clone().mul_(number(c))}; }},
                      {"div_number_", [](GoldenCase& c) { return Results{c[0].clone().div_(number(c))}; }},
                      {"fill_", [](GoldenCase& c) { return Results{c[0].clone().fill_(number(c))}; }},
                      {"into_view", into_view},
                      {"chain", chain},
                      {"filled", filled}});
}
