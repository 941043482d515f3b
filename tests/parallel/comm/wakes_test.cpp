// Who waits for ranks, or for a store, is woken by everything that ends the wait, and does not sleep until the
// deadline.
#include <chrono>

#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/parallel/comm/store/store.h"
#include "parallel/comm/peer/peer_support.h"
#include "support/counter.h"

using namespace comm_test;
using lockstep::test::Counter;

namespace {

constexpr Milliseconds kDay{24 * 3600 * 1000};

// Whether what waits in a thread of its own ends by `wake`. It is given some time to fall asleep before that: without,
// a lost wake-up may go unnoticed, but none is reported where there is none. `free` ends the wait in any case.
bool woken(const std::function<void()>& wait, const std::function<void()>& wake, const std::function<void()>& free) {
  const Counter calling, over;
  std::thread waiting([&] {
    calling.add();
    try {
      wait();
    } catch (const std::exception&) {
    }
    over.add();
  });
  calling.reaches(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  wake();
  const bool in_time = over.reaches(1);
  if (!in_time) free();
  waiting.join();
  return in_time;
}

}  // namespace

TEST_CASE("communicator: ranks that wait are woken when another leaves, aborts or comes") {
  struct Kind {
    const char* name;
    std::function<Group()> make;
  };
  const std::vector<Device> devices = support::first_devices(3);
  const Kind kinds[] = {{"peers", [&] { return make_peer_group(devices, {.timeout = kDay}); }},
                        {"shared memory", [&] { return make_thread_group(devices, {.timeout = kDay}); }}};
  struct Call {
    const char* name;
    std::function<void(Communicator&)> make;
  };
  const auto tensor = [](Communicator& c) { return full({8}, 1, {.dtype = DType::f32, .device = c.device()}); };
  const Call calls[] = {{"barrier", [](Communicator& c) { c.barrier(); }},
                        {"all_reduce",
                         [&](Communicator& c) {
                           c.all_reduce(tensor(c));
                           synchronize(c.device());
                         }},
                        {"recv",
                         [&](Communicator& c) {
                           c.recv(tensor(c), 1);
                           synchronize(c.device());
                         }},
                        {"split", [](Communicator& c) { c.split(0); }}};
  for (const Kind& kind : kinds) {
    for (const Call& call : calls) {
      for (const char* how : {"leaves", "aborts", "is aborted here", "deadline of another"}) {
        INFO(kind.name << ", " << call.name << ", " << how);
        Group group = kind.make();
        const std::string_view deed = how;
        REQUIRE(woken([&] { call.make(*group[0]); },
                      [&] {
                        if (deed == "leaves") group[1].reset();
                        if (deed == "aborts") group[1]->abort("enough");
                        if (deed == "is aborted here") group[0]->abort("enough");
                        if (deed != "deadline of another") return;
                        group[2]->set_timeout(Milliseconds(20));
                        message_of<CommError>([&] { group[2]->barrier(); });
                      },
                      [&] { group[0]->abort("the test is over"); }));
        group.clear();
        for (const Device device : devices) {
          try {
            synchronize(device);
          } catch (const Error&) {  // of the collective, in modes in which streams run by themselves
          }
        }
      }
    }
  }
}

TEST_CASE("a store: who waits for a key is woken when it is set, added to or compared and set") {
  const std::shared_ptr<Store> store = make_local_store();
  auto name = [n = 0]() mutable { return cat("key", n++); };
  const auto waits = [&](const std::function<void(const std::string&)>& write) {
    const std::string key = name();
    return woken([&] { store->get(key, Deadline::after(kDay)); }, [&] { write(key); }, [&] { store->set(key, ""); });
  };
  CHECK(waits([&](const std::string& key) { store->set(key, "x"); }));
  CHECK(waits([&](const std::string& key) { store->add(key, 1); }));
  CHECK(waits([&](const std::string& key) { store->compare_set(key, "", "x"); }));
}
