#include "strike.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <utility>

#include "parallel/comm/store/forwarding_store.h"

namespace failures {
namespace {

struct InWrite {
  int left = 0;
  std::function<void()> strike;
};
thread_local InWrite* in_write = nullptr;

bool sleeps(pid_t thread) {
  std::ifstream file(cat("/proc/self/task/", thread, "/stat"));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  return name_end != text.npos && text.compare(name_end, 4, ") S ") == 0;
}

class StrikingStore final : public lockstep::test::ForwardingStore {
 public:
  StrikingStore(std::shared_ptr<Store> store, int nth, std::function<void()> strike)
      : ForwardingStore(std::move(store)), left_(nth), strike_(std::move(strike)) {}

 private:
  void before_call() override {
    if (--left_ == 0) strike_();
  }
  std::atomic<int> left_;
  const std::function<void()> strike_;
};

}  // namespace

std::int64_t shared_clock() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::shared_ptr<Store> make_striking_store(std::shared_ptr<Store> store, int nth, std::function<void()> strike) {
  return std::make_shared<StrikingStore>(std::move(store), nth, std::move(strike));
}

StrikesInWrite::StrikesInWrite(int nth, std::function<void()> strike) {
  in_write = new InWrite{nth, std::move(strike)};
}
StrikesInWrite::~StrikesInWrite() { delete std::exchange(in_write, nullptr); }

bool strike_inside(const std::function<void()>& wait, const std::function<void()>& strike) {
  std::atomic<bool> returned{false}, struck{false};
  const auto thread = static_cast<pid_t>(::syscall(SYS_gettid));
  std::atomic<bool> entered{false};
  std::thread other([&] {
    while (!returned && !(entered && sleeps(thread))) std::this_thread::sleep_for(Milliseconds(1));
    if (returned) return;
    struck = true;
    strike();
  });
  struct Join {
    std::thread& thread;
    std::atomic<bool>& returned;
    ~Join() {
      returned = true;
      thread.join();
    }
  };
  {
    const Join join{other, returned};
    entered = true;
    wait();
  }
  return struck;
}

}  // namespace failures

// In the place of the C library's: the library's files are written by it.
extern "C" ssize_t write(int file, const void* from, size_t bytes) {
  if (failures::InWrite* const armed = failures::in_write; armed && --armed->left == 0) armed->strike();
  return ::syscall(SYS_write, file, from, bytes);
}
