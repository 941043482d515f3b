// Shared-memory ranks that are processes: the conformance checks, and what happens when one ends, stops or throws.
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/stream/stream.h"
#include "parallel/comm/conformance.h"
#include "parallel/comm/store/forwarding_store.h"
#include "processes/forked.h"
#include "support/asleep.h"
#include "support/catch.h"
#include "support/messages.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using conformance::comm_error;
using conformance::kPatience;
using processes::fork_ranks;

namespace {

std::unique_ptr<Communicator> connect(const std::shared_ptr<Store>& store, int rank, int size,
                                      Milliseconds timeout = kPatience, const std::string& name = "ranks") {
  return make_process_communicator(store, rank, size, Device::host(rank % 8), {.timeout = timeout, .name = name});
}

conformance::Ranks forked() {
  return {.name = "processes", .run = [](int count, Milliseconds timeout, const conformance::Body& body) {
            const std::shared_ptr<Store> store = processes::make_mapped_store();
            return fork_ranks(count, [&](int rank) {
              const std::unique_ptr<Communicator> comm = connect(store, rank, count, timeout);
              Stream stream(comm->device());
              const StreamScope scope(stream);
              return body(*comm);
            });
          }};
}

Tensor ones(Communicator& comm, std::int64_t count) {
  return conformance::tensor_of(std::vector<double>(static_cast<std::size_t>(count), 1), DType::f32, comm.device());
}

// Whoever connects says, when it has rank 0's address, which process it is: once that sleeps it has connected.
class SaysWhenItConnects final : public lockstep::test::ForwardingStore {
 public:
  SaysWhenItConnects(std::shared_ptr<Store> store, int rank) : ForwardingStore(std::move(store)), rank_(rank) {}
  std::string get(const std::string& key, Deadline deadline) override {
    std::string value = next().get(key, deadline);
    say(key);
    return value;
  }
  std::optional<std::string> try_get(const std::string& key) override {
    std::optional<std::string> value = next().try_get(key);
    if (value) say(key);
    return value;
  }

 private:
  void say(const std::string& key) {
    if (key.ends_with("/socket")) next().set(cat("connects/", rank_), std::to_string(getpid()));
  }
  const int rank_;
};
// Blocks until the rank has connected.
pid_t has_connected(Store& store, int rank) {
  const pid_t process = std::stoi(store.get(cat("connects/", rank), Deadline::after(kPatience)));
  if (!lockstep::test::falls_asleep(process)) throw Error(cat("rank ", rank, " does not connect"));
  return process;
}

// Rank 0, which looks who has come when these ranks have connected.
class WaitsForThem final : public lockstep::test::ForwardingStore {
 public:
  WaitsForThem(std::shared_ptr<Store> store, std::vector<int> ranks)
      : ForwardingStore(std::move(store)), ranks_(std::move(ranks)) {}
  void set(const std::string& key, const std::string& value) override {
    next().set(key, value);
    if (!key.ends_with("/socket")) return;
    for (const int rank : ranks_) has_connected(next(), rank);
  }

 private:
  const std::vector<int> ranks_;
};

// Where the last rank ends its part.
enum class Point { idle, collective, exchange, pair };
const char* name_of(Point point) {
  constexpr const char* kNames[] = {"idle", "collective", "exchange", "pair"};
  return kNames[static_cast<int>(point)];
}

void wait_for_others(Communicator& comm, Point point) {
  const Tensor x = ones(comm, 100'000);
  if (point == Point::collective) comm.all_reduce(x);
  if (point == Point::exchange) comm.barrier();
  if (point == Point::pair) comm.rank() == 0 ? comm.recv(x, comm.size() - 1) : comm.recv(x, 0);
}

// All ranks but the last come to `point`, which never happens, and expect an error with these parts. The last one does
// `deed` after a collective that all take part in.
void drill(Point point, Milliseconds timeout, std::initializer_list<std::string> parts, const std::string& end_of_last,
           const std::function<std::string(Communicator&)>& deed) {
  for (const int count : {2, 3}) {
    INFO(count << " ranks, in " << name_of(point));
    const std::shared_ptr<Store> store = processes::make_mapped_store();
    const std::vector<std::string> said = fork_ranks(count, [&](int rank) -> std::string {
      const std::unique_ptr<Communicator> comm = connect(store, rank, count);
      comm->all_reduce(ones(*comm, 50'000));
      synchronize(comm->device());
      if (rank == count - 1) return deed(*comm);
      comm->set_timeout(timeout);
      const std::string wrong = comm_error(*comm, parts, [&] { wait_for_others(*comm, point); });
      // The survivors go on together.
      const std::unique_ptr<Communicator> next = connect(store, rank, count - 1, kPatience, "survivors");
      const Tensor x = ones(*next, 3);
      next->all_reduce(x);
      const double sum = count - 1;
      return wrong + conformance::differs(x, {sum, sum, sum});
    });
    for (int rank = 0; rank < count - 1; ++rank) CHECK(said[static_cast<std::size_t>(rank)] == "");
    CHECK(said.back() == end_of_last);
  }
}

}  // namespace

TEST_CASE("communicator: shared memory, ranks as processes") {
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(forked());
    }
}

TEST_CASE("processes: a rank that is killed is named at once") {
  for (const Point point : {Point::collective, Point::exchange})
    drill(point, kPatience, {"died"}, "signal 9", [](Communicator&) -> std::string {
      raise(SIGKILL);
      return "alive";
    });
  // Only one rank waits for the last one here.
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(2, [&](int rank) -> std::string {
    const std::unique_ptr<Communicator> comm = connect(store, rank, 2);
    if (rank == 1) raise(SIGKILL);
    return comm_error(*comm, {"rank 1 died", "recv"}, [&] { comm->recv(ones(*comm, 5), 1); });
  });
  CHECK(said == std::vector<std::string>{"", "signal 9"});
}

TEST_CASE("processes: rank 0 is no different from the others when it is killed") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
    const std::unique_ptr<Communicator> comm = connect(store, rank, 3);
    if (rank == 0) raise(SIGKILL);
    return comm_error(*comm, {"rank 0 died"}, [&] { comm->all_reduce(ones(*comm, 5)); });
  });
  CHECK(said == std::vector<std::string>{"signal 9", "", ""});
}

