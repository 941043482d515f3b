#include "lockstep/parallel/comm/together.h"

#include <csignal>
#include <mutex>

#include "support/catch.h"

using namespace lockstep;

TEST_CASE("transfers at the same time: the threads for them leave the program's signals alone") {
  const std::thread::id caller = std::this_thread::get_id();
  std::mutex mutex;
  int others = 0, open = 0;
  const std::vector<Collective> transfers = {{.kind = Collective::Kind::send, .peer = 1},
                                             {.kind = Collective::Kind::recv, .peer = 1},
                                             {.kind = Collective::Kind::send, .peer = 2}};
  detail::perform_together(transfers, [&](const Collective&) {
    sigset_t blocked;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    const std::lock_guard lock(mutex);
    if (std::this_thread::get_id() == caller) return;
    ++others;
    open += ::sigismember(&blocked, SIGINT) != 1;
  });
  CHECK(others == 2);
  CHECK(open == 0);
}
