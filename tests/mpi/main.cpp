// The conformance checks with ranks that are processes of mpirun. Every process runs all cases, in the same order.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/factory/make_communicator.h"
#include "lockstep/parallel/comm/mpi/mpi_communicator.h"
#include "lockstep/parallel/comm/mpi/mpi_rank.h"
#include "lockstep/parallel/comm/shm/shared_memory_communicator.h"
#include "lockstep/parallel/ddp/bucket_cap.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream/stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/host_devices.h"

using namespace lockstep;

namespace {

// What the processes tell each other between the checks; no check breaks it.
Communicator& world() {
  static const std::unique_ptr<Communicator> comm = make_mpi_communicator(Device::host(0));
  return *comm;
}

conformance::Ranks processes() {
  conformance::Ranks ranks{.name = "mpi", .shrinks = false};
  ranks.most = world().size();
  ranks.run = [](int count, Milliseconds timeout, const conformance::Body& body) {
    std::string said;
    std::unique_ptr<Communicator> comm = world().split(world().rank() < count ? 0 : -1);
    if (comm) {
      comm->set_timeout(timeout);
      Stream stream(comm->device());
      const StreamScope scope(stream);
      said = conformance::outcome(body, *comm);
      comm.reset();
    }
    std::vector<std::string> all = world().all_gather_bytes(said);
    all.resize(static_cast<std::size_t>(count));
    return all;
  };
  return ranks;
}

}  // namespace

TEST_CASE("communicator: MPI") {
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(processes());
    }
}

TEST_CASE("communicator: MPI gives the bits that ranks in shared memory get") {
  const int size = world().size();
  constexpr std::int64_t kCount = 100'003;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const conformance::Body sum = [&](Communicator& comm) {
      std::vector<double> values;
      for (std::int64_t i = 0; i < kCount; ++i) values.push_back(std::sin(static_cast<double>(i * (comm.rank() + 3))));
      const Tensor x = conformance::tensor_of(values, dtype, comm.device());
      comm.all_reduce(x, RedOp::avg);
      const std::vector<double> result = x.to_vector<double>();
      return std::string(reinterpret_cast<const char*>(result.data()), result.size() * sizeof(double));
    };
    const std::vector<std::string> expected =
        conformance::run_on_threads(make_thread_group(support::first_devices(size)), sum);
    CHECK((conformance::outcome(sum, world()) == expected[static_cast<std::size_t>(world().rank())]));
  }
}

