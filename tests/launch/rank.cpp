// A rank for tests of lockstep-run: meets the others in the job's store, and says who they are. Or, with the argument
// "told", waits until the store says of a rank that it has ended.
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "lockstep/parallel/comm/ranks/connect_store.h"
#include "lockstep/parallel/comm/ranks/rank_info.h"
#include "lockstep/runtime/strings.h"

using namespace lockstep;

int main(int argc, char** argv) {
  const bool told = argc > 1 && argv[1] == std::string("told");
  const Milliseconds timeout(!told && argc > 1 ? std::stoi(argv[1]) : 60'000);
  try {
    const RankInfo ranks = discover_ranks();
    const auto store = connect_store(ranks, {.connect_timeout = timeout});
    while (told && store->ended_ranks().empty()) std::this_thread::sleep_for(Milliseconds(10));
    if (told) return 0;
    const auto deadline = Deadline::after(timeout);
    store->set(cat("rank/", ranks.rank),
               cat(ranks.rank, '/', ranks.size, ':', ranks.local_rank, '/', ranks.local_size));
    std::string all;
    for (int rank = 0; rank < ranks.size; ++rank) all += ' ' + store->get(cat("rank/", rank), deadline);
    std::printf("%s%s\n", ranks.source.c_str(), all.c_str());
    // Rank 0 may serve the store: it goes when all others have what they need.
    store->add("done", 1);
    while (ranks.rank == 0 && store->try_get("done") != std::to_string(ranks.size)) {
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 3;
  }
}
