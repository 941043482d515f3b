// A rank that fails, or notices that another one has: see drill.py, which says how, and who. Arguments:
//   <program> <how> <victim> <step> <number> <timeout in ms> <ms that the victim takes to go>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

struct Net : Module<Net> {
  Linear first{6, 5}, second{5, 3};
  void members(Members& m) override { m("first", first), m("second", second); }
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

// Ends after the communicators have: the others learn of it before the process is gone.
struct Lingers {
  Milliseconds time{0};
  ~Lingers() { std::this_thread::sleep_for(time); }
};

[[noreturn]] void lose_data() { throw std::runtime_error("the data is gone"); }
[[noreturn]] void terminate() noexcept { lose_data(); }

void fail(const std::string& how, int number, Milliseconds late, Lingers& lingers) {
  if (how == "throw") {
    lingers.time = late;
    lose_data();
  }
  if (how == "terminate") terminate();
  if (how == "exit") std::exit(number);
  if (how == "quick") ::_exit(number);
  ::raise(number);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return std::fprintf(stderr, "usage: see the source\n"), 2;
  const std::string program = argv[1], how = argv[2];
  const int victim = std::atoi(argv[3]), at = std::atoi(argv[4]), number = std::atoi(argv[5]);
  const Milliseconds timeout(std::atoi(argv[6])), late(std::atoi(argv[7]));
  int rank = -1;
  try {
    const RankInfo ranks = discover_ranks();
    rank = ranks.rank;
    Lingers lingers;
    if (program == "joining" && rank == victim) fail(how, number, late, lingers);
    const auto all = make_communicator({.rank = ranks, .timeout = Milliseconds(120'000)});
    std::unique_ptr<Communicator> even, odd;  // pairs: 0-1, 2-3, …; 1-2, 3-4, …
    if (program == "chain") {
      even = all->split(rank / 2);
      odd = all->split((rank + 1) / 2);
    }
    std::unique_ptr<DistributedDataParallel<Net>> net;
    if (program == "train") net = std::make_unique<DistributedDataParallel<Net>>(Net{}, *all);
    const Tensor values = ones({3000}, {.device = all->device()});
    all->all_reduce(values);
    all->barrier();
    for (Communicator* each : {all.get(), even.get(), odd.get()})
      if (each) each->set_timeout(timeout);
    std::printf("rank %d has no end of its line", rank);  // and shows all the same
    for (int step = 0; step < 100'000; ++step) {
      if (rank == victim && step == at) fail(how, number, late, lingers);
      if (program == "train") {
        (*net)(ones({4, 6}, {.device = all->device()})).sum().backward();
        net->zero_grad();
      } else if (program == "hosts") {
        all->barrier();
      } else if (program == "ring") {
        if (rank > 0) all->recv(values, rank - 1);
        if (rank + 1 < all->size()) all->send(values, rank + 1);
      } else if (program == "chain") {
        even->all_reduce(values);
        odd->all_reduce(values);
      } else {
        all->all_reduce(values);
      }
      synchronize(all->device());
    }
    return 99;  // nothing has failed
  } catch (const CommError& error) {
    std::fprintf(stderr, "rank %d noticed: %s\n", rank, error.what());
    return 40 + rank;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d fails: %s\n", rank, error.what());
    return number;
  }
}
