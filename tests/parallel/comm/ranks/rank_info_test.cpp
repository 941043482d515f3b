// Who says which rank this is, what agrees, and what does not.
#include "lockstep/parallel/comm/ranks/rank_info.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/ranks/connect_store.h"
#include "lockstep/parallel/comm/store/tcp_store.h"
#include "lockstep/parallel/comm/store/tcp_store_server.h"
#include "lockstep/runtime/error.h"
#include "parallel/comm/store/stores.h"
#include "support/catch.h"
#include "support/messages.h"

using namespace lockstep;
using support::message_of;
using support::missing;

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// These variables, and none of a launcher's beside them, until the end of the scope.
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    std::vector<std::string> names;
    for (char** each = environ; *each; ++each)
      for (const char* prefix :
           {"LOCKSTEP_RANK", "LOCKSTEP_WORLD", "LOCKSTEP_LOCAL", "LOCKSTEP_STORE", "LOCKSTEP_TOKEN",
            "RANK=", "WORLD_SIZE=", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI_", "MPI_LOCAL", "SLURM_"})
        if (std::strncmp(*each, prefix, std::strlen(prefix)) == 0) names.emplace_back(*each, std::strcspn(*each, "="));
    for (const auto& name : names) {
      before_.emplace_back(name, std::getenv(name.c_str()));
      ::unsetenv(name.c_str());
    }
    for (const auto& [name, value] : variables) {
      ::setenv(name.c_str(), value.c_str(), 1);
      set_.push_back(name);
    }
  }
  ~Environment() {
    for (const auto& name : set_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  Variables before_;
  std::vector<std::string> set_;
};

Variables operator+(Variables a, const Variables& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::string words(const RankInfo& ranks) {
  return cat(ranks.source, ' ', ranks.rank, '/', ranks.size, ' ', ranks.local_rank, '/', ranks.local_size, ' ',
             ranks.store, ranks.store_hosted ? " hosted" : "");
}
std::string discovered(const Variables& variables, const RankArguments& arguments = {}) {
  const Environment environment(variables);
  return words(discover_ranks(arguments));
}
std::string refused(const Variables& variables, const RankArguments& arguments = {}) {
  const Environment environment(variables);
  return message_of<InvalidArgument>([&] { discover_ranks(arguments); });
}
const Variables kLockstep = {{"LOCKSTEP_RANK", "3"},
                             {"LOCKSTEP_WORLD_SIZE", "8"},
                             {"LOCKSTEP_LOCAL_RANK", "1"},
                             {"LOCKSTEP_LOCAL_SIZE", "2"},
                             {"LOCKSTEP_STORE", "127.0.0.1:700"}};
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kPmi = {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"},
                          {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_NODEID", "1"},  {"SLURM_STEP_TASKS_PER_NODE", "2(x4)"},
                          {"SLURM_LOCALID", "1"}};

}  // namespace

TEST_CASE("each source says which rank this is") {
  CHECK(discovered({}) == "default 0/1 0/1 ");
  CHECK(discovered(kLockstep) == "lockstep-run 3/8 1/2 127.0.0.1:700 hosted");
  CHECK(discovered(kTorchrun) == "torchrun 3/8 1/2 node0:29500");
  CHECK(discovered(kOpenMpi) == "OpenMPI 3/8 1/2 ");
  CHECK(discovered(kPmi) == "PMI 3/8 1/2 ");
  CHECK(discovered(kSlurm) == "Slurm 3/8 1/2 ");
  CHECK(discovered({}, {.rank = 2, .size = 4, .store = "a:1"}) == "arguments 2/4 2/4 a:1");
  CHECK(discovered({}, {.rank = 2, .size = 4, .local_rank = 0, .local_size = 1}) == "arguments 2/4 0/1 ");
}

TEST_CASE("sources that agree: the first counts, the others fill in what it leaves open") {
  CHECK(discovered(kLockstep + kTorchrun + kOpenMpi + kPmi + kSlurm) == "lockstep-run 3/8 1/2 127.0.0.1:700 hosted");
  CHECK(discovered(kTorchrun + kOpenMpi + kPmi + kSlurm) == "torchrun 3/8 1/2 node0:29500");
  CHECK(discovered(kOpenMpi + kPmi + kSlurm) == "OpenMPI 3/8 1/2 ");
  CHECK(discovered(kPmi + kSlurm) == "PMI 3/8 1/2 ");
  CHECK(discovered(kTorchrun, {.rank = 3, .size = 8}) == "arguments 3/8 1/2 node0:29500");
  CHECK(discovered(kLockstep, {.rank = 3, .size = 8}) == "arguments 3/8 1/2 127.0.0.1:700 hosted");
  CHECK(discovered(kLockstep, {.store = "b:2"}) == "lockstep-run 3/8 1/2 b:2");
  CHECK(discovered({{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}}) == "PMI 3/8 3/8 ");
}

TEST_CASE("sources that disagree are refused, with what both say") {
  CHECK(missing(refused(kTorchrun + Variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "8"}}),
                {"torchrun says rank 3 of 8 and PMI says rank 2 of 8"}) == "");
  CHECK(missing(refused(kOpenMpi + Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
                {"torchrun says rank 0 of 1 and OpenMPI says rank 3 of 8"}) == "");
  CHECK(missing(refused(kTorchrun, {.rank = 0, .size = 2}),
                {"arguments says rank 0 of 2 and torchrun says rank 3 of 8"}) == "");
  CHECK(missing(refused(kOpenMpi, {.rank = 0, .size = 1}),
                {"arguments says rank 0 of 1 and OpenMPI says rank 3 of 8"}) == "");
  CHECK(missing(refused(kLockstep + Variables{{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
                {"lockstep-run says rank 3 of 8 and torchrun"}) == "");
}

TEST_CASE("a launcher that another one started, once or once per machine, is no disagreement") {
  // srun --ntasks-per-node=1 torchrun --nnodes 4 --nproc-per-node 2
  const Variables step = {{"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}};
  const Variables per_node = step + Variables{{"SLURM_STEP_NUM_TASKS", "4"},
                                              {"SLURM_NODEID", "1"},
                                              {"SLURM_LOCALID", "0"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "1(x4)"}};
  CHECK(discovered(kTorchrun + per_node) == "torchrun 3/8 1/2 node0:29500");
  CHECK(discovered(kLockstep + per_node) == "lockstep-run 3/8 1/2 127.0.0.1:700 hosted");
  CHECK(discovered(kOpenMpi + per_node) == "OpenMPI 3/8 1/2 ");
  CHECK(discovered(kOpenMpi + Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}) == "OpenMPI 3/8 1/2 ");
  // As many processes as there are machines, but two on this one.
  CHECK(missing(refused(kTorchrun + step +
                        Variables{{"SLURM_STEP_NUM_TASKS", "4"},
                                  {"SLURM_NODEID", "0"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}),
                {"torchrun says rank 3 of 8 and Slurm says rank 1 of 4"}) == "");
}

TEST_CASE("a batch script is no task of Slurm's") {
  const Variables script = {
      {"SLURM_JOB_ID", "77"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}};
  CHECK(discovered(script) == "default 0/1 0/1 ");
  CHECK(discovered(script + kOpenMpi) == "OpenMPI 3/8 1/2 ");
  CHECK(discovered(script + kTorchrun) == "torchrun 3/8 1/2 node0:29500");
}

TEST_CASE("Slurm's tasks per node are read for this node") {
  const auto on_node = [](const std::string& node, const std::string& local, const std::string& tasks) {
    return Variables{{"SLURM_PROCID", "5"},
                     {"SLURM_NTASKS", "11"},
                     {"SLURM_NODEID", node},
                     {"SLURM_LOCALID", local},
                     {"SLURM_STEP_TASKS_PER_NODE", tasks}};
  };
  CHECK(discovered(on_node("1", "1", "4(x2),3")) == "Slurm 5/11 1/4 ");
  CHECK(discovered(on_node("2", "2", "4(x2),3")) == "Slurm 5/11 2/3 ");
  CHECK(discovered(on_node("0", "0", "11")) == "Slurm 5/11 0/11 ");
  for (const char* wrong : {"4(x2)", "", "4(x2", "x", "4,,3", "4(y2),3", "-4(x3)", "99999999999"})
    if (*wrong) CHECK(missing(refused(on_node("2", "0", wrong)), {"[SLURM_STEP_TASKS_PER_NODE] expected"}) == "");
  const Variables plain = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "11"}, {"SLURM_LOCALID", "1"}};
  CHECK(discovered(plain + Variables{{"SLURM_NTASKS_PER_NODE", "2"}}) == "Slurm 5/11 1/2 ");
  CHECK(missing(refused(plain), {"expected SLURM_NTASKS_PER_NODE along with SLURM_LOCALID=1 of Slurm"}) == "");
}

TEST_CASE("a source of which a part is missing is refused, and the part named") {
  for (const Variables& all : {kLockstep, kTorchrun, kOpenMpi, kPmi}) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].first == "LOCKSTEP_STORE") continue;
      Variables part = all;
      part.erase(part.begin() + static_cast<std::ptrdiff_t>(i));
      CHECK(missing(refused(part), {"expected " + all[i].first + " along with "}) == "");
    }
  }
  Variables no_store = kLockstep;
  no_store.pop_back();
  CHECK(missing(refused(no_store), {"expected LOCKSTEP_STORE along with LOCKSTEP_RANK=3"}) == "");
  CHECK(missing(refused({{"SLURM_PROCID", "1"}}), {"expected SLURM_NTASKS along with SLURM_PROCID=1 of Slurm"}) == "");
  CHECK(missing(refused({}, {.rank = 1}), {"expected the argument size along with rank=1"}) == "");
  CHECK(missing(refused({}, {.size = 2}), {"expected the argument rank along with size=2"}) == "");
  CHECK(missing(refused({}, {.rank = 0, .size = 2, .local_size = 2}), {"expected the argument local_rank"}) == "");
  CHECK(missing(refused({}, {.local_rank = 0, .local_size = 2}), {"expected the arguments rank and size"}) == "");
}

TEST_CASE("numbers of ranks are numbers, and fit each other") {
  for (const char* wrong : {"x", "1x", " 1", "-1", "0x1", "1.5", "99999999999999999999", "2000000"})
    CHECK(missing(refused({{"RANK", wrong}, {"WORLD_SIZE", "8"}}), {"[RANK] expected a number from 0 to"}) == "");
  CHECK(missing(refused({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), {"[WORLD_SIZE] expected a number from 1 to"}) == "");
  CHECK(missing(refused({{"RANK", "8"}, {"WORLD_SIZE", "8"}}), {"torchrun says rank 8 of 8"}) == "");
  CHECK(missing(refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "2"}}),
                {"local rank 2 of 2"}) == "");
  CHECK(missing(refused({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "3"}}),
                {"local rank 0 of 3"}) == "");
  CHECK(missing(refused({}, {.rank = -1, .size = 2}), {"rank -1 of 2"}) == "");
  CHECK(missing(refused({}, {.rank = 0, .size = 0}), {"rank 0 of 0"}) == "");
  CHECK(missing(refused({}, {.rank = 0, .size = 1, .store = "nowhere"}), {"expected host:port"}) == "");
  CHECK(missing(refused(kTorchrun + Variables{{"LOCKSTEP_STORE", "x"}}), {"[LOCKSTEP_STORE] expected host:port"}) ==
        "");
  CHECK(missing(refused({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "0"}}),
                {"[MASTER_PORT]"}) == "");
}

