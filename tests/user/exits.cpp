// Programs that end with work in flight, each as a user may write it: `lockstep-user-exits <case> <milliseconds>`,
// where the time is how long the work has been going on when the program ends. Exit code 0, whatever runs.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/thread/shutdown.h"
#include "lockstep/tensor/data/data_loader.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/sgd.h"

namespace {

using namespace lockstep;

int wait_milliseconds = 0;
void let_it_run() { std::this_thread::sleep_for(std::chrono::milliseconds(wait_milliseconds)); }

Tensor square(std::int64_t side, Device device) { return full({side, side}, 0.5, {.device = device}); }

struct Net : Module<Net> {
  Conv2d conv{1, 4, 3};
  Linear head{4 * 36, 10};
  Tensor forward(const Tensor& x) const { return head(flatten(relu(conv(x)), 1)); }
  void members(Members& m) override { m("conv", conv), m("head", head); }
};
const std::vector<Device>& two() {
  static const auto& made = *new std::vector<Device>{Device::host(0), Device::host(1)};
  return made;
}
Tensor images(std::int64_t count) { return full({count, 1, 8, 8}, 0.25); }

// Work on both devices that nobody waits for.
void products(int count) {
  for (int i = 0; i < count; ++i)
    for (const Device device : two()) (void)matmul(square(64, device), square(64, device));
}

void train(int steps) {
  DataParallel net(Net(), {.devices = two()});
  SGD optimizer(net.parameters(), {.lr = 0.01});
  for (int i = 0; i < steps; ++i) {
    net.zero_grad();
    net(images(8)).mean().backward();
    optimizer.step();
  }
}

struct Slow : Module<Slow> {
  Linear linear{64, 64};
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (int i = 0; i < 200'000; ++i) y = tanh(linear(y));
    return y;
  }
  void members(Members& m) override { m("linear", linear); }
};
std::optional<DataParallel<Slow, Tensor(const Tensor&)>> kept_slow;
void abandoned(bool kept) {
  const NoGrad no_grad;
  kept_slow.emplace(Slow(), DataParallelOptions{.devices = two(), .timeout = Milliseconds(5)});
  try {
    (void)(*kept_slow)(full({32, 64}, 1));
  } catch (const TimeoutError&) {
  }
  if (!kept) kept_slow.reset();
}

[[noreturn]] void exit_elsewhere() {
  train(1);                                                                      // a trace has begun
  for (const Device device : two()) synchronize(device, Milliseconds(100'000));  // and first calls of oneDNN are over
  std::thread([] {
    let_it_run();
    std::exit(0);
  }).detach();
  for (;;) train(2);
}

struct Exits : Module<Exits> {
  Linear linear{64, 64};
  Tensor forward(const Tensor& x) const {
    Tensor y = linear(x);
    if (x.device() == two()[1]) std::exit(0);
    return y;
  }
  void members(Members& m) override { m("linear", linear); }
};

std::atomic<int> numbers_made{0};
struct Numbers {
  std::int64_t size() const { return 1000; }
  Tensor get(std::int64_t index) const {
    const Tensor number = matmul(square(32, Device::cpu()), square(32, Device::cpu())) * index;
    ++numbers_made;
    return number;
  }
};

// Destroyed after main, before or after the library is used for the last time.
std::optional<DataParallel<Net, Tensor(const Tensor&)>> kept_net;
std::optional<Tensor> kept_tensor;
struct UsesItLate {
  bool wanted = false;
  ~UsesItLate() {
    if (!wanted) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // other threads notice the exit
    try {
      synchronize(Device::host(0), Milliseconds(60'000));
    } catch (const Error&) {
    }
    try {
      (void)(*kept_tensor + 1.0).to(Device::cpu());
    } catch (const Error&) {
    }
    const NoGrad no_grad;
    (void)Net()(images(8));
    (void)matmul(square(64, Device::cpu()), square(64, Device::cpu()));
  }
} uses_it_late;

// Whether all other threads of this process sleep.
bool others_sleep() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string status;
    std::getline(std::ifstream(thread.path() / "stat"), status);
    const std::size_t state = status.rfind(") ") + 2;  // "number (name) state ..."; empty: it has ended
    if (thread.path().filename() != std::to_string(::gettid()) && status.size() > state && status[state] != 'S')
      return false;
  }
  return true;
}

// As a server has it. What its thread uses of other libraries is destroyed before it.
struct Pool {
  std::atomic<bool> stopping{false};
  std::thread thread;
  void start() {
    thread = std::thread([this] {
      const NoGrad no_grad;
      const Net net;
      while (!stopping) (void)matmul(square(64, Device::cpu()), square(64, Device::cpu())), (void)net(images(2));
    });
  }
  ~Pool() {
    stopping = true;
    if (thread.joinable()) thread.join();
  }
} pool;

struct NumbersOfDevice {
  std::int64_t size() const { return 1'000'000; }
  Tensor get(std::int64_t) const { return matmul(square(64, device), square(64, device)).to(Device::cpu()); }
  Device device;
};
using Loader = decltype(DataLoader(NumbersOfDevice(), DataLoaderOptions()));
std::optional<Loader> kept_loader;
std::optional<decltype(kept_loader->begin())> kept_batches;
void load(Device device) {
  kept_loader.emplace(NumbersOfDevice{device}, DataLoaderOptions{.batch_size = 4,
                                                                 .workers = 2,
                                                                 .prefetch_factor = 10'000,  // never done
                                                                 .timeout = Milliseconds(1'000'000'000)});
  kept_batches.emplace(kept_loader->begin());
}

// Threads that ask again and again whether a device is at rest, as it is not. The exit needs its memory.
void watch_busy_device() {
  const Device device = two()[0];
  kept_tensor = square(64, device);
  uses_it_late.wanted = true;
  for (int i = 0; i < 20; ++i)
    current_stream(device).enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  for (int i = 0; i < 2; ++i)
    std::thread([device] {
      for (;;) {
        try {
          synchronize(device, Milliseconds(1));
        } catch (const Error&) {
        }
      }
    }).detach();
}

// What a forked child says to a call that needs threads: at once, after their first use in its parent.
int fork_and_use(bool used_before) {
  DataLoader loader(Numbers(), {.batch_size = 4, .workers = 2, .timeout = Milliseconds(100'000)});
  std::optional<decltype(loader.begin())> batches;
  if (used_before) {
    train(1);
    batches.emplace(loader.begin());
    // A lock that another thread holds at the fork stays locked in the child: everybody is to be at rest.
    // Two workers are two batches ahead, of four numbers each, of the one that is here.
    while (numbers_made < 20) std::this_thread::yield();
    for (const Device device : two()) synchronize(device, Milliseconds(100'000));
    while (!others_sleep()) std::this_thread::yield();
  }
  if (used_before) {  // a rank's child is no rank
    int answer = -1;
    run_ranks(2, [&](Communicator& communicator) {
      if (communicator.rank() == 0) {
        const pid_t child = ::fork();
        if (child == 0) {
          ::alarm(60);
          try {
            communicator.barrier();
            ::_exit(1);
          } catch (const Error& error) {
            ::_exit(std::strstr(error.what(), "forked") ? 0 : 2);
          }
        }
        ::waitpid(child, &answer, 0);
      }
      communicator.barrier();
    });
    if (answer != 0) return 8;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // a wait for what is not there ends by a signal
    int wrong = 0;
    const auto refused = [&](auto&& use) {
      try {
        use();
        return false;
      } catch (const Error& error) {
        return std::strstr(error.what(), "forked") != nullptr;
      }
    };
    if (full({3}, 2).to_vector<float>()[2] != 2) wrong |= 1;
    if (refused([] { train(1); }) != used_before) wrong |= 2;
    if (used_before && !refused([&] {
          for (int i = 0; i < 100; ++i) ++*batches;
        }))
      wrong |= 4;
    batches.reset();
    std::exit(wrong ? 10 + wrong : 0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 9;
  if (WEXITSTATUS(status) != 0) return WEXITSTATUS(status);
  train(1);  // the parent goes on
  return 0;
}

int end_with(const std::string& what) {
  if (what == "products")
    products(200);
  else if (what == "training")
    train(3);
  else if (what == "abandoned" || what == "abandoned_static")
    abandoned(what == "abandoned_static");
  else if (what == "elsewhere")
    exit_elsewhere();
  else if (what == "replica")
    (void)DataParallel(Exits(), {.devices = two()})(full({4, 64}, 1));
  else if (what == "threads") {
    synchronize(Device::host(0));  // a trace has begun
    for (int i = 0; i < 3; ++i)
      std::thread([] {
        const NoGrad no_grad;
        Net net;
        for (;;) (void)net(images(2)).to_vector<float>();
      }).detach();
  } else if (what == "main_ends") {  // the main thread alone: the others go on
    synchronize(Device::host(0));
    std::thread([] {
      const NoGrad no_grad;
      const Net net;
      for (int i = 0; i < 200; ++i) (void)net(images(2)).to_vector<float>();
      std::exit(0);
    }).detach();
    ::pthread_exit(nullptr);
  } else if (what == "loader") {
    DataLoader loader(Numbers(), {.batch_size = 4, .workers = 2});
    int batches = 0;
    for (const Tensor& batch : loader) {
      (void)batch;
      if (++batches == 3) std::exit(0);
    }
  } else if (what == "statics") {
    kept_net.emplace(Net(), DataParallelOptions{.devices = two()});
    (void)(*kept_net)(images(8));
    kept_tensor = matmul(square(256, two()[0]), square(256, two()[0]));
    uses_it_late.wanted = true;
    (void)Net()(images(8));
    products(50);
  } else if (what == "pool") {
    synchronize(Device::host(0));  // a trace has begun
    pool.start();
  } else if (what == "watched") {
    watch_busy_device();
  } else if (what == "static_loader" || what == "static_device_loader") {
    synchronize(Device::host(0));
    load(what == "static_loader" ? Device::cpu() : Device::host(0));
  } else if (what == "quick") {
    products(200);
    let_it_run();
    std::quick_exit(0);
  } else if (what == "shutdown") {
    train(2);
    products(50);
    shutdown(Milliseconds(200'000));
    shutdown();
    int refused = 0;
    try {
      train(1);
    } catch (const Error& error) {
      refused = std::strstr(error.what(), "shutdown()") != nullptr;
    }
    if (full({3}, 2).to_vector<float>()[2] != 2 || !refused) return 3;
  } else if (what == "forked" || what == "fork_first") {
    return fork_and_use(what == "forked");
  } else if (what == "unused") {
    shutdown();
  } else {
    return 2;
  }
  let_it_run();
  return 0;
}

}  // namespace

int main(int count, char** arguments) try {
  if (count > 2) wait_milliseconds = std::atoi(arguments[2]);
  return end_with(count > 1 ? arguments[1] : "");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 4;
}
