// Memory that streams share, and what overlaps.
#include <cstdlib>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/trace/trace.h"
#include "parallel/sharding/support.h"

using namespace test;

namespace {

int stress_steps() {
  const char* wanted = std::getenv("LOCKSTEP_SHARDING_STEPS");
  return wanted ? std::atoi(wanted) : 6;
}

// Says when it enqueues the kernels of a block.
struct Marked : Module<Marked> {
  Layer in{3, 4, 1}, out{4, 2, 30};
  std::vector<Block> blocks{{4, 5, 2}, {4, 5, 4}, {4, 5, 6}};
  Tensor forward(const Tensor& x) const {
    Tensor h = in(x);
    for (const Block& block : blocks) {
      h = block(h);
      const trace::Scope forward("block");
      if (h.requires_grad()) h.register_hook([](Tensor&) { const trace::Scope backward("back"); });
    }
    return out(h);
  }
  void members(Members& m) override { m("in", in), m("blocks", blocks), m("out", out); }
};

}  // namespace

// Delays before tasks that are chosen at random (reductions are among them), and tensors that take what is given back.
TEST_CASE("delayed streams and a tight allocator change no bit") {
  const int count = stress_steps(), ranks = 2;
  const auto train = [&](Communicator& c, bool disturbed) {
    FullyShardedDataParallel<Tower> net(Tower(13, 37, 2), c, {.wrap = wrap_modules<Block>()});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    std::uint64_t state = 7;
    for (int i = 0; i < count; ++i) {
      if (disturbed) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        if (c.rank() == 0)
          lockstep::detail::host_faults().delay_task(static_cast<int>(state >> 33) % 80 + 1,
                                                     std::chrono::milliseconds(2));
      }
      optimizer.zero_grad();
      loss_of(net(rows_of(c, i))).backward();
      if (disturbed) {
        // What was given back too early is written over.
        std::vector<Tensor> takers;
        for (int k = 0; k < 50; ++k)
          takers.push_back(full({32 << (k % 6)}, 1e30, {.dtype = DType::f32, .device = c.device()}));
      }
      optimizer.step();
    }
    return values_of(net.whole_state_dict());
  };
  const auto expected = run_ranks(ranks, [&](Communicator& c) { return train(c, false); });
  const auto result = run_ranks(ranks, [&](Communicator& c) { return train(c, true); });
  lockstep::detail::host_faults().clear();
  CHECK(result == expected);
}

// The order in which the host enqueues, on streams of their own: what is enqueued before a block's kernels overlaps
// with them.
TEST_CASE("gathers and reductions are enqueued ahead of the computation that they overlap") {
  const auto ranks = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel<Marked> net(Marked(), c, {.wrap = wrap_modules<Block>()});
    const auto step = [&] { loss_of(net(rows_of(c, 0))).backward(); };
    step();  // learns the order
    if (c.rank() == 0) trace::start();
    c.barrier();
    {
      const trace::Scope mine(c.rank() == 0 ? "rank 0" : "rank 1");
      step();
    }
    synchronize(c.device());
    c.barrier();
    if (c.rank() != 0) return std::string();
    trace::stop();
    std::string events, track;
    for (const trace::Span& span : trace::spans()) {
      const std::string_view name = span.work.name ? span.work.name : "";
      if (name == "rank 0") track = span.track;
      if (span.track != track || span.work.kind != trace::Kind::host) continue;
      if (name == "gather" || name == "reduce" || name == "block" || name == "back")
        events += name == "back" ? 'B' : name[0];
    }
    return events;
  });
  // Forward: the outermost unit and the first block, then before each block's kernels the next block. Backward: the
  // last block, then before each block's kernels the one before it; a block's reduction before the next kernels.
  CHECK(ranks[0] == "gggbgbbggBrgBrBrr");
}
