// Gradients that are there before a backward count on every rank, also on one whose backward does not reach them.
#include <optional>

#include "lockstep/tensor/nn/layers.h"
#include "parallel/ddp/support.h"

using namespace parallel_test;

TEST_CASE("an average of before counts on the ranks that do not use the parameter") {
  for (const bool fixed : {false, true}) {
    for (const bool view : {true, false}) {
      INFO("static " << fixed << ", view " << view);
      const auto result = run_ranks(2, [&](Communicator& communicator) {
        DistributedDataParallel<Either> net(
            Either(), communicator,
            {.find_unused_parameters = !fixed, .gradient_as_bucket_view = view, .static_graph = fixed});
        Doubles seen;
        for (int step = 0; step < 3; ++step) {
          sum(net(row_of(communicator.rank() + 1.0), communicator.rank() == 0)).backward();
          for (const Parameter* each : {&net.module().left, &net.module().right})
            seen.push_back(values(each->grad())[0]);
        }
        return seen;
      });
      // Each adds half of what its rank has: 1 to the right one, 2 to the left one.
      for (const Doubles& rank : result) CHECK(rank == Doubles{1, 0.5, 2, 1, 3, 1.5});
    }
  }
}

TEST_CASE("rows of before count on the ranks that look up none") {
  const auto result = run_ranks(3, [](Communicator& communicator) {
    Embedding table(4, 1, {.sparse = true});
    table.to(DType::f64);
    struct Words : Module<Words> {
      Embedding table;
      Parameter other{counting({1})};
      explicit Words(Embedding t) : table(std::move(t)) {}
      Tensor forward(const Tensor& ids, bool look_up) const {
        const Tensor y = other.on(ids.device()) * 1.0;
        return look_up ? y + sum(table(ids)) : y;
      }
      void members(Members& m) override { m("table", table), m("other", other); }
    };
    DistributedDataParallel<Words> net(Words(table), communicator, {.find_unused_parameters = true});
    const Tensor ids = from_data(std::vector<std::int64_t>{1, 1, 3}, {3});
    Doubles seen;
    double held = 0;                        // rows
    for (const int users : {3, 1, 0, 2}) {  // ranks that look up
      sum(net(ids, communicator.rank() < users)).backward();
      const Doubles now = values(net.module().table.weight.sparse_grad().to_dense());
      seen.push_back(now[1]), seen.push_back(now[3]);
      if (users == 0)
        seen.push_back(static_cast<double>(net.module().table.weight.sparse_grad().indices.count()) - held);
      held = static_cast<double>(net.module().table.weight.sparse_grad().indices.count());
    }
    return seen;
  });
  const Doubles expected{2, 1, 2 + 2.0 / 3, 1 + 1.0 / 3, 2 + 2.0 / 3, 1 + 1.0 / 3, 0, 4, 2};
  CHECK(different(result) == 0);
  CHECK(largest_difference(result[0], expected) < 1e-14);
}

TEST_CASE("a matrix as the gradient of a parameter with rows is averaged") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    struct Tied : Module<Tied> {
      Embedding table{3, 2, {.sparse = true}};
      Tied() {
        table.to(DType::f64);
        table.weight.assign(counting({3, 2}));
      }
      // The table as a matrix too.
      Tensor forward(const Tensor& ids, double factor) const {
        return sum(table(ids)) + sum(table.weight.on(ids.device())) * factor;
      }
      void members(Members& m) override { m("table", table); }
    };
    DistributedDataParallel<Tied> net(Tied(), communicator);
    const Tensor ids = from_data(std::vector<std::int64_t>{communicator.rank()}, {1});
    net(ids, communicator.rank() * 10.0).backward();
    const Parameter& weight = net.module().table.weight;
    return values(weight.sparse_grad().defined() ? weight.sparse_grad().to_dense() : weight.grad());
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{5.5, 5.5, 5.5, 5.5, 5, 5});
}
