// How often units are gathered and reduced, and in which order the host enqueues it.
#include "lockstep/runtime/trace/trace.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;

namespace {

using Body = std::function<void(const FullyShardedDataParallel<Marked>&, const Tensor&)>;

// What rank 0's host enqueues in `body`, after a step from which the order is known: g(ather), r(educe), b(lock) and
// B(ack).
std::string events(const FullyShardedOptions& options, const Body& body, const std::string& frozen = "") {
  return run_ranks(2, [&](Communicator& c) {
    Marked module;
    for (const NamedParameter& named : module.named_parameters())
      if (!frozen.empty() && named.name.starts_with(frozen)) named.parameter.set_requires_grad(false);
    FullyShardedDataParallel<Marked> net(std::move(module), c, options);
    const Tensor x = rows_of(c, 0);
    loss_of(net(x)).backward();
    if (c.rank() == 0) trace::start();
    c.barrier();
    {
      const trace::Scope mine(c.rank() == 0 ? "rank 0" : "rank 1");
      body(net, x);
    }
    synchronize(c.device());
    c.barrier();
    if (c.rank() != 0) return std::string();
    trace::stop();
    std::string track, found;
    for (const trace::Span& span : trace::spans()) {
      const std::string_view name = span.work.name ? span.work.name : "";
      if (name == "rank 0") track = span.track;
      if (span.track != track || span.work.kind != trace::Kind::host) continue;
      if (name == "gather" || name == "reduce" || name == "block") found += name[0];
      if (name == "back") found += 'B';
    }
    return found;
  })[0];
}

void train_once(const FullyShardedDataParallel<Marked>& net, const Tensor& x) { loss_of(net(x)).backward(); }

}  // namespace

TEST_CASE("units are gathered and reduced as often as the setting says, in the order that it says") {
  struct Row {
    const char* name;
    FullyShardedOptions options;
    Body body;
    std::string expected, frozen = "";
  };
  const FullyShardedOptions blocks{.wrap = wrap_modules<Block>()};
  FullyShardedOptions late = blocks, stays = blocks;
  late.prefetch = false, stays.reshard_after_forward = false;
  const Body local = [](const auto& net, const Tensor& x) {
    const NoSync no_sync = net.no_sync();
    train_once(net, x);
  };
  const Body then_global = [local](const auto& net, const Tensor& x) { local(net, x), train_once(net, x); };
  const Body evaluates = [](const auto& net, const Tensor& x) {
    const NoGrad no_grad;
    net(x);
  };
  const Body two_forwards = [](const auto& net, const Tensor& x) {
    const Tensor first = loss_of(net(x)), second = loss_of(net(x));
    second.backward();
    first.backward();
  };
  const std::vector<Row> rows{
      {"one unit", {}, train_once, "gbbbBBBr"},
      {"blocks", blocks, train_once, "gggbgbbggBrgBrBrr"},
      {"without prefetch", late, train_once, "ggbgbgbgBrgBrgBrr"},
      {"kept from forward to backward", stays, train_once, "gggbgbbBrBrBrr"},
      {"a frozen block", blocks, train_once, "gggbgbbggBrgBBrr", "blocks.1"},
      {"no_sync", blocks, local, "gggbgbbggBgBB"},
      {"no_sync and kept", stays, local, "gggbgbbBBB"},
      {"no_sync and then a step", blocks, then_global, "gggbgbbggBgBBgggbgbbggBrgBrBrr"},
      {"evaluation", blocks, evaluates, "gggbgbb"},
      {"two forwards, two backwards", blocks, two_forwards, "gggbgbbgggbgbbggBrgBrBrrgggBrgBrBrr"},
  };
  for (const Row& row : rows) {
    INFO(row.name);
    CHECK(events(row.options, row.body, row.frozen) == row.expected);
  }
}
