// DistributedDataParallel that computes and reduces in other dtypes than the module's.
#include <limits>

#include "lockstep/parallel/ddp/overflow.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

constexpr int kMixedRanks = 2;

Doubles doubles(const Tensor& x) { return values(x.detach().to(DType::f64)); }

// Remembers the dtypes that its forward saw.
struct WatchedDTypes : Module<WatchedDTypes> {
  Parameter weight{counting({2}).to(DType::f32)};
  Buffer seen{zeros({2})}, count{zeros({}, {.dtype = DType::i64}), false};
  std::shared_ptr<std::vector<DType>> dtypes = std::make_shared<std::vector<DType>>();
  Tensor forward(const Tensor& x) const {
    const Tensor w = weight.on(x.device());
    Tensor here = seen.on(x.device());
    dtypes->assign({x.dtype(), w.dtype(), here.dtype(), count.on(x.device()).dtype()});
    if (is_training()) {
      const NoGrad no_grad;
      here.add_(1);
    }
    return x * w;
  }
  void members(Members& m) override { m("weight", weight), m("seen", seen), m("count", count); }
};

Tensor f32_row(Communicator& communicator, double value) {
  return full({1, 2}, value, {.dtype = DType::f32, .device = communicator.device()});
}

}  // namespace

TEST_CASE("mixed precision: forwards compute in its dtypes, the module stays what it is") {
  const auto result = run_ranks(kMixedRanks, [](Communicator& communicator) {
    const DdpMixedPrecision mixed{.param_dtype = DType::f16, .buffer_dtype = DType::bf16};
    DistributedDataParallel<WatchedDTypes> net(WatchedDTypes{}, communicator, {.mixed_precision = mixed});
    const Tensor y = net(f32_row(communicator, communicator.rank() + 1));
    sum(y.to(DType::f32)).backward();
    const std::vector<DType> dtypes{DType::f16, DType::f16, DType::bf16, DType::i64};
    const WatchedDTypes& module = net.module();
    bool good = y.dtype() == DType::f16 && *module.dtypes == dtypes && module.weight.grad().dtype() == DType::f32;
    for (const NamedTensor& named : net.state_dict())
      good = good && named.tensor.dtype() == (named.name == "module.count" ? DType::i64 : DType::f32);
    Doubles all = doubles(module.weight.grad());
    for (const double value : doubles(module.seen.tensor())) all.push_back(value);
    const NoGrad no_grad;
    net.eval();
    good = good && net(f32_row(communicator, 1)).dtype() == DType::f16;
    all.push_back(good);
    return all;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1.5, 1.5, 1, 1, 1});
}

TEST_CASE("mixed precision: gradients are divided, then rounded, then summed") {
  for (const auto& [reduce, wanted] : {std::pair(DType::f32, 771.0), {DType::bf16, 768.0}}) {
    for (const bool view : {true, false}) {
      const auto result = run_ranks(3, [&, reduce = reduce](Communicator& communicator) {
        DistributedDataParallel<WatchedDTypes> net(
            WatchedDTypes{}, communicator,
            {.gradient_as_bucket_view = view, .mixed_precision = {.reduce_dtype = reduce}});
        {
          const NoSync scope = net.no_sync();
          sum(net(f32_row(communicator, 700))).backward();
        }
        // A third is 257, in bf16 256. 771 is 772 there, of which a third is 258.
        sum(net(f32_row(communicator, 71))).backward();
        return doubles(net.module().weight.grad());
      });
      for (const Doubles& rank : result) CHECK(rank == Doubles{wanted, wanted});
    }
  }
  // 80000 does not fit into f16, its half does.
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<WatchedDTypes> net(WatchedDTypes{}, communicator,
                                               {.mixed_precision = {.reduce_dtype = DType::f16}});
    sum(net(f32_row(communicator, communicator.rank() == 0 ? 80000 : 0))).backward();
    return doubles(net.module().weight.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{40000, 40000});
}

