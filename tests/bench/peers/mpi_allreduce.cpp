// MPI_Allreduce of floats over a range of sizes, for scripts/compare_peers. Prints bytes, a tab, microseconds for
// each size: the median over rounds of the ranks' mean time per call. Ends with 1 after a wrong sum.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  for (int a = 2; a < argc; ++a) {
    const long bytes = std::atol(argv[a]);
    const int count = static_cast<int>(bytes / 4);
    std::vector<float> input(count, 1.0f), output(count);
    const int calls = bytes <= 65536 ? 1000 : bytes <= (4 << 20) ? 100 : 10;
    std::vector<double> times;
    for (int round = 0; round <= rounds; ++round) {
      MPI_Barrier(MPI_COMM_WORLD);
      const double begin = MPI_Wtime();
      for (int i = 0; i < calls; ++i)
        MPI_Allreduce(input.data(), output.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      const double mine = (MPI_Wtime() - begin) * 1e6 / calls;
      double sum = 0;
      MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
      if (round > 0) times.push_back(sum / ranks);  // the first one warms up
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    for (const float sum : output)
      if (sum != static_cast<float>(ranks)) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) std::printf("%ld\t%.3f\n", bytes, times[times.size() / 2]);
  }
  MPI_Finalize();
}
