// Norms that ranks share inside a join: it has to end on all of them at once.
#include "lockstep/parallel/join/join.h"

#include <optional>

#include "parallel/ddp/scenarios.h"
#include "parallel/sync_norm/support.h"

using namespace parallel_test;

namespace {

constexpr int kNormRanks = 3;

struct Normed : Module<Normed> {
  Affine first{3, static_cast<int>(kChannels), 1}, last{static_cast<int>(kChannels), 2, 2};
  BatchNorm1d norm;
  explicit Normed(bool tracks) : norm(kChannels, {.track_running_stats = tracks}) { norm.to(DType::f64); }
  Tensor forward(const Tensor& x) const { return last(tanh(norm(first(x)))); }
  void members(Members& m) override { m("first", first), m("norm", norm), m("last", last); }
};

// Every second forward reduces where gradients accumulate.
template <class Net, class Input>
void train(Net& net, SGD& optimizer, int inputs, bool accumulates, const Input& input) {
  for (int i = 0; i < inputs; ++i) {
    const bool stays = accumulates && i % 2 == 0;
    {
      [[maybe_unused]] const auto scope = stays ? std::optional(hold(net)) : std::nullopt;
      loss_of(net(input(i))).backward();
    }
    if (!stays) optimizer.step(), optimizer.zero_grad();
  }
}

}  // namespace

TEST_CASE("norms that ranks share: a throwing join ends before a rank waits at one, and training goes on") {
  for (const bool tracks : {true, false}) {
    for (const bool broadcasts : {true, false}) {
      for (const bool accumulates : {false, true}) {
        for (const int fewer : {2, 3}) {  // the next forward reduces, or does not
          INFO("running statistics " << tracks << ", broadcast_buffers " << broadcasts << ", accumulates "
                                     << accumulates << ", " << fewer << " inputs");
          const auto result = run_ranks(kNormRanks, [&](Communicator& communicator) {
            communicator.set_timeout(Milliseconds(60'000));
            const int rank = communicator.rank();
            DistributedDataParallel<Normed> net(Normed(tracks), communicator, {.broadcast_buffers = broadcasts});
            convert_sync_batchnorm(net, communicator);
            SGD optimizer(net.parameters(), {.lr = 0.1});
            bool ended = false;
            for (int epoch = 0; epoch < 2; ++epoch) {
              const int inputs = epoch == 0 && rank == 1 ? fewer : 4;
              try {
                join({net}, {.throw_on_early_termination = true}, [&] {
                  train(net, optimizer, inputs, accumulates, [&](int i) {
                    return share(batch(10 * epoch + i, kNormRanks, DType::f64, communicator.device()), rank);
                  });
                });
              } catch (const InputsExhausted& error) {
                ended = epoch == 0 && error.ranks == std::vector<int>{1};
              }
              optimizer.zero_grad();
            }
            if (!ended) throw Error("no InputsExhausted of rank 1");
            return all_parameters(net.module());
          });
          Normed whole(tracks);
          SGD optimizer(whole.parameters(), {.lr = 0.1});
          for (int epoch = 0; epoch < 2; ++epoch) {
            train(whole, optimizer, epoch == 0 ? fewer : 4, accumulates,
                  [&](int i) { return batch(10 * epoch + i, kNormRanks, DType::f64, Device::cpu()); });
            optimizer.zero_grad();
          }
          CHECK(different(result) == 0);
          CHECK(largest_difference(result[0], all_parameters(whole)) < 1e-10);
        }
      }
    }
  }
}

TEST_CASE("norms that ranks share: forwards without gradients are announced in a throwing join, too") {
  const auto ended = run_ranks(2, [](Communicator& communicator) {
    communicator.set_timeout(Milliseconds(60'000));
    DistributedDataParallel<Normed> net(Normed(true), communicator);
    convert_sync_batchnorm(net, communicator);
    int calls = 0;
    try {
      join({net}, {.throw_on_early_termination = true}, [&] {
        const NoGrad no_grad;
        for (; calls < 1 + communicator.rank(); ++calls)
          net(share(batch(calls, 2, DType::f64, communicator.device()), communicator.rank()));
      });
    } catch (const InputsExhausted&) {
      return calls;
    }
    return -1;
  });
  CHECK(ended == std::vector<int>{1, 1});
}

TEST_CASE("norms that ranks share: a wrapped norm without a module around it ends a throwing join, too") {
  const auto said = messages_of_ranks(2, [](Communicator& communicator) {
    communicator.set_timeout(Milliseconds(60'000));
    DistributedDataParallel<BatchNorm1d> net(BatchNorm1d(kChannels), communicator, {.broadcast_buffers = false});
    convert_sync_batchnorm(net, communicator);
    join({net}, {.throw_on_early_termination = true}, [&] {
      for (int i = 0; i < 2 + communicator.rank(); ++i) {
        net.zero_grad();
        loss_of(net(share(batch(i, 2, DType::f32, communicator.device()), communicator.rank()))).backward();
      }
    });
  });
  for (const std::string& each : said)
    CHECK(missing(each, {"[join] expected inputs on all 2 ranks, but rank 0"}) == "");
}

TEST_CASE("norms that ranks share: a join that shadows refuses them at once") {
  const auto said = [](int inputs_of_last, bool evaluates) {
    return messages_of_ranks(2, [=](Communicator& communicator) {
      communicator.set_timeout(Milliseconds(60'000));
      DistributedDataParallel<Normed> net(Normed(true), communicator);
      convert_sync_batchnorm(net, communicator);
      if (evaluates) net.module().norm.eval();
      join({net}, [&] {
        for (int i = 0; i < (communicator.rank() == 1 ? inputs_of_last : 2); ++i) {
          net.zero_grad();
          loss_of(net(share(batch(i, 2, DType::f64, communicator.device()), communicator.rank()))).backward();
        }
      });
    });
  };
  for (const std::string& each : said(2, false))
    CHECK(missing(each, {"[join]", "'norm'", "throw_on_early_termination"}) == "");
  const auto uneven = said(0, false);
  CHECK(missing(uneven[0], {"[join]", "'norm'", "throw_on_early_termination"}) == "");
  CHECK(missing(uneven[1], {"CommError", "rank 0", "throw_on_early_termination"}) == "");
  // Those that only evaluate share nothing.
  for (const int inputs : {0, 2})
    for (const std::string& each : said(inputs, true)) CHECK(each == "");
}
