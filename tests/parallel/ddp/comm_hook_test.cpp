// Hooks of the user's own: what they see, when they are called, what becomes of what they do, and how they fail.
#include <mutex>
#include <thread>

#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// The average, as without a hook.
Work average(GradBucket& bucket) {
  bucket.buffer().mul_(1.0 / bucket.divisor());
  bucket.communicator().all_reduce(bucket.buffer());
  return {};
}

// Training for some steps with a hook, or without.
Doubles train(Communicator& communicator, const CommHook& hook,
              DistributedDataParallelOptions options = small_buckets(), int steps = 4) {
  DistributedDataParallel<Mlp> net(Mlp{}, communicator, options);
  if (hook.call) net.register_comm_hook(hook);
  SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    loss_of(net(share(batch(i, communicator.size(), DType::f64, communicator.device()), communicator.rank())))
        .backward();
    optimizer.step();
  }
  return all_parameters(net.module());
}

struct Table : Module<Table> {
  Embedding table{5, 2, {.sparse = true}};
  Affine head{2, 2, 5};
  Table() {
    table.to(DType::f64);
    table.weight.assign(counting({5, 2}));
  }
  Tensor forward(const Tensor& rows) const { return head(table(rows)); }
  void members(Members& m) override { m("table", table), m("head", head); }
};

}  // namespace

TEST_CASE("a hook sees the buckets in their order, and what is in them") {
  const auto seen = run_ranks(2, [](Communicator& communicator) {
    std::string text;
    DistributedDataParallel<Mlp> net(Mlp{}, communicator, small_buckets());
    net.register_comm_hook({"sees", [&](GradBucket& bucket) {
                              text += bucket.index() == 0 ? "| " : "and ";
                              std::int64_t count = 0;
                              for (std::size_t i = 0; i < bucket.parameters().size(); ++i) {
                                const Tensor& gradient = bucket.gradients()[i];
                                const auto& [name, parameter] = bucket.parameters()[i];
                                if (gradient.shape() != parameter.shape()) text += "another shape ";
                                const std::int64_t offset = (count + 31) / 32 * 32;  // of f64: 256 bytes
                                if (gradient.data() != bucket.buffer().narrow(0, offset, gradient.count()).data())
                                  text += "another place ";
                                count = offset + gradient.count();
                                text += name + ' ';
                              }
                              if (bucket.buffer().count() != count) text += "another size ";
                              if (bucket.sparse() || bucket.rows().defined()) text += "sparse ";
                              if (&bucket.communicator() != &communicator || bucket.divisor() != 2) text += "ranks ";
                              if (bucket.is_last()) text += "last ";
                              return average(bucket);
                            }});
    for (int i = 0; i < 2; ++i) loss_of(net(share(batch(i, 2, DType::f64, communicator.device()), 0))).backward();
    return text + net.logging_data().comm_hook;
  });
  CHECK(seen[0] == seen[1]);
  CHECK(seen[0] ==
        "| second.bias second.weight and first.bias first.weight last "
        "| second.bias second.weight and first.bias first.weight last sees");
}

TEST_CASE("a hook that averages trains as none does, bit for bit") {
  for (const int ranks : {1, 2, 3}) {
    const auto with = run_ranks(ranks, [](Communicator& c) { return train(c, {"average", average}); });
    const auto without = run_ranks(ranks, [](Communicator& c) { return train(c, {}); });
    CHECK(with == without);
  }
}

TEST_CASE("what a hook leaves in the bucket is the gradient") {
  for (const int ranks : {1, 2, 3}) {
    for (const bool view : {true, false}) {
      DistributedDataParallelOptions options = small_buckets();
      options.gradient_as_bucket_view = view;
      const auto grads = run_ranks(ranks, [&](Communicator& communicator) {
        DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator, options);
        net.register_comm_hook({"undivided, plus one", [](GradBucket& bucket) {
                                  bucket.communicator().all_reduce(bucket.buffer());
                                  bucket.buffer().add_(1.0);
                                  return Work();
                                }});
        sum(net(full({1, 2}, communicator.rank() + 1.0, {.dtype = DType::f64}))).backward();
        return values(net.module().weight.grad());
      });
      const double sum = ranks * (ranks + 1) / 2 + 1;
      for (const Doubles& rank : grads) CHECK(rank == Doubles{sum, sum});
    }
  }
}

