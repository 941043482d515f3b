// Kernels of host devices divided among threads.
#include "lockstep/runtime/host/compute_threads.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cfenv>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/host/host_options.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/thread/rendezvous.h"
#include "support/catch.h"
#include "support/hidden_case.h"
#include "support/set_threads.h"

using namespace lockstep;
using lockstep::detail::run_pieces;
using support::Threads;

namespace {

// Pieces that wait until `together` of them run at once.
struct Meeting {
  std::atomic<int> here{0};
  void wait_for(int together) {
    ++here;
    while (here < together) std::this_thread::yield();
  }
};

}  // namespace

TEST_CASE("every piece runs once", "[compute_threads]") {
  const int threads = GENERATE(0, 1, 2, 5);
  const Threads set(threads);
  for (const int count : {0, 1, 2, 3, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
    run_pieces(count, [&](std::int64_t i) { ++runs[static_cast<std::size_t>(i)]; });
    for (const auto& times : runs) CHECK(times == 1);
  }
}

TEST_CASE("as many threads as were asked for have pieces at one time", "[compute_threads]") {
  const Threads set(4);
  for (int repeat = 0; repeat < 20; ++repeat) {
    Meeting meeting;
    run_pieces(4, [&](std::int64_t) { meeting.wait_for(4); });  // with fewer it would not end
  }
  CHECK(detail::compute_threads() >= 3);
}

TEST_CASE("one thread is the calling one", "[compute_threads]") {
  const Threads set(1);
  std::set<std::thread::id> ids;
  run_pieces(100, [&](std::int64_t) { ids.insert(std::this_thread::get_id()); });
  CHECK(ids == std::set{std::this_thread::get_id()});
}

TEST_CASE("whoever computes alone has no helpers, nor have pieces of pieces", "[compute_threads]") {
  const Threads set(4);
  {
    const detail::ComputeAlone alone;
    std::set<std::thread::id> ids;
    run_pieces(100, [&](std::int64_t) { ids.insert(std::this_thread::get_id()); });
    CHECK(ids == std::set{std::this_thread::get_id()});
  }
  std::atomic<int> wrong{0};
  Meeting meeting;
  run_pieces(4, [&](std::int64_t) {
    meeting.wait_for(4);
    const auto here = std::this_thread::get_id();
    run_pieces(100, [&](std::int64_t) { wrong += std::this_thread::get_id() != here; });
  });
  CHECK(wrong == 0);
}

TEST_CASE("several callers have their own helpers", "[compute_threads]") {
  const Threads set(3);
  std::array<std::thread, 4> callers;
  std::atomic<int> sum{0};
  for (auto& caller : callers)
    caller = std::thread([&] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        Meeting meeting;
        run_pieces(3, [&](std::int64_t i) {
          meeting.wait_for(3);
          sum += static_cast<int>(i);
        });
      }
    });
  for (auto& caller : callers) caller.join();
  CHECK(sum == 4 * 10 * 3);
}

TEST_CASE("the first piece that throws is the one that is heard of", "[compute_threads]") {
  const Threads set(GENERATE(1, 3));
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::atomic<int> before{0};
    std::string text;
    try {
      run_pieces(50, [&](std::int64_t i) {
        if (i < 7) ++before;
        if (i >= 7) throw Error(std::to_string(i));
      });
    } catch (const Error& error) {
      text = error.what();
    }
    CHECK(text == "7");
    CHECK(before == 7);
  }
  int after = 0;
  const Threads one(1);
  run_pieces(3, [&](std::int64_t) { ++after; });
  CHECK(after == 3);
}

TEST_CASE("helpers round as the caller does", "[compute_threads]") {
  const Threads set(3);
  std::fesetround(FE_UPWARD);
  std::atomic<int> upward{0};
  Meeting meeting;
  run_pieces(3, [&](std::int64_t) {
    meeting.wait_for(3);
    upward += std::fegetround() == FE_UPWARD;
  });
  std::fesetround(FE_TONEAREST);
  CHECK(upward == 3);
  Meeting again;
  run_pieces(3, [&](std::int64_t) {
    again.wait_for(3);
    upward -= std::fegetround() == FE_TONEAREST;
  });
  CHECK(upward == 0);
}

TEST_CASE("helpers may run on all cores where their caller is bound to one", "[compute_threads]") {
  cpu_set_t all;
  if (::sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < 2) return;
  const Threads set(2);
  std::atomic<int> cores{0};
  std::thread([&] {
    cpu_set_t first;
    CPU_ZERO(&first);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&first) == 0; ++core)
      if (CPU_ISSET(core, &all)) CPU_SET(core, &first);
    ::sched_setaffinity(0, sizeof first, &first);
    Meeting meeting;
    run_pieces(2, [&](std::int64_t) {
      meeting.wait_for(2);
      cpu_set_t mine;
      ::sched_getaffinity(0, sizeof mine, &mine);
      cores += CPU_COUNT(&mine);
    });
  }).join();
  CHECK(cores == 1 + CPU_COUNT(&all));
}

