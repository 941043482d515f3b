// Averages, in 16 bits too: against plain loops over what each rank has.
#include "lockstep/parallel/ddp/hooks/basic_hooks.h"

#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/scenarios.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

// The gradient that each rank gets for the weight of a Scale whose input is `of_rank(rank)`.
std::vector<Doubles> gradients(int ranks, DType dtype, const std::function<CommHook()>& hook,
                               const std::function<Doubles(int)>& of_rank,
                               DistributedDataParallelOptions options = {}) {
  return run_ranks(ranks, [&](Communicator& communicator) {
    const Doubles mine = of_rank(communicator.rank());
    const auto count = static_cast<std::int64_t>(mine.size());
    Scale module(zeros({count}, {.dtype = dtype}));
    DistributedDataParallel<Scale> net(std::move(module), communicator, options);
    if (hook) net.register_comm_hook(hook());
    // Twice, so that buckets are rebuilt.
    for (int i = 0; i < 2; ++i) {
      net.zero_grad();
      sum(net(from_data(mine, {1, count}).to(dtype))).backward();
    }
    if (net.module().weight.grad().dtype() != dtype) throw Error("another dtype");
    return values(net.module().weight.grad().to(DType::f64));
  });
}
// What bf16_compress_hook() does, as a loop on the host.
CommHook bf16_by_hand() {
  return {"bf16 by hand", [](GradBucket& bucket) {
            if (bucket.sparse()) return detail::average(bucket), Work();
            const DType dtype = bucket.buffer().dtype();
            const Tensor mine = (bucket.buffer() * (1.0 / bucket.divisor())).to(DType::bf16).to(DType::f32);
            const std::int64_t ranks = bucket.communicator().size(), count = mine.count();
            const Tensor all = empty({ranks, count}, {.dtype = DType::f32, .device = mine.device()});
            bucket.communicator().all_gather(mine, all);
            const auto rows = all.to_vector<float>();
            std::vector<float> sums(rows.begin(), rows.begin() + count);
            for (std::size_t i = sums.size(); i < rows.size(); ++i) sums[i % sums.size()] += rows[i];
            bucket.buffer().copy_(from_data(sums, {count}).to(DType::bf16).to(dtype));
            return Work();
          }};
}
Doubles gradient_of_rank(int rank) { return {rank + 1.0, 6.0 * rank, -12.0, 0}; }

}  // namespace

TEST_CASE("hooks that average integers are exact") {
  for (const int ranks : {1, 2, 3}) {
    Doubles expected(4);
    for (int r = 0; r < ranks; ++r)
      for (std::size_t i = 0; i < 4; ++i) expected[i] += gradient_of_rank(r)[i] * 6 / ranks;
    const auto six_times = [](int rank) {  // divisible by the number of ranks
      Doubles values = gradient_of_rank(rank);
      for (double& value : values) value *= 6;
      return values;
    };
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (const auto& make : {all_reduce_hook, f16_compress_hook, bf16_compress_hook,
                               +[] { return f16_compress_wrapper(all_reduce_hook()); },
                               +[] { return bf16_compress_wrapper(f16_compress_wrapper(all_reduce_hook())); }}) {
        INFO(make().name << ", " << to_string(dtype) << ", " << ranks << " ranks");
        for (const Doubles& rank : gradients(ranks, dtype, make, six_times)) CHECK(rank == expected);
      }
    const auto local = gradients(ranks, DType::f64, no_op_hook, gradient_of_rank);
    for (int r = 0; r < ranks; ++r) CHECK(local[static_cast<std::size_t>(r)] == gradient_of_rank(r));
  }
}

TEST_CASE("16 bits round, and divide first") {
  // 1 + 2^-9 has ten bits: f16 keeps it, bf16 does not.
  const auto fine = [](int) { return Doubles{1 + 0x1p-9}; };
  CHECK(gradients(2, DType::f64, f16_compress_hook, fine)[0] == Doubles{1 + 0x1p-9});
  CHECK(gradients(2, DType::f64, bf16_compress_hook, fine)[0] == Doubles{1});
  // 80000 does not fit into f16, its half does; the sum of two halves does not.
  const auto large = [](int rank) { return Doubles{rank == 0 ? 80000.0 : 0.0}; };
  CHECK(gradients(2, DType::f64, f16_compress_hook, large)[0] == Doubles{40000});
  CHECK(std::isinf(gradients(
      2, DType::f64, [] { return f16_compress_wrapper(all_reduce_hook()); }, large)[0][0]));
  CHECK(gradients(2, DType::f16, all_reduce_hook, [](int) { return Doubles{32768}; })[0] == Doubles{32768});
}

