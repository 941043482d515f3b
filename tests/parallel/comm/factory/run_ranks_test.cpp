#include "lockstep/parallel/comm/factory/run_ranks.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "lockstep/runtime/order/order.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/context.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/random.h"
#include "parallel/comm/no_threads.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

using namespace lockstep;
using support::devices_at;
using support::first_devices;
using support::message_of;
using support::missing;

namespace {

using Doubles = std::vector<double>;

Tensor filled(Communicator& comm, double value, std::int64_t count = 4) {
  return full({count}, value, {.dtype = DType::f64, .device = comm.device()});
}

}  // namespace

TEST_CASE("run_ranks: results come by rank") {
  for (const int n : {1, 2, 5}) {
    const std::vector<Doubles> sums = run_ranks(n, [](Communicator& comm) {
      const Tensor x = filled(comm, comm.rank() + 1);
      comm.all_reduce(x);
      Doubles all = x.to_vector<double>();
      all.push_back(comm.rank());
      return all;
    });
    REQUIRE(sums.size() == static_cast<std::size_t>(n));
    for (int r = 0; r < n; ++r) {
      const double sum = n * (n + 1) / 2;
      CHECK(sums[static_cast<std::size_t>(r)] == Doubles{sum, sum, sum, sum, static_cast<double>(r)});
    }
  }
}

TEST_CASE("run_ranks: a function that is none is refused before any rank begins") {
  CHECK_THROWS_AS(run_ranks(2, std::function<void(Communicator&)>()), InvalidArgument);
  int (*const none)(Communicator&) = nullptr;
  CHECK(message_of<InvalidArgument>([&] { run_ranks(2, none); }) ==
        "[run_ranks] expected a function, got an empty one");
}

