// One rank over NCCL: on the fake, and by scripts/gpu_check over the real library on one GPU.
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/tensor/ops/factory.h"
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
