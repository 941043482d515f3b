// Graphs are of one device and one thread: what needs several says so in a capture.
#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/peer/peer_communicator.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/parallel_apply.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;

TEST_CASE("collectives and replicas are not captured, and work after that") {
  const std::vector<Device> devices{support::device_at(1), support::device_at(2)};
  const Stream stream(devices[0]);
  const StreamScope scope(stream);
  const auto net = DataParallel(Linear(3, 2), {.devices = devices});
  const Tensor x = ones({4, 3}, {.device = devices[0]});
  CHECK_THROWS_WITH(capture(stream, [&] { (void)net(x); }),
                    Contains("[copy] expected what a capture can record, got one from"));
  const auto same = [](const Tensor& tensor) { return tensor; };
  const std::vector<Tensor> pieces{x, ones({4, 3}, {.device = devices[1]})};
  CHECK_THROWS_WITH(capture(stream,
                            [&] {
                              (void)parallel_apply(std::vector{same, same}, pieces, devices);
                            }),
                    Contains("[parallel_apply] expected what a capture can record, got replicas"));
  CHECK(net(x).to_vector<float>().size() == 8);
  const auto ranks = make_peer_group(std::vector<Device>{devices[0]});
  CHECK_THROWS_WITH(
      capture(stream, [&] { ranks[0]->all_reduce(x, x); }),
      Contains("[all_reduce] expected what a capture can record, got a collective over peer, which no replay"));
  ranks[0]->all_reduce(x, x);
  CHECK(x.to_vector<float>() == std::vector<float>(12, 1));
  CHECK(fake_cuda::take_failures().empty());
}