TEST_CASE("a hook finds zeros between the gradients, whatever it left there before") {
  for (const bool narrow : {false, true}) {
    DistributedDataParallelOptions options;
    if (narrow) options.mixed_precision.reduce_dtype = DType::f32;
    const auto sums = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Mlp> net(Mlp{}, communicator, options);
      Doubles between;
      net.register_comm_hook({"dirties", [&](GradBucket& bucket) {
                                double inside = 0, whole = 0;
                                for (const Tensor& gradient : bucket.gradients())
                                  for (const double value : values(gradient.to(DType::f64))) inside += std::abs(value);
                                for (const double value : values(bucket.buffer().to(DType::f64)))
                                  whole += std::abs(value);
                                between.push_back(std::abs(whole - inside) < 1e-6 * inside ? 0.0 : whole - inside);
                                between.push_back(bucket.buffer().count() > 31 ? 0.0 : 1.0);  // there are gaps
                                bucket.buffer().add_(1e3);
                                return Work();
                              }});
      for (int i = 0; i < 4; ++i) loss_of(net(share(batch(i, 2, DType::f64, communicator.device()), 0))).backward();
      return between;
    });
    for (const Doubles& rank : sums) CHECK(rank == Doubles(8, 0.0));
  }
}

TEST_CASE("a hook's other buffer has its gradients at the same elements") {
  const Tensor buffer = zeros({40}, {.dtype = DType::f64});
  const NamedParameter named{"w", Parameter(counting({2}))};
  const GradBucket bucket({.parameters = std::make_shared<const std::vector<NamedParameter>>(2, named),
                           .buffer = buffer,
                           .gradients = {buffer.narrow(0, 0, 3), buffer.narrow(0, 32, 8).reshape({2, 4})}});
  const Tensor other = zeros({40}, {.dtype = DType::f16});
  const GradBucket with = bucket.with_buffer(other);
  CHECK(with.gradients()[0].data() == other.data());
  CHECK(with.gradients()[1].data() == other.narrow(0, 32, 8).data());
  CHECK(with.gradients()[1].shape() == Shape{2, 4});
}

TEST_CASE("a work that another thread completes is waited for, and what follows comes in the order of the buckets") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    std::vector<std::jthread> threads;
    std::string order;
    const Doubles trained = train(communicator, {"late", [&](GradBucket& bucket) {
                                                   const WorkPromise promise(communicator.device());
                                                   const Stream here = current_stream(communicator.device());
                                                   Work work = promise.work().then([&, here, bucket] {
                                                     if (current_stream(communicator.device()) != here)
                                                       order += "another stream ";
                                                     order += std::to_string(bucket.index());
                                                     bucket.communicator().all_reduce(bucket.buffer());
                                                   });
                                                   threads.emplace_back([promise, bucket, here] {
                                                     const Device device = bucket.communicator().device();
                                                     const Stream mine(device);
                                                     mine.wait_for(here);
                                                     const StreamScope scope(mine);
                                                     const NoGrad no_grad;
                                                     bucket.buffer().mul_(1.0 / bucket.divisor());
                                                     promise.complete();
                                                   });
                                                   return work;
                                                 }});
    return std::pair(trained, order);
  });
  const auto without = run_ranks(2, [](Communicator& c) { return train(c, {}); });
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(result[r].first == without[r]);
    CHECK(result[r].second == result[0].second);
  }
  CHECK(result[0].second == "01010101");
}

