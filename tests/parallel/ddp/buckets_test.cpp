// Into which buckets gradients go, in which order they are reduced, and what overlaps.
#include <set>

#include "lockstep/parallel/ddp/bucket.h"
#include "lockstep/runtime/trace/trace.h"
#include "parallel/ddp/support.h"
#include "support/devices.h"

using namespace parallel_test;
using support::first_devices;

namespace {

std::vector<std::vector<int>> assign(const std::vector<BucketEntry>& entries, const std::vector<std::size_t>& limits) {
  std::vector<int> order;
  for (int i = 0; i < static_cast<int>(entries.size()); ++i) order.push_back(i);
  return assign_buckets(entries, order, limits);
}

using Buckets = std::vector<std::vector<int>>;

}  // namespace

TEST_CASE("a bucket is closed when it has reached its limit") {
  CHECK(assign({{4}, {4}, {4}, {4}, {4}}, {4, 8}) == Buckets{{0}, {1, 2}, {3, 4}});
  CHECK(assign({{6}, {3}, {3}, {3}}, {4, 8}) == Buckets{{0}, {1, 2, 3}});
  CHECK(assign({{100}, {1}}, {4}) == Buckets{{0}, {1}});
  CHECK(assign({{1}, {1}, {1}}, {1000}) == Buckets{{0, 1, 2}});
  CHECK(assign({}, {1000}).empty());
}

TEST_CASE("dtypes have buckets of their own, sparse gradients one each") {
  const BucketEntry wide{4, DType::f64}, narrow{4, DType::f32}, rows{4, DType::f64, true};
  CHECK(assign({wide, narrow, wide, narrow}, {1000}) == Buckets{{0, 2}, {1, 3}});
  CHECK(assign({wide, rows, wide, rows}, {1000}) == Buckets{{0, 2}, {1}, {3}});
}

TEST_CASE("each dtype has a small first bucket") {
  const BucketEntry wide{4, DType::f64}, narrow{4, DType::f32}, half{4, DType::f16};
  CHECK(assign({wide, wide, wide, narrow, narrow, narrow}, {4, 8}) == Buckets{{0}, {1, 2}, {3}, {4, 5}});
  CHECK(assign({wide, narrow, half, wide, narrow, half, wide, narrow, half}, {4, 8}) ==
        Buckets{{0}, {1}, {2}, {3, 6}, {4, 7}, {5, 8}});
}

TEST_CASE("gradients in a bucket begin at multiples of 256 bytes in both dtypes, with zeros between them") {
  using Slots = std::vector<Bucket::Slot>;
  const Device device = first_devices(1)[0];
  const auto address = [](const Tensor& tensor) { return reinterpret_cast<std::uintptr_t>(tensor.data()); };
  for (const DType reduced : {DType::f32, DType::bf16, DType::f64}) {
    Bucket bucket(Slots{{0, {10}, 0},
                        {1, {3, 5}, 0},
                        {2, {64}, 0},
                        {3, {0}, 0},
                        {4, {}, 0},
                        {5, {2, 3, 2, 2}, 0, MemoryFormat::channels_last}},
                  {DType::f32, device}, {reduced, device}, false);
    CHECK(bucket.apart() == (reduced != DType::f32));
    CHECK(bucket.bytes() == (10 + 15 + 64 + 0 + 1 + 24) * 4);
    Doubles expected(static_cast<std::size_t>(bucket.flat().count()), 0.0);
    for (std::size_t i = 0; i < bucket.slots().size(); ++i) {
      const auto& [number, shape, offset, format] = bucket.slots()[i];
      Tensor place = bucket.gradient(i);
      CHECK(place.memory_format() == format);
      if (place.count() > 0) {
        CHECK(address(place) % 256 == 0);
        CHECK(address(bucket.parts()[i]) % 256 == 0);
        CHECK(address(bucket.parts()[i]) - address(bucket.flat()) ==
              static_cast<std::size_t>(offset) * size_of(reduced));
      }
      place.fill_(static_cast<double>(number + 1));
      for (std::int64_t k = 0; k < place.count(); ++k) expected[static_cast<std::size_t>(offset + k)] = number + 1;
    }
    const auto sent = [&](bool after_hook) {
      for (std::size_t i = 0; i < bucket.slots().size(); ++i) bucket.fill_gap(i, after_hook);
      bucket.send();
      return bucket.flat().to(DType::f64).to_vector<double>();
    };
    CHECK(sent(false) == expected);
    Tensor gap = bucket.flat().narrow(0, 10, 6);
    gap.fill_(7.0);
    bucket.receive();
    CHECK(sent(true) == expected);
    Bucket zeros = bucket.zeros();
    zeros.send();
    CHECK(sent(false) == expected);
    CHECK(zeros.flat().to(DType::f64).to_vector<double>() == Doubles(expected.size(), 0.0));
  }
}