TEST_CASE("mixed precision trains as a loop with casts by hand") {
  for (const auto reduce : {DType::f32, DType::bf16}) {
    const auto x_of = [](int step, int rank) {
      return share(batch(step, kMixedRanks, DType::f32, Device::cpu()), rank);
    };
    const auto result = run_ranks(kMixedRanks, [&](Communicator& communicator) {
      Mlp module;
      module.to(DType::f32);
      DistributedDataParallelOptions options = small_buckets();
      options.mixed_precision = {.param_dtype = DType::bf16, .reduce_dtype = reduce};
      options.find_unused_parameters = true;
      DistributedDataParallel<Mlp> net(std::move(module), communicator, options);
      SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      join({net}, [&] {
        for (int i = 0; i < 4 - communicator.rank(); ++i) {  // rank 1 has one less
          optimizer.zero_grad();
          loss_of(net(x_of(i, communicator.rank())).to(DType::f32)).backward();
          optimizer.step();
        }
      });
      return all_parameters(net.module());
    });
    Mlp whole;
    whole.to(DType::f32);
    SGD optimizer(whole.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int i = 0; i < 4; ++i) {
      std::vector<Tensor> sums;
      for (int r = 0; r < (i < 3 ? kMixedRanks : 1); ++r) {
        optimizer.zero_grad();
        std::vector<Tensor> casts;
        for (const Parameter& parameter : whole.parameters()) casts.push_back(parameter.tensor().to(DType::bf16));
        const SubstituteScope scope(whole.parameters(), casts);
        loss_of(whole(x_of(i, r).to(DType::bf16)).to(DType::f32)).backward();
        std::size_t at = 0;
        for (const Parameter& parameter : whole.parameters()) {
          const Tensor half = (parameter.grad() * 0.5).to(reduce);
          if (r == 0)
            sums.push_back(half);
          else
            sums[at] = sums[at] + half;
          ++at;
        }
      }
      std::size_t at = 0;
      for (const Parameter& parameter : whole.parameters()) parameter.set_grad(sums[at++].to(DType::f32));
      optimizer.step();
    }
    CHECK(different(result) == 0);
    CHECK(result[0] == all_parameters(whole));
  }
}

TEST_CASE("mixed precision: an overflow in 16 bits leaves the step out on all ranks") {
  const auto result = run_ranks(kMixedRanks, [](Communicator& communicator) {
    DistributedDataParallel<WatchedDTypes> net(WatchedDTypes{}, communicator,
                                               {.mixed_precision = {.param_dtype = DType::f16}});
    SGD optimizer(net.parameters(), {.lr = 1});
    GradScaler scaler({.init_scale = 8, .share_overflow = overflow_on_any_rank(communicator)});
    Doubles seen;
    for (const double x : {2.0, communicator.rank() == 1 ? 60000.0 : 1.0}) {
      optimizer.zero_grad();
      scaler.scale(sum(net(f32_row(communicator, x)).to(DType::f32))).backward();
      seen.push_back(scaler.step(optimizer));
      scaler.update();
      seen.push_back(scaler.scale());
      seen.push_back(doubles(net.module().weight.tensor())[0]);
    }
    return seen;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 8, -1, 0, 4, -1});
}

TEST_CASE("mixed precision: what it refuses") {
  const auto sparse = messages_of_ranks(2, [](Communicator& communicator) {
    Embedding table(3, 2, {.sparse = true});
    DistributedDataParallel<Embedding> net(std::move(table), communicator,
                                           {.mixed_precision = {.param_dtype = DType::f16}});
  });
  for (const std::string& rank : sparse) CHECK(missing(rank, {"no sparse gradients", "'weight'"}) == "");
  const auto integers = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<WatchedDTypes> net(WatchedDTypes{}, communicator,
                                               {.mixed_precision = {.reduce_dtype = DType::i32}});
  });
  for (const std::string& rank : integers) CHECK(missing(rank, {"floating dtype", "i32", "reduce_dtype"}) == "");
}

TEST_CASE("mixed precision follows a buffer that was replaced, without gradients too") {
  const auto result = run_ranks(kMixedRanks, [](Communicator& communicator) {
    DistributedDataParallel<WatchedDTypes> net(WatchedDTypes{}, communicator,
                                               {.mixed_precision = {.buffer_dtype = DType::bf16}});
    net.module().seen = Buffer(zeros({2}, {.device = communicator.device()}));
    const NoGrad no_grad;
    net(f32_row(communicator, 1));
    return Doubles{double((*net.module().dtypes)[2] == DType::bf16), doubles(net.module().seen.tensor())[0]};
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 1});
}

TEST_CASE("mixed precision: hooks work in the dtype of the reduction, at once and late") {
  for (const bool late : {false, true}) {
    for (const bool view : {true, false}) {
      const auto result = run_ranks(kMixedRanks, [&](Communicator& communicator) {
        DistributedDataParallel<WatchedDTypes> net(
            WatchedDTypes{}, communicator,
            {.gradient_as_bucket_view = view, .mixed_precision = {.reduce_dtype = DType::bf16}});
        bool narrow = true;
        net.register_comm_hook({"sums", [&](GradBucket& bucket) {
                                  narrow = narrow && bucket.buffer().dtype() == DType::bf16 &&
                                           bucket.gradients()[0].dtype() == DType::bf16;
                                  const auto reduce = [bucket] { bucket.communicator().all_reduce(bucket.buffer()); };
                                  if (!late) return reduce(), Work();
                                  const WorkPromise promise(communicator.device());
                                  Work work = promise.work();
                                  promise.complete();
                                  return std::move(work).then(reduce);
                                }});
        Doubles all;
        for (const double x : {2.0, 3.0}) {
          net.zero_grad();
          sum(net(f32_row(communicator, x + communicator.rank()))).backward();
          all.push_back(doubles(net.module().weight.grad())[0]);
        }
        all.push_back(narrow && net.module().weight.grad().dtype() == DType::f32);
        return all;
      });
      for (const Doubles& rank : result) CHECK(rank == Doubles{5, 7, 1});
    }
  }
}