TEST_CASE("averaging hooks divide before gradients are rounded to the dtype of the reduction") {
  const auto large = [](int rank) { return Doubles{rank == 0 ? 80000.0 : 0.0}; };  // beyond f16, and its half is not
  const auto rough = [](int rank) { return values(noise({200}, 7 + static_cast<std::uint64_t>(rank))); };
  const auto late = [] {
    return CommHook{"late", [](GradBucket& bucket) {
                      const WorkPromise promise(bucket.communicator().device());
                      promise.complete();
                      return promise.work().then([bucket]() mutable { detail::average(bucket); });
                    }};
  };
  for (const bool view : {true, false}) {
    for (const auto& make : {std::function<CommHook()>(all_reduce_hook), std::function<CommHook()>(f16_compress_hook),
                             std::function<CommHook()>([] { return f16_compress_wrapper(all_reduce_hook()); }),
                             std::function<CommHook()>(late)}) {
      INFO("view " << view << ", " << make().name);
      const DistributedDataParallelOptions options{.gradient_as_bucket_view = view,
                                                   .mixed_precision = {.reduce_dtype = DType::f16}};
      CHECK(gradients(2, DType::f32, {}, large, options)[0] == Doubles{40000});
      CHECK(gradients(2, DType::f32, make, large, options)[0] == Doubles{40000});
    }
    for (const DType reduce : {DType::bf16, DType::f16, DType::f64}) {
      const DistributedDataParallelOptions options{.gradient_as_bucket_view = view,
                                                   .mixed_precision = {.reduce_dtype = reduce}};
      const auto without = gradients(3, DType::f32, {}, rough, options);
      CHECK(gradients(3, DType::f32, all_reduce_hook, rough, options) == without);
      CHECK(gradients(3, DType::f32, late, rough, options) == without);
      if (reduce == DType::bf16) CHECK(gradients(3, DType::f32, bf16_compress_hook, rough, options) == without);
    }
  }
}

TEST_CASE("a wrapper follows a hook that is late") {
  const auto late = [] {
    return CommHook{"late", [](GradBucket& bucket) {
                      const WorkPromise promise(bucket.communicator().device());
                      promise.complete();
                      return promise.work().then([bucket]() mutable { detail::average(bucket); });
                    }};
  };
  for (const Doubles& rank : gradients(
           2, DType::f64, [&] { return bf16_compress_wrapper(late()); }, [](int r) { return Doubles{r * 4.0}; }))
    CHECK(rank == Doubles{2});
}

TEST_CASE("averaging hooks train as none does, in all ways") {
  for (const int ranks : {1, 2, 3}) {
    if (support::watched() && ranks != 2) continue;
    int number = 0;
    for (const Scenario& scenario : scenarios()) {
      if ((ranks != 2 || support::watched()) && number++ % 4 != 0) continue;
      INFO(scenario.name << ", " << ranks << " ranks");
      const auto without = run_ranks(ranks, scenario.rank);
      const auto with = run_ranks(ranks, [&](Communicator& c) { return scenario.with_hook(c, all_reduce_hook); });
      CHECK(different(with) == 0);
      CHECK((ranks == 1 ? largest_difference(with[0], without[0]) <= 1e-12 : with == without));
      const auto half = run_ranks(ranks, [&](Communicator& c) { return scenario.with_hook(c, bf16_compress_hook); });
      CHECK(different(half) == 0);
      CHECK(half == run_ranks(ranks, [&](Communicator& c) { return scenario.with_hook(c, bf16_by_hand); }));
      CHECK(half != without);
    }
  }
}

TEST_CASE("a wrapper around nothing") {
  CHECK(missing(message_of<InvalidArgument>([] { f16_compress_wrapper({}); }), {"f16_compress_wrapper"}) == "");
}