#ifndef __SANITIZE_THREAD__  // which knows no threads of a child
TEST_CASE("a child of a process with helpers has its own", "[compute_threads]") {
  const Threads set(2);
  const auto together = [] {
    Meeting meeting;
    run_pieces(2, [&](std::int64_t) { meeting.wait_for(2); });
  };
  together();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    together();
    ::_exit(detail::compute_threads() == 1 ? 0 : 1);
  }
  int status = -1;
  CHECK(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
#endif

TEST_CASE("a number of threads that there cannot be is refused", "[compute_threads]") {
  CHECK_THROWS_AS(set_threads(-1), InvalidArgument);
  CHECK_THROWS_AS(set_threads(1025), InvalidArgument);
  CHECK(get_threads() >= 1);
  const Threads set(7);
  CHECK(get_threads() == 7);
}

// In processes of their own: the options are read once.
TEST_CASE("threads of the environment", "[.][threads_of_a_process]") {
  const std::string expected = std::getenv("EXPECTED");
  if (expected == "error") {
    CHECK_THROWS_WITH(get_threads(), "[LOCKSTEP_HOST_THREADS] expected a number from 1 to 1024, got \"many\"");
    CHECK_THROWS_AS(current_stream(Device::host(0)), InvalidArgument);
    return;
  }
  CHECK(std::to_string(get_threads()) == expected);
  CHECK(detail::compute_threads() == 0);
  Meeting meeting;
  const int together = get_threads();
  run_pieces(together, [&](std::int64_t) { meeting.wait_for(together); });
  CHECK(detail::compute_threads() == together - 1);
}

TEST_CASE("a pool of the program runs the pieces", "[.][threads_of_a_process]") {
  int calls = 0;
  configure_host({.parallel_for = [&](std::int64_t count, const std::function<void(std::int64_t)>& piece) {
    ++calls;
    std::vector<std::thread> threads;
    for (std::int64_t i = count - 1; i >= 0; --i) threads.emplace_back([&piece, i] { piece(i); });
    for (std::thread& thread : threads) thread.join();
  }});
  std::vector<std::atomic<int>> runs(20);
  run_pieces(20, [&](std::int64_t i) {
    run_pieces(3, [&](std::int64_t) { ++runs[static_cast<std::size_t>(i)]; });  // in the thread that asks
  });
  for (const auto& times : runs) CHECK(times == 3);
  CHECK(calls == 1);
  CHECK_THROWS_WITH(run_pieces(20,
                               [&](std::int64_t i) {
                                 if (i == 4) throw Error("four");
                               }),
                    "four");
  {
    const Threads one(1);
    run_pieces(20, [&](std::int64_t) {});
  }
  CHECK(calls == 2);
  CHECK(detail::compute_threads() == 0);
}

// Two cores: the first caller and its helper have both, so that the second begins alone.
TEST_CASE("a caller that leaves makes room for a helper of another", "[.][threads_of_a_process]") {
  REQUIRE(get_threads() == 2);
  std::atomic<bool> second_runs{false};
  Meeting first_two, second_two;
  std::thread first([&] {
    run_pieces(2, [&](std::int64_t) {
      first_two.wait_for(2);
      while (!second_runs) std::this_thread::yield();
    });
  });
  while (first_two.here < 2) std::this_thread::yield();
  ::alarm(20);
  run_pieces(2, [&](std::int64_t) {
    second_runs = true;
    second_two.wait_for(2);  // with nobody invited it would not end
  });
  first.join();
  CHECK(second_two.here == 2);
}

TEST_CASE("threads by environment and options", "[compute_threads]") {
  const auto in_environment = [](const std::string& variables) {
    return test::run_hidden_case("threads of the environment", variables);
  };
  CHECK(in_environment("LOCKSTEP_HOST_THREADS=3 EXPECTED=3"));
  CHECK(in_environment("LOCKSTEP_HOST_THREADS=3 OMP_NUM_THREADS=1 EXPECTED=3"));
  CHECK(in_environment("OMP_NUM_THREADS=1 EXPECTED=1"));
  CHECK(in_environment("OMP_NUM_THREADS=1,2 EXPECTED=1"));
  CHECK(in_environment("LOCKSTEP_HOST_THREADS=many EXPECTED=error"));
  CHECK(test::run_hidden_case("a pool of the program runs the pieces", ""));
  CHECK(test::run_hidden_case("a caller that leaves makes room for a helper of another", "OMP_NUM_THREADS=2"));
}
