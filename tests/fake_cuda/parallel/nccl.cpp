// NcclCommunicators on the fake NCCL: what every communicator must do, and how failures reach those who wait.
#if __has_include(<nccl.h>)
#include <atomic>
#include <functional>
#include <set>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/thread_ranks.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using support::first_devices;

namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

// Logical devices that share a GPU cannot be ranks.
void needs_gpus(const std::vector<Device>& devices) {
  std::set<int> gpus;
  for (const Device device : devices) gpus.insert(native_ordinal(device));
  if (gpus.size() < devices.size()) support::skip(cat(devices.size(), " GPUs expected, ", gpus.size(), " found"));
}

// Calls `function` for all ranks at the same time, and throws what one of them has thrown.
void at_once(std::size_t ranks, const std::function<void(std::size_t)>& function) {
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        function(r);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

enum class As { threads, processes };  // what the ranks think that the others are

Group make_group(const std::vector<Device>& devices, const NcclOptions& options, As as = As::threads,
                 const std::shared_ptr<Store>& store = make_local_store()) {
  needs_gpus(devices);
  Group group(devices.size());
  at_once(devices.size(), [&](std::size_t r) {
    const std::string token = cat("process ", r);
    if (as == As::processes) detail::process_token_override = &token;
    group[r] =
        make_nccl_communicator(store, static_cast<int>(r), static_cast<int>(devices.size()), devices[r], options);
  });
  return group;
}

Tensor ones_on(const Communicator& comm, std::int64_t count = 1000) {
  return ones({count}, {.dtype = DType::f32, .device = comm.device()});
}

// Two ranks that think they are alone in their process, so that one can be late; both have done a collective.
struct Two {
  explicit Two(const NcclOptions& options = {}, const std::vector<Device>& devices = first_devices(2))
      : group(make_group(devices, options, As::processes)) {
    for (const auto& comm : group) tensors.push_back(ones_on(*comm));
    at_once(2, [&](std::size_t r) { group[r]->all_reduce(tensors[r]); });
    for (const auto& comm : group) synchronize(comm->device());
  }
  Communicator& operator[](std::size_t r) { return *group[r]; }
  Group group;
  std::vector<Tensor> tensors;
};

// What a host wait for the device of the rank throws.
std::string told(const Communicator& comm, int* rank = nullptr) {
  try {
    synchronize(current_stream(comm.device()), Milliseconds(60'000));
  } catch (const CommError& error) {
    if (rank) *rank = error.rank;
    return error.what();
  } catch (const std::exception& error) {
    return cat("not a CommError: ", error.what());
  }
  return "nothing";
}

bool becomes(const std::function<bool()>& condition) {
  const Deadline patience = Deadline::after(Milliseconds(60'000));
  while (!condition() && !patience.passed()) std::this_thread::sleep_for(Milliseconds(1));
  return condition();
}

conformance::Ranks ranks(bool check_collectives, bool blocking = false) {
  return {.name = check_collectives ? "NCCL, checked"
                  : blocking        ? "NCCL, blocking"
                                    : "NCCL",
          .run =
              [=](int count, Milliseconds timeout, const conformance::Body& body) {
                return conformance::run_on_threads(
                    make_group(first_devices(count),
                               {.timeout = timeout, .check_collectives = check_collectives, .blocking = blocking}),
                    body);
              },
          .most = 4,
          .rank_order = false,
          .hears_in_calls = false};
}

}  // namespace

TEST_CASE("communicator: NCCL") {
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(ranks(false));
    }
}

TEST_CASE("communicator: NCCL, with calls that block") {
  for (const conformance::Check& check : conformance::checks()) DYNAMIC_SECTION(check.name) {
      check.run(ranks(false, true));
    }
}

TEST_CASE("communicator: NCCL, every call compared through the store") {
  for (const conformance::Check& check : conformance::checks())
    if (std::string(check.name).find("differ") != std::string::npos || std::string(check.name).find("send") == 0)
      DYNAMIC_SECTION(check.name) { check.run(ranks(true)); }
}

TEST_CASE("NCCL: an error that NCCL reports is thrown where the host waits, and by later calls, on all ranks") {
  Two two;
  two[0].all_reduce(two.tensors[0]);
  fake_cuda::fail_nccl(native_ordinal(two[0].device()), 6);  // ncclRemoteError
  const std::string text = told(two[0]);
  fake_cuda::heal_nccl();
  CHECK(conformance::missing(text, {"[all_reduce] rank 0", "remote process exited"}) == "");
  CHECK(told(two[0]) == "nothing");  // once
  CHECK(two[0].broken());
  for (Communicator* comm : {&two[0], &two[1]}) {
    std::string later;
    try {
      comm->barrier();
    } catch (const CommError& error) {
      later = error.what();
    }
    if (comm == &two[0]) CHECK(later == text);
    // The other one may have heard of it in its barrier.
    CHECK(conformance::missing(later, {"rank 0", "remote process exited"}) == "");
  }
}

TEST_CASE("NCCL: an error that NCCL reports reaches a host that waits for other hosts, with nothing on the device") {
  Two two({.timeout = Milliseconds(600'000)});
  fake_cuda::fail_nccl(native_ordinal(two[0].device()), 6);
  std::string text;
  try {
    two[0].barrier();  // the other one does not come
  } catch (const CommError& error) {
    text = error.what();
  }
  fake_cuda::heal_nccl();
  CHECK(conformance::missing(text, {"rank 0", "remote process exited"}) == "");
}

TEST_CASE("NCCL: a thread of the library finds failures when nobody waits, and aborts") {
  Two two;
  const int aborted = fake_cuda::nccl_counts().aborted;
  two[0].all_reduce(two.tensors[0]);
  fake_cuda::fail_nccl(native_ordinal(two[0].device()), 3);  // ncclInternalError
  CHECK(becomes([&] { return two[0].broken(); }));
  fake_cuda::heal_nccl();
  CHECK(becomes([&] { return two[1].broken(); }));  // it has read it in the store
  CHECK(becomes([&] { return fake_cuda::nccl_counts().aborted == aborted + 2; }));
  CHECK(becomes([&] { return fake_cuda::spinning_collectives() == 0; }));
  CHECK(conformance::missing(told(two[0]), {"[all_reduce] rank 0", "internal error"}) == "");
}

TEST_CASE("NCCL: nobody else asks the library while a call takes its time") {
  Two two;
  two[0].all_reduce(two.tensors[0]);  // on the way: the library's thread looks at it
  fake_cuda::inject({.call = "ncclAllReduce", .error = 0, .delay_microseconds = 200'000});
  two[0].all_reduce(two.tensors[0]);
  fake_cuda::forget_injections();
  for (int i = 0; i < 2; ++i) two[1].all_reduce(two.tensors[1]);
  CHECK(two.tensors[0].to_vector<float>() == std::vector<float>(1000, 8));
}

TEST_CASE("NCCL: at the deadline the error names who is missing and what it called last") {
  Two two;
  two[0].set_timeout(Milliseconds(200));
  two[0].broadcast(two.tensors[0], 0);
  int rank = -1;
  const std::string text = told(two[0], &rank);
  CHECK(rank == 1);
  CHECK(conformance::missing(text, {"[broadcast] rank 1", "200 ms", "rank 1 did not come",
                                    "all_reduce(sum, f32, 1000 elements), number 1"}) == "");
  CHECK(becomes([&] { return two[1].broken(); }));
  CHECK(two[1].failure()->what() == text);
}

TEST_CASE("NCCL: who has called something else is named at the deadline") {
  Two two({.timeout = Milliseconds(60'000)});
  two[1].set_timeout(Milliseconds(300));  // it gives up, and rank 0 has made its call by then
  two[0].all_reduce(two.tensors[0]);
  two[1].all_reduce(two.tensors[1], RedOp::max);
  const std::string text = told(two[0]);
  CHECK(conformance::missing(text, {"has called", "all_reduce(sum, f32, 1000 elements), number 2",
                                    "all_reduce(max, f32, 1000 elements), number 2"}) == "");
  bool seen = false;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures()) {
    if (failure.rule == fake_cuda::Rule::nccl_order)
      seen = true;
    else
      FAIL_CHECK(to_string(failure));
  }
  CHECK(seen);
}

TEST_CASE("NCCL: when one communicator fails, others with work on the same devices are aborted too, without a hang") {
  Two first, second;
  const int aborted = fake_cuda::nccl_counts().aborted;
  first[0].all_reduce(first.tensors[0]);
  second[0].all_reduce(second.tensors[0]);
  first[0].abort("enough");
  CHECK(becomes([&] { return second[0].broken(); }));
  CHECK(conformance::missing(
            second[0].failure()->what(),
            {"[all_reduce] rank 0 broke it off, since another communicator", "rank 0 aborted: enough"}) == "");
  CHECK(becomes([&] { return fake_cuda::spinning_collectives() == 0; }));
  CHECK(becomes([&] { return first[1].broken() && second[1].broken(); }));
  CHECK(becomes([&] { return fake_cuda::nccl_counts().aborted == aborted + 4; }));
  CHECK(conformance::missing(told(first[0]), {"enough"}) == "");
}

TEST_CASE("NCCL: a communicator may go with work on the way, which is still done") {
  Two two;
  const int destroyed = fake_cuda::nccl_counts().destroyed;
  two[0].all_reduce(two.tensors[0]);
  two.group[0].reset();
  two[1].all_reduce(two.tensors[1]);
  two.group[1].reset();
  CHECK(two.tensors[0].to_vector<float>() == std::vector<float>(1000, 4));
  CHECK(two.tensors[1].to_vector<float>() == std::vector<float>(1000, 4));
  CHECK(becomes([&] { return fake_cuda::nccl_counts().destroyed == destroyed + 2; }));
}

TEST_CASE("NCCL: who waits for a rank that has left is told") {
  Two two;
  two.group[1].reset();
  two[0].all_reduce(two.tensors[0]);
  CHECK(conformance::missing(told(two[0]), {"[all_reduce] rank 1", "left"}) == "");
}

TEST_CASE("NCCL: raw memory calls wait until no collective is on the way") {
  Two two;
  two[0].all_reduce(two.tensors[0]);
  std::atomic<bool> grown{false};
  const Device device = two[0].device();
  std::thread other([&] {
    Backend& cuda = backend(device);
    cuda.free(device.index(), cuda.allocate(device.index(), 4096));
    grown = true;
  });
  for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(Milliseconds(1));  // time to go wrong; not to go right
  CHECK(!grown);
  two[1].all_reduce(two.tensors[1]);
  other.join();
  CHECK(grown);
}

TEST_CASE("NCCL: a raw memory call that waits for a collective that never ends is let go at its deadline") {
  Two two;
  two[0].set_timeout(Milliseconds(100));
  two[0].all_reduce(two.tensors[0]);
  Backend& cuda = backend(two[0].device());
  const int index = two[0].device().index();
  cuda.free(index, cuda.allocate(index, 4096));  // by the rank that has to come: nobody else does
  CHECK(two[0].broken());
  CHECK(conformance::missing(told(two[0]), {"rank 1 did not come"}) == "");
}

TEST_CASE("NCCL: a library that is never ready is given up at the deadline") {
  Two two;
  fake_cuda::stall_nccl(native_ordinal(two[0].device()));
  two[0].set_timeout(Milliseconds(100));
  std::string text;
  try {
    two[0].all_reduce(two.tensors[0]);
  } catch (const CommError& error) {
    text = error.what();
  }
  fake_cuda::heal_nccl();
  CHECK(conformance::missing(text, {"[all_reduce] rank 0", "ready within 100 ms"}) == "");
  CHECK(told(two[0]) == "nothing");
}

TEST_CASE("NCCL: an error of a call breaks the communicator") {
  Two two;
  fake_cuda::inject({.call = "ncclAllReduce", .error = 5});
  std::string text;
  try {
    two[0].all_reduce(two.tensors[0]);
  } catch (const CommError& error) {
    text = error.what();
  }
  fake_cuda::forget_injections();
  CHECK(conformance::missing(text, {"[all_reduce] rank 0", "invalid usage"}) == "");
  CHECK(becomes([&] { return two[1].broken(); }));
}

TEST_CASE("NCCL: ranks that are processes compare their calls through the store if asked to") {
  Two two({.check_collectives = true});
  std::vector<std::string> texts(2);
  at_once(2, [&](std::size_t r) {
    try {
      two[r].all_reduce(two.tensors[r], r == 0 ? RedOp::sum : RedOp::min);
    } catch (const CommError& error) {
      texts[r] = error.what();
    }
  });
  CHECK(texts[0] == texts[1]);
  CHECK(conformance::missing(texts[0], {"all_reduce(sum, f32, 1000 elements), number 2 from rank 0",
                                        "all_reduce(min, f32, 1000 elements), number 2 from rank 1"}) == "");
}

TEST_CASE("NCCL: one rank alone, and eight") {
  for (const int count : {1, 8}) {
    const Group group = make_group(first_devices(count), {});
    std::vector<float> sums(group.size());
    at_once(group.size(), [&](std::size_t r) {
      const Tensor x = ones_on(*group[r]);
      group[r]->all_reduce(x);
      sums[r] = x.to_vector<float>()[999];
    });
    CHECK(sums == std::vector<float>(group.size(), static_cast<float>(count)));
  }
}

TEST_CASE("NCCL: a failure while communicators are made reaches all ranks") {
  needs_gpus(first_devices(3));
  fake_cuda::inject({.call = "ncclCommInitRankConfig", .nth = 2, .error = 2});  // ncclSystemError
  const auto store = make_local_store();
  std::vector<std::string> texts(3);
  at_once(3, [&](std::size_t r) {
    try {
      (void)make_nccl_communicator(store, static_cast<int>(r), 3, first_devices(3)[r],
                                   {.timeout = Milliseconds(60'000)});
    } catch (const CommError& error) {
      texts[r] = error.what();
    }
  });
  fake_cuda::forget_injections();
  for (const std::string& text : texts)
    CHECK(conformance::missing(text, {"[make_nccl_communicator]", "unhandled system error"}) == "");
  // With the same store again.
  const Group group = make_group(first_devices(3), {}, As::threads, store);
  at_once(3, [&](std::size_t r) { group[r]->barrier(); });
}

TEST_CASE("NCCL: ranks do not share a GPU", "[.shared_gpu]") {
  const auto store = make_local_store();
  std::vector<std::string> texts(2);
  at_once(2, [&](std::size_t r) {
    try {
      (void)make_nccl_communicator(store, static_cast<int>(r), 2, Device::cuda(static_cast<int>(r)));
    } catch (const InvalidArgument& error) {
      texts[r] = error.what();
    }
  });
  for (const std::string& text : texts)
    CHECK(conformance::missing(text, {"a GPU for every rank", "GPU 0 for ranks 0 and 1"}) == "");
}

TEST_CASE("NCCL: where there is no library the error says what was tried", "[.no_nccl]") {
  CHECK(!nccl_available());
  CHECK(conformance::missing(why_no_nccl(), {"LOCKSTEP_NCCL_LIBRARY", "libnowhere.so"}) == "");
  CHECK_THROWS_AS(make_nccl_communicator(make_local_store(), 0, 1, Device::cuda(0)), NotSupported);
}
#endif
