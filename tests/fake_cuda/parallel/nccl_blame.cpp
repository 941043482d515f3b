// Whom the error names when ranks over NCCL that are processes do not agree, or go away.
#if __has_include(<nccl.h>)
#include <atomic>
#include <functional>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/parallel/comm/meeting_place.h"
#include "lockstep/parallel/comm/nccl/nccl_communicator.h"
#include "lockstep/runtime/cuda/native_stream.h"
#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/store/forwarding_store.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

constexpr int kRanks = 3;
constexpr Milliseconds kPatience{60'000};

// A store whose user says nothing when it is asked where it is.
class SilentStore final : public lockstep::test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void set(const std::string& key, const std::string& value) override {
    if (key.find("/state/") == key.npos) next().set(key, value);
  }
};

using Body = std::function<void(Communicator&)>;
using SizeOf = std::function<int(int rank)>;

// What the ranks get, each as if it were a process of its own: "<rank that the error names> <message>".
std::vector<std::string> told(
    const Body& body, int silent = -1, const SizeOf& size = [](int) { return kRanks; }, int ranks = kRanks) {
  support::needs_devices(ranks);
  for (int r = 1; r < ranks; ++r)
    if (native_ordinal(support::device_at(r)) == native_ordinal(support::device_at(0)))
      support::skip("GPUs of their own expected, logical devices of one found");
  const std::shared_ptr<Store> store = make_local_store();
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const std::string token = cat("process ", r);
      detail::process_token_override = &token;
      std::string& text = texts[static_cast<std::size_t>(r)];
      try {
        const auto comm = make_nccl_communicator(r == silent ? std::make_shared<SilentStore>(store) : store, r, size(r),
                                                 support::device_at(r), {.timeout = kPatience});
        try {
          body(*comm);
          synchronize(current_stream(comm->device()), kPatience);
          text = "nothing";
        } catch (const CommError& error) {
          text = cat(error.rank, ' ', error.what());
        }
        while (!comm->broken()) std::this_thread::sleep_for(Milliseconds(1));
      } catch (const CommError& error) {
        text = cat(error.rank, ' ', error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

std::string not_naming(const std::vector<std::string>& texts, int rank) {
  for (const std::string& text : texts)
    if (!text.starts_with(cat(rank, ' '))) return text;
  return "";
}

Tensor ones_on(const Communicator& comm, std::int64_t count) {
  return ones({count}, {.dtype = DType::f32, .device = comm.device()});
}

void expect_wrong_order() {
  int others = 0;
  for (const fake_cuda::Failure& failure : fake_cuda::take_failures())
    others += failure.rule != fake_cuda::Rule::nccl_order;
  CHECK(others == 0);
}

}  // namespace

TEST_CASE("NCCL: when NCCL has lost a rank, the error names the one that says nothing any more") {
  for (const int silent : {0, 2}) {
    const auto texts = told(
        [&](Communicator& comm) {
          if (comm.rank() == silent) return;
          if (comm.rank() == 1) fake_cuda::fail_nccl(native_ordinal(comm.device()), 6);  // ncclRemoteError
          comm.all_reduce(ones_on(comm, 9));
        },
        silent);
    fake_cuda::heal_nccl();
    INFO(texts[1]);
    CHECK(texts[1].starts_with(cat(silent, ' ')));
    CHECK(texts[1].find("remote process exited") != std::string::npos);
  }
}

TEST_CASE("NCCL: of three ranks the one that has called something else is named, whichever it is") {
  for (int odd = 0; odd < kRanks; ++odd) {
    std::atomic<int> ready{0}, enqueued{0};
    const auto texts = told([&](Communicator& comm) {
      const Tensor tensor = ones_on(comm, comm.rank() == odd ? 7 : 9);
      ++ready;
      while (ready < kRanks) std::this_thread::yield();  // no memory is taken while a collective is in flight
      if (comm.rank() == 1) {                            // it alone judges, when all have enqueued
        while (enqueued < kRanks - 1) std::this_thread::yield();
        comm.set_timeout(Milliseconds(300));
      }
      for (int i = 0; i < 2; ++i)  // who is right has called more by then
        if (comm.rank() != odd || i == 0) comm.all_reduce(tensor);
      ++enqueued;
    });
    CHECK(not_naming(texts, odd) == "");
    expect_wrong_order();
  }
}

TEST_CASE("NCCL: of ranks that wait for each other in pairs, the one that does not come is named") {
  // Rank 2 waits for rank 1, which waits for nothing. That rank 0 has made no call is nothing to them.
  for (const bool sends : {false, true}) {
    const auto texts = told([&](Communicator& comm) {
      if (comm.rank() != 2) return;
      comm.set_timeout(Milliseconds(300));
      sends ? comm.send(ones_on(comm, 9), 1) : comm.recv(ones_on(comm, 9), 1);
    });
    CHECK(not_naming({texts[2]}, 1) == "");
    INFO(texts[2]);
    CHECK(texts[2].find("rank 1 waits for nothing") != std::string::npos);
  }
}

TEST_CASE("NCCL: of ranks that wait for each other in pairs, one that says nothing any more is named") {
  const auto texts = told(
      [](Communicator& comm) {
        if (comm.rank() != 2) return;
        comm.set_timeout(Milliseconds(300));
        comm.transfer(std::vector{Transfer::from(0, ones_on(comm, 9)), Transfer::from(1, ones_on(comm, 9))});
      },
      1);
  CHECK(not_naming({texts[2]}, 1) == "");
}

TEST_CASE("NCCL: the rank that waits for the hosts while the others wait for each other is named") {
  for (int odd = 0; odd < kRanks; ++odd) {
    std::atomic<int> elsewhere{0};
    const auto texts = told([&](Communicator& comm) {
      if (comm.rank() != odd) {
        comm.all_reduce(ones_on(comm, 9));
        ++elsewhere;
        return;
      }
      while (elsewhere < kRanks - 1) std::this_thread::yield();
      comm.set_timeout(Milliseconds(300));  // it is the first to give up
      comm.barrier();
    });
    CHECK(not_naming(texts, odd) == "");
  }
}

TEST_CASE("NCCL: the rank of another number of ranks is named at once") {
  for (const int odd : {0, 1}) {
    const auto texts = told([](Communicator&) {}, -1, [&](int rank) { return rank == odd ? kRanks + 1 : kRanks; });
    CHECK(not_naming(texts, odd) == "");
    INFO(texts[2]);
    CHECK(texts[2].find("of 4") != std::string::npos);
  }
}

TEST_CASE("NCCL: the rank of fewer ranks is named by those that most are, however few it looks for") {
  for (const int fewer : {1, 2}) {
    const auto texts = told([](Communicator&) {}, -1, [&](int rank) { return rank == 0 ? fewer : 4; }, 4);
    CHECK(not_naming({texts[1], texts[2], texts[3]}, 0) == "");
    if (fewer > 1) CHECK(not_naming({texts[0]}, 0) == "");  // one alone waits for nobody
  }
}

TEST_CASE("NCCL: where most wait elsewhere than for the hosts, a rank that says nothing is named all the same") {
  std::atomic<int> ready{0}, elsewhere{0};
  const auto texts = told(
      [&](Communicator& comm) {
        if (comm.rank() == 3) return;
        const Tensor tensor = ones_on(comm, 9);
        ++ready;
        while (ready < 3) std::this_thread::yield();  // no memory is taken while a collective is in flight
        if (comm.rank() > 0) {
          comm.all_reduce(tensor);
          ++elsewhere;
          return;
        }
        while (elsewhere < 2) std::this_thread::yield();
        comm.set_timeout(Milliseconds(300));  // it is the first to give up
        comm.barrier();
      },
      3, [](int) { return 4; }, 4);
  CHECK(not_naming({texts[0]}, 3) == "");
}
#endif
