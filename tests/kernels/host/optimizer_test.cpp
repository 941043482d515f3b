// sgd, adam and unscale against PyTorch's formulas, written out one element at a time.
#include <algorithm>
#include <cmath>

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
        buffers.emplace_back(dtype, Shape{count}).fill([](std::int64_t) {
          return std::numeric_limits<double>::quiet_NaN();
        });
        wanted.push_back(parameters.back().values());
        wanted_buffers.emplace_back(static_cast<std::size_t>(count));
      }
      for (int step = 0; step < 4; ++step) {
        SgdArgs args{{}, s.rate, s.momentum, s.dampening, s.decay, s.nesterov, s.maximize};
        for (std::size_t t = 0; t < parameters.size(); ++t) {
          gradients[t].fill_random(static_cast<std::uint64_t>(step) + 5);
          args.tensors.push_back(
              {parameters[t].inout(), gradients[t].in(), s.momentum != 0 ? buffers[t].inout() : InOut{}, step == 0});
          for (std::size_t i = 0; i < wanted[t].size(); ++i) {
            reference_step(s, step == 0, gradients[t][static_cast<std::int64_t>(i)], wanted[t][i],
                           wanted_buffers[t][i]);
            // The state is stored in the dtype.
            wanted[t][i] = rounded(dtype, wanted[t][i]);
            if (size_of(dtype) == 2) wanted_buffers[t][i] = rounded(dtype, wanted_buffers[t][i]);
          }
        }
        run(args);
        for (std::size_t t = 0; t < parameters.size(); ++t) {
          const double tolerance = 4 * (step + 1);
          CHECK(mismatch(
                    parameters[t], [&](std::int64_t i) { return wanted[t][static_cast<std::size_t>(i)]; }, tolerance,
                    tolerance) == "");
          if (s.momentum != 0)
            CHECK(mismatch(
                      buffers[t], [&](std::int64_t i) { return wanted_buffers[t][static_cast<std::size_t>(i)]; },
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
  run(args);
  CHECK(p[8] == std::numeric_limits<double>::infinity());
  args.tensors[0].momentum = m.inout();
  args.momentum = 0.9;
  run(args);
  CHECK(p[8] == std::numeric_limits<double>::infinity());
  CHECK(m[8] == 1);
}

namespace {

struct AdamSettings {
  double rate = 0.1, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, decay = 0;
  bool amsgrad = false, decoupled = false, maximize = false;
};
struct AdamReference {
  double p, m = 0, v = 0, largest = 0;
};

void reference_step(const AdamSettings& s, int step, double gradient, AdamReference& r) {
  double g = s.maximize ? -gradient : gradient;
  if (s.decay != 0 && s.decoupled) r.p *= 1 - s.rate * s.decay;
  if (s.decay != 0 && !s.decoupled) g += s.decay * r.p;
  r.m = s.beta1 * r.m + (1 - s.beta1) * g;
  r.v = s.beta2 * r.v + (1 - s.beta2) * g * g;
  r.largest = std::max(r.largest, r.v);
  const double root = std::sqrt(s.amsgrad ? r.largest : r.v) / std::sqrt(1 - std::pow(s.beta2, step));
  r.p -= s.rate / (1 - std::pow(s.beta1, step)) * r.m / (root + s.eps);
}

struct AdamTensors {
  TestTensor parameter, gradient, exp_avg, exp_avg_sq, largest;
  AdamTensors(DType dtype, std::int64_t count)
      : parameter(dtype, {count}),
        gradient(dtype, {count}),
        exp_avg(dtype, {count}),
        exp_avg_sq(dtype, {count}),
        largest(dtype, {count}) {
    parameter.fill_random(1);
    // What stands in the state before the first step must not matter.
    for (TestTensor* state : {&exp_avg, &exp_avg_sq, &largest})
      state->fill([](std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
  }
  AdamTensor args(bool amsgrad, std::int64_t step) {
    return {parameter.inout(),
            gradient.in(),
            exp_avg.inout(),
            exp_avg_sq.inout(),
            amsgrad ? largest.inout() : InOut{},
            step};
  }
};

}  // namespace

TEST_CASE("adam follows PyTorch's formulas", "[adam]") {
  const std::vector<AdamSettings> all = {
      {},
      {.decay = 0.1},
      {.decay = 0.1, .decoupled = true},
      {.amsgrad = true, .maximize = true},
      {.rate = 0.02, .beta1 = 0.3, .beta2 = 0.7, .eps = 0.01, .decay = 0.2, .amsgrad = true, .decoupled = true},
      {.rate = 0.5, .beta1 = 0, .beta2 = 0.5, .eps = 0.1, .maximize = true},
  };
  for (const AdamSettings& s : all)
    for (const DType dtype : kFloatingDTypes) {
      if (dtype == DType::f16 && s.eps < 1e-3) continue;  // 0 in f16, where moments of 0 are possible
      std::vector<AdamTensors> tensors;
      std::vector<std::vector<AdamReference>> wanted;
      for (const std::int64_t count : {1, 19, 0, 300}) {
        tensors.emplace_back(dtype, count);
        wanted.emplace_back();
        for (const double p : tensors.back().parameter.values()) wanted.back().push_back({p});
      }
      for (int step = 1; step <= 5; ++step) {
        AdamArgs args{{}, s.rate, s.beta1, s.beta2, s.eps, s.decay, s.decoupled, s.maximize};
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          // Away from 0: there the direction of a step hangs on the rounding of the state.
          tensors[t].gradient.fill_random(static_cast<std::uint64_t>(step) + 5, 0.5, 2);
          args.tensors.push_back(tensors[t].args(s.amsgrad, step));
          for (std::size_t i = 0; i < wanted[t].size(); ++i) {
            AdamReference& r = wanted[t][i];
            reference_step(s, step, tensors[t].gradient[static_cast<std::int64_t>(i)], r);
            r = {rounded(dtype, r.p), rounded(dtype, r.m), rounded(dtype, r.v), rounded(dtype, r.largest)};
          }
        }
        run(args);
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          const auto check = [&](const TestTensor& got, double AdamReference::*want) {
            CHECK(mismatch(
                      got, [&](std::int64_t i) { return wanted[t][static_cast<std::size_t>(i)].*want; }, 4 * step,
                      4 * step) == "");
          };
          check(tensors[t].parameter, &AdamReference::p);
          check(tensors[t].exp_avg, &AdamReference::m);
          check(tensors[t].exp_avg_sq, &AdamReference::v);
          if (s.amsgrad) check(tensors[t].largest, &AdamReference::largest);
        }
      }
    }
}

TEST_CASE("adam takes each tensor's own step, and does not multiply by zero", "[adam]") {
  AdamTensors early(DType::f32, 9), late(DType::f32, 9);
  for (AdamTensors* each : {&early, &late}) {
    each->parameter.fill([](std::int64_t i) { return i == 8 ? std::numeric_limits<double>::infinity() : 0.0; });
    each->gradient.fill([](std::int64_t) { return 1.0; });
  }
  late.exp_avg.fill([](std::int64_t) { return 0.0; });
  late.exp_avg_sq.fill([](std::int64_t) { return 0.0; });
  run(AdamArgs{{early.args(false, 1), late.args(false, 10)}, 0.1, 0.9, 0.999, 1e-8, 0, false, false});
  CHECK(early.parameter[0] == Approx(-0.1));
  const double m = 0.1 / (1 - std::pow(0.9, 10)), v = 0.001 / (1 - std::pow(0.999, 10));
  CHECK(late.parameter[0] == Approx(-0.1 * m / std::sqrt(v)));
  CHECK(early.parameter[8] == std::numeric_limits<double>::infinity());
  CHECK(early.exp_avg[8] == Approx(0.1));
}

TEST_CASE("adam's first moment arrives at the gradient where it keeps nothing", "[adam]") {
  AdamTensors t(DType::f64, 5);
  t.gradient.fill([](std::int64_t) { return 1.0; });
  for (TestTensor* state : {&t.exp_avg, &t.exp_avg_sq}) state->fill([](std::int64_t) { return 1e20; });
  run(AdamArgs{{t.args(false, 2)}, 0.1, 0, 0.9, 1e-8, 0, false, false});
  CHECK(t.exp_avg[4] == 1);
}

TEST_CASE("adam and unscale on many tensors are what they are on one", "[adam][unscale]") {
  std::vector<AdamTensors> together, alone;
  for (int i = 0; i < 150; ++i) {
    const std::int64_t count = i == 70 ? 200003 : i % 40 == 0 ? 16385 : i % 13;
    for (auto* list : {&together, &alone}) {
      AdamTensors& t = list->emplace_back(i % 3 == 0 ? DType::f64 : DType::f32, count);
      t.gradient.fill_random(static_cast<std::uint64_t>(i));
      for (TestTensor* state : {&t.exp_avg, &t.exp_avg_sq, &t.largest}) state->fill_random(7, 0, 1);
    }
  }
  AdamArgs all{{}, 0.1, 0.9, 0.99, 1e-8, 0.01, true, false};
  TestTensor found(DType::f32, {});
  found.set(0, 0);
  UnscaleArgs scaled{{}, found.inout(), 0.3};
  for (std::size_t i = 0; i < together.size(); ++i) {
    const auto step = static_cast<std::int64_t>(1 + i % 5);
    AdamArgs one = all;
    one.tensors = {alone[i].args(i % 2 == 0, step)};
    run(one);
    run(UnscaleArgs{{alone[i].gradient.inout()}, found.inout(), 0.3});
    all.tensors.push_back(together[i].args(i % 2 == 0, step));
    scaled.gradients.push_back(together[i].gradient.inout());
  }
  run(all);
  run(scaled);
  CHECK(found[0] == 0);
  for (std::size_t i = 0; i < together.size(); ++i) {
    INFO(i);
    CHECK(together[i].parameter.bytes() == alone[i].parameter.bytes());
    CHECK(together[i].exp_avg.bytes() == alone[i].exp_avg.bytes());
    CHECK(together[i].exp_avg_sq.bytes() == alone[i].exp_avg_sq.bytes());
    CHECK(together[i].largest.bytes() == alone[i].largest.bytes());
    CHECK(together[i].gradient.bytes() == alone[i].gradient.bytes());
  }
  // The last element of the last tensor counts too.
  together.back().gradient.set(together.back().gradient.count() - 1, std::numeric_limits<double>::infinity());
  run(scaled);
  CHECK(found[0] == 1);
}

TEST_CASE("copies of many tensors are copies, of each bit and of nothing else") {
  std::vector<TestTensor> from, to;
  CopyManyArgs args;
  for (int i = 0; i < 40; ++i) {
    const DType dtype = kFloatingDTypes[static_cast<std::size_t>(i) % std::size(kFloatingDTypes)];
    for (auto* list : {&from, &to}) list->emplace_back(dtype, Shape{i == 20 ? 40'001 : i % 9});
    from.back().fill_random(static_cast<std::uint64_t>(i)), to.back().fill_random(100);
  }
  for (std::size_t i = 0; i < from.size(); ++i) args.tensors.push_back({from[i].in(), to[i].out()});
  const auto before = from;
  run(args);
  for (std::size_t i = 0; i < from.size(); ++i) {
    CHECK(to[i].bytes() == before[i].bytes());
    CHECK(from[i].bytes() == before[i].bytes());
  }
}

TEST_CASE("unscale multiplies and finds what is not finite", "[unscale]") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : kFloatingDTypes)
    for (const double bad : {0.0, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()})
      for (const std::int64_t place : {0, 17, 299}) {
        TestTensor a(dtype, {300}), empty(dtype, {0}), b(DType::f32, {3}), found(DType::f32, {});
        a.fill([&](std::int64_t i) { return i == place ? bad : static_cast<double>(i % 7) - 3; });
        b.fill([](std::int64_t i) { return static_cast<double>(i); });
        found.set(0, 0);
        run(UnscaleArgs{{b.inout(), empty.inout(), a.inout()}, found.inout(), 0.25});
        CHECK(found[0] == (bad == 0 ? 0 : 1));
        CHECK(mismatch(
                  b, [](std::int64_t i) { return static_cast<double>(i) / 4; }, 0) == "");
        CHECK(mismatch(
                  a, [&](std::int64_t i) { return (i == place ? bad : static_cast<double>(i % 7) - 3) / 4; }, 0) == "");
        // It does not take back what was found before.
        b.fill([](std::int64_t) { return 1.0; });
        run(UnscaleArgs{{b.inout()}, found.inout(), 0.25});
        CHECK(found[0] == (bad == 0 ? 0 : 1));
      }
}
