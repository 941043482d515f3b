// What every communicator must do, of one rank alone.
#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/loopback/loopback_communicator.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using support::message_of;
using support::missing;

TEST_CASE("communicator: loopback") {
  const conformance::Ranks alone{.name = "loopback",
                                 .run =
                                     [](int, Milliseconds timeout, const conformance::Body& body) {
                                       std::vector<std::unique_ptr<Communicator>> ranks;
                                       ranks.push_back(make_loopback_communicator(accelerators().at(0), timeout));
                                       return conformance::run_on_threads(std::move(ranks), body);
                                     },
                                 .most = 1};
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(alone);
    }
}

TEST_CASE("loopback: is made when it is asked for by a rank alone") {
  CHECK(std::string(make_communicator({.device = accelerators().at(0), .backend = "loopback"})->backend()) ==
        "loopback");
  CHECK_THROWS_AS(make_loopback_communicator(Device::cpu()), InvalidArgument);
}

TEST_CASE("loopback: one that was aborted is broken") {
  const auto alone = make_loopback_communicator(accelerators().at(0));
  alone->abort("no more");
  CHECK(missing(message_of<CommError>([&] { alone->barrier(); }), {"rank 0 aborted: no more"}) == "");
}

TEST_CASE("a collective writes after what is being copied from there") {
  const Device device = accelerators().at(0);
  const auto alone = make_loopback_communicator(device);
  constexpr std::int64_t kCount = 100'000;
  const Ref<Storage> memory = Storage::allocate(device, kCount * sizeof(float));
  memory->expect_reads();
  const Tensor output = Tensor::over(memory, DType::f32, {kCount}, {1});
  const Stream reader(device);
  for (int round = 1; round <= 3; ++round) {
    Tensor(output).fill_(-round);
    reader.wait_for(current_stream(device));
    Tensor seen;
    {
      const StreamScope scope(reader);
      seen = output * 1.0;
      memory->record_use(reader);
    }
    const auto read = std::make_shared<Event>();
    read->record(reader);
    memory->pending_reads()->add(reader, read);
    alone->all_gather(full({kCount}, round, {.device = device}), output);
    CHECK(equal(output, full({kCount}, round, {.device = device})));
    current_stream(device).wait_for(reader);
    CHECK(equal(seen, full({kCount}, -round, {.device = device})));
  }
}
