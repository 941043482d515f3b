// gloo::allreduce of floats over a range of sizes, for scripts/compare_peers: two ranks, threads of this process,
// over loopback TCP. Prints bytes, a tab, microseconds for each size: the median over rounds of rank 0's time per call.
// Ends with 1 after a wrong sum.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr int kRanks = 2;
using Clock = std::chrono::steady_clock;

void run(int rank, gloo::rendezvous::Store& store, int rounds, const std::vector<long>& sizes) {
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kRanks);
  context->connectFullMesh(store, device);
  for (const long bytes : sizes) {
    const std::size_t count = static_cast<std::size_t>(bytes / 4);
    std::vector<float> input(count, 1.0f), output(count);
    const int calls = bytes <= 65536 ? 100 : bytes <= (4 << 20) ? 20 : 5;
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {
      gloo::BarrierOptions barrier(context);
      gloo::barrier(barrier);
      const auto begin = Clock::now();
      for (int i = 0; i < calls; ++i) {
        gloo::AllreduceOptions options(context);
        options.setInput(input.data(), count);
        options.setOutput(output.data(), count);
        options.setReduceFunction(
            static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
        gloo::allreduce(options);
      }
      if (round > 0) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls);
    }
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
    for (const float sum : output)
      if (sum != kRanks) std::exit(1);
    if (rank == 0) std::printf("%ld\t%.3f\n", bytes, times[times.size() / 2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  std::vector<long> sizes;
  for (int a = 2; a < argc; ++a) sizes.push_back(std::atol(argv[a]));
  gloo::rendezvous::HashStore store;
  std::thread other([&] { run(1, store, rounds, sizes); });
  run(0, store, rounds, sizes);
  other.join();
}
