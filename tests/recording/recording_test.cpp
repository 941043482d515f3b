// What host mode record writes down of programs as users write them.
#include <cstddef>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/runtime/record/record.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/runtime/thread/device_thread.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::first_devices;

namespace {

struct Net : Module<Net> {
  Linear first, second;
  explicit Net(std::int64_t width) : first(width, 2 * width), second(2 * width, 4) {}
  Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
  void members(Members& m) override { m("first", first), m("second", second); }
};

std::vector<std::string> lines_with(const std::string& text, const std::string& begin) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(begin, 0) == 0) found.push_back(line);
  return found;
}

template <class Body>
std::string recorded(Body&& body) {
  record::restart();
  body();
  return record::text();
}

}  // namespace

TEST_CASE("a kernel is written down with its shapes, bytes and FLOP, and does not run") {
  const Device device = Device::host(0);
  const Tensor a = ones({64, 128}, {.device = device}), b = ones({128, 32}, {.device = device});
  float value = 1;
  const std::string text = recorded([&] { value = sum(matmul(a, b)).item<float>(); });
  CHECK(value == 0);
  const auto kernels = lines_with(text, "kernel ");
  REQUIRE(kernels.size() == 2);
  CHECK_THAT(kernels[0], Contains(" matmul f32 49152 8192 524288 1x64x128,1x128x32,1x64x32"));
  CHECK_THAT(kernels[1], Contains(" sum f32 8192 4 2048 "));
  // Reading it: a copy to plain memory, a wait of the host, and the mark that the value is none.
  CHECK(lines_with(text, "copy ") == std::vector<std::string>{lines_with(text, "copy ").at(0)});
  CHECK_THAT(lines_with(text, "copy ").at(0), Contains(" host:0 cpu 4"));
  CHECK(lines_with(text, "host_wait ").size() == 1);
  CHECK(lines_with(text, "item ") == std::vector<std::string>{"item 4"});
}

TEST_CASE("kernels: the FLOP of convolutions and attention") {
  const Device device = Device::host(0);
  const Tensor x = zeros({2, 8, 16, 16}, {.device = device}), w = zeros({4, 8, 3, 3}, {.device = device});
  const std::string conv = recorded([&] { (void)conv2d(x, w, {}, {.padding = 1}); });
  CHECK_THAT(lines_with(conv, "kernel ").at(0), Contains(std::to_string(2 * 2 * 4 * 16 * 16 * 8 * 9)));
  const Tensor q = zeros({2, 4, 32, 16}, {.device = device});
  const std::string all = recorded([&] { (void)scaled_dot_product_attention(q, q, q); });
  CHECK_THAT(lines_with(all, "kernel ").at(0), Contains(" attention f32 ") && Contains(" 524288 "));
  const std::string causal = recorded([&] { (void)scaled_dot_product_attention(q, q, q, {.causal = true}); });
  CHECK_THAT(lines_with(causal, "kernel ").at(0), Contains(" 262144 "));
}

TEST_CASE("memory of devices that record is an address range, up to what the device has") {
  const Device device = Device::host(1);
  {
    const Tensor large = empty({std::int64_t{10} << 30}, {.device = device});  // 40 GiB of f32
    CHECK(large.defined());
    CHECK_THROWS_AS(empty({std::int64_t{12} << 30}, {.device = device}), OutOfMemory);
  }
  CHECK(empty({std::int64_t{4} << 30}, {.device = device}).defined());
}

TEST_CASE("make_communicator gives a rank the recorded communicator, which meets nobody") {
  const auto made = [](const RankInfo& rank) {
    return make_communicator({.rank = rank, .device = Device::host(1), .backend = "nccl"});  // whatever is asked for
  };
  const auto communicator =
      made({.rank = 5, .size = 12, .local_rank = 1, .local_size = 4, .store = "127.0.0.1:9", .source = "arguments"});
  CHECK(std::string(communicator->backend()) == "recorded");
  CHECK(communicator->rank() == 5);
  CHECK(communicator->size() == 12);
  CHECK(communicator->host_count() == 3);
  CHECK(communicator->all_gather_bytes("me") == std::vector<std::string>(12, "me"));
  CHECK_THROWS_AS(communicator->split(0), NotSupported);
  const Tensor x = zeros({100}, {.device = Device::host(1)}), all = zeros({1200}, {.device = Device::host(1)});
  const std::string text = recorded([&] {
    communicator->all_reduce(x);
    communicator->all_gather(x, all);
  });
  const std::vector<std::string> lines = lines_with(text, "collective ");
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Contains(" all_reduce f32 400 ") && Contains(" 5 12 "));
  CHECK_THAT(lines[1], Contains(" all_gather f32 4800 ") && Contains(" 5 12 "));

  CHECK(made({.rank = 1, .size = 5, .local_size = 2})->host_count() == 3);
  CHECK(made({.rank = 1, .size = 5, .local_size = 5})->host_count() == 1);
  CHECK(std::string(made({})->backend()) == "loopback");  // one alone needs no fellows
}

