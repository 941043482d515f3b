// A rank that gets over the loss of others: all sum up ones, some die, and the rest make a communicator of themselves
// and go on. Arguments: <program> <dies at step> <how> <victim>...
//   survive   no rank dies after that
//   again     as that, and of the rest the highest dies after the same number of steps, once more
//   wait      until the launcher says that a rank has failed; then a rank makes the file told<rank> in the folder $F
// <how> is a signal, or 0: it exits with code 7. A rank that has joined makes a file of its number in the folder $F.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/parallel/comm/ranks/connect_store.h"

using namespace lockstep;

namespace {

constexpr int kSteps = 6;

int run(bool again, int at, int how, std::vector<int> victims) {
  const RankInfo info = discover_ranks();
  std::unique_ptr<Communicator> communicator = make_communicator({.rank = info});
  if (const char* folder = std::getenv("F")) std::ofstream(cat(folder, '/', info.rank));  // it has joined
  while (true) {
    try {
      for (int step = 0; step < kSteps; ++step) {
        if (step == at && std::find(victims.begin(), victims.end(), info.rank) != victims.end()) {
          if (how == 0) ::_exit(7);
          ::raise(how);
        }
        const Tensor sum = ones({5}, {.device = communicator->device()});
        communicator->all_reduce(sum);
        if (sum.to_vector<float>() != std::vector<float>(5, static_cast<float>(communicator->size()))) return 98;
      }
      communicator->barrier();
      std::printf("rank %d of %d: %d ranks went on\n", info.rank, info.size, communicator->size());
      return 0;
    } catch (const CommError& error) {
      std::fprintf(stderr, "rank %d noticed: %s\n", info.rank, error.what());
      communicator = communicator->shrink({.timeout = Milliseconds(60'000)});
      victims.clear();
      // The last of those that are left.
      if (std::exchange(again, false) && communicator->rank() == communicator->size() - 1) victims = {info.rank};
    }
  }
}

int wait_for_a_failure(const RankInfo& info) {
  const std::shared_ptr<Store> store = connect_store(info);
  while (store->try_get("lockstep-run/failed").value_or("0") == "0") ::usleep(5'000);
  std::ofstream(cat(std::getenv("F"), "/told", info.rank));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: see the source\n"), 2;
  try {
    const std::string what = argv[1];
    if (what == "wait") return wait_for_a_failure(discover_ranks());
    std::vector<int> victims;
    for (int i = 4; i < argc; ++i) victims.push_back(std::atoi(argv[i]));
    return run(what == "again", std::atoi(argv[2]), std::atoi(argv[3]), victims);
  } catch (const std::exception& error) {
    return std::fprintf(stderr, "survivor: %s\n", error.what()), 3;
  }
}