// Hosts as a list of their sizes, or of names.
TEST_CASE("communicator: MPI sends a sum once over the links between hosts, in each direction, to the same bits") {
  const int size = world().size(), rank = world().rank();
  struct Layout {
    std::string name;
    std::function<int(int)> host_of;
    int per_host;  // 0: mixed
  };
  std::vector<Layout> layouts{{"a host each", [](int r) { return r; }, 1},
                              {"one host", [](int) { return 0; }, 0},
                              {"alternating", [](int r) { return r % 2; }, size == 2 ? 1 : 0},
                              {"one alone", [](int r) { return r == 0 ? 0 : 1; }, size == 2 ? 1 : 0}};
  if (size % 2 == 0) layouts.push_back({"two hosts", [=](int r) { return r / (size / 2); }, size / 2});
  for (const Layout& layout : layouts) {
    const std::unique_ptr<Communicator> comm =
        make_mpi_communicator(Device::host(0), {.host = cat("host ", layout.host_of(rank))});
    std::set<int> hosts_of_layout;
    for (int r = 0; r < size; ++r) hosts_of_layout.insert(layout.host_of(r));
    CHECK(comm->host_count() == std::ssize(hosts_of_layout));
    for (const auto& [dtype, reduction] : std::vector<std::pair<DType, RedOp>>{{DType::f32, RedOp::sum},
                                                                               {DType::f32, RedOp::avg},
                                                                               {DType::f64, RedOp::sum},
                                                                               {DType::f64, RedOp::product},
                                                                               {DType::i32, RedOp::sum},
                                                                               {DType::f32, RedOp::max},
                                                                               {DType::bf16, RedOp::sum}}) {
      for (const std::int64_t count : {std::int64_t{100}, std::int64_t{300'003}}) {
        INFO(layout.name << ", " << to_string(dtype) << ", " << to_string(reduction) << ", " << count);
        const auto sum_of = [&, dtype = dtype, reduction = reduction](Communicator& with, bool in_place) {
          Tensor x = empty({count}, {.dtype = DType::f64, .device = with.device()});
          std::vector<double> values;
          for (std::int64_t i = 0; i < count; ++i)
            values.push_back(std::sin(static_cast<double>(i % 1009 * (with.rank() + 3))) *
                             (dtype == DType::i32 ? 1e6 : 1));
          x = conformance::tensor_of(values, dtype, with.device());
          Tensor y = in_place ? x : zeros_like(x);
          with.all_reduce(x, y, reduction);
          return y.to_vector<double>();
        };
        // The ranks of the world are on one host: the flat way.
        const std::vector<double> expected = sum_of(world(), false);
        for (const bool in_place : {false, true}) {
          const std::uint64_t before = detail::mpi_bytes_between_hosts();
          const bool same = sum_of(*comm, in_place) == expected;
          const std::uint64_t sent = detail::mpi_bytes_between_hosts() - before;
          CHECK(same);
          const bool by_host = layout.per_host > 0 && count > 100 && reduction != RedOp::avg && dtype != DType::bf16;
          const std::uint64_t share =
              by_host ? static_cast<std::uint64_t>(count) * size_of(dtype) / static_cast<std::uint64_t>(layout.per_host)
                      : 0;
          if (by_host) {
            // Up or down at the ends of the chain, else both; and the fingerprints.
            const int host = layout.host_of(rank), hosts = size / layout.per_host;
            const std::uint64_t times = host > 0 && host + 1 < hosts ? 2 : 1;
            CHECK(sent >= times * (share - 8));
            CHECK(sent <= times * (share + 8) + 4096);
          } else if (count > 100 && layout.name == "alternating" && size > 2) {
            CHECK(sent > static_cast<std::uint64_t>(count) * size_of(dtype) / 2);
          }
        }
      }
    }
  }
}

TEST_CASE("communicator: MPI knows the hosts of the ranks of a split") {
  const int size = world().size(), rank = world().rank();
  if (size < 4) return;
  const std::unique_ptr<Communicator> comm =
      make_mpi_communicator(Device::host(0), {.host = cat("host ", rank / (size / 2))});
  // Of each of the two hosts the first rank.
  const std::unique_ptr<Communicator> firsts = comm->split(rank == 0 || rank == size / 2 ? 0 : -1);
  const std::unique_ptr<Communicator> of_host = comm->split(rank / (size / 2));
  CHECK(of_host->host_count() == 1);
  if (!firsts) return;
  CHECK(firsts->host_count() == 2);
  constexpr std::int64_t kCount = 1 << 20;
  const std::uint64_t before = detail::mpi_bytes_between_hosts();
  const Tensor x = full({kCount}, rank + 1.0, {.dtype = DType::f32, .device = comm->device()});
  firsts->all_reduce(x);
  CHECK(x.to_vector<float>() == std::vector<float>(kCount, static_cast<float>(size / 2 + 2)));
  const std::uint64_t sent = detail::mpi_bytes_between_hosts() - before;
  CHECK(sent >= kCount * 4);
  CHECK(sent <= kCount * 4 + 4096);
}

TEST_CASE("communicator: over MPI buckets are chosen by the hosts of the ranks") {
  const int size = world().size(), rank = world().rank();
  struct Large : Module<Large> {
    Parameter weight{zeros({1'280'000})};  // f32: 5.12 MB
    Tensor forward(const Tensor& x) const { return x; }
    void members(Members& m) override { m("weight", weight); }
  };
  const auto chosen = [](Communicator& comm) {
    return DistributedDataParallel<Large>(Large(), comm, {.bucket_cap_mb = kAutoBucketCap})
        .logging_data()
        .bucket_cap_bytes;
  };
  const detail::RankLinks links{detail::HostLink::nvlink, 400};
  ::setenv("LOCKSTEP_HOST_LINK", "nvlink", 1);
  ::setenv("LOCKSTEP_NETWORK_GBITS", "400", 1);
  const std::unique_ptr<Communicator> two =
      make_mpi_communicator(Device::host(0), {.host = rank == 0 ? "one" : "other"});
  const std::unique_ptr<Communicator> one = make_mpi_communicator(Device::host(0), {.host = "one"});
  const std::size_t on_two = chosen(*two), on_one = chosen(*one);
  ::unsetenv("LOCKSTEP_HOST_LINK");
  ::unsetenv("LOCKSTEP_NETWORK_GBITS");
  CHECK(on_two == detail::choose_bucket_cap({.bytes = 5'120'000, .ranks = size, .hosts = 2, .links = links}));
  CHECK(on_one == detail::choose_bucket_cap({.bytes = 5'120'000, .ranks = size, .hosts = 1, .links = links}));
  CHECK(on_two < on_one);
}

TEST_CASE("communicator: MPI finalises what it has initialised, whatever communicators are left") {
  static const std::unique_ptr<Communicator> kept = make_mpi_communicator(Device::host(0));
  CHECK(kept->size() == world().size());
  CHECK(mpi_available());
  CHECK(std::string(kept->backend()) == "mpi");
  CHECK_THROWS_AS(make_mpi_communicator(Device::cpu()), InvalidArgument);
}

TEST_CASE("communicator: MPI gives ranks that the job may not number otherwise") {
  const int rank = (world().rank() + 1) % world().size();
  const CommunicatorOptions other{
      .rank = {.rank = rank, .size = world().size()}, .device = Device::host(0), .backend = "mpi"};
  CHECK_THROWS_AS(make_communicator(other), InvalidArgument);
  const auto same =
      make_communicator({.rank = {.rank = world().rank(), .size = world().size()}, .device = Device::host(0)});
  CHECK(std::string(same->backend()) == "mpi");
}

namespace {

// For faults.py: what becomes of an all-reduce that the last rank may not come to.
void say_how_it_ends(Communicator& comm, const Tensor& x) {
  std::string said = "is done";
  try {
    comm.all_reduce(x);
    synchronize(current_stream(comm.device()));
  } catch (const CommError& error) {
    said = "got rank " + std::to_string(error.rank) + ": " + error.what();
  }
  std::printf("rank %d %s\n", comm.rank(), said.c_str());
  std::fflush(stdout);
}

}  // namespace

// For faults.py, which says what is to happen to the last rank: that comes to the collective in which the others wait
// once there is the file LOCKSTEP_TEST_GO. They wait as long as LOCKSTEP_TEST_TIMEOUT says, in milliseconds.
TEST_CASE("fault: the last rank does not come", "[.fault]") {
  const char *const go = std::getenv("LOCKSTEP_TEST_GO"), *const timeout = std::getenv("LOCKSTEP_TEST_TIMEOUT");
  REQUIRE((go && timeout));
  Communicator& comm = world();
  const bool last = comm.rank() + 1 == comm.size();
  const Tensor x = full({1'000}, comm.rank(), {.dtype = DType::f32, .device = comm.device()});
  comm.barrier();
  std::printf("rank %d is process %d\n", comm.rank(), static_cast<int>(::getpid()));
  std::fflush(stdout);
  struct stat status {};
  while (last && ::stat(go, &status) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (!last) comm.set_timeout(Milliseconds(std::stoll(timeout)));
  say_how_it_ends(comm, x);
  // The end of the others can wait for a file too.
  const char* const stay = std::getenv("LOCKSTEP_TEST_STAY");
  while (!last && stay && ::stat(stay, &status) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// The last rank ends with 0, as if all were well, while the others wait for it, and for long.
TEST_CASE("fault: the last rank exits", "[.exit]") {
  Communicator& comm = world();
  comm.set_timeout(Milliseconds(600'000));
  const Tensor x = full({1'000}, comm.rank(), {.dtype = DType::f32, .device = comm.device()});
  comm.barrier();
  if (comm.rank() + 1 == comm.size()) std::exit(0);
  say_how_it_ends(comm, x);
}
