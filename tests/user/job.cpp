// A program as a user writes it, with nothing but public headers: ranks find each other, train a small model, and say
// which communicator they got.
//
// usage: job [--threads N] [--run-ranks N] [--backend NAME] [--timeout MILLISECONDS] [--killed RANK] [--stopped RANK]
//   without --threads or --run-ranks: one rank of a job. killed, stopped: that rank is, in the middle of the training.
//   A line for each rank: "rank 0 of 2: nccl on cuda:0, numbers
//   are right". Exits with 0, 1 for wrong numbers, 3 for NotSupported, 4 for another error.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

constexpr int kSteps = 3;

struct Net : Module<Net> {
  Parameter weight{zeros({3, 1}, {.dtype = DType::f64})};
  Parameter bias{zeros({1}, {.dtype = DType::f64})};
  Tensor forward(const Tensor& x) const { return matmul(x, weight.tensor()) + bias.tensor(); }
  void members(Members& m) override { m("weight", weight), m("bias", bias); }
};

// Whole numbers, which every rank has of its own: whatever is added in whatever order, every bit is known.
Tensor batch_of(int rank, int step, Device device) {
  const double r = rank + 1;
  const std::vector<double> values{r, step - r, 1, -r, 2, step + 0.0};
  return from_data(std::span<const double>(values), {2, 3}, {.device = device});
}

std::vector<double> numbers_of(Module<Net>& net) {
  std::vector<double> all;
  for (const Parameter& parameter : net.parameters())
    for (const double x : parameter.tensor().to_vector<double>()) all.push_back(x);
  return all;
}

// The plain loop: one model, all ranks' batches.
std::vector<double> plain(int ranks) {
  Net net;
  net.to(Device::host(0));
  SGD optimizer(net.parameters(), {.lr = 1});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    Tensor loss;
    for (int r = 0; r < ranks; ++r) {
      const Tensor part = sum(square(net(batch_of(r, step, Device::host(0))) - double(r)));
      loss = loss.defined() ? loss + part : part;
    }
    loss.backward();
    optimizer.step();
  }
  return numbers_of(net);
}

int killed = -1, stopped = -1;

// Several steps: averages of what is as many times too large are sums.
std::vector<double> trained(Communicator& communicator) {
  DistributedDataParallel net(Net{}, communicator);
  SGD optimizer(net.parameters(), {.lr = 1});
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1 && communicator.rank() == killed) std::raise(SIGKILL);
    if (step == 1 && communicator.rank() == stopped) std::raise(SIGSTOP);
    optimizer.zero_grad();
    const Tensor x = batch_of(communicator.rank(), step, communicator.device());
    (sum(square(net(x) - double(communicator.rank()))) * double(communicator.size())).backward();
    optimizer.step();
  }
  return numbers_of(net.module());
}

std::string wrong;  // what was
std::mutex mutex;
void expect(Communicator& communicator, const char* what, const std::vector<double>& expected,
            const std::vector<double>& got) {
  if (expected == got) return;
  const std::lock_guard lock(mutex);
  wrong += std::string(wrong.empty() ? "" : ", ") + what + " on rank " + std::to_string(communicator.rank());
}

Tensor numbers(Communicator& communicator, const std::vector<double>& values) {
  return from_data(std::span<const double>(values), {static_cast<std::int64_t>(values.size())},
                   {.device = communicator.device()});
}

void collectives(Communicator& communicator) {
  const int rank = communicator.rank(), size = communicator.size(), next = (rank + 1) % size;
  const int before = (rank + size - 1) % size;
  std::vector<double> by_rank, mine_for_all, from_all;
  for (int r = 0; r < size; ++r) {
    by_rank.push_back(100 + r);
    mine_for_all.push_back(10 * rank + r);
    from_all.push_back(10 * r + rank);
  }
  const double total = size * (size - 1) / 2;
  const Tensor one = numbers(communicator, {100.0 + rank});
  const Tensor all = numbers(communicator, std::vector<double>(by_rank.size())),
               row = numbers(communicator, mine_for_all);
  const Tensor reduced = numbers(communicator, {0});
  communicator.all_gather(one, all);
  expect(communicator, "all_gather", by_rank, all.to_vector<double>());
  communicator.all_to_all(row, all);
  expect(communicator, "all_to_all", from_all, all.to_vector<double>());
  communicator.reduce_scatter(row, reduced);
  expect(communicator, "reduce_scatter", {10 * total + size * rank}, reduced.to_vector<double>());
  communicator.all_reduce(one);
  expect(communicator, "all_reduce", {100 * size + total}, one.to_vector<double>());
  if (size > 1) {
    const Tensor parcel = numbers(communicator, {rank + 0.5});
    if (rank == 0) communicator.send(parcel, next);
    communicator.recv(reduced, before);
    if (rank != 0) communicator.send(parcel, next);
    expect(communicator, "send and recv", {before + 0.5}, reduced.to_vector<double>());
  }
  expect(communicator, "broadcast_bytes", {double(size - 1)},
         {std::stod(communicator.broadcast_bytes(std::to_string(rank), size - 1))});
}

void work(Communicator& communicator) {
  collectives(communicator);
  expect(communicator, "training", plain(communicator.size()), trained(communicator));
  const std::lock_guard lock(mutex);
  std::printf("rank %d of %d: %s on %s, numbers are %s\n", communicator.rank(), communicator.size(),
              communicator.backend(), to_string(communicator.device()).c_str(),
              wrong.empty() ? "right" : wrong.c_str());
  std::fflush(stdout);
}

// Ranks that are threads of their own making.
void threads(int count, const CommunicatorOptions& options) {
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(count));
  std::vector<std::thread> all;
  for (int r = 0; r < count; ++r)
    all.emplace_back([&, r] {
      try {
        CommunicatorOptions mine = options;
        mine.store = store;
        mine.rank = {.rank = r, .size = count, .local_rank = r, .local_size = count};
        work(*make_communicator(mine));
      } catch (...) {
        errors[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  for (std::thread& thread : all) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace

int main(int argc, char** argv) {
  int thread_count = 0, run_ranks_count = 0;
  CommunicatorOptions options;
  options.timeout = Milliseconds(60'000);
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--threads") == 0) thread_count = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--run-ranks") == 0) run_ranks_count = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--backend") == 0) options.backend = argv[i + 1];
    if (std::strcmp(argv[i], "--timeout") == 0) options.timeout = Milliseconds(std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--killed") == 0) killed = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--stopped") == 0) stopped = std::atoi(argv[i + 1]);
  }
  try {
    if (run_ranks_count > 0) {
      run_ranks(run_ranks_count, work);
    } else if (thread_count > 0) {
      threads(thread_count, options);
    } else {
      work(*make_communicator(options));
    }
  } catch (const NotSupported& error) {
    std::printf("refused: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 4;
  }
  return wrong.empty() ? 0 : 1;
}