TEST_CASE("a training step of replicas is the same text every time, with its threads, edges and waits") {
  const std::vector<Device> devices = first_devices(5);
  Net net(16);
  net.to(devices[0]);
  DataParallel model(std::move(net), {.devices = devices});
  SGD sgd(model.parameters(), {.lr = 0.1});
  const Tensor x = zeros({23, 16}, {.device = devices[0]});
  const auto step = [&] {
    record::mark("step");
    sgd.zero_grad();
    mean(model(x)).backward();
    sgd.step();
  };
  for (int i = 0; i < 3; ++i) step();  // the first ones make memory, streams and events
  const std::string first = recorded(step);
  for (int i = 0; i < 20; ++i) REQUIRE(recorded(step) == first);

  CHECK(lines_with(first, "mark ") == std::vector<std::string>{"mark step"});
  std::vector<std::string> names;
  for (const std::string& line : lines_with(first, "thread ")) names.push_back(line.substr(line.rfind(' ') + 1));
  for (int i = 0; i < 5; ++i) {
    CHECK_THAT(names, Catch::Matchers::VectorContains("ls-host:" + std::to_string(i)));
    CHECK_THAT(names, Catch::Matchers::VectorContains("lsb-host:" + std::to_string(i)));
  }
  // The caller waits for its replicas, and they for it; the forward has two products on each device.
  CHECK(lines_with(first, "after ").size() >= 10);
  CHECK(lines_with(first, "wait ").size() >= 10);
  // By the join it knows the end of each.
  const std::string caller =
      first.substr(first.find("thread 0 main"), first.find("thread 1 ") - first.find("thread 0 main"));
  std::size_t joined = 0;
  for (const std::string& line : lines_with(first, "thread "))
    if (line.find(" ls-host:") != line.npos)
      joined += caller.find("\nafter " + line.substr(7, line.find(' ', 7) - 7) + ":") != caller.npos;
  CHECK(joined == 5);
  int products = 0;
  for (const std::string& kernel : lines_with(first, "kernel ")) products += kernel.find(" matmul ") != kernel.npos;
  CHECK(products >= 5 * 5);
  CHECK(lines_with(first, "host_wait ").empty());  // nothing of a step blocks
}

TEST_CASE("replicas that meet in a shared norm are recorded and do not wait for ever") {
  const std::vector<Device> devices = first_devices(3);
  struct Normed : Module<Normed> {
    Linear first{8, 8};
    BatchNorm1d norm{8};
    Tensor forward(const Tensor& x) const { return norm(first(x)); }
    void members(Members& m) override { m("first", first), m("norm", norm); }
  } normed;
  normed.to(devices[0]);
  convert_replica_batchnorm(normed);
  DataParallel model(std::move(normed), {.devices = devices});
  const Tensor x = zeros({12, 8}, {.device = devices[0]});
  const auto step = [&] { mean(model(x)).backward(); };
  for (int i = 0; i < 3; ++i) step();
  const std::string first = recorded(step);
  for (int i = 0; i < 10; ++i) REQUIRE(recorded(step) == first);
}

namespace {

std::string train_ranks(int count) {
  return recorded([&] {
    const std::vector<std::string> backends = run_ranks(count, [](Communicator& communicator) {
      Net net(16);
      net.to(communicator.device());
      DistributedDataParallel<Net> ddp(std::move(net), communicator);
      SGD sgd(ddp.parameters(), {.lr = 0.1});
      for (int i = 0; i < 2; ++i) {
        sgd.zero_grad();
        mean(ddp(zeros({8, 16}, {.device = communicator.device()}))).backward();
        sgd.step();
      }
      return std::string(communicator.backend());
    });
    CHECK(backends == std::vector<std::string>(static_cast<std::size_t>(count), "recorded"));
  });
}

}  // namespace

