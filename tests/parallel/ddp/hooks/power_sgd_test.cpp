// PowerSGD against a plain loop over matrices on the host, and in trainings.
#include "lockstep/parallel/ddp/hooks/power_sgd.h"

#include <list>

#include "lockstep/parallel/ddp/hooks/basic_hooks.h"
#include "parallel/ddp/scenarios.h"
#include "support/watched.h"

using namespace parallel_test;

namespace {

// Of rank 1 on each rank, and of different ones: the sum over the ranks has as many as there are ranks.
Doubles rank_one(int rank, int rows, int columns, int step) {
  Doubles m;
  for (int i = 0; i < rows; ++i)
    for (int j = 0; j < columns; ++j)
      m.push_back(std::sin(1.0 + i * (rank + 1) + step) * std::cos(2.0 + j * (rank + 2) - step));
  return m;
}
Doubles mean(const std::function<Doubles(int)>& of_rank, int ranks) {
  Doubles result = of_rank(0);
  for (int r = 1; r < ranks; ++r)
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += of_rank(r)[i];
  for (double& value : result) value /= ranks;
  return result;
}

// The gradients of two matrices and a vector, in every step, where the loss is their product with what `of_rank` says.
struct Three : Module<Three> {
  Parameter a, b, v;
  explicit Three(DType dtype)
      : a(zeros({6, 4}, {.dtype = dtype})), b(zeros({2, 3}, {.dtype = dtype})), v(zeros({3}, {.dtype = dtype})) {}
  Tensor forward(const Tensor& for_a, const Tensor& for_b, const Tensor& for_v) const {
    const Device device = for_a.device();
    return sum(a.on(device) * for_a) + sum(b.on(device) * for_b) + sum(v.on(device) * for_v);
  }
  void members(Members& m) override { m("a", a), m("b", b), m("v", v); }
};
Doubles all_gradients(const Three& module) {
  Doubles all;
  for (const Parameter* p : {&module.a, &module.b, &module.v})
    for (const double value : values(p->grad().to(DType::f64))) all.push_back(value);
  return all;
}
Doubles for_three(int rank, int step) {
  Doubles all = rank_one(rank, 6, 4, step);
  for (const double value : rank_one(rank, 2, 3, step + 1)) all.push_back(value);
  for (int i = 0; i < 3; ++i) all.push_back(rank + i + step);
  return all;
}
void step_of_three(DistributedDataParallel<Three>& net, int rank, int step, DType dtype) {
  const Doubles all = for_three(rank, step);
  const auto part = [&](std::size_t begin, const Shape& shape) {
    return from_data(Doubles(all.begin() + static_cast<std::ptrdiff_t>(begin),
                             all.begin() + static_cast<std::ptrdiff_t>(begin) + element_count(shape)),
                     shape)
        .to(dtype);
  };
  net.zero_grad();
  net(part(0, {6, 4}), part(24, {2, 3}), part(30, {3})).backward();
}
std::vector<std::vector<Doubles>> run_three(int ranks, const PowerSgdOptions& options, int steps,
                                            DType dtype = DType::f64) {
  return run_ranks(ranks, [&](Communicator& communicator) {
    DistributedDataParallel<Three> net(Three(dtype), communicator, small_buckets());
    PowerSgd compression(options);
    net.register_comm_hook(compression.hook());
    std::vector<Doubles> result;
    for (int step = 0; step < steps; ++step) {
      step_of_three(net, communicator.rank(), step, dtype);
      result.push_back(all_gradients(net.module()));
    }
    return result;
  });
}

// The best direction of one step without error feedback: M after a pass of P = MQ, M = P P^T M on the host, for a rank
// of 1 and the Q that the state has.
Doubles projected(const Doubles& m, int rows, int columns, const Doubles& q) {
  Doubles p(static_cast<std::size_t>(rows)), result(m.size());
  double length = 0;
  const auto at = [&](int i, int j) { return static_cast<std::size_t>(i * columns + j); };
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) p[static_cast<std::size_t>(i)] += m[at(i, j)] * q[static_cast<std::size_t>(j)];
    length += p[static_cast<std::size_t>(i)] * p[static_cast<std::size_t>(i)];
  }
  for (double& value : p) value /= std::sqrt(length);
  for (int j = 0; j < columns; ++j) {
    double product = 0;
    for (int i = 0; i < rows; ++i) product += p[static_cast<std::size_t>(i)] * m[at(i, j)];
    for (int i = 0; i < rows; ++i) result[at(i, j)] = p[static_cast<std::size_t>(i)] * product;
  }
  return result;
}

}  // namespace

