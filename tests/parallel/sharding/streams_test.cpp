// Memory that streams share, and what overlaps.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "lockstep/runtime/host/faults.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/runtime/trace/trace.h"
#include "parallel/sharding/support.h"

using namespace parallel_test;

namespace {

int stress_steps() {
  const char* wanted = std::getenv("LOCKSTEP_SHARDING_STEPS");
  return wanted ? std::atoi(wanted) : 6;
}

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

// While the device hangs the host enqueues no more than the limit allows: memory that is given back is not free before
// the device has come there. Released late where the host waits, as it must; at once where it does not.
TEST_CASE("the host keeps the limit of units in flight") {
  const auto bytes = run_ranks(1, [](Communicator& c) {
    constexpr int kBlocks = 12, kSize = 64;
    const auto used = [&] {
      const MemoryStats stats = memory_stats(c.device());
      return stats.in_use_bytes + stats.cached_bytes;
    };
    FullyShardedDataParallel<Tower> net(Tower(kSize, kSize, kBlocks), c, {.wrap = wrap_modules<Block>()});
    net.eval();
    const NoGrad no_grad;
    const Tensor x = batch(0, 1, DType::f32, c.device());
    synchronize(c.device());
    empty_cache(c.device());
    if (current_stream(c.device()).synchronous()) return std::size_t{0};
    const std::size_t before = used();
    auto& faults = lockstep::detail::host_faults();
    faults.hang_task(1);
    std::atomic<bool> returned = false;
    std::thread watch([&] {
      const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
      while (!returned && std::chrono::steady_clock::now() < until) std::this_thread::yield();
      faults.release();
    });
    net(x);
    returned = true;
    watch.join();
    const std::size_t grown = used() - before;
    faults.clear();
    synchronize(c.device());
    return grown / ((2 * kSize * kSize + 2 * kSize) * sizeof(float));
  });
  CHECK(bytes[0] <=
        6);  // units: two computed with or given back, and those gathered ahead, as the allocator rounds them
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
    std::set<std::string> gathers, reduces, computes;  // streams
    for (const trace::Span& span : trace::spans()) {
      const std::string_view name = span.work.name ? span.work.name : "";
      if (name == "rank 0") track = span.track;
      if (span.work.kind != trace::Kind::host && span.device == c.device()) {
        if (name.find("all_gather") != name.npos) gathers.insert(span.track);
        if (name.find("reduce_scatter") != name.npos) reduces.insert(span.track);
        if (name.find("matmul") != name.npos) computes.insert(span.track);
      }
      if (span.track != track || span.work.kind != trace::Kind::host) continue;
      if (name == "gather" || name == "reduce" || name == "block" || name == "back")
        events += name == "back" ? 'B' : name[0];
    }
    std::set<std::string> streams = computes;
    streams.insert(gathers.begin(), gathers.end()), streams.insert(reduces.begin(), reduces.end());
    return cat(events, " on ", gathers.size(), " + ", reduces.size(), " + ", computes.size(), " of ", streams.size());
  });
  // Forward: the outermost unit and the first block, then before each block's kernels the next block. Backward: the
  // last block, then before each block's kernels the one before it; a block's reduction before the next kernels.
  CHECK(ranks[0] == "gggbgbbggBrgBrBrr on 1 + 1 + 1 of 3");
}

// The second block is gathered ahead, since it came next before; nobody uses it then, and a step writes its part.
TEST_CASE("what is gathered ahead and not used is read before a step writes it") {
  struct Branches : Module<Branches> {
    Block first{4, 5, 2}, second{4, 5, 4};
    Tensor forward(const Tensor& x, bool both) const { return both ? second(first(x)) : first(x); }
    void members(Members& m) override { m("first", first), m("second", second); }
  };
  const auto ends = run_ranks(2, [](Communicator& c) {
    FullyShardedDataParallel<Branches> net(Branches(), c, {.wrap = wrap_modules<Block>()});
    Adam optimizer(net.parameters(), {.lr = 0.01});
    const Tensor x = noise({3, 4}, 1).to(DType::f32).to(c.device());
    loss_of(net(x, true)).backward();
    {
      const NoGrad no_grad;
      net(x, false);
    }
    optimizer.step();
    return values_of(net.whole_state_dict());
  });
  CHECK(different(ends) == 0);
}