TEST_CASE("a hook takes the rows of a sparse gradient, and sets others") {
  const auto grads = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Table> net(Table{}, communicator, small_buckets());
    net.register_comm_hook({"ten times as much", [](GradBucket& bucket) {
                              if (!bucket.sparse()) return average(bucket);
                              SparseGradient rows = bucket.rows();
                              rows.values = rows.values * 10.0;
                              bucket.set_rows(rows);
                              return Work();
                            }});
    const std::vector<std::int64_t> mine{communicator.rank(), 3};
    sum(net(from_data(mine, {2}))).backward();
    const SparseGradient rows = net.module().table.weight.sparse_grad();
    return std::pair(rows.indices.to_vector<std::int64_t>(), values(rows.values));
  });
  const Doubles w = values(Affine(2, 2, 5).weight.tensor());
  const double left = (w[0] + w[2]) * 10, right = (w[1] + w[3]) * 10;
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(grads[r].first == std::vector<std::int64_t>{static_cast<std::int64_t>(r), 3});
    CHECK(grads[r].second == Doubles{left, right, left, right});
  }
}

TEST_CASE("rows that a hook has made on a stream of its own are used on the rank's") {
  const auto twice = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Table> net(Table{}, communicator, small_buckets());
    const Stream own(communicator.device());
    net.register_comm_hook({"ten times as much", [own](GradBucket& bucket) {
                              if (!bucket.sparse()) return average(bucket);
                              const Stream here = current_stream(bucket.rows().values.device());
                              SparseGradient more = bucket.rows();
                              own.wait_for(here);
                              {
                                const StreamScope scope(own);
                                more.values = more.values * 10.0;
                              }
                              here.wait_for(own);
                              bucket.rows().values.storage()->record_use(own);
                              bucket.set_rows(more);
                              return Work();
                            }});
    sum(net(from_data(std::vector<std::int64_t>{communicator.rank(), 3}, {2}))).backward();
    SparseGradient rows = net.module().table.weight.sparse_grad();
    const Shape shape = rows.values.shape();
    const TensorOptions like{.dtype = rows.values.dtype(), .device = rows.values.device()};
    const Tensor result = rows.values * 2.0;
    rows = {};
    net.zero_grad();
    std::vector<Tensor> others;  // find the memory of the rows
    {
      const StreamScope scope(own);
      for (int i = 0; i < 4; ++i) others.push_back(full(shape, 5, like));
    }
    return values(result);
  });
  const Doubles w = values(Affine(2, 2, 5).weight.tensor());
  const double left = (w[0] + w[2]) * 20, right = (w[1] + w[3]) * 20;
  for (const Doubles& rank : twice) CHECK(rank == Doubles{left, right, left, right});
}

TEST_CASE("memory that a failed hook still writes to is not given away") {
  const auto messages = messages_of_ranks(2, [](Communicator& communicator) {
    const auto group = communicator.split(0);
    std::string message;
    {
      DistributedDataParallel<Scale> net(Scale(Doubles(1000, 1.0)), *group);
      net.register_comm_hook({"fails", [](GradBucket& bucket) -> Work {
                                for (int i = 0; i < 20; ++i) bucket.buffer().add_(1.0);
                                throw Error("on purpose");
                              }});
      try {
        sum(net(counting({1, 1000}))).backward();
      } catch (const Error&) {
      }
    }
    for (int i = 0; i < 20; ++i) {
      const Tensor other = zeros({1000}, {.dtype = DType::f64, .device = communicator.device()});
      if (values(other) != Doubles(1000)) throw Error("memory in use");
    }
    synchronize(communicator.device());
    throw Error("good");
  });
  for (const std::string& message : messages) CHECK(message == "good");
}