TEST_CASE("PowerSGD is exact where the rank is that of the sum") {
  for (const int ranks : {1, 2, 3}) {
    for (const bool feedback : {true, false}) {
      for (const bool warm : {true, false}) {
        for (const DType dtype : {DType::f64, DType::f32}) {
          const auto result = run_three(ranks,
                                        {.rank = 4,
                                         .start_iteration = 0,
                                         .min_compression_rate = 0,
                                         .use_error_feedback = feedback,
                                         .warm_start = warm},
                                        4, dtype);
          CHECK(result == std::vector(result.size(), result[0]));
          for (int step = 0; step < 4; ++step) {
            INFO(ranks << " ranks, feedback " << feedback << ", warm " << warm << ", " << to_string(dtype) << ", step "
                       << step);
            CHECK(largest_difference(result[0][static_cast<std::size_t>(step)],
                                     mean([&](int r) { return for_three(r, step); }, ranks)) <
                  (dtype == DType::f64 ? 1e-10 : 1e-4));
          }
        }
      }
    }
  }
}

TEST_CASE("PowerSGD begins when it is told to, and compresses what is worth it") {
  const auto mean_of = [](int step) { return mean([&](int r) { return for_three(r, step); }, 2); };
  const auto result = run_three(2, {.rank = 1, .start_iteration = 2, .min_compression_rate = 2}, 4);
  for (int step = 0; step < 4; ++step) {
    const Doubles &got = result[0][static_cast<std::size_t>(step)], expected = mean_of(step);
    const auto differs = [&](std::size_t begin, std::size_t end) {
      double largest = 0;
      for (std::size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(got[i] - expected[i]));
      return largest > 1e-10;
    };
    CHECK(differs(0, 24) == (step >= 2));  // (6 + 4) * 2 < 24
    CHECK_FALSE(differs(24, 33));          // (2 + 3) * 2 > 6
  }
}

TEST_CASE("PowerSGD of rank 1 is the projection that the paper has, and what it loses comes next time") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Three> net(Three(DType::f64), communicator, small_buckets());
    PowerSgd compression({.rank = 1, .start_iteration = 0, .min_compression_rate = 2});
    net.register_comm_hook(compression.hook());
    std::vector<Doubles> seen;
    for (int step = 0; step < 3; ++step) {
      Doubles q, error(24);
      for (const auto& [name, tensor] : compression.state_dict()) {
        if (name == "q.a") q = values(tensor);
        if (name == "error.a") error = values(tensor);
      }
      seen.push_back(q), seen.push_back(error);
      step_of_three(net, communicator.rank(), step, DType::f64);
      seen.push_back(values(net.module().a.grad()));
    }
    return seen;
  });
  for (int step = 1; step < 3; ++step) {
    const auto at = static_cast<std::size_t>(3 * step);
    const auto with_error = [&](int rank) {
      Doubles m = rank_one(rank, 6, 4, step);
      for (std::size_t i = 0; i < 24; ++i) m[i] += result[static_cast<std::size_t>(rank)][at + 1][i];
      return m;
    };
    const Doubles expected = projected(mean(with_error, 2), 6, 4, result[0][at]);
    for (int rank = 0; rank < 2; ++rank) {
      const auto& mine = result[static_cast<std::size_t>(rank)];
      CHECK(largest_difference(mine[at + 2], expected) < 1e-10);
      if (step == 1) {  // what it loses
        Doubles lost = with_error(rank);
        for (std::size_t i = 0; i < 24; ++i) lost[i] -= mine[at + 2][i];
        CHECK(largest_difference(mine[at + 4], lost) < 1e-10);
      }
    }
  }
}

TEST_CASE("PowerSGD of gradients that are zero") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Three> net(Three(DType::f64), communicator);
    PowerSgd compression({.rank = 2, .start_iteration = 0, .min_compression_rate = 0});
    net.register_comm_hook(compression.hook());
    const auto step = [&](double factor) {
      net.zero_grad();
      net(full({6, 4}, factor, {.dtype = DType::f64}), full({2, 3}, factor, {.dtype = DType::f64}),
          full({3}, factor, {.dtype = DType::f64}))
          .backward();
      return all_gradients(net.module());
    };
    return std::vector<Doubles>{step(0), step(3), step(0), step(5)};
  });
  const double factors[] = {0, 3, 0, 5};
  for (const auto& rank : result)
    for (std::size_t i = 0; i < 4; ++i) CHECK(largest_difference(rank[i], Doubles(33, factors[i])) < 1e-10);
}