TEST_CASE("run_ranks: tensors that ranks return are there") {
  const std::vector<Tensor> made =
      run_ranks(3, [](Communicator& comm) { return filled(comm, comm.rank(), 30'000).add_(1); });
  for (std::size_t r = 0; r < made.size(); ++r) {
    CHECK(made[r].device() == Device::host(static_cast<int>(r)));
    CHECK(Tensor(made[r]).add_(1).to_vector<double>() == Doubles(30'000, static_cast<double>(r + 2)));
  }
}

TEST_CASE("run_ranks: each rank has its device, and a stream of its own that is current") {
  std::mutex mutex;
  std::set<detail::StreamBody*> streams;
  std::vector<Device> devices(4);
  run_ranks(4,
            [&](Communicator& comm) {
              const Stream stream = current_stream(comm.device());
              comm.barrier();  // all are there at once
              const std::lock_guard lock(mutex);
              devices[static_cast<std::size_t>(comm.rank())] = comm.device();
              if (!(stream == default_stream(comm.device()))) streams.insert(&stream.body());
            },
            {.devices = devices_at({3, 1, 3, 3})});
  CHECK(devices == devices_at({3, 1, 3, 3}));
  CHECK(streams.size() == 4);

  const std::vector<Device> all = accelerators();
  const std::vector<Device> given =
      run_ranks(static_cast<int>(all.size()) + 1, [](Communicator& comm) { return comm.device(); });
  CHECK(given.back() == all.front());
  CHECK(given.front() == all.front());
}

TEST_CASE("run_ranks: ranks work in the caller's context, with random numbers of their own") {
  const auto draw = [] {
    manual_seed(7);
    const NoGrad no_grad;
    const DefaultDType dtype(DType::f64);
    return run_ranks(3, [](Communicator& comm) {
      Doubles seen = rand({2}, {.device = comm.device()}).to_vector<double>();
      seen.push_back(GradMode::enabled() ? 1 : 0);
      seen.push_back(DefaultDType::get() == DType::f64);
      return seen;
    });
  };
  const std::vector<Doubles> first = draw(), again = draw();
  CHECK(first == again);
  for (const Doubles& seen : first) {
    CHECK(seen[2] == 0);
    CHECK(seen[3] == 1);
  }
  CHECK(first[0][0] != first[1][0]);
  CHECK(first[1][0] != first[2][0]);
  CHECK(GradMode::enabled());
}

TEST_CASE("run_ranks: the first cause is thrown, with the exception nested in it") {
  for (const int n : {1, 2, 4}) {
    try {
      run_ranks(n, [n](Communicator& comm) {
        comm.all_reduce(filled(comm, 1));
        if (comm.rank() == n - 1) throw std::out_of_range("no such row");
        comm.all_reduce(filled(comm, 1));
        comm.barrier();
      });
      FAIL("expected an error");
    } catch (const CommError& error) {
      CHECK(error.rank == n - 1);
      CHECK(missing(error.what(), {"no such row"}) == "");
      CHECK_THROWS_AS(std::rethrow_if_nested(error), std::out_of_range);
    }
    conformance::drain_devices();
  }
}

TEST_CASE("run_ranks: errors that every rank has caught are over") {
  const auto disagree = [](Communicator& comm) { comm.all_reduce(filled(comm, 1, comm.rank() + 1)); };
  // Where it is thrown: by a wait for the stream, by the next call, or by one between the hosts.
  const std::vector<std::function<void(Communicator&)>> wheres = {
      [](Communicator& comm) { synchronize(current_stream(comm.device())); },
      [](Communicator& comm) {
        for (;;) comm.all_reduce(filled(comm, 1));
      },
      [](Communicator& comm) {
        for (;;) comm.barrier();
      }};
  for (const int n : {2, 4}) {
    for (const auto& where : wheres) {
      std::vector<std::string> all;
      CHECK_NOTHROW(all = run_ranks(n, [&](Communicator& comm) {
                      try {
                        disagree(comm);
                        where(comm);
                      } catch (const CommError& error) {
                        return std::string(error.what());
                      }
                      return std::string();
                    }));
      REQUIRE(all.size() == static_cast<std::size_t>(n));
      for (const std::string& text : all) CHECK(missing(text, {"expected all ranks to make the same call"}) == "");
      conformance::drain_devices();
    }
    // What nobody has caught is an error still, also where it shows only once the function has returned.
    CHECK_THROWS_AS(run_ranks(n, disagree), CommError);
    conformance::drain_devices();
  }
}

TEST_CASE("run_ranks: when a rank throws, the others are told what") {
  std::mutex mutex;
  std::vector<std::string> told;
  CHECK_THROWS_AS(run_ranks(3,
                            [&](Communicator& comm) {
                              if (comm.rank() == 1) throw std::out_of_range("no such row");
                              try {
                                comm.barrier();
                              } catch (const CommError& error) {
                                const std::lock_guard lock(mutex);
                                told.push_back(error.what());
                              }
                            }),
                  CommError);
  REQUIRE(told.size() == 2);
  for (const std::string& text : told) CHECK(missing(text, {"rank 1 aborted: no such row"}) == "");
}

TEST_CASE("run_ranks: when a rank has thrown, nothing of any rank is left on the devices") {
  CHECK_THROWS_AS(run_ranks(3,
                            [](Communicator& comm) {
                              const Tensor x = filled(comm, 1);
                              if (comm.rank() == 1) throw std::out_of_range("no such row");
                              comm.all_reduce(x);
                              throw std::runtime_error("that neither");  // before the stream has said anything
                            }),
                  CommError);
  for (const Device device : first_devices(3)) CHECK_NOTHROW(synchronize(device));
}

TEST_CASE("run_ranks: what fails on a rank's stream is the rank's failure, also at its end") {
  const std::string text = message_of<CommError>([] {
    run_ranks(3, [](Communicator& comm) {
      if (comm.rank() == 1) current_stream(comm.device()).enqueue([] { throw std::runtime_error("spilled"); });
    });
  });
  CHECK(missing(text, {"spilled"}) == "");
  CHECK(missing(text, {"rank 1"}) == "");
}

TEST_CASE("run_ranks: an error of a collective names whom the ranks found at fault") {
  const auto disagree = [] {
    run_ranks(3, [](Communicator& comm) {
      const Tensor x = filled(comm, 1, comm.rank() == 2 ? 5 : 4);
      comm.all_reduce(x);
      x.to_vector<double>();
    });
  };
  const std::string text = message_of<CommError>(disagree);
  CHECK(missing(text, {"4 elements"}) == "");
  CHECK(missing(text, {"5 elements"}) == "");
  CHECK(missing(text, {"rank 2"}) == "");

  const auto leave = [] {
    run_ranks(3, [](Communicator& comm) {
      if (comm.rank() != 1) comm.barrier();
    });
  };
  CHECK(missing(message_of<CommError>(leave), {"rank 1 left"}) == "");
}

TEST_CASE("run_ranks: work that is dropped because its stream had failed ends the other ranks at once") {
  const std::string text = message_of<CommError>([] {
    run_ranks(3, [](Communicator& comm) {
      if (comm.rank() == 2) current_stream(comm.device()).enqueue([] { throw std::runtime_error("spilled"); });
      const Tensor x = filled(comm, 1);
      comm.all_reduce(x);
      x.to_vector<double>();
    });
  });
  CHECK(missing(text, {"rank 2"}) == "");
}

TEST_CASE("run_ranks: a rank that does not return is left behind, and named") {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    int gone = 0;
  };
  // One other rank: of several, those that are late would be named with it.
  for (const bool other_throws : {false, true}) {
    const auto shared = std::make_shared<Shared>();
    const std::string text = message_of<TimeoutError>([&] {
      run_ranks(2,
                [shared, other_throws](Communicator& comm) {
                  if (comm.rank() == 1) {
                    std::unique_lock lock(shared->mutex);
                    shared->changed.wait(lock, [&] { return shared->open; });
                    ++shared->gone;
                    shared->changed.notify_all();
                  } else if (other_throws) {
                    throw std::runtime_error("tired");
                  }
                  return filled(comm, 1);
                },
                {.timeout = Milliseconds(100)});
    });
    CHECK(text == cat("[run_ranks] expected every rank to return within 100 ms after the others, still running: rank 1",
                      other_throws ? "; rank 0 threw: tired" : ""));
    std::unique_lock lock(shared->mutex);
    shared->open = true;
    shared->changed.notify_all();
    shared->changed.wait(lock, [&] { return shared->gone == 1; });
  }
}

TEST_CASE("run_ranks: the order checker knows what the ranks' threads hand over") {
  const std::uint64_t before = order_stats().assumed_handovers;
  const Tensor x = zeros({1'000}, {.dtype = DType::f64, .device = Device::host(0)});
  synchronize(Device::host(0));
  run_ranks(3,
            [&](Communicator& comm) {
              for (int turn = 0; turn < comm.size(); ++turn) {
                if (turn == comm.rank()) {
                  Tensor(x).add_(turn + 1);
                  synchronize(current_stream(comm.device()));
                }
                comm.barrier();
              }
            },
            {.devices = devices_at({0, 0, 0})});
  CHECK(Tensor(x).add_(1).to_vector<double>() == Doubles(1'000, 7));
  CHECK(order_stats().assumed_handovers == before);
}

// Ranks that are not all on host devices choose their communicators, each in a thread, and wait for each other.
TEST_CASE("run_ranks: when one cannot even join the others, its error is thrown, and nobody waits for it") {
  const auto nothing = [](Communicator&) {};
  for (const std::vector<Device>& devices : {std::vector<Device>{Device::host(0), Device::host(1), Device::cuda(99)},
                                             std::vector<Device>{Device::cuda(99), Device::host(0), Device::host(1)}}) {
    try {
      run_ranks(3, nothing, {.devices = devices});
      FAIL("expected an error");
    } catch (const CommError& error) {
      FAIL("expected what went wrong, got " << error.what());
    } catch (const Error& error) {
      CHECK(missing(error.what(), {"cuda:99"}) == "");
    }
  }
}

TEST_CASE("run_ranks: a thread that does not start is an error") {
  const auto meet = [](Communicator& comm) { comm.barrier(); };
  const std::vector<Device> chosen = {Device::host(0), Device::host(1), Device::cuda(99)}, given = first_devices(3);
  for (const std::vector<Device>& devices : {chosen, given}) {
    for (const int started : {0, 1}) {
      const conformance::NoThreads no_threads(started);
      CHECK_THROWS_AS(run_ranks(3, meet, {.devices = devices}), std::system_error);
    }
  }
}

TEST_CASE("run_ranks: arguments are checked") {
  const auto nothing = [](Communicator&) {};
  CHECK(missing(message_of<InvalidArgument>([&] { run_ranks(0, nothing); }), {"got 0"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { run_ranks(2, nothing, {.devices = first_devices(3)}); }),
                {"got 3"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { run_ranks(1, nothing, {.devices = {Device::cpu()}}); }), {"cpu"}) ==
        "");
}
