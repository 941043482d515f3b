// DistributedDataParallel inside a join: buffers, hooks, what a rank that has run out keeps, and how a join ends.
#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

constexpr int kJoinRanks = 3;

Tensor row(Communicator& communicator, double value) {
  return full({1, 2}, value, {.dtype = DType::f64, .device = communicator.device()});
}
// Rank r has r + 1 inputs.
int inputs_of(const Communicator& communicator) { return communicator.rank() + 1; }

// Adds what it sees to a buffer.
struct InputCounter : Module<InputCounter> {
  Parameter weight{counting({2})};
  Buffer seen{full({2}, 0, {.dtype = DType::f64})};
  Tensor forward(const Tensor& x) const {
    if (is_training()) {
      const NoGrad no_grad;
      Tensor here = seen.on(x.device());
      here.add_(x.select(0, 0));
    }
    return x * weight.on(x.device());
  }
  void members(Members& m) override { m("weight", weight), m("seen", seen); }
};

}  // namespace

TEST_CASE("ddp join: buffers are those of the largest active rank, and at the end of the last one") {
  for (const bool broadcast : {true, false}) {
    const auto result = run_ranks(kJoinRanks, [&](Communicator& communicator) {
      DistributedDataParallel<InputCounter> net(InputCounter{}, communicator, {.broadcast_buffers = broadcast});
      join({net}, [&] {
        // Rank 0 has most: after rank 2, then rank 1, it is the last.
        for (int i = 0; i < kJoinRanks - communicator.rank(); ++i)
          sum(net(row(communicator, std::pow(10.0, i) * (communicator.rank() + 1)))).backward();
      });
      return values(net.module().seen.tensor());
    });
    // First rank 2's, which is 0; then rank 1's 2, on which rank 0 builds with 10, and alone with 100. Else each its
    // own.
    const std::vector<Doubles> own{{111, 111}, {22, 22}, {3, 3}}, shared(kJoinRanks, {112, 112});
    CHECK(result == (broadcast ? shared : own));
  }
}

TEST_CASE("ddp join: a rank that has run out keeps its gradients, and takes over parameters") {
  for (const bool view : {true, false}) {
    const auto result = run_ranks(kJoinRanks, [&](Communicator& communicator) {
      DistributedDataParallel<Scale> net(Scale(Doubles{1, 2}), communicator, {.gradient_as_bucket_view = view});
      SGD optimizer(net.parameters(), {.lr = 1});
      bool inside = false;
      join({net}, [&] {
        for (int i = 0; i < inputs_of(communicator); ++i) {
          optimizer.zero_grad();
          sum(net(row(communicator, communicator.rank() + 1))).backward();
          optimizer.step();
        }
        inside = net.logging_data().join_uneven_inputs;
      });
      Doubles all = values(net.module().weight.grad());
      for (const double value : values(net.module().weight.tensor())) all.push_back(value);
      all.push_back(static_cast<double>(net.logging_data().iteration));
      all.push_back(inside && !net.logging_data().join_uneven_inputs);
      return all;
    });
    // 2, then 5/3, then 1: each rank has those of its last own step.
    const double grads[] = {2, 5.0 / 3, 1}, end[] = {1 - 2 - 5.0 / 3 - 1, 2 - 2 - 5.0 / 3 - 1};
    for (std::size_t r = 0; r < kJoinRanks; ++r) {
      const Doubles wanted{grads[r], grads[r], end[0], end[1], 3, 1};
      CHECK(largest_difference(result[r], wanted) < 1e-12);
    }
  }
}

