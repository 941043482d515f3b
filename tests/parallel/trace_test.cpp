// What a trace shows of a training step.
#include "lockstep/runtime/trace/trace.h"

#include <set>

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
  for (const char* name : {"matmul", "relu", "relu_grad", "sum", "add", "sgd"}) {
    INFO(name);
    CHECK(kernels.contains(name));
  }
}
