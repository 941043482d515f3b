// A store in a folder, used by several processes.
#include "lockstep/parallel/comm/store/file_store.h"

#include <csignal>

#include "processes/forked.h"
#include "support/catch.h"
#include "support/temporary_folder.h"

using namespace lockstep;

TEST_CASE("processes: a store in a folder is atomic between processes, also when one is killed") {
  const test::TemporaryFolder folder;
  const FileStoreOptions options{folder.path().string(), "run"};
  constexpr int kProcesses = 4, kRounds = 200;
  const std::vector<std::string> said = processes::fork_ranks(kProcesses, [&](int rank) -> std::string {
    const auto store = make_file_store(options);
    int won = 0;
    for (int i = 0; i < kRounds; ++i) {
      store->add("sum", 1);
      const std::string mine = std::to_string(rank);
      won += store->compare_set("round" + std::to_string(i), "", mine) == mine;
      if (rank == 3 && i == kRounds / 2) raise(SIGKILL);
    }
    store->add("won", won);
    if (store->add("ended", 1) == kProcesses - 1) store->set("all", "");
    store->get("all", Deadline::after(conformance::kPatience));
    return "";
  });
  CHECK(said == std::vector<std::string>{"", "", "", "signal 9"});
  const auto store = make_file_store(options);
  CHECK(store->try_get("sum") == std::to_string((kProcesses - 1) * kRounds + kRounds / 2 + 1));
  int rounds_of_3 = 0;
  for (int i = 0; i < kRounds; ++i) rounds_of_3 += store->try_get("round" + std::to_string(i)) == "3";
  CHECK(store->add("won", rounds_of_3) == kRounds);
}
