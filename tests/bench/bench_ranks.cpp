#include "bench_ranks.h"

#include <cstdlib>
#include <exception>
#include <string_view>
#include <thread>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/runtime/error.h"

namespace lockstep::bench {

using namespace lockstep;

BenchRanks BenchRanks::discover(const std::string& devices, int threads, int per_thread) {
  BenchRanks ranks{.process = discover_ranks(), .threads = threads, .per_thread = per_thread, .devices = {}};
  const std::vector<Device> all = devices.empty() ? accelerators() : parse_devices(devices);
  if (threads == 0) ranks.threads = ranks.process.size > 1 ? 1 : static_cast<int>(all.size());
  const char* chosen = std::getenv("LOCKSTEP_COMMUNICATOR");
  const bool by_mpi =
      ranks.process.size > 1 && (ranks.process.store.empty() || (chosen && std::string_view(chosen) == "mpi"));
  if (by_mpi && ranks.here() > 1)
    throw NotSupported(cat("[-t] expected one rank for each process, where MPI brings them together, got -t ",
                           ranks.threads, " -g ", ranks.per_thread,
                           "; with LOCKSTEP_STORE=host:port, or lockstep-run, there can be more"));
  const int first = ranks.process.local_rank * ranks.here();
  for (int r = first; r < first + ranks.here(); ++r)
    ranks.devices.push_back(all[static_cast<std::size_t>(r) % all.size()]);
  return ranks;
}

std::vector<std::unique_ptr<Communicator>> BenchRanks::connect(Milliseconds timeout) const {
  const bool on_host = devices[0].type() == DeviceType::host;
  if (process.size == 1 && on_host) return make_thread_group(devices, {.timeout = timeout});
  std::shared_ptr<Store> store;
  if (process.size == 1)
    store = make_local_store();
  else if (!process.store.empty())
    store = connect_store(process, {.connect_timeout = timeout});

  std::vector<std::unique_ptr<Communicator>> all(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  std::vector<std::thread> threads_of_ranks;
  for (std::size_t r = 0; r < all.size(); ++r)
    threads_of_ranks.emplace_back([&, r] {
      RankInfo info = process;
      info.rank = process.rank * here() + static_cast<int>(r);
      info.size = size();
      info.local_rank = process.local_rank * here() + static_cast<int>(r);
      info.local_size = process.local_size * here();
      try {
        all[r] = make_communicator({.store = store, .rank = info, .device = devices[r], .timeout = timeout});
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads_of_ranks) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return all;
}

}  // namespace lockstep::bench
