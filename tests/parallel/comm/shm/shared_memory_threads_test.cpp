// Shared-memory ranks that are threads.
#include <algorithm>
#include <thread>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/comm/shm/process_group.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"

using namespace lockstep;
using support::first_devices;

namespace {

conformance::Ranks threads() {
  return {.name = "threads", .run = [](int count, Milliseconds timeout, const conformance::Body& body) {
            return conformance::run_on_threads(make_thread_group(first_devices(count), {.timeout = timeout}), body);
          }};
}

conformance::Ranks threads_of_one_device() {
  return {.name = "threads that share a device",
          .run =
              [](int count, Milliseconds timeout, const conformance::Body& body) {
                const std::vector<Device> devices(static_cast<std::size_t>(count), Device::host(0));
                return conformance::run_on_threads(make_thread_group(devices, {.timeout = timeout}), body);
              },
          .most = 3};
}

using MakeRanks = decltype(RunRanksOptions::make);

// The sums that ranks on these devices get when each of `rounds` rounds is `round(communicator, tensor)`; before it the
// tensor comes from the host, and after it it goes back there.
template <class Round>
std::vector<double> rounds_on(const std::vector<Device>& devices, int rounds, const Round& round,
                              const MakeRanks& make = {}) {
  const auto of_rank = [&](Communicator& comm) {
    double sum = 0;
    for (int i = 0; i < rounds; ++i) {
      const std::vector<double> values(100, comm.rank() + i);
      const Tensor x = from_data(std::span<const double>(values), {100}, {.device = comm.device()});
      round(comm, x);
      sum += x.to_vector<double>()[0];
    }
    return sum;
  };
  return run_ranks(static_cast<int>(devices.size()), of_rank,
                   {.devices = devices, .timeout = conformance::kPatience, .make = make});
}

// Threads that share memory as processes do.
std::vector<std::unique_ptr<Communicator>> as_processes(std::span<const Device> devices, Milliseconds timeout) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::unique_ptr<Communicator>> ranks(devices.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back([&, r] {
      ranks[r] = make_process_communicator(store, static_cast<int>(r), static_cast<int>(ranks.size()), devices[r],
                                           {.timeout = timeout});
    });
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

}  // namespace

// What one rank has put on the copy stream of its device waits for its collective; what another puts there before its
// own call must not wait behind it.
TEST_CASE("communicator: ranks that share a device do not wait for each other's copies") {
  const std::vector<Device> one(3, Device::host(0));
  const std::vector<Device> two{Device::host(0), Device::host(1), Device::host(0), Device::host(1)};
  SECTION("collectives") {
    const bool processes = GENERATE(false, true);
    for (const std::vector<Device>& devices : {one, two}) {
      const auto ranks = static_cast<double>(devices.size());
      CAPTURE(ranks, processes);
      const auto sums = rounds_on(
          devices, 20, [](Communicator& comm, const Tensor& x) { comm.all_reduce(x); },
          processes ? as_processes : MakeRanks());
      for (const double sum : sums) CHECK(sum == 20 * ranks * (ranks - 1) / 2 + ranks * 190);
    }
  }
  SECTION("pairs") {
    const auto sums = rounds_on(one, 20, [](Communicator& comm, const Tensor& x) {
      if (comm.rank() > 0) comm.recv(x, comm.rank() - 1);
      if (comm.rank() < 2) comm.send(x, comm.rank() + 1);
    });
    for (const double sum : sums) CHECK(sum == 190);
  }
  SECTION("splits that have a device for each rank") {
    std::vector<std::unique_ptr<Communicator>> parts(4);
    const auto sums = rounds_on(two, 20, [&](Communicator& comm, const Tensor& x) {
      std::unique_ptr<Communicator>& part = parts[static_cast<std::size_t>(comm.rank())];
      if (!part) part = comm.split(comm.rank() / 2);
      part->all_reduce(x, RedOp::max);
    });
    for (std::size_t r = 0; r < sums.size(); ++r) CHECK(sums[r] == 190 + 20 * (r < 2 ? 1 : 3));
  }
  SECTION("memory that is given back") {
    const auto sums = rounds_on(one, 5, [](Communicator& comm, const Tensor& x) {
      if (comm.rank() > 0) empty_cache(comm.device());
      comm.all_reduce(x, RedOp::max);
    });
    for (const double sum : sums) CHECK(sum == 5 * 2 + 10);
  }
}

TEST_CASE("communicator: shared memory, ranks as threads of one device") {
  if (default_stream(Device::host(0)).synchronous()) return;  // no difference
  // But for the two that look at every value.
  for (const conformance::Check& check : conformance::checks().subspan(2)) DYNAMIC_SECTION(check.name) {
      check.run(threads_of_one_device());
    }
}

TEST_CASE("communicator: shared memory, ranks as threads") {
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(threads());
    }
}

