// Models, batches and comparisons for the tests of DistributedDataParallel.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

namespace parallel_test {

// Small limits, so that small models have several buckets.
inline DistributedDataParallelOptions small_buckets() { return {.bucket_cap_mb = 0.0001, .first_bucket_mb = 0.00005}; }

// Everything the ranks are to agree on, bit for bit.
inline Doubles all_parameters(const ModuleBase& module) {
  Doubles all;
  for (const NamedTensor& named : module.state_dict())
    for (const double value : named.tensor.detach().to(DType::f64).to_vector<double>()) all.push_back(value);
  return all;
}
// How many ranks differ from rank 0.
inline int different(const std::vector<Doubles>& ranks) {
  int count = 0;
  for (const Doubles& rank : ranks) count += rank != ranks[0];
  return count;
}

// Rows [rank * rows, (rank + 1) * rows) of the batch of a step.
inline constexpr std::int64_t kRowsPerRank = 3;
inline Tensor batch(int step, int size, DType dtype, Device device) {
  return noise({kRowsPerRank * size, 3}, 1000 + static_cast<std::uint64_t>(step)).to(dtype).to(device);
}
inline Tensor share(const Tensor& whole, int rank) { return whole.narrow(0, rank * kRowsPerRank, kRowsPerRank); }
inline Tensor loss_of(const Tensor& output) { return mean(output * output); }

// Uses one of its two parameters.
struct Either : Module<Either> {
  Parameter left{counting({2})}, right{counting({2})};
  Tensor forward(const Tensor& x, bool go_right) const { return x * (go_right ? right : left).on(x.device()); }
  void members(Members& m) override { m("left", left), m("right", right); }
};
// Its input of one row.
// Sums, then divides; perhaps when it is waited for.
inline CommHook summing_hook(bool late) {
  return {"average", [late](GradBucket& bucket) {
            const auto reduce = [bucket] {
              Tensor buffer = bucket.buffer();
              bucket.communicator().all_reduce(buffer);
              buffer.mul_(1.0 / bucket.divisor());
            };
            if (!late) return reduce(), Work();
            const WorkPromise promise(bucket.communicator().device());
            Work work = promise.work();
            promise.complete();
            return std::move(work).then(reduce);
          }};
}

inline Tensor row_of(double value) { return full({1, 2}, value, {.dtype = DType::f64}); }

// Takes the errors that a failed collective has left on streams of the device, so that they are not another test's.
inline void drain(Device device) {
  for (int tries = 0; tries < 10; ++tries) {
    try {
      return synchronize(device);
    } catch (const Error&) {
    }
  }
}

// What each rank threw ("" where it did not).
inline std::vector<std::string> messages_of_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](Communicator& communicator) {
    std::string& message = messages[static_cast<std::size_t>(communicator.rank())];
    try {
      body(communicator);
    } catch (const CommError& error) {
      message = std::string("CommError: ") + error.what();
    } catch (const std::exception& error) {
      message = error.what();
    }
    drain(communicator.device());
  });
  return messages;
}

// Layers that are used in another order than they are listed.
struct Shuffled : Module<Shuffled> {
  Affine a{3, 3, 1}, b{3, 3, 2}, c{3, 3, 3};
  Tensor forward(const Tensor& x) const { return a(tanh(c(tanh(b(x))))); }
  void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
};

}  // namespace parallel_test