TEST_CASE("PowerSGD shows infinite gradients, and forgets them") {
  for (const double bad : {HUGE_VAL, std::nan("")}) {
    const auto result = run_ranks(2, [&](Communicator& communicator) {
      DistributedDataParallel<Three> net(Three(DType::f64), communicator);
      PowerSgd compression({.rank = 1, .start_iteration = 0, .min_compression_rate = 0});
      net.register_comm_hook(compression.hook());
      std::vector<Doubles> seen;
      for (const double factor : {3.0, communicator.rank() == 1 ? bad : 3.0, 5.0}) {
        net.zero_grad();
        net(full({6, 4}, factor, {.dtype = DType::f64}), full({2, 3}, factor, {.dtype = DType::f64}),
            full({3}, factor, {.dtype = DType::f64}))
            .backward();
        seen.push_back(all_gradients(net.module()));
      }
      return seen;
    });
    for (const auto& rank : result) {
      CHECK(largest_difference(rank[0], Doubles(33, 3)) < 1e-10);
      CHECK(std::none_of(rank[1].begin(), rank[1].end(), [](double value) { return std::isfinite(value); }));
      CHECK(largest_difference(rank[2], Doubles(33, 5)) < 1e-10);
    }
  }
}

TEST_CASE("PowerSGD at full rank trains as none does, in all ways") {
  for (const int ranks : {2, 3}) {
    if (support::watched() && ranks != 2) continue;
    int number = 0;
    for (const Scenario& scenario : scenarios()) {
      if ((ranks != 2 || support::watched()) && number++ % 4 != 0) continue;
      // What ranks remember as their errors adds up to nothing only when all of them are in the divisor.
      if (scenario.name.find("current count") != std::string::npos) continue;
      INFO(scenario.name << ", " << ranks << " ranks");
      const auto with = run_ranks(ranks, [&](Communicator& communicator) {
        std::list<PowerSgd> compressions;  // one for each module
        return scenario.with_hook(communicator, [&] {
          return compressions
              .emplace_back(PowerSgdOptions{.rank = 100, .start_iteration = 0, .min_compression_rate = 0})
              .hook();
        });
      });
      CHECK(different(with) == 0);
      CHECK(largest_difference(with[0], scenario.whole(ranks)) <= std::max(scenario.tolerance, 1e-9));
    }
  }
}

TEST_CASE("PowerSGD for two modules at once is an error") {
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    PowerSgd compression({.start_iteration = 0, .min_compression_rate = 0});
    DistributedDataParallel<Linear> first(Linear(3, 3), communicator), second(Linear(3, 3), communicator);
    first.register_comm_hook(compression.hook()), second.register_comm_hook(compression.hook());
    const Tensor x = ones({1, 3}, {.device = communicator.device()});
    sum(first(x)).backward();
    sum(second(x)).backward();
  });
  for (const std::string& each : said) CHECK(missing(each, {"one module", "'bias'"}) == "");
}

TEST_CASE("PowerSGD for two modules is an error when their names differ, too, and before it compresses") {
  for (const std::int64_t start : {0, 1000}) {
    const auto said = messages_of_ranks(2, [&](Communicator& communicator) {
      PowerSgd compression({.start_iteration = start, .min_compression_rate = 0});
      DistributedDataParallel<Scale> first(Scale(Doubles{1, 2}), communicator);
      DistributedDataParallel<Affine> second(Affine(3, 3, 1), communicator);
      first.register_comm_hook(compression.hook()), second.register_comm_hook(compression.hook());
      sum(first(counting({1, 2}))).backward();
      sum(second(counting({1, 3}))).backward();
    });
    for (const std::string& each : said) CHECK(missing(each, {"[PowerSgd]", "one module", "'bias'"}) == "");
  }
}

TEST_CASE("PowerSGD without a warm start begins each iteration with other numbers") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Three> net(Three(DType::f64), communicator);
    PowerSgd compression(
        {.rank = 1, .start_iteration = 0, .min_compression_rate = 0, .use_error_feedback = false, .warm_start = false});
    net.register_comm_hook(compression.hook());
    std::vector<Doubles> grads;
    for (int i = 0; i < 2; ++i) {
      step_of_three(net, communicator.rank(), 0, DType::f64);
      grads.push_back(values(net.module().a.grad()));
    }
    return largest_difference(grads[0], grads[1]);
  });
  for (const double difference : result) CHECK(difference > 1e-6);
}