TEST_CASE("communicator: a tensor may go while a collective on another stream uses it") {
  constexpr std::int64_t kCount = 30'000;
  run_ranks(3, [](Communicator& comm) {
    Stream side(comm.device());
    for (int round = 0; round < 5; ++round) {
      Tensor x = full({kCount}, 1, {.dtype = DType::f64, .device = comm.device()});
      side.wait_for(current_stream(comm.device()));
      {
        const StreamScope scope(side);
        comm.all_reduce(x);
      }
      x = Tensor();
      // Would take the memory of x, and write it while the collective does.
      full({kCount}, 2, {.dtype = DType::f64, .device = comm.device()});
    }
    synchronize(side);
  });
  SUCCEED("no order was missing");
}

TEST_CASE("communicator: collectives of one communicator on several streams take their turns") {
  const std::vector<std::vector<double>> sums = run_ranks(3, [](Communicator& comm) {
    Stream first(comm.device()), second(comm.device());
    std::vector<Tensor> all;
    for (int round = 0; round < 40; ++round) {
      const StreamScope scope(round % 3 == comm.rank() ? first : second);
      all.push_back(full({round % 2 ? 3 : 9'000}, round, {.dtype = DType::f64, .device = comm.device()}));
      comm.all_reduce(all.back());
    }
    synchronize(first);
    synchronize(second);
    std::vector<double> last;
    for (const Tensor& x : all) last.push_back(x.to_vector<double>().back());
    return last;
  });
  for (const std::vector<double>& mine : sums)
    for (std::size_t round = 0; round < mine.size(); ++round) CHECK(mine[round] == 3.0 * static_cast<double>(round));
}

TEST_CASE("communicator: what is on its way is carried out after the communicator is gone") {
  const std::vector<std::vector<double>> sums = run_ranks(3, [](Communicator& comm) {
    std::unique_ptr<Communicator> part = comm.split(0);
    const Tensor x = full({20'000}, comm.rank(), {.dtype = DType::f64, .device = comm.device()});
    for (int round = 0; round < 10; ++round) part->all_reduce(x, RedOp::max);
    part.reset();
    return x.to_vector<double>();
  });
  for (const std::vector<double>& mine : sums) CHECK(mine == std::vector<double>(20'000, 2));
}

TEST_CASE("communicator: a rank that is told of a failure has its memory to itself") {
  // Aborted at one moment after another, some of them while the other rank reads and writes this one's memory.
  constexpr std::int64_t kCount = 1 << 20;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::unique_ptr<Communicator>> ranks = make_thread_group(first_devices(2));
    const Tensor first = full({kCount}, 1, {.dtype = DType::f32, .device = Device::host(0)});
    const Tensor second = full({kCount}, 2, {.dtype = DType::f32, .device = Device::host(1)});
    synchronize(Device::host(0));
    synchronize(Device::host(1));
    const auto take_part = [](Communicator& comm, const Tensor& x) {
      Stream stream(comm.device());
      const StreamScope scope(stream);
      try {
        for (;;) {
          comm.all_reduce(x, RedOp::max);
          synchronize(stream);
        }
      } catch (const CommError&) {
      }
      try {  // a call that was refused may come after one that fails on the stream
        synchronize(stream);
      } catch (const CommError&) {
      }
    };
    std::thread other([&] { take_part(*ranks[1], second); });
    std::thread aborting([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
      ranks[1]->abort("enough");
    });
    take_part(*ranks[0], first);
    float* mine = static_cast<float*>(const_cast<void*>(first.data()));
    std::fill(mine, mine + kCount, 7.0f);
    other.join();
    aborting.join();
    REQUIRE(std::count(mine, mine + kCount, 7.0f) == kCount);
  }
}

TEST_CASE("communicator: a collective that its stream drops is an error on the other ranks at once") {
  if (default_stream(Device::host(0)).synchronous()) return;  // drops nothing: what fails is thrown at once
  // Round after round: a rank that hears of itself later than the others shows now and then.
  for (int round = 0; round < 40; ++round) {
    const std::vector<std::string> said = conformance::run_on_threads(
        make_thread_group(first_devices(3), {.timeout = conformance::kPatience}),
        [](Communicator& comm) -> std::string {
          const std::unique_ptr<Communicator> side = comm.split(0);
          const Tensor x = full({4}, 1, {.dtype = DType::f32, .device = comm.device()});
          std::string wrong;
          if (comm.rank() == 2) {
            current_stream(comm.device()).enqueue([] { throw Error("spilled"); });
            comm.all_reduce(x);
          } else {
            wrong = conformance::comm_error(comm, {"rank 2", "work before it on its stream failed"},
                                            [&] { comm.all_reduce(x); });
          }
          side->barrier();
          if (comm.rank() == 2 && !comm.broken()) return "expected it to be broken";
          return wrong;
        });
    REQUIRE(said == std::vector<std::string>(3));
  }
}

TEST_CASE("communicator: a collective here and a barrier there are found to differ, not waited for") {
  for (const bool odd_waits_on_stream : {false, true}) {
    const std::vector<std::string> said = conformance::run_on_threads(
        make_thread_group(first_devices(3), {.timeout = conformance::kPatience}),
        [&](Communicator& comm) -> std::string {
          comm.barrier();
          const Tensor x = full({4}, 1, {.dtype = DType::f32, .device = comm.device()});
          const bool on_stream = odd_waits_on_stream == (comm.rank() == 1);
          return conformance::comm_error(comm, {"rank 1", "same calls in the same order"},
                                         [&] { on_stream ? comm.all_reduce(x) : comm.barrier(); });
        });
    CHECK(said == std::vector<std::string>(3));
  }
}

TEST_CASE("shared memory: ranks of another build are refused, and all ranks learn why") {
  const std::shared_ptr<Store> store = make_local_store();
  const std::string other = "0.0.9 (1.2.3)";
  std::vector<std::string> thrown(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      if (r == 1) detail::build_override = &other;
      try {
        // A rank 2 that comes when rank 0 has given up waits for its next attempt: not as long as all of them.
        const Milliseconds timeout = r == 2 ? conformance::kPatience / 6 : conformance::kPatience;
        make_process_communicator(store, r, 3, Device::host(r), {.timeout = timeout});
      } catch (const CommError& error) {
        thrown[static_cast<std::size_t>(r)] = cat(error.rank, ' ', error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : {thrown[0], thrown[1]})
    CHECK(support::missing(text, {"1 [connect]", "expected all ranks to run one build of Lockstep",
                                  "got rank 1 of " + other}) == "");
  CHECK(thrown[2] != "");  // told the same, or that rank 0 has given up
}

TEST_CASE("shared memory: ranks wait for one that comes late, and look around meanwhile") {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::string> said(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      if (r == 1) std::this_thread::sleep_for(3 * detail::kPollInterval);
      try {
        make_process_communicator(store, r, 3, Device::host(r), {.timeout = conformance::kPatience})->barrier();
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(r)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(said == std::vector<std::string>(3));
}

TEST_CASE("processes: a rank that comes when the group has been refused is told so") {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::string> texts(3);
  const auto connect = [&](int rank, int size) {
    try {
      (void)make_process_communicator(store, rank, size, first_devices(3)[static_cast<std::size_t>(rank)],
                                      {.timeout = conformance::kPatience});
    } catch (const CommError& error) {
      texts[static_cast<std::size_t>(rank)] = cat(error.rank, ' ', error.what());
    }
  };
  std::thread first([&] {
    detail::grace_of_failed_group = conformance::kPatience;
    connect(0, 3);
  });
  std::thread others([&] {
    connect(1, 4);  // which it is told at once
    connect(2, 3);
  });
  first.join();
  others.join();
  for (const std::string& text : texts) CHECK(support::missing(text, {"1 [connect] rank 1", "rank 1 of 4"}) == "");
}

TEST_CASE("shared memory: groups of one rank that share a store do not hear of each other's roll calls") {
  const auto store = make_local_store();
  const auto first = make_process_communicator(store, 0, 1, Device::host(0), {.name = "first"});
  const auto second = make_process_communicator(store, 0, 1, Device::host(0), {.name = "second"});
  CHECK(first->shrink()->size() == 1);
  CHECK_THROWS_AS(second->shrink({.exclude = {0}}), CommError);  // nobody is left of it
}
