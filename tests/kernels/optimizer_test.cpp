// sgd against PyTorch's formulas, written out one element at a time.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

struct Settings {
  double rate = 0.1, momentum = 0, dampening = 0, decay = 0;
  bool nesterov = false, maximize = false;
};

void reference_step(const Settings& s, bool first, double gradient, double& parameter, double& buffer) {
  double g = s.maximize ? -gradient : gradient;
  if (s.decay != 0) g += s.decay * parameter;
  if (s.momentum != 0) {
    buffer = first ? g : s.momentum * buffer + (1 - s.dampening) * g;
    g = s.nesterov ? g + s.momentum * buffer : buffer;
  }
  parameter -= s.rate * g;
}

}  // namespace

TEST_CASE("sgd follows PyTorch's formulas", "[sgd]") {
  const std::vector<Settings> all = {
      {},
      {.decay = 0.01},
      {.maximize = true},
      {.momentum = 0.9},
      {.momentum = 0.9, .dampening = 0.5},
      {.momentum = 0.9, .decay = 0.01, .nesterov = true},
      {.momentum = 0.8, .dampening = 0.3, .decay = 0.02, .maximize = true},
  };
  for (const Settings& s : all)
    for (const DType dtype : kFloatingDTypes) {
      std::vector<TestTensor> parameters, gradients, buffers;
      std::vector<std::vector<double>> wanted, wanted_buffers;
      for (const std::int64_t count : {1, 19, 0, 300}) {
        parameters.emplace_back(dtype, Shape{count}).fill_random(1);
        gradients.emplace_back(dtype, Shape{count});
        // What stands in the buffer before the first step must not matter.
        buffers.emplace_back(dtype, Shape{count}).fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
        wanted.push_back(parameters.back().values());
        wanted_buffers.emplace_back(static_cast<std::size_t>(count));
      }
      for (int step = 0; step < 4; ++step) {
        SgdArgs args{{}, s.rate, s.momentum, s.dampening, s.decay, s.nesterov, s.maximize};
        for (std::size_t t = 0; t < parameters.size(); ++t) {
          gradients[t].fill_random(static_cast<std::uint64_t>(step) + 5);
          args.tensors.push_back({parameters[t].inout(), gradients[t].in(),
                                  s.momentum != 0 ? buffers[t].inout() : InOut{}, step == 0});
          for (std::size_t i = 0; i < wanted[t].size(); ++i) {
            reference_step(s, step == 0, gradients[t][static_cast<std::int64_t>(i)], wanted[t][i], wanted_buffers[t][i]);
            // The state is stored in the dtype.
            wanted[t][i] = rounded(dtype, wanted[t][i]);
            if (size_of(dtype) == 2) wanted_buffers[t][i] = rounded(dtype, wanted_buffers[t][i]);
          }
        }
        run(&KernelTable::sgd, args);
        for (std::size_t t = 0; t < parameters.size(); ++t) {
          const double tolerance = 4 * (step + 1);
          CHECK(mismatch(parameters[t], [&](std::int64_t i) { return wanted[t][static_cast<std::size_t>(i)]; }, tolerance,
                         tolerance) == "");
          if (s.momentum != 0)
            CHECK(mismatch(buffers[t], [&](std::int64_t i) { return wanted_buffers[t][static_cast<std::size_t>(i)]; },
                           tolerance, tolerance) == "");
        }
      }
    }
}

TEST_CASE("sgd without weight decay or momentum does not multiply by zero", "[sgd]") {
  TestTensor p(DType::f32, {9}), g(DType::f32, {9}), m(DType::f32, {9});
  p.fill([](std::int64_t) { return std::numeric_limits<double>::infinity(); });
  g.fill([](std::int64_t) { return 1.0; });
  SgdArgs args{{{p.inout(), g.in(), {}, true}}, 0.1, 0, 0, 0, false, false};
  run(&KernelTable::sgd, args);
  CHECK(p[8] == std::numeric_limits<double>::infinity());
  args.tensors[0].momentum = m.inout();
  args.momentum = 0.9;
  run(&KernelTable::sgd, args);
  CHECK(p[8] == std::numeric_limits<double>::infinity());
  CHECK(m[8] == 1);
}
