// A rank whose fellow is killed: the ranks that are left go on, and say who they are. Arguments: <victim>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "lockstep/lockstep.h"

using namespace lockstep;

int main(int argc, char** argv) {
  const int victim = argc > 1 ? std::atoi(argv[1]) : -1;
  try {
    const RankInfo ranks = discover_ranks();
    const auto all = make_communicator({.rank = ranks, .timeout = Milliseconds(120'000)});
    Tensor x = full({3}, all->rank() + 1.0, {.dtype = DType::f64, .device = all->device()});
    std::unique_ptr<Communicator> left;
    try {
      all->barrier();
      if (all->rank() == victim) ::raise(SIGKILL);
      all->all_reduce(x);
      synchronize(current_stream(all->device()));
    } catch (const CommError& error) {
      // Nobody waits that long: who is gone is noticed.
      left = all->shrink({.timeout = Milliseconds(3'600'000)});
      x.fill_(1);
      left->all_reduce(x);
      std::printf("rank %d of %d was %d of %d without %d, %s, sum %g\n", left->rank(), left->size(), all->rank(),
                  all->size(), error.rank, left->backend(), x.to_vector<double>()[0]);
    }
    (left ? *left : *all).barrier();  // nobody goes while others still speak
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "%s\n", error.what()), 3;
  }
}