TEST_CASE("ddp join: even inputs train with the bits of a training without it") {
  const auto result = run_ranks(kJoinRanks, [](Communicator& communicator) {
    std::vector<Doubles> ends;
    for (const bool enable : {true, false}) {
      DistributedDataParallel<Mlp> net(Mlp{}, communicator, small_buckets());
      SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
      join({net}, {.enable = enable}, [&] {
        for (int i = 0; i < 3; ++i) {
          optimizer.zero_grad();
          loss_of(net(share(batch(i, kJoinRanks, DType::f64, communicator.device()), communicator.rank()))).backward();
          optimizer.step();
        }
      });
      ends.push_back(all_parameters(net.module()));
    }
    return ends;
  });
  for (const auto& ends : result) CHECK((ends[0] == ends[1] && ends[0] == result[0][0]));
}

TEST_CASE("ddp join: hooks see zeros on ranks that have run out, at once or late") {
  for (const bool late : {false, true}) {
    for (const bool initial : {true, false}) {
      const auto result = run_ranks(kJoinRanks, [&](Communicator& communicator) {
        DistributedDataParallel<Mlp> net(Mlp{}, communicator, small_buckets());
        net.register_comm_hook(summing_hook(late));
        SGD optimizer(net.parameters(), {.lr = 0.1});
        join({net}, {.divide_by_initial_world_size = initial}, [&] {
          for (int i = 0; i < inputs_of(communicator); ++i) {
            optimizer.zero_grad();
            loss_of(net(share(batch(i, kJoinRanks, DType::f64, communicator.device()), communicator.rank())))
                .backward();
            optimizer.step();
          }
        });
        return all_parameters(net.module());
      });
      Mlp whole;
      SGD optimizer(whole.parameters(), {.lr = 0.1});
      for (int i = 0; i < kJoinRanks; ++i) {
        optimizer.zero_grad();
        for (int r = i; r < kJoinRanks; ++r)
          (loss_of(whole(share(batch(i, kJoinRanks, DType::f64, Device::cpu()), r))) *
           (1.0 / (initial ? kJoinRanks : kJoinRanks - i)))
              .backward();
        optimizer.step();
      }
      CHECK(different(result) == 0);
      CHECK(largest_difference(result[0], all_parameters(whole)) < 1e-10);
    }
  }
}

TEST_CASE("ddp join: the first rank that runs out ends the training on all, which can go on") {
  for (const bool buffers : {true, false}) {  // noticed by a forward, or by a backward
    const auto result = run_ranks(kJoinRanks, [&](Communicator& communicator) {
      DistributedDataParallel<InputCounter> net(InputCounter{}, communicator, {.broadcast_buffers = buffers});
      int steps = 0, thrown = 0;
      for (int epoch = 0; epoch < 2; ++epoch) {
        try {
          join({net}, {.throw_on_early_termination = true}, [&] {
            for (int i = 0; i < inputs_of(communicator) + 1; ++i, ++steps) {
              net.zero_grad();
              sum(net(row(communicator, 1))).backward();
            }
          });
        } catch (const InputsExhausted&) {
          ++thrown;
        }
      }
      net.zero_grad();
      sum(net(row(communicator, communicator.rank()))).backward();
      return Doubles{double(steps), double(thrown), values(net.module().weight.grad())[0]};
    });
    for (const Doubles& rank : result) CHECK(rank == Doubles{4, 2, 1});
  }
}

TEST_CASE("ddp join: a static graph that a rank has only shadowed is learned later") {
  struct Pair : Module<Pair> {
    Parameter used{counting({2})}, unused{counting({2})};
    Tensor forward(const Tensor& x, bool other) const { return x * (other ? unused : used).on(x.device()); }
    void members(Members& m) override { m("used", used), m("unused", unused); }
  };
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Pair> net(Pair{}, communicator, {.static_graph = true});
    join({net}, [&] {
      if (communicator.rank() == 1) sum(net(row(communicator, 1), false)).backward();
    });
    for (int i = 0; i < 2; ++i) {
      net.zero_grad();
      sum(net(row(communicator, communicator.rank()), false)).backward();
      if (values(net.module().used.grad()) != Doubles{0.5, 0.5}) throw Error("another gradient");
    }
    sum(net(row(communicator, 1), true)).backward();
  });
  for (const std::string& message : said) CHECK(missing(message, {"'unused' (number 1)", "was unused"}) == "");
}

