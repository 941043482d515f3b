// What lockstep-run hears of the communicators of its ranks.
#include "lockstep/parallel/comm/ranks/launcher_protocol.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/store/socket.h"
#include "support/catch.h"

using namespace lockstep;

namespace {

// Listens as lockstep-run does, with this process as rank 0 of 2.
class Launcher {
 public:
  Launcher() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socklen_t length = sizeof address.sun_family;  // no name: the system finds one
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
    length = sizeof address;
    REQUIRE(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    const std::string name(address.sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
    ::setenv("LOCKSTEP_RANK", "0", 1);
    ::setenv("LOCKSTEP_WORLD_SIZE", "2", 1);
    ::setenv(detail::kReports, name.c_str(), 1);
  }
  ~Launcher() {
    for (const char* name : {"LOCKSTEP_RANK", "LOCKSTEP_WORLD_SIZE", detail::kReports}) ::unsetenv(name);
  }
  // The next report; "" when there is none. Whoever reports has done so when his call is over.
  std::string heard() {
    char text[3000];
    const ssize_t bytes = ::recv(socket_.get(), text, sizeof text, MSG_DONTWAIT);
    return bytes < 0 ? "" : std::string(text, static_cast<std::size_t>(bytes));
  }

 private:
  detail::Fd socket_;
};

// Two ranks that are threads, of which only the first can be a rank of the launcher.
std::vector<std::unique_ptr<Communicator>> two_ranks(const std::string& source) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::unique_ptr<Communicator>> ranks(2);
  const auto make = [&](int rank) {
    ranks[static_cast<std::size_t>(rank)] =
        make_communicator({.store = store,
                           .rank = {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .source = source},
                           .device = Device::host(rank)});
  };
  std::thread other(make, 1);
  make(0);
  other.join();
  return ranks;
}

}  // namespace

TEST_CASE("job: the launcher hears of its own ranks, not of threads that happen to have their numbers") {
  Launcher launcher;
  two_ranks("default")[0]->abort("tired");
  CHECK(launcher.heard() == "");
  two_ranks("lockstep-run")[0]->abort("tired");
  CHECK(launcher.heard() == "0 0 [abort] rank 0 aborted: tired");
  // What is overcome is the job's failure: a communicator of others overcomes nothing.
  make_communicator({.rank = RankInfo()});
  CHECK(launcher.heard() == "");
  two_ranks("lockstep-run");
  CHECK(launcher.heard() == "0 well");
}