TEST_CASE("processes: a rank that is killed after rank 0 has left is noticed by the others") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
    std::unique_ptr<Communicator> comm = connect(store, rank, 3);
    comm->barrier();
    if (rank == 0) {
      comm.reset();
      store->set("gone", "yes");
      return "";
    }
    if (rank == 1) return comm_error(*comm, {"rank 2 died"}, [&] { comm->recv(ones(*comm, 5), 2); });
    store->get("gone", Deadline::after(kPatience));
    raise(SIGKILL);
    return "";
  });
  CHECK(said == std::vector<std::string>{"", "", "signal 9"});
}

TEST_CASE("processes: a rank that becomes another program, or whose child lives on, is named at once") {
  for (const bool becomes : {true, false}) {
    const std::shared_ptr<Store> store = processes::make_mapped_store();
    const test::TemporaryFolder folder;
    const std::string over = folder / "over";  // there once the others have noticed
    const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
      const std::unique_ptr<Communicator> comm = connect(store, rank, 3);
      comm->barrier();
      if (rank == 2) {
        const std::string wait = "while [ ! -e '" + over + "' ]; do sleep 0.01; done";
        if (becomes) execl("/bin/sh", "sh", "-c", wait.c_str(), nullptr);
        if (fork() == 0) {  // has the sockets of its parent
          while (access(over.c_str(), F_OK) != 0) usleep(10'000);
          _exit(0);
        }
        raise(SIGKILL);
      }
      const std::string wrong = comm_error(*comm, {"rank 2 died"}, [&] { comm->all_reduce(ones(*comm, 5)); });
      if (store->add("noticed", 1) == 2) std::ofstream{over};
      return wrong;
    });
    CHECK(said[0] == "");
    CHECK(said[1] == "");
  }
}

TEST_CASE("processes: a rank that goes between a split's exchange and its end is named at once") {
  for (const int gone : {0, 2}) {
    const std::shared_ptr<Store> store = processes::make_mapped_store();
    const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
      const std::unique_ptr<Communicator> comm = connect(store, rank, 3);
      if (rank == gone) {
        comm->all_gather_bytes("0 0");  // what split() begins with
        _exit(0);
      }
      return conformance::missing(support::message_of<CommError>([&] { comm->split(0); }),
                                  {cat("[connect] rank ", gone, " died before it joined")});
    });
    for (int rank = 0; rank < 3; ++rank)
      if (rank != gone) CHECK(said[static_cast<std::size_t>(rank)] == "");
  }
}

