// Collectives over NCCL in graphs: what is recorded, what is refused, and what becomes of a graph whose communicator
// fails or goes. A training step of several processes is in tests/user/graphs.cpp.
#if __has_include(<nccl.h>)
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/runtime/graph/graph.h"
#include "lockstep/runtime/stream/capture.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

using Floats = std::vector<float>;

enum class Pose { processes, threads };  // what the ranks take each other for

// Two ranks, each in a thread of its own for each phase: the ranks of one real process come to each phase together.
struct TwoInGraphs {
  explicit TwoInGraphs(const NcclOptions& options = {.timeout = Milliseconds(60'000)}, Pose pose = Pose::processes) {
    const std::vector<Device> devices = support::first_devices(2);
    if (native_ordinal(devices[0]) == native_ordinal(devices[1])) support::skip("two GPUs expected, one found");
    for (std::size_t r = 0; r < 2; ++r) streams[r] = Stream(devices[r]);
    both([&](std::size_t r) {
      const std::string token = cat("graph process ", r);
      if (pose == Pose::processes) detail::process_token_override = &token;
      comms[r] = make_nccl_communicator(store, static_cast<int>(r), 2, devices[r], options);
      detail::process_token_override = nullptr;
    });
  }
  // Calls it for both ranks at the same time, on their streams, and throws what one has thrown.
  void both(const std::function<void(std::size_t)>& phase) {
    std::exception_ptr errors[2];
    std::thread threads[2];
    for (std::size_t r = 0; r < 2; ++r)
      threads[r] = std::thread([&, r] {
        try {
          const StreamScope scope(streams[r]);
          phase(r);
        } catch (...) {
          errors[r] = std::current_exception();
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::exception_ptr& error : errors)
      if (error) std::rethrow_exception(error);
  }
  void finish() {
    for (const Stream& stream : streams) synchronize(stream);
  }
  Tensor made(std::size_t r, std::int64_t count, float value = 0) {
    const StreamScope scope(streams[r]);
    return full({count}, value, {.device = streams[r].device()});
  }

  const std::shared_ptr<Store> store = make_local_store();
  Stream streams[2];
  std::unique_ptr<Communicator> comms[2];
};

std::string rules_broken() {
  std::string text;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) text += to_string(failure) + '\n';
  return text;
}

std::string said_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("NCCL graphs: replays move what is in the tensors by then, as calls do") {
  TwoInGraphs two;
  // Of every kind, with kernels before and after.
  struct Tensors {
    Tensor x, sum, all, part, mine, theirs, other, result;
  };
  Tensors of[2];
  const auto make = [&](std::size_t r) {
    of[r] = {two.made(r, 4), two.made(r, 4), two.made(r, 8), two.made(r, 2),
             two.made(r, 4), two.made(r, 4), two.made(r, 4), two.made(r, 4)};
  };
  for (std::size_t r = 0; r < 2; ++r) make(r);
  const auto step = [&](std::size_t r) {
    const NoGrad no_grad;
    Communicator& comm = *two.comms[r];
    Tensors& t = of[r];
    const int next = static_cast<int>(1 - r);
    t.sum.copy_(t.x * 2);
    comm.all_reduce(t.sum);
    comm.all_gather(t.x, t.all);
    comm.reduce_scatter(t.sum, t.part, RedOp::max);
    t.mine.copy_(t.x + 1);
    comm.broadcast(t.mine, 1);
    comm.transfer(std::vector{Transfer::to(next, t.mine), Transfer::from(next, t.theirs)});
    comm.all_to_all(t.theirs, t.other);
    t.result.copy_(t.other + t.sum);
    comm.reduce(t.result, t.result, 0, RedOp::avg);
  };
  const auto numbers = [&](std::size_t r) {
    Floats all;
    const Tensors& t = of[r];
    for (const Tensor& each : {t.sum, t.all, t.part, t.mine, t.theirs, t.other, t.result})
      for (const float x : each.to_vector<float>()) all.push_back(x);
    return all;
  };
  const auto fill = [&](std::size_t r, int i) {
    const NoGrad no_grad;
    const float a = static_cast<float>(r) + 0.1f * static_cast<float>(i);
    of[r].x.copy_(from_data(Floats{a, a * a, 1 - a, 3}, {4}));
  };
  std::vector<Floats> eager[2], replayed[2];
  for (int i = 0; i < 5; ++i) {
    two.both([&](std::size_t r) { fill(r, i); });
    two.finish();
    two.both(step);
    two.finish();
    for (std::size_t r = 0; r < 2; ++r) eager[r].push_back(numbers(r));
  }
  for (std::size_t r = 0; r < 2; ++r) make(r);
  two.finish();
  Graph graphs[2];
  two.both([&](std::size_t r) { graphs[r] = capture(two.streams[r], [&] { step(r); }); });
  two.finish();
  for (std::size_t r = 0; r < 2; ++r) CHECK(of[r].sum.to_vector<float>() == Floats(4, 0));  // nothing has run
  CHECK(fake_cuda::spinning_collectives() == 0);
  const int issued = fake_cuda::calls_of("ncclAllReduce");
  for (int i = 0; i < 5; ++i) {
    two.both([&](std::size_t r) { fill(r, i); });
    two.finish();
    two.both([&](std::size_t r) { graphs[r].replay(); });
    two.finish();
    for (std::size_t r = 0; r < 2; ++r) replayed[r].push_back(numbers(r));
  }
  CHECK(fake_cuda::calls_of("ncclAllReduce") == issued);  // by the graphs alone
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(eager[r] == replayed[r]);
    CHECK(eager[r][3] != eager[r][4]);
  }
  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: replays come after each other and among other calls, without a wait of the host") {
  TwoInGraphs two;
  Tensor x[2];
  Graph graphs[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 3, static_cast<float>(r + 1));
  two.both([&](std::size_t r) { two.comms[r]->all_reduce(x[r]); });  // 3
  two.finish();
  const auto versions = [&](std::size_t r) { return x[r].version(); };
  two.both([&](std::size_t r) {
    graphs[r] = capture(two.streams[r], [&] {
      const Stream aside(two.streams[r].device());  // joined, and joins again
      aside.wait_for(two.streams[r]);
      const StreamScope scope(aside);
      two.comms[r]->all_reduce(x[r]);
    });
  });
  const auto before = versions(0);
  two.both([&](std::size_t r) {
    const NoGrad no_grad;
    graphs[r].replay();              // 6
    graphs[r].replay();              // 12
    two.comms[r]->all_reduce(x[r]);  // 24
    graphs[r].replay();              // 48
  });
  CHECK(versions(0) == before + 4);
  two.finish();
  for (std::size_t r = 0; r < 2; ++r) CHECK(x[r].to_vector<float>() == Floats(3, 48));
  // One rank by a graph, the other by calls: they count the same.
  two.both([&](std::size_t r) {
    if (r == 0) graphs[r].replay();
    if (r == 1) two.comms[r]->all_reduce(x[r]);
  });
  two.finish();
  CHECK(x[0].to_vector<float>() == Floats(3, 96));
  CHECK(x[1].to_vector<float>() == Floats(3, 96));
  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: several ranks in a process, and several communicators, are refused, and work after that") {
  const bool threads = GENERATE(true, false);
  TwoInGraphs two({.timeout = Milliseconds(60'000)}, threads ? Pose::threads : Pose::processes);
  Tensor x[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 3, 1);
  std::unique_ptr<Communicator> parts[2];
  if (!threads) {
    two.both([&](std::size_t r) {
      const std::string token = cat("graph process ", r);
      detail::process_token_override = &token;
      parts[r] = two.comms[r]->split(0);
      detail::process_token_override = nullptr;
    });
  }
  two.finish();
  std::string said[2];
  two.both([&](std::size_t r) {
    said[r] = said_by([&] {
      (void)capture(two.streams[r], [&] {
        (void)(x[r] + 1);
        two.comms[r]->all_reduce(x[r]);
      });
    });
  });
  const std::string why = threads ? "2 ranks in one process" : "another communicator over nccl in this process";
  for (const std::string& each : said) {
    CHECK_THAT(each, Contains("[all_reduce] expected what a capture can record, got a collective"));
    CHECK_THAT(each, Contains(why));
  }
  two.both([&](std::size_t r) { two.comms[r]->all_reduce(x[r]); });
  two.finish();
  CHECK(x[0].to_vector<float>() == Floats(3, 2));
  if (threads) {
    CHECK(rules_broken() == "");
    return;
  }
  for (auto& part : parts) part.reset();
  Graph graphs[2];
  two.both([&](std::size_t r) { graphs[r] = capture(two.streams[r], [&] { two.comms[r]->all_reduce(x[r]); }); });
  two.both([&](std::size_t r) { graphs[r].replay(); });
  two.finish();
  CHECK(x[1].to_vector<float>() == Floats(3, 4));
  // One that comes later is noticed by the next replay.
  two.both([&](std::size_t r) {
    const std::string token = cat("graph process ", r);
    detail::process_token_override = &token;
    parts[r] = two.comms[r]->split(0);
    detail::process_token_override = nullptr;
  });
  CHECK_THROWS_AS(graphs[0].replay(two.streams[0]), NotSupported);
  CHECK_THAT(said_by([&] { graphs[1].replay(two.streams[1]); }),
             Contains("[replay] expected one rank over nccl in this process, got a collective beside another"));
  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: what is compared through the store is refused") {
  TwoInGraphs two({.timeout = Milliseconds(60'000), .check_collectives = true});
  Tensor x[2], y[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 2, 1), y[r] = two.made(r, 2);
  std::string said[2], batch[2];
  two.both([&](std::size_t r) {
    const int next = static_cast<int>(1 - r);
    said[r] = said_by([&] { (void)capture(two.streams[r], [&] { two.comms[r]->all_reduce(x[r]); }); });
    batch[r] = said_by([&] {
      (void)capture(two.streams[r], [&] {
        two.comms[r]->transfer(std::vector{Transfer::to(next, x[r]), Transfer::from(next, y[r])});
      });
    });
  });
  CHECK_THAT(said[0], Contains("[all_reduce] expected what a capture can record") && Contains("check_collectives"));
  CHECK_THAT(batch[1], Contains("[transfer] expected what a capture can record") && Contains("check_collectives"));
  two.both([&](std::size_t r) { two.comms[r]->all_reduce(x[r]); });
  two.finish();
  CHECK(x[0].to_vector<float>() == Floats(2, 2));

  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: a capture that is refused otherwise leaves the communicator as it was") {
  TwoInGraphs two;
  Tensor x[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 3, 1);
  two.finish();
  std::string said[2], elsewhere[2];
  two.both([&](std::size_t r) {
    said[r] = said_by([&] {
      (void)capture(two.streams[r], [&] {
        two.comms[r]->all_reduce(x[r]);
        (void)x[r].to_vector<float>();
      });
    });
    elsewhere[r] = said_by([&] {
      (void)capture(two.streams[r], [&] {
        const Stream aside(two.streams[r].device());  // which has not joined
        const StreamScope scope(aside);
        two.comms[r]->all_reduce(x[r]);
      });
    });
  });
  CHECK_THAT(said[0], Contains("[copy] expected what a capture can record"));
  CHECK_THAT(elsewhere[0],
             Contains("[all_reduce] expected what a capture can record, got a collective on a stream of"));
  CHECK(!two.comms[0]->broken());
  for (int i = 0; i < 2; ++i) {
    two.both([&](std::size_t r) { two.comms[r]->all_reduce(x[r]); });
    two.finish();
  }
  CHECK(x[1].to_vector<float>() == Floats(3, 4));
  const int destroyed = fake_cuda::nccl_counts().destroyed;
  for (auto& comm : two.comms) comm.reset();  // no graph holds them
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (fake_cuda::nccl_counts().destroyed < destroyed + 2 && !patience.passed()) std::this_thread::yield();
  CHECK(fake_cuda::nccl_counts().destroyed >= destroyed + 2);
  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: a graph whose communicator has gone is not replayed, and NCCL's stays as long as the graph") {
  TwoInGraphs two;
  Tensor x[2];
  Graph graphs[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 3, 1);
  two.finish();
  two.both([&](std::size_t r) { graphs[r] = capture(two.streams[r], [&] { two.comms[r]->all_reduce(x[r]); }); });
  two.both([&](std::size_t r) { graphs[r].replay(); });
  two.finish();
  const int destroyed = fake_cuda::nccl_counts().destroyed;
  for (auto& comm : two.comms) comm.reset();
  for (std::size_t r = 0; r < 2; ++r)
    CHECK_THAT(said_by([&] { graphs[r].replay(two.streams[r]); }),
               Contains("[replay] expected the communicator whose collectives the graph has, got it after its end"));
  for (Graph& graph : graphs) graph = Graph();  // ended before that, NCCL's would break a rule
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (fake_cuda::nccl_counts().destroyed < destroyed + 2 && !patience.passed()) std::this_thread::yield();
  CHECK(fake_cuda::nccl_counts().destroyed >= destroyed + 2);
  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: who waits for a replay that another rank does not come to is told who is missing") {
  TwoInGraphs two({.timeout = Milliseconds(1'500)});
  Tensor x[2];
  Graph graphs[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 3, 1);
  two.both([&](std::size_t r) { two.comms[r]->all_reduce(x[r]); });
  two.finish();
  two.both([&](std::size_t r) {
    graphs[r] = capture(two.streams[r], [&] {
      two.comms[r]->all_reduce(x[r]);
      two.comms[r]->all_reduce(x[r]);
    });
  });
  two.both([&](std::size_t r) { graphs[r].replay(); });
  two.finish();
  graphs[0].replay(two.streams[0]);
  const std::string said = said_by([&] { synchronize(two.streams[0], Milliseconds(60'000)); });
  CHECK_THAT(said,
             Contains("number 4 to be through within 1500 ms, it is not; rank 1 did not come (its last call was"));
  CHECK_THAT(said, Contains("number 2"));
  CHECK_THROWS_AS(graphs[0].replay(two.streams[0]), CommError);
  const Deadline patience = Deadline::after(Milliseconds(60'000));  // no other test is to hear of it
  while (!two.comms[1]->broken() && !patience.passed()) std::this_thread::yield();
  CHECK(rules_broken() == "");
}

TEST_CASE("NCCL graphs: a replay that does not take place leaves no collective on the way") {
  struct Refuses final : detail::Replayed {
    void write(std::byte*) override { throw Error("not now"); }
  };
  TwoInGraphs two;
  Tensor x[2];
  Graph graphs[2];
  for (std::size_t r = 0; r < 2; ++r) x[r] = two.made(r, 3, 1);
  two.finish();
  two.both([&](std::size_t r) {
    graphs[r] = capture(two.streams[r], [&] {
      two.comms[r]->all_reduce(x[r]);
      (void)detail::current_capture->add(std::make_unique<Refuses>(), 0);
    });
  });
  for (std::size_t r = 0; r < 2; ++r) CHECK_THROWS_WITH(graphs[r].replay(two.streams[r]), Contains("not now"));
  empty_cache(two.streams[0].device());  // takes the lock that waits for collectives, as what follows does
  const Tensor more = two.made(0, 1 << 22, 1);
  two.both([&](std::size_t r) { two.comms[r]->all_reduce(x[r]); });
  two.finish();
  CHECK(x[0].to_vector<float>() == Floats(3, 2));
  CHECK(rules_broken() == "");
}
#endif
