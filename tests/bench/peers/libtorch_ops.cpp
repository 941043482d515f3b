// The small operations of `lockstep-bench ops`, by libtorch, for comparison. Not part of the build:
// scripts/bench_libtorch compiles it against a Python installation of PyTorch and runs both.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

constexpr int kRuns = 9, kCalls = 20'000, kChain = 1'000;

template <class Body>
double microseconds(int calls, Body body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (int run = -1; run < kRuns; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) body();
    if (run >= 0) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count() * 1e6 / calls);
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void print(const char* name, double value) { std::printf("%s\t%.4g\n", name, value); }

}  // namespace

int main() {
  torch::set_num_threads(1);
  const torch::Tensor a = torch::rand({16}), b = torch::rand({16});
  print("allocate from the cache and release", microseconds(kCalls, [] { torch::empty({16}); }));
  {
    const torch::NoGradGuard no_grad;
    print("add, 16 floats", microseconds(kCalls, [&] { torch::add(a, b); }));
    torch::nn::Linear linear(16, 16);
    const torch::Tensor row = torch::rand({1, 16});
    print("Linear 16 x 16, one row", microseconds(kCalls, [&] { linear(row); }));
  }
  torch::Tensor leaf = torch::rand({16}, torch::requires_grad());
  print("add, 16 floats, recorded", microseconds(kCalls, [&] { torch::add(leaf, b); }));
  const torch::Tensor ones = torch::ones({16});
  print("chain of 1,000 adds, forward and backward, per add", microseconds(5, [&] {
                                                                torch::Tensor x = leaf;
                                                                for (int i = 0; i < kChain; ++i) x = x + b;
                                                                x.backward(ones);
                                                                leaf.mutable_grad().reset();
                                                              }) / kChain);
}