TEST_CASE("the store is where all ranks look for it") {
  const Variables agent = {{"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  CHECK(discovered(kTorchrun + agent) == "torchrun 3/8 1/2 node0:29501");
  const Variables last = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "65535"}};
  CHECK(discovered(last) == "torchrun 1/2 1/2 127.0.0.1:65535");
  CHECK(discovered(last + agent) == "torchrun 1/2 1/2 127.0.0.1:65534");
  CHECK(discovered(kTorchrun + Variables{{"LOCKSTEP_STORE", "[::1]:5"}}) == "torchrun 3/8 1/2 [::1]:5");
  CHECK(discovered(kOpenMpi + Variables{{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "9"}}) == "OpenMPI 3/8 1/2 node0:9");
  CHECK(discovered({{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "9"}}) == "default 0/1 0/1 ");
}

TEST_CASE("ranks connect to the store of their job") {
  const Environment environment({});
  int port = 0;
  {
    const TcpStoreServer free;
    port = free.port();
  }
  const std::string address = cat("127.0.0.1:", port);
  {  // rank 0 serves
    std::vector<std::string> got(3);
    const auto thrown = test::in_threads(3, [&](int rank) {
      const auto store = connect_store(discover_ranks({.rank = rank, .size = 3, .store = address}));
      store->set(cat("from ", rank), cat("rank ", rank));
      for (int other = 0; other < 3; ++other)
        got[static_cast<std::size_t>(rank)] += store->get(cat("from ", other), test::soon());
      store->add("done", 1);
      // The server is rank 0's: it goes last.
      while (rank == 0 && store->try_get("done") != "3") std::this_thread::yield();
    });
    CHECK(thrown == std::vector<std::string>(3));
    CHECK(got == std::vector<std::string>(3, "rank 0rank 1rank 2"));
  }
  {  // the launcher serves
    const TcpStoreServer server;
    const RankInfo ranks{.rank = 0, .size = 2, .store = server.address(), .store_hosted = true};
    connect_store(ranks)->set("a", "b");
    CHECK(connect_store(ranks)->try_get("a") == "b");
  }
  CHECK(connect_store(RankInfo{})->add("n", 1) == 1);
  CHECK(missing(message_of<InvalidArgument>([] { connect_store({.rank = 1, .size = 2, .source = "OpenMPI"}); }),
                {"expected the address of a store (LOCKSTEP_STORE=host:port"}) == "");
}

TEST_CASE("ranks: a communicator is made for the rank that the launcher says, whatever else is asked for") {
  const Environment launched({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "3"}});
  const auto said = message_of<Error>([] { make_communicator({.device = accelerators().at(0)}); });
  CHECK(missing(said, {"3 ranks"}) == "");
  const CommunicatorOptions given{.rank = {.rank = 2, .size = 5}};
  CHECK(given.rank.size == 5);
}