TEST_CASE("ranks that are threads: each has its collectives, of one group") {
  const std::string text = train_ranks(3);
  std::vector<std::string> reductions;
  for (const std::string& line : lines_with(text, "collective "))
    if (line.find(" all_reduce ") != line.npos) reductions.push_back(line);
  REQUIRE(reductions.size() == 3 * 2);
  for (int rank = 0; rank < 3; ++rank) {
    int own = 0;
    for (const std::string& line : reductions)
      own += line.find(" threads") != line.npos && line.find(" " + std::to_string(rank) + " 3 -1") != line.npos;
    CHECK(own == 2);
  }
  // But for the group's number and the threads, which are new ones, the second time is as the first.
  CHECK(lines_with(train_ranks(3), "kernel ").size() == lines_with(text, "kernel ").size());
}

TEST_CASE("ranks that are threads exchange messages, and split") {
  struct Seen {
    std::vector<std::string> all;
    int half_size;
    std::string last_of_half;
  };
  const std::vector<Seen> seen = run_ranks(4, [](Communicator& communicator) {
    const std::string mine = std::to_string(communicator.rank());
    const auto half = communicator.split(communicator.rank() % 2);
    return Seen{communicator.all_gather_bytes(mine), half->size(), half->all_gather_bytes(mine).at(1)};
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    CHECK(seen[rank].all == std::vector<std::string>{"0", "1", "2", "3"});
    CHECK(seen[rank].half_size == 2);
    CHECK(seen[rank].last_of_half == std::to_string(2 + rank % 2));
  }
  CHECK_THROWS_WITH(run_ranks(3,
                              [](Communicator& communicator) {
                                if (communicator.rank() == 1) throw Error("no more");
                                communicator.barrier();
                              }),
                    Contains("rank 1") && Contains("no more"));
}

TEST_CASE("one rank stands for all") {
  const auto communicator = make_communicator({.rank = {.rank = 0, .size = 64}, .device = Device::host(0)});
  CHECK(communicator->size() == 64);
  Net net(16);
  net.to(Device::host(0));
  DistributedDataParallel<Net> ddp(std::move(net), *communicator);
  const std::string text = recorded([&] { mean(ddp(zeros({8, 16}, {.device = Device::host(0)}))).backward(); });
  const auto collectives = lines_with(text, "collective ");
  REQUIRE(collectives.size() == 1);
  CHECK_THAT(collectives[0], Contains(" all_reduce f32 ") && Contains(" 0 64 -1"));
  CHECK_THROWS_WITH(communicator->split(0), Contains("[split]") && Contains("run_ranks"));
}

TEST_CASE("threads of the program take their turns without being announced") {
  const Tensor x = zeros({4, 4}, {.device = Device::host(2)});
  const std::string text = recorded([&] {
    std::thread other([&] { (void)relu(x); });
    other.join();
    (void)relu(x);
  });
  CHECK(lines_with(text, "kernel ").size() == 2);
}

TEST_CASE("who takes over from a new object knows nothing of one that lay at its address before") {
  alignas(Join) std::byte place[sizeof(Join)];
  const auto after_a_join = [&](bool of_the_thread) {
    return lines_with(recorded([&] {
                        (void)zeros({4}, {.device = Device::host(1)});
                        Join* join = new (place) Join(1);
                        std::thread other([&] {
                          (void)zeros({4}, {.device = Device::host(1)});
                          join->done();
                        });
                        other.join();
                        if (!of_the_thread) {
                          join->~Join();
                          join = new (place) Join(0);
                        }
                        join->wait(Deadline::after(Milliseconds(10'000)));
                        join->~Join();
                      }),
                      "after ")
        .size();
  };
  CHECK(after_a_join(true) == 1);
  CHECK(after_a_join(false) == 0);
}

TEST_CASE("a mark has no spaces; what is no mode record says so") {
  CHECK_THROWS_WITH(record::mark("two words"), Contains("[record::mark]") && Contains("two words"));
  CHECK_THROWS_WITH(record::write("/no/such/folder/step.rec"), Contains("/no/such/folder/step.rec"));
}
