// What a checkpoint keeps of the buckets: who goes on with it reduces what an undisturbed training reduces.
#include "lockstep/parallel/ddp/bucket_state.h"

#include "parallel/ddp/support.h"

using namespace parallel_test;

namespace {

// A rank that writes down which gradients each bucket has that is reduced.
struct TrainedBuckets {
  DistributedDataParallel<Shuffled> net;
  SGD optimizer;
  std::shared_ptr<std::string> reduced = std::make_shared<std::string>();

  TrainedBuckets(Communicator& communicator, const DistributedDataParallelOptions& options)
      : net(Shuffled(), communicator, options), optimizer(net.parameters(), {.lr = 0.1}) {
    CommHook hook = summing_hook(false);
    net.register_comm_hook({"average", [call = std::move(hook.call), reduced = reduced](GradBucket& bucket) {
                              *reduced += '[';
                              for (const NamedParameter& named : bucket.parameters()) *reduced += named.name + ' ';
                              *reduced += ']';
                              return call(bucket);
                            }});
  }
  void step(int number) {
    *reduced += '|';
    optimizer.zero_grad();
    const Communicator& communicator = net.communicator();
    loss_of(net(share(batch(number, communicator.size(), DType::f64, communicator.device()), communicator.rank())))
        .backward();
    optimizer.step();
  }
};

}  // namespace

TEST_CASE("a state of buckets is a line of text") {
  const DdpBucketState state{1 << 20, 25 << 20, {2, 1, 0}};
  CHECK(to_string(state) == "1048576 26214400: 2 1 0");
  CHECK(parse_bucket_state(to_string(state)) == state);
  const DdpBucketState none{1, 2, {}};
  CHECK(parse_bucket_state(to_string(none)) == none);
  for (const char* text : {"", "1 2", "1: 2", "1 2 3: 4", "1 2: 3x", "1 2: 3 ", "1 2: x", "1 -2: 3", "1 2:  3"}) {
    INFO(text);
    CHECK(missing(message_of<InvalidArgument>([&] { parse_bucket_state(text); }), {"[parse_bucket_state]"}) == "");
  }
}

TEST_CASE("a training that goes on with a state of buckets reduces the same buckets as one that was not interrupted") {
  const DistributedDataParallelOptions small{.bucket_cap_mb = 100.0 / (1 << 20), .first_bucket_mb = 1.0 / (1 << 20)};
  for (const int saved_after : {0, 1, 3}) {  // before anything is known, before the buckets are made anew, after it
    INFO("saved after " << saved_after);
    struct Result {
      std::string whole, resumed, fresh;
      Doubles bits, resumed_bits;
      bool same_state;
    };
    const auto ranks = run_ranks(2, [&](Communicator& communicator) {
      Result result;
      TrainedBuckets whole(communicator, small);
      std::vector<NamedTensor> model;
      std::string state;
      for (int step = 0; step < 5; ++step) {
        if (step == saved_after) {
          for (const NamedTensor& named : whole.net.module().state_dict())
            model.push_back({named.name, named.tensor.detach().clone()});
          state = communicator.broadcast_bytes(to_string(whole.net.bucket_state()), 0);  // as rank 0's file has it
          whole.reduced->clear();
        }
        whole.step(step);
      }
      TrainedBuckets resumed(communicator, {}), fresh(communicator, {});
      resumed.net.module().load_state_dict(model);
      resumed.net.load_bucket_state(parse_bucket_state(state));
      for (int step = saved_after; step < 5; ++step) resumed.step(step), fresh.step(step);
      result = {*whole.reduced,
                *resumed.reduced,
                *fresh.reduced,
                all_parameters(whole.net.module()),
                all_parameters(resumed.net.module()),
                whole.net.bucket_state() == resumed.net.bucket_state()};
      return result;
    });
    for (const Result& rank : ranks) {
      CHECK(rank.resumed == rank.whole);
      CHECK(rank.fresh != rank.whole);  // without it: one large bucket
      CHECK(rank.resumed_bits == rank.bits);
      CHECK(rank.same_state);
    }
  }
}

TEST_CASE("a state of buckets that is loaded is what a rank says of itself") {
  const auto ranks = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Shuffled> net(Shuffled(), communicator);
    const DdpLoggingData before = net.logging_data();
    net.load_bucket_state({1, 100, {0, 2, 1, 4, 3, 5}});
    const DdpLoggingData data = net.logging_data();
    if (before.has_rebuilt_buckets || !data.has_rebuilt_buckets || data.bucket_cap_bytes != 100)
      throw Error("says something else");
    return data.rebuilt_per_bucket_param_indices;
  });
  // Weights have 72 bytes, biases 24; the first bucket is full with one.
  for (const auto& buckets : ranks) CHECK(buckets == std::vector<std::vector<int>>{{0}, {2, 1, 4}, {3, 5}});
}

TEST_CASE("states of buckets that cannot be loaded are refused on every rank, and change nothing") {
  const auto refused = [](const std::function<DdpBucketState(int)>& state_of, bool in_iteration = false) {
    std::string all;
    for (const std::string& message : messages_of_ranks(2, [&](Communicator& communicator) {
           DistributedDataParallel<Shuffled> net(Shuffled(), communicator,
                                                 {.backwards_per_forward = in_iteration ? 2 : 1});
           const Tensor loss = loss_of(net(share(batch(0, 2, DType::f64, communicator.device()), communicator.rank())));
           if (in_iteration) loss.backward();
           const DdpBucketState before = net.bucket_state();
           try {
             net.load_bucket_state(state_of(communicator.rank()));
           } catch (...) {
             if (!(net.bucket_state() == before)) throw Error("has changed");
             throw;
           }
         }))
      all += message + '\n';
    return all;
  };
  const DdpBucketState good{100, 100, {5, 4, 3, 2, 1, 0}};
  CHECK(refused([&](int) { return good; }) == "\n\n");
  const auto on_both = [](const std::string& text, const std::string& part) {
    const std::size_t at = text.find(part);
    return at != std::string::npos && text.find(part, at + 1) != std::string::npos;
  };
  for (const std::vector<int>& order : {std::vector<int>{1, 0}, {5, 4, 3, 2, 1, 1}, {6, 5, 4, 3, 2, 1}}) {
    CHECK(on_both(refused([&](int) {
                    return DdpBucketState{100, 100, order};
                  }),
                  "expected an order of the 6 trained parameters"));
    CHECK(on_both(refused([&](int rank) {
                    return rank == 1 ? DdpBucketState{100, 100, order} : good;
                  }),
                  "expected an order of the 6 trained parameters"));
  }
  CHECK(on_both(refused([&](int) { return DdpBucketState{100, 0, {}}; }), "positive limits of buckets, got 100 and 0"));
  CHECK(on_both(refused([&](int rank) {
                  return DdpBucketState{100, rank == 1 ? std::size_t{300} : 200, {}};
                }),
                "got '100 200: ' on rank 0, '100 300: ' on rank 1"));
  CHECK(on_both(refused([&](int) { return good; }, true), "expected no iteration in progress"));
}