TEST_CASE("a training that goes on from PowerSGD's state has the bits of one that was not interrupted") {
  for (const DType dtype : {DType::f64, DType::bf16}) {
    const auto whole = run_three(2, {.rank = 1, .start_iteration = 1, .min_compression_rate = 0}, 6, dtype);
    const auto parts = run_ranks(2, [&](Communicator& communicator) {
      std::vector<Doubles> result;
      std::vector<NamedTensor> state;
      for (int part = 0; part < 2; ++part) {  // in the second one buckets are made anew, and rebuilt later
        DistributedDataParallel<Three> net(Three(dtype), communicator, small_buckets());
        PowerSgd compression({.rank = 1, .start_iteration = 1, .min_compression_rate = 0});
        net.register_comm_hook(compression.hook());
        if (part == 1) compression.load_state_dict(state);
        for (int step = part * 3; step < part * 3 + 3; ++step) {
          step_of_three(net, communicator.rank(), step, dtype);
          result.push_back(all_gradients(net.module()));
        }
        state = compression.state_dict();
        if (compression.iteration() != part * 3 + 3) throw Error("another iteration");
      }
      return result;
    });
    CHECK(parts == whole);
  }
}

TEST_CASE("PowerSGD of rank 1 learns") {
  const auto losses = [](bool compressed) {
    return run_ranks(2, [&](Communicator& communicator) {
      struct Wide : Module<Wide> {
        Affine first{3, 32, 1}, middle{32, 32, 2}, last{32, 2, 3};
        Tensor forward(const Tensor& x) const { return last(tanh(middle(tanh(first(x))))); }
        void members(Members& m) override { m("first", first), m("middle", middle), m("last", last); }
      };
      DistributedDataParallel<Wide> net(Wide{}, communicator, small_buckets());
      PowerSgd compression({.rank = 1, .start_iteration = 0});
      if (compressed) net.register_comm_hook(compression.hook());
      SGD optimizer(net.parameters(), {.lr = 0.02});
      Doubles result;
      for (int i = 0; i < 30; ++i) {
        optimizer.zero_grad();
        const Tensor loss =
            loss_of(net(share(batch(i % 3, 2, DType::f64, communicator.device()), communicator.rank())));
        loss.backward();
        optimizer.step();
        result.push_back(loss.item<double>());
      }
      return Doubles{result[0], result[29]};
    });
  };
  const auto with = losses(true), without = losses(false);
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(with[r][0] == without[r][0]);
    CHECK(without[r][1] < without[r][0] / 4);
    CHECK(with[r][1] != without[r][1]);  // something is compressed
    CHECK(with[r][1] < 2 * without[r][1]);
  }
}

TEST_CASE("what PowerSGD refuses") {
  const auto refused = [](const PowerSgdOptions& options) {
    return message_of<InvalidArgument>([&] { PowerSgd made(options); });
  };
  CHECK(missing(refused({.rank = 0}), {"rank of at least 1, got 0"}) == "");
  CHECK(missing(refused({.start_iteration = -1}), {"start_iteration", "-1"}) == "");
  CHECK(missing(refused({.min_compression_rate = -1}), {"min_compression_rate"}) == "");
  CHECK(missing(refused({.orthogonalization_epsilon = -1}), {"orthogonalization_epsilon"}) == "");
  PowerSgd compression;
  const auto loaded = [&](const std::vector<NamedTensor>& state) {
    return message_of<InvalidArgument>([&] { compression.load_state_dict(state); });
  };
  const NamedTensor iteration{"iteration", lockstep::tensor(std::int64_t{3}, {.dtype = DType::i64})};
  CHECK(missing(loaded({}), {"expected an 'iteration'"}) == "");
  CHECK(missing(loaded({iteration, {"p.a", counting({2, 2})}}), {"got 'p.a'"}) == "");
  CHECK(missing(loaded({iteration, {"q.a", counting({2})}}), {"'q.a' to be a floating matrix"}) == "");
  CHECK(compression.iteration() == 0);
  const auto messages = messages_of_ranks(2, [&](Communicator& communicator) {
    DistributedDataParallel<Three> net(Three(DType::f64), communicator);
    PowerSgd other({.start_iteration = 0, .min_compression_rate = 0});
    if (communicator.rank() == 1) other.load_state_dict({iteration, {"q.a", counting({7, 4})}});
    net.register_comm_hook(other.hook());
    step_of_three(net, communicator.rank(), 0, DType::f64);
    synchronize(communicator.device());
    communicator.barrier();
  });
  CHECK(missing(messages[1], {"hook 'power_sgd(rank 1", "'q.a' to be f64[1, 4], got f64[7, 4]"}) == "");
  CHECK(missing(messages[0], {"CommError", "rank 1", "'q.a'"}) == "");
}