TEST_CASE("gradients of a trained module are aligned, and its figures count no gaps") {
  const auto seen = run_ranks(2, [](Communicator& communicator) {
    struct Odd : Module<Odd> {
      Parameter a{counting({10})}, b{counting({7})}, c{counting({33})};
      Tensor forward(const Tensor& x) const {
        return x * (sum(a.on(x.device())) + sum(b.on(x.device())) + sum(c.on(x.device())));
      }
      void members(Members& m) override { m("a", a), m("b", b), m("c", c); }
    };
    DistributedDataParallel<Odd> net(Odd{}, communicator);
    std::vector<std::uint64_t> figures;
    for (int i = 0; i < 2; ++i) {
      net.zero_grad();
      sum(net(counting({2}).to(communicator.device()))).backward();
      synchronize(communicator.device());
      for (const NamedParameter& named : net.module().named_parameters())
        figures.push_back(reinterpret_cast<std::uintptr_t>(named.parameter.grad().data()) % 256);
      for (const std::uint64_t bytes : net.logging_data().bucket_sizes) figures.push_back(bytes);
    }
    return figures;
  });
  const std::uint64_t bytes = (10 + 7 + 33) * sizeof(double);
  for (const auto& rank : seen) CHECK(rank == std::vector<std::uint64_t>{0, 0, 0, bytes, 0, 0, 0, bytes});
}

TEST_CASE("the order of the buckets is learnt from the first backward") {
  const auto orders = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Shuffled> net(Shuffled{}, communicator, small_buckets());
    std::vector<std::vector<int>> seen;
    for (int step = 0; step < 3; ++step) {
      net.zero_grad();
      loss_of(net(counting({2, 3}))).backward();
      const DdpLoggingData data = net.logging_data();
      seen.push_back(data.prev_iteration_grad_ready_order_indices);
      if (step == 0) seen.push_back({data.has_rebuilt_buckets});
      if (step == 2) {
        std::vector<int> flat;
        for (const auto& bucket : data.rebuilt_per_bucket_param_indices)
          flat.insert(flat.end(), bucket.begin(), bucket.end());
        seen.push_back(flat);
      }
    }
    return seen;
  });
  CHECK(orders[0] == orders[1]);
  const auto& seen = orders[0];
  REQUIRE(seen[0].size() == 6);
  CHECK(std::vector<int>(seen[0].begin(), seen[0].begin() + 2) != std::vector<int>{5, 4});  // a is used last: first
  CHECK((seen[0][0] == 0 || seen[0][0] == 1));
  CHECK(seen[1] == std::vector<int>{0});
  CHECK(seen[4] == seen[0]);  // the new buckets, in the order in which gradients become ready
}

