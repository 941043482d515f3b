// What a trace shows of a training step.
#include "lockstep/runtime/trace/trace.h"

#include <map>
#include <set>
#include <string>

#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/sequential.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

TEST_CASE("a trace has the phases of a training step, and its operations by their names") {
  const auto net = DataParallel(Mlp{}, {.devices = first_devices(2)});
  SGD optimizer(net.parameters(), {.lr = 0.25});
  trace::start();
  sum(relu(net(noise({4, 3}, 1)))).backward();
  optimizer.step();
  trace::stop();
  std::set<std::string> phases, kernels;
  for (const trace::Span& span : trace::spans())
    (span.work.kind == trace::Kind::kernel ? kernels : phases).insert(span.work.name);
  for (const char* name : {"scatter", "copy", "replicate", "forward", "replica", "gather", "backward", "reduce"}) {
    INFO(name);
    CHECK(phases.contains(name));
  }
  // The gradients are read where they are, or are copied home first.
  const char* const reduction = sums_in_place(first_devices(2)[0]) ? "ordered_sum" : "add";
  for (const char* name : {"matmul", "relu", "relu_grad", "sum", reduction, "sgd"}) {
    INFO(name);
    CHECK(kernels.contains(name));
  }
}

TEST_CASE("a trace shows that each replica computes a norm and the relu behind it as one") {
  manual_seed(4);
  const auto net = DataParallel(Sequential(Linear(3, 4), BatchNorm1d(4), ReLU()), {.devices = first_devices(3)});
  trace::start();
  net(noise({9, 3}, 1).to(DType::f32)).sum().backward();
  trace::stop();
  std::map<std::string, int> kernels;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel) ++kernels[span.work.name];
  CHECK(kernels["batch_norm"] == 3);
  CHECK(kernels["batch_norm_grad"] == 3);
  CHECK(kernels["relu"] + kernels["relu_grad"] == 0);
  manual_seed(0);
}