TEST_CASE("hooks that are refused") {
  const auto step = [](auto& net) { sum(net(counting({1, 2}))).backward(); };
  const CommHook good{"good", average};
  const auto refused = [&](const std::function<void(DistributedDataParallel<Scale>&, int)>& body) {
    return messages_of_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Scale> net(Scale(Doubles{1, 1}), communicator);
      body(net, communicator.rank());
      synchronize(communicator.device());
    });
  };
  for (const auto& message : refused([&](auto&net, int) { net.register_comm_hook({"none", nullptr}); }))
    CHECK(missing(message, {"[register_comm_hook] expected a hook that can be called"}) == "");
  for (const auto& message : refused([&](auto&net, int) {
         net.register_comm_hook(good);
         net.register_comm_hook({"another", average});
       }))
    CHECK(missing(message, {"expected one hook, got 'another' where 'good' is registered"}) == "");
  for (const auto& message : refused([&](auto&net, int) {
         step(net);
         net.register_comm_hook(good);
       }))
    CHECK(missing(message, {"expected 'good' before the first backward, got it after 1"}) == "");
  for (const auto& message : refused([&](auto&net, int rank) {
         net.register_comm_hook(rank == 0 ? good : CommHook{"bad", average});
       }))
    CHECK(missing(message, {"expected the same on every rank, got 'good' on rank 0, 'bad' on rank 1"}) == "");
  // Only on one rank: the other hears of it.
  const auto one = refused([&](auto& net, int rank) {
    net.register_comm_hook(rank == 1 ? CommHook{"none", nullptr} : good);
  });
  CHECK(missing(one[0], {"[register_comm_hook] rank 1: expected a hook that can be called"}) == "");
  CHECK(missing(one[1], {"[register_comm_hook] expected a hook that can be called"}) == "");
}

TEST_CASE("a hook that fails is named, with its bucket, on every rank") {
  enum Way { throws, fails_later, forgets, never, chained };
  for (const Way way : {throws, fails_later, forgets, never, chained}) {
    std::mutex mutex;
    std::vector<WorkPromise> kept;
    const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Mlp> net(Mlp{}, communicator, small_buckets());
      net.register_comm_hook(
          {"fragile", [&](GradBucket& bucket) -> Work {
             if (communicator.rank() != 1 || bucket.index() != 0) {
               average(bucket);
               // By now all collectives have their time.
               if (way == never && communicator.rank() == 1 && bucket.is_last())
                 communicator.set_timeout(Milliseconds(50));
               return {};
             }
             if (way == throws) throw Error("no more");
             average(bucket);  // the other rank does
             const WorkPromise promise(communicator.device());
             if (way == fails_later)
               std::thread([promise] { promise.fail(std::make_exception_ptr(Error("no more"))); }).join();
             if (way == chained) {
               promise.complete();
               return promise.work().then([] { throw Error("no more"); });
             }
             const std::lock_guard lock(mutex);
             if (way == never) kept.push_back(promise);
             return promise.work();
           }});
      loss_of(net(counting({3, 3}))).backward();
      synchronize(communicator.device());
      communicator.barrier();
    });
    INFO("way " << way << ": " << messages[0] << " / " << messages[1]);
    CHECK(missing(messages[1], {"hook 'fragile' failed on rank 1 for bucket 0 of ", way == forgets ? "got neither"
                                                                                    : way == never ? "50 ms"
                                                                                                   : "no more"}) == "");
    CHECK(missing(messages[0], {"CommError", "rank 1", "hook 'fragile'", "bucket 0"}) == "");
  }
}

TEST_CASE("a bucket takes another buffer of its elements alone, and rows take none") {
  const Tensor mine = counting({4});
  const NamedParameter named{"w", Parameter(counting({2, 2}))};
  GradBucket::Contents contents{.parameters = std::make_shared<const std::vector<NamedParameter>>(1, named),
                                .buffer = mine,
                                .gradients = {mine.reshape({2, 2})}};
  const GradBucket bucket(contents);
  const Tensor other = zeros({4}, {.dtype = DType::bf16});
  const GradBucket with = bucket.with_buffer(other);
  CHECK(with.gradients()[0].data() == other.data());
  CHECK(with.gradients()[0].shape() == Shape{2, 2});
  const auto refused = [](const GradBucket& of, const Tensor& buffer) {
    return message_of<InvalidArgument>([&] { of.with_buffer(buffer); });
  };
  for (const Tensor& wrong : {Tensor(), counting({5}), counting({2, 2}), counting({4, 2}).select(1, 0)})
    CHECK(missing(refused(bucket, wrong), {"[GradBucket::with_buffer]", "like f64[4]"}) == "");
  contents.buffer = Tensor();
  contents.gradients = {};
  CHECK(missing(refused(GradBucket(contents), other), {"[GradBucket::with_buffer]", "rows of 'w'"}) == "");
}