TEST_CASE("processes: at the deadline the rank is named that all wait for, also those that wait for one that waits") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(4, [&](int rank) -> std::string {
    const std::unique_ptr<Communicator> comm = connect(store, rank, 4);
    if (rank == 0) {  // does not come
      store->get("over", Deadline::after(kPatience));
      return "";
    }
    comm->set_timeout(kPatience);
    if (rank == 3) {
      for (const char* other : {"1", "2"}) store->get(other, Deadline::after(kPatience));
      comm->set_timeout(Milliseconds(2'000));  // its deadline is the first
    }
    store->set(std::to_string(rank), "comes");
    const std::string wrong = comm_error(*comm, {"[recv] rank 0: ", "got nothing from rank 2, who waits for rank 0"},
                                         [&] { comm->recv(ones(*comm, 5), rank - 1); });
    if (rank == 3) store->set("over", "");
    return wrong;
  });
  CHECK(said == std::vector<std::string>{"", "", "", ""});
}

TEST_CASE("processes: a rank that is stopped is named at the deadline, and told when it goes on") {
  for (const Point point : {Point::collective, Point::exchange})
    drill(point, Milliseconds(100), {"100 ms", "nothing from rank"}, "", [point](Communicator& comm) -> std::string {
      raise(SIGSTOP);
      return comm_error(comm, {"100 ms", cat("nothing from rank ", comm.size() - 1)},
                        [&] { wait_for_others(comm, point); });
    });
}

TEST_CASE("processes: a rank that throws is named at once") {
  drill(Point::collective, kPatience, {"left before it came to all_reduce"}, "threw: out of order",
        [](Communicator&) -> std::string { throw std::runtime_error("out of order"); });
}

TEST_CASE("processes: a rank that does not connect is named to all that did") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(4, [&](int rank) -> std::string {
    if (rank == 2) return "";
    try {  // rank 0 says it to the others
      if (rank == 0)
        connect(std::make_shared<WaitsForThem>(store, std::vector{1, 3}), 0, 4, Milliseconds(100));
      else
        connect(std::make_shared<SaysWhenItConnects>(store, rank), rank, 4);
    } catch (const CommError& error) {
      return conformance::missing(error.what(), {"[connect] rank 2", "100 ms", "nothing from rank 2"});
    }
    return "connected";
  });
  CHECK(said == std::vector<std::string>(4));
  const std::vector<std::string> without_host = fork_ranks(2, [&](int rank) -> std::string {
    if (rank == 0) return "";
    try {
      connect(store, rank, 2, Milliseconds(50));
    } catch (const CommError& error) {
      return conformance::missing(error.what(), {"[connect] rank 0", "deadline"});
    }
    return "connected";
  });
  CHECK(without_host == std::vector<std::string>(2));
}

TEST_CASE("processes: a rank that dies while the others connect is named at once") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
    if (rank == 2) {  // rank 1 waits for it, and ends
      kill(has_connected(*store, 1), SIGKILL);
      return "";
    }
    try {
      connect(std::make_shared<SaysWhenItConnects>(store, rank), rank, 3);
    } catch (const CommError& error) {
      return conformance::missing(error.what(), {"[connect] rank 1", "died"});
    }
    return "connected";
  });
  CHECK(said == std::vector<std::string>{"", "signal 9", ""});
}

TEST_CASE("processes: ranks that differ about their number are told") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
    try {
      connect(store, rank, rank == 1 ? 2 : 3, Milliseconds(5'000));
    } catch (const CommError& error) {
      // Rank 2 may come when all is over.
      return rank == 2 ? "" : conformance::missing(error.what(), {"[connect] rank 1", "of 3", "of 2"});
    }
    return "connected";
  });
  CHECK(said == std::vector<std::string>(3));
}

TEST_CASE("processes: nothing is left behind") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(3, [&](int rank) -> std::string {
    {
      // What the library makes once, and the stream's thread.
      const std::unique_ptr<Communicator> first = connect(store, rank, 3);
      first->all_reduce(ones(*first, 10));
      synchronize(first->device());
    }
    const std::size_t files = processes::open_files(), threads = processes::threads();
    for (int round = 0; round < 5; ++round) {
      const std::unique_ptr<Communicator> comm = connect(store, rank, 3, kPatience, cat("round", round));
      comm->all_reduce(ones(*comm, 10));
      const std::unique_ptr<Communicator> part = comm->split(rank % 2);
      part->barrier();
      synchronize(comm->device());
    }
    if (processes::open_files() != files) return cat(processes::open_files(), " files are open, ", files, " before");
    if (processes::threads() > threads) return cat(processes::threads(), " threads, ", threads, " before");
    for (int r = 0; r < 3; ++r)
      if (store->try_get(cat("round", r, "/socket"))) return "an address is left in the store";
    return "";
  });
  CHECK(said == std::vector<std::string>(3));
}

TEST_CASE("processes: a forked child that ends does not take its parent's rank with it") {
  const std::shared_ptr<Store> store = processes::make_mapped_store();
  const std::vector<std::string> said = fork_ranks(2, [&](int rank) -> std::string {
    std::unique_ptr<Communicator> comm = connect(store, rank, 2);
    if (rank == 1) {
      store->get("child ended", Deadline::after(kPatience));
      comm->set_timeout(Milliseconds(50));
      // Rank 0 is late, but there.
      const std::string wrong = comm_error(*comm, {"50 ms", "nothing from rank 0"}, [&] { comm->barrier(); });
      store->set("told", "yes");
      return wrong;
    }
    const std::vector<std::string> child = fork_ranks(1, [&](int) -> std::string {
      comm.reset();
      return "";
    });
    store->set("child ended", "yes");
    store->get("told", Deadline::after(kPatience));
    return child[0];
  });
  CHECK(said == std::vector<std::string>(2));
}