TEST_CASE("ddp join: a parameter that no active rank uses keeps its gradient") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Either> net(Either{}, communicator, {.find_unused_parameters = true});
    net.module().right.set_grad(full({2}, 7, {.dtype = DType::f64, .device = communicator.device()}));
    join({net}, [&] {
      if (communicator.rank() == 0) sum(net(row(communicator, 4), false)).backward();
    });
    return values(net.module().right.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{7, 7});
}

TEST_CASE("ddp join: at the end it is the buffers of then that are taken over") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<InputCounter> net(InputCounter{}, communicator);
    join({net}, [&] {
      sum(net(row(communicator, 1))).backward();
      net.module().seen =
          Buffer(full({2}, communicator.rank(), {.dtype = DType::f64, .device = communicator.device()}));
    });
    return values(net.module().seen.tensor());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 1});
}

TEST_CASE("ddp join: calls that a rank which has run out cannot take for steps are named on every rank") {
  const auto registers = [](DistributedDataParallel<Scale>& net, Communicator&) {
    net.register_comm_hook({"mine", [](GradBucket&) { return Work(); }});
  };
  const auto wraps = [](DistributedDataParallel<Scale>&, Communicator& communicator) {
    DistributedDataParallel<Scale> another(Scale(Doubles{1, 2}), communicator);
  };
  for (const auto& call : {std::function(registers), std::function(wraps)}) {
    const auto said = messages_of_ranks(kJoinRanks, [&](Communicator& communicator) {
      DistributedDataParallel<Scale> net(Scale(Doubles{1, 2}), communicator);
      join({net}, [&] {
        if (communicator.rank() != 1) call(net, communicator);
      });
    });
    CHECK(missing(said[1], {"[join]", "rank 0 says '", "no step of a join"}) == "");
    for (const std::size_t other : {0u, 2u}) CHECK(missing(said[other], {"rank 1", "'join-'"}) == "");
  }
}

TEST_CASE("ddp join: what does not fit is an error on every rank") {
  // A reduction that is begun and not finished.
  const auto begun = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 2}), communicator, {.backwards_per_forward = 2});
    join({net}, [&] {
      const Tensor y = sum(net(row(communicator, 1)));
      y.backward({}, {.retain_graph = true});
      if (communicator.rank() == 0) y.backward();
    });
    synchronize(communicator.device());
  });
  CHECK(missing(begun[0], {"rank 1", "finish the reduction"}) == "");
  CHECK(missing(begun[1], {"rank 1", "finish the reduction", "0 of 1 buckets"}) == "");
  // A hook for the buffers.
  const auto hooked = messages_of_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<InputCounter> net(InputCounter{}, communicator);
    net.register_buffer_hook({.name = "mine", .call = [](auto&&...) {}});
    join({net}, [&] {
      if (communicator.rank() == 1) net(row(communicator, 1));
    });
  });
  CHECK(missing(hooked[1], {"[join]", "buffer hook 'mine'"}) == "");
  CHECK(missing(hooked[0], {"CommError", "rank 1", "buffer hook 'mine'"}) == "");
  // A rank that throws in its forward, while the others shadow or train.
  const auto thrown = messages_of_ranks(kJoinRanks, [](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1, 2}), communicator);
    join({net}, [&] {
      for (int i = 0; i < inputs_of(communicator); ++i) {
        if (i == 1 && communicator.rank() == 1) throw std::out_of_range("no such row");
        sum(net(row(communicator, 1))).backward();
      }
    });
    synchronize(communicator.device());
  });
  CHECK(thrown[1] == "no such row");
  for (const std::size_t other : {0u, 2u}) CHECK(missing(thrown[other], {"CommError", "rank 1", "no such row"}) == "");
}
