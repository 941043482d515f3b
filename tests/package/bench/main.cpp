// A benchmark of a user's own.
#include "lockstep/bench.h"
#include "lockstep/lockstep.h"

int main(int argc, char** argv) {
  using namespace lockstep;
  bench::Suite suite("my-bench", "What my network costs");
  for (const std::int64_t n : {64, 256})
    suite.add(cat("matmul, side ", n), [n](bench::Run& run) {
      const Tensor a = randn({n, n}, {.device = run.device()}), b = randn({n, n}, {.device = run.device()});
      run.work(2.0 * static_cast<double>(n * n * n), "FLOP");
      run.measure([&] { matmul(a, b); });
    });
  return suite.main(argc, argv);
}