TEST_CASE("a bucket is reduced before the gradients of the next one are computed") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Shuffled> net(Shuffled{}, communicator,
                                          {.bucket_cap_mb = 0.00001, .first_bucket_mb = 0.00001});
    const auto step = [&] {
      net.zero_grad();
      loss_of(net(counting({2, 3}))).backward();
      synchronize(communicator.device());
    };
    step(), step();
    communicator.barrier();
    if (communicator.rank() == 0) trace::start();
    communicator.barrier();
    step();
    communicator.barrier();
    return 0;
  });
  trace::stop();
  // Of one device: between the first and the last reduction that is enqueued lie kernels of the backward.
  const auto spans = trace::spans();
  std::vector<std::string> names;
  std::set<std::string> reducing, computing;  // streams
  for (const auto& span : spans) {
    if (span.device != first_devices(1)[0]) continue;
    names.emplace_back(span.work.name);
    if (names.back() == "all_reduce") reducing.insert(span.track);
    if (names.back() == "matmul") computing.insert(span.track);
  }
  std::size_t reductions = 0, matmuls_between = 0, waiting = 0;
  for (const std::string& name : names) {
    if (name == "all_reduce") {
      ++reductions;
      matmuls_between += waiting;
      waiting = 0;
    } else if (name == "matmul" && reductions > 0) {
      ++waiting;
    }
  }
  CHECK(result.size() == 2);
  CHECK(reductions == 6);
  CHECK(matmuls_between >= 3);
  // On a stream of their own, so that where streams run by themselves the backward goes on beside them.
  CHECK(reducing.size() == 1);
  CHECK(computing.size() == 1);
  CHECK(reducing != computing);
}

TEST_CASE("figures of the wrapper") {
  const auto all = run_ranks(2, [](Communicator& communicator) {
    DistributedDataParallel<Mlp> net(Mlp{}, communicator, small_buckets());
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      loss_of(net(counting({2, 3}))).backward();
    }
    synchronize(communicator.device());
    return net.logging_data();
  });
  for (int rank = 0; rank < 2; ++rank) {
    const DdpLoggingData& data = all[static_cast<std::size_t>(rank)];
    CHECK(data.rank == rank);
    CHECK(data.world_size == 2);
    CHECK(data.num_parameter_tensors == 4);
    CHECK(data.total_parameter_size_bytes == 8 * (15 + 5 + 10 + 2));
    CHECK(data.dtypes == std::vector<DType>{DType::f64});
    CHECK(data.iteration == 2);
    CHECK(data.has_rebuilt_buckets);
    CHECK(data.bucket_sizes.size() > 1);
    CHECK(data.unused_parameter_size == 0);
    CHECK(data.can_set_static_graph);
    CHECK(data.forward_compute_time > 0);
    CHECK(data.backward_compute_time > 0);
    CHECK(data.backward_comm_time > 0);
    CHECK(data.backward_compute_comm_overlap_time <= data.backward_comm_time);
  }
}

TEST_CASE("buckets that are laid out anew after a backward on another stream have been read by then") {
  const auto gradients = [](Communicator& c, bool aside) {
    Shuffled module;
    module.to(c.device());
    DistributedDataParallel net(module, c, {.gradient_as_bucket_view = false});
    const Stream here = current_stream(c.device()), side(c.device());
    const Stream& there = aside ? side : here;
    there.wait_for(here);
    Doubles all;
    std::vector<Tensor> first;
    {
      const StreamScope scope(there);
      const Tensor x = noise({4, 3}, static_cast<std::uint64_t>(c.rank() + 1)).to(c.device());
      net(x).sum().backward();
      for (const Parameter& parameter : net.parameters()) first.push_back(parameter.grad());
      net.zero_grad();
      (void)net(x);  // in another order
    }
    for (int taker = 0; taker < 20; ++taker)  // of what has been given back too early
      (void)full({3 + taker * 3}, 1e30, {.dtype = DType::f64, .device = c.device()});
    here.wait_for(there);
    for (const Tensor& gradient : first) {
      const Doubles of = values(gradient);
      all.insert(all.end(), of.begin(), of.end());
    }
    side.wait_for(here);
    synchronize(c.device());
    return all;
  };
  const auto expected = run_ranks(2, [&](Communicator& c) { return gradients(c, false); });
  const auto result = run_ranks(2, [&](Communicator& c) { return gradients(c, true); });
  CHECK(result == expected);
}