TEST_CASE("parameters are divided on another stream than the one that made them") {
  const auto whole = [](Communicator& c, bool aside) {
    Layer net(30, 40, 1);
    net.to(c.device());
    const Stream here = current_stream(c.device()), side(c.device());
    const Stream& there = aside ? side : here;
    there.wait_for(here);
    std::optional<FullyShardedDataParallel<Layer>> divided;
    {
      const StreamScope scope(there);
      divided.emplace(net, c);
    }
    // What was given back too early is written over.
    for (int taker = 0; taker < 4; ++taker) (void)full({taker % 2 == 0 ? 30 * 40 : 40}, 1e30, {.device = c.device()});
    here.wait_for(there);
    return values_of(divided->whole_state_dict());
  };
  const auto expected = run_ranks(2, [&](Communicator& c) { return whole(c, false); });
  const auto result = run_ranks(2, [&](Communicator& c) { return whole(c, true); });
  CHECK(result == expected);
}

TEST_CASE("whole parameters that are given back on another stream keep their memory until their parts are written") {
  const auto change = [](Communicator& c, bool aside, bool write_back) {
    FullyShardedDataParallel<Layer> net(Layer(30, 40, 1), c);
    const Stream here = current_stream(c.device()), side(c.device());
    const NoGrad no_grad;
    for (int i = 0; i < 3; ++i) {
      std::unique_ptr<WholeParameters> whole(new WholeParameters(net.summon(write_back)));
      const Stream& there = aside ? side : here;
      there.wait_for(here);
      {
        const StreamScope scope(there);
        for (const Parameter& parameter : net.parameters()) parameter.tensor().mul_(i + 2);
        whole.reset();
      }
      // What was given back too early is written over.
      for (int taker = 0; taker < 4; ++taker) (void)full({30 * 40 + 40}, 1e30, {.device = c.device()});
      here.wait_for(there);
    }
    return values_of(net.whole_state_dict());
  };
  for (const bool write_back : {true, false}) {
    const auto expected = run_ranks(2, [&](Communicator& c) { return change(c, false, write_back); });
    const auto result = run_ranks(2, [&](Communicator& c) { return change(c, true, write_back); });
    CHECK(result == expected);
  }
}

TEST_CASE("gradients that add up over backwards on several streams are those of one") {
  const auto train = [](Communicator& c, bool aside, DType reduced) {
    FullyShardedOptions options;
    options.mixed_precision.reduce_dtype = reduced;
    FullyShardedDataParallel<Layer> net(Layer(3, 4, 1), c, options);
    const Stream here = current_stream(c.device()), side(c.device());
    for (int i = 0; i < 5; ++i) {
      const Tensor x = noise({3, 3}, static_cast<std::uint64_t>(i + 4 * c.rank())).to(DType::f32).to(c.device());
      std::optional<NoSync> local;
      if (i >= 3) local.emplace(net.no_sync());  // kept by the rank until the next one
      const Stream& there = aside && i % 2 == 1 ? side : here;
      Tensor loss;
      if (i != 3) loss = loss_of(net(x));
      there.wait_for(here);
      {
        const StreamScope scope(there);
        if (i == 3) loss = loss_of(net(x));
        loss.backward();
      }
      here.wait_for(there);
    }
    loss_of(net(noise({3, 3}, 20).to(DType::f32).to(c.device()))).backward();
    synchronize(c.device());
    Doubles all;
    for (const Parameter& part : net.parameters()) {
      const Doubles of = values(part.grad());
      all.insert(all.end(), of.begin(), of.end());
    }
    return all;
  };
  for (const DType reduced : {DType::f32, DType::bf16}) {
    const auto expected = run_ranks(2, [&](Communicator& c) { return train(c, false, reduced); });
    const auto result = run_ranks(2, [&](Communicator& c) { return train(c, true, reduced); });
    CHECK(result == expected);
  }
}
