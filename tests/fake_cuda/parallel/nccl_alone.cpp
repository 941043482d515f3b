// One rank over NCCL: on the fake, and by scripts/gpu_check over the real library on one GPU.
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

void needs_nccl() {
  if (!nccl_available()) support::skip("NCCL expected: " + why_no_nccl());
}

std::unique_ptr<Communicator> alone(Milliseconds timeout = conformance::kPatience) {
  return make_nccl_communicator(make_local_store(), 0, 1, support::first_devices(1)[0], {.timeout = timeout});
}

}  // namespace

TEST_CASE("NCCL alone: one rank does what every communicator must do") {
  needs_nccl();
  const conformance::Ranks one{.name = "NCCL alone",
                               .run =
                                   [](int, Milliseconds timeout, const conformance::Body& body) {
                                     std::vector<std::unique_ptr<Communicator>> ranks;
                                     ranks.push_back(alone(timeout));
                                     return conformance::run_on_threads(std::move(ranks), body);
                                   },
                               .most = 1,
                               .rank_order = false};
  for (const conformance::Check& check : conformance::checks()) {
    const std::string name = check.name;
    // Two and more ranks are what these are about.
    if (name.find("rounded once") != std::string::npos || name.find("order of the ranks") != std::string::npos)
      continue;
    DYNAMIC_SECTION(check.name) { check.run(one); }
  }
}

TEST_CASE("NCCL alone: collectives come in stream order with kernels and copies") {
  needs_nccl();
  const std::unique_ptr<Communicator> comm = alone();
  Stream aside(comm->device());
  for (int round = 0; round < 20; ++round) {
    const StreamScope scope(aside);
    const std::int64_t count = std::int64_t{1} << round;
    Tensor x = full({count}, round, {.dtype = DType::f32, .device = comm->device()});
    Tensor y = zeros_like(x);
    comm->all_reduce(x, y);
    x.fill_(-1);
    comm->all_reduce(y, RedOp::avg);
    comm->broadcast(y, 0);
    CHECK(y.to_vector<float>() == std::vector<float>(static_cast<std::size_t>(count), static_cast<float>(round)));
  }
}

TEST_CASE("NCCL alone: aborted, and made again") {
  needs_nccl();
  for (int round = 0; round < 3; ++round) {
    const std::unique_ptr<Communicator> comm = alone();
    const Tensor x = ones({1000}, {.dtype = DType::f32, .device = comm->device()});
    comm->all_reduce(x);
    CHECK(x.to_vector<float>() == std::vector<float>(1000, 1));
    comm->abort("enough");
    CHECK_THROWS_AS(comm->all_reduce(x), CommError);
    CHECK(x.to_vector<float>() == std::vector<float>(1000, 1));
  }
}

TEST_CASE("NCCL alone: a graph makes its collectives at each replay, in the order of the stream") {
  needs_nccl();
  const std::unique_ptr<Communicator> comm = alone();
  const Stream stream(comm->device());
  const StreamScope scope(stream);
  const NoGrad no_grad;
  Tensor x = ones({1000}, {.dtype = DType::f32, .device = comm->device()}), y = zeros_like(x);
  comm->all_reduce(x, y);
  auto [graph, z] = capture(stream, [&] {
    comm->all_reduce(x * 2, y);
    const Tensor all = empty_like(y);
    comm->all_gather(y + 1, all);
    x.copy_(all);
    return all + 1;
  });
  for (const float expected : {4.f, 8.f, 16.f}) {
    graph.replay(stream);  // x becomes 2 x + 1
    CHECK(z.to_vector<float>() == std::vector<float>(1000, expected));
  }
  comm->all_reduce(x);
  CHECK(x.to_vector<float>() == std::vector<float>(1000, 15));
}

TEST_CASE("NCCL alone: a graph of an aborted communicator is not replayed, and does not hold the device") {
  needs_nccl();
  const std::unique_ptr<Communicator> comm = alone();
  const Stream stream(comm->device());
  const StreamScope scope(stream);
  const Tensor x = full({1000}, 2, {.dtype = DType::f32, .device = comm->device()});
  comm->all_reduce(x);
  Graph graph = capture(stream, [&] { comm->all_reduce(x); });
  graph.replay(stream);
  synchronize(stream);
  comm->abort("enough");
  CHECK_THROWS_AS(graph.replay(stream), CommError);
  CHECK_THROWS_WITH(graph.replay(stream), Catch::Matchers::Contains("rank 0 aborted: enough"));
  CHECK_THROWS_AS(comm->all_reduce(x), CommError);
  CHECK(x.to_vector<float>() == std::vector<float>(1000, 2));
  graph = Graph();
  const std::unique_ptr<Communicator> next = alone();
  next->all_reduce(x);
  CHECK(x.to_vector<float>() == std::vector<float>(1000, 2));
}
