// How PeerCommunicators treat streams, memory and ranks that do not do the same.
#include <atomic>
#include <deque>

#include "parallel/comm/peer/peer_support.h"
#include "support/counter.h"
#include "support/devices.h"

using namespace comm_test;
using lockstep::test::Counter;
using support::device_name;

namespace {

Tensor filled(Communicator& c, std::int64_t count, double number) {
  return full({count}, number, {.dtype = DType::f32, .device = c.device()});
}
void expect_all(const Tensor& x, float number, const char* what) {
  for (const float each : x.to_vector<float>())
    if (each != number) throw Error(cat(what, ": expected ", number, ", got ", each));
}
// All that the device may have at the moment: with its limit, nobody gets more.
std::vector<Tensor> all_memory(Device device) {
  set_memory_limit(device, memory_stats(device).in_use_bytes + 1);
  std::vector<Tensor> held;
  for (std::int64_t bytes = 1 << 22; bytes >= 256;) {
    try {
      held.push_back(empty({bytes}, {.dtype = DType::u8, .device = device}));
    } catch (const OutOfMemory&) {
      bytes /= 2;
    }
  }
  return held;
}
// Reports of what was released too early come with the next operation.
void expect_usable(const std::vector<Device>& devices) {
  for (const Device device : devices) {
    CHECK_NOTHROW(zeros({1}, {.device = device}));
    CHECK_NOTHROW(synchronize(device));
  }
}

using Step = std::function<void(Communicator&, const Tensor& input, const Tensor& output)>;
struct Named {
  const char* name;
  Step step;
  float expected;  // with inputs of 1 + rank on 4 ranks; of rank 1's first part
};
constexpr std::int64_t kCount = 256;
Tensor part(const Tensor& x, int rank = 0) { return x.narrow(0, rank * kCount, kCount); }
const std::vector<Named>& named_steps() {
  static const std::vector<Named> all{
      {"all_reduce", [](auto& c, auto& in, auto& out) { c.all_reduce(in, out); }, 10},
      {"broadcast", [](auto& c, auto& in, auto& out) { c.broadcast(c.rank() == 2 ? in : out, 2); }, 3},
      {"reduce", [](auto& c, auto& in, auto& out) { c.reduce(in, c.rank() == 1 ? out : Tensor(), 1); }, 10},
      {"all_gather", [](auto& c, auto& in, auto& out) { c.all_gather(part(in), out); }, 1},
      {"gather", [](auto& c, auto& in, auto& out) { c.gather(part(in), c.rank() == 1 ? out : Tensor(), 1); }, 1},
      {"scatter", [](auto& c, auto& in, auto& out) { c.scatter(c.rank() == 3 ? in : Tensor(), part(out), 3); }, 4},
      {"reduce_scatter", [](auto& c, auto& in, auto& out) { c.reduce_scatter(in, part(out)); }, 10},
      {"all_to_all", [](auto& c, auto& in, auto& out) { c.all_to_all(in, out); }, 1},
      {"send and recv",
       [](auto& c, auto& in, auto& out) {
         if (c.rank() == 0) c.send(in, 1);
         if (c.rank() == 1) c.recv(out, 0);
       },
       1},
  };
  return all;
}

}  // namespace

// In mode strict the order checker reports an edge that is missing.
TEST_CASE("peer: a collective comes after the work before it and before the work after it, on all ranks") {
  const auto devices = support::devices_at({2, 0, 3, 1});
  const std::size_t one_shot_bytes = GENERATE(0, 1 << 20);  // each rank a share of a sum, or all of it
  const Group group = make_peer_group(devices, {.scratch_bytes = 4096, .one_shot_bytes = one_shot_bytes});
  for (const Named& each : named_steps()) {
    INFO(each.name);
    check_all_well(on_ranks(group, [&](Communicator& c) {
      for (int round = 0; round < 3; ++round) {
        Stream stream(c.device());
        const StreamScope scope(stream);
        Tensor input = filled(c, 4 * kCount, 0), output = filled(c, 4 * kCount, 0);
        input.add_(1 + c.rank());  // what is read is written before, what is written is read before
        const Tensor before = output + 1;
        each.step(c, input, output);
        const Tensor copy = output.clone();
        input.fill_(-1), output.fill_(-2);
        if (c.rank() == 1) expect_all(part(copy), each.expected, each.name);
        expect_all(before, 1, "what was there before");
      }
    }));
  }
  expect_usable(devices);
}

TEST_CASE("peer: tensors may go as soon as the collective was called") {
  const auto devices = support::first_devices(4);
  const std::size_t one_shot_bytes = GENERATE(0, 1 << 20);
  const Group group = make_peer_group(devices, {.scratch_bytes = 4096, .one_shot_bytes = one_shot_bytes});
  for (const Named& each : named_steps()) {
    INFO(each.name);
    check_all_well(on_ranks(group, [&](Communicator& c) {
      for (int round = 0; round < 3; ++round) {
        Tensor input = filled(c, 4 * kCount, 1 + c.rank()), output = filled(c, 4 * kCount, 0);
        Stream stream(c.device());
        stream.wait_for(default_stream(c.device()));
        {
          const StreamScope scope(stream);
          each.step(c, input, output);
          input = Tensor();
          if (c.rank() != 1) output = Tensor();
        }
        const Tensor reused = filled(c, 4 * kCount, -3);  // takes what was given back, once it is free
        default_stream(c.device()).wait_for(stream);
        if (c.rank() == 1) expect_all(part(output), each.expected, each.name);
      }
    }));
  }
  expect_usable(devices);
}

TEST_CASE("peer: collectives in place and one after the other need nothing in between") {
  const std::size_t one_shot_bytes = GENERATE(0, 1 << 20);
  const Group group =
      make_peer_group(support::first_devices(3), {.scratch_bytes = 2048, .one_shot_bytes = one_shot_bytes});
  check_all_well(on_ranks(group, [](Communicator& c) {
    Tensor x = filled(c, 1500, 1 + c.rank());
    for (int round = 0; round < 5; ++round) {
      c.all_reduce(x);
      c.broadcast(x, round % 3);
      c.reduce(x, x, 1, RedOp::max);
      c.all_reduce(x, RedOp::avg);
    }
    expect_all(x, 6 * 3 * 3 * 3 * 3, "the last sum");
  }));
}

TEST_CASE("peer: many sends, each after the one before") {
  const Group group = make_peer_group(support::first_devices(2));
  check_all_well(on_ranks(group, [](Communicator& c) {
    for (int i = 0; i < 20; ++i) {
      const Tensor x = filled(c, 10 + i, c.rank() == 0 ? i : -1);
      if (c.rank() == 0)
        c.send(x, 1);
      else
        c.recv(x, 0);
      expect_all(x, static_cast<float>(i), "what was sent");
    }
  }));
}

TEST_CASE("peer: hosts exchange messages and wait for each other") {
  const Group group = make_peer_group(support::first_devices(3));
  std::atomic<int> came{0};
  check_all_well(on_ranks(group, [&](Communicator& c) {
    for (int round = 1; round <= 3; ++round) {
      ++came;
      c.barrier();
      expect(came >= 3 * round, "a rank before the others at a barrier");
      c.barrier();
    }
    const auto all = c.all_gather_bytes(std::string(static_cast<std::size_t>(c.rank()), 'x'));
    expect(all == std::vector<std::string>{"", "x", "xx"}, "what was gathered");
    expect(c.broadcast_bytes(cat("from ", c.rank()), 1) == "from 1", "what was broadcast");
  }));
}

TEST_CASE("peer: a split has ranks of its own and needs nobody else") {
  const Group group = make_peer_group(support::devices_at({4, 1, 0, 2, 3}));
  check_all_well(on_ranks(group, [](Communicator& c) {
    const auto odd = c.split(c.rank() % 2, -c.rank());
    expect(odd && odd->size() == (c.rank() % 2 ? 2 : 3), "the number of ranks");
    expect(odd->rank() == odd->size() - 1 - c.rank() / 2, "the rank");
    expect(odd->device() == c.device() && std::string(odd->backend()) == "peer", "the device");
    const Tensor x = filled(c, 100, c.rank());
    odd->all_reduce(x);
    expect_all(x, c.rank() % 2 ? 4 : 6, "the sum of a part");
    expect(!c.split(c.rank() == 4 ? -1 : 0) == (c.rank() == 4), "no communicator for a negative color");
    odd->barrier();
  }));
}

TEST_CASE("peer: ranks that call different things are told who calls what, all of them") {
  support::needs_devices(3);
  const auto disagree = [](const std::function<void(Communicator&, const Tensor&)>& first,
                           const std::function<void(Communicator&, const Tensor&)>& other) {
    const Group group = make_peer_group(support::first_devices(3));
    const auto outcomes = on_ranks(group, [&](Communicator& c) {
      const Tensor x = filled(c, 12, 1);
      c.all_reduce(x);
      (c.rank() == 1 ? other : first)(c, x);
    });
    std::string text = outcomes[0].message;
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(outcomes[r].comm_error);
      CHECK(outcomes[r].message == text);
      CHECK(outcomes[r].rank == 1);
      CHECK(group[r]->broken());
      CHECK(message_of<CommError>([&] { group[r]->barrier(); }) == text);
    }
    return text;
  };
  const auto all_reduce = [](Communicator& c, const Tensor& x) { c.all_reduce(x); };
  const auto text = [&](const std::function<void(Communicator&, const Tensor&)>& other) {
    return disagree(all_reduce, other);
  };
  CHECK(missing(text([](auto& c, auto& x) { c.all_reduce(x.narrow(0, 0, 4)); }),
                {"[all_reduce] rank 1", "all_reduce(sum, f32, 12 elements), number 2 from rank 0",
                 "all_reduce(sum, f32, 4 elements), number 2 from rank 1"}) == "");
  CHECK(missing(text([](auto& c, auto& x) { c.all_reduce(x, RedOp::max); }), {"all_reduce(max"}) == "");
  CHECK(missing(text([](auto& c, auto& x) { c.all_reduce(x.to(DType::f64)); }), {"f64"}) == "");
  CHECK(missing(text([](auto& c, auto& x) { c.broadcast(x, 0); }), {"broadcast(f32, 12 elements, root 0)"}) == "");
  CHECK(missing(text([](auto& c, auto&) { c.barrier(); }), {"exchange(), number 1 from rank 1"}) == "");
  CHECK(missing(disagree([](auto& c, auto& x) { c.broadcast(x, 0); }, [](auto& c, auto& x) { c.broadcast(x, 2); }),
                {"root 0", "root 2"}) == "");
}

TEST_CASE("peer: sender and receiver must agree on what is sent") {
  const Group group = make_peer_group(support::first_devices(2));
  const auto outcomes = on_ranks(group, [](Communicator& c) {
    const Tensor x = filled(c, 3 + c.rank(), 1);
    if (c.rank() == 0)
      c.send(x, 1);
    else
      c.recv(x, 0);
  });
  for (const Outcome& outcome : outcomes)
    CHECK(missing(outcome.message, {"[send] rank 1", "send(f32, 3 elements), number 1 from rank 0",
                                    "recv(f32, 4 elements), number 1 from rank 1"}) == "");
}

TEST_CASE("peer: the deadline names who did not come and what it did last") {
  const Group group = make_peer_group(support::first_devices(3), {.timeout = Milliseconds(100)});
  const auto outcomes = on_ranks(group, [](Communicator& c) {
    c.set_timeout(Milliseconds(60'000));
    const Tensor x = filled(c, 8, 1);
    c.broadcast(x, 1);
    // It alone gives up. Of those that are not there it names the first: rank 1, should rank 2 be late.
    if (c.rank() == 0) c.set_timeout(Milliseconds(100));
    if (c.rank() != 1) c.all_reduce(x);
  });
  CHECK(outcomes[1].message == "");
  for (const int r : {0, 2}) {
    const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
    CHECK(outcome.comm_error);
    CHECK(outcome.rank == 1);
    CHECK(outcome.collective == "all_reduce");
    CHECK(missing(outcome.message,
                  {"rank 1 did not come (its last call was broadcast(f32, 8 elements, root 1), number 1"}) == "");
  }
  CHECK(missing(message_of<CommError>([&] { group[1]->barrier(); }), {"rank 1 did not come"}) == "");
}

TEST_CASE("peer: who waits for a rank that has left is told at once") {
  Group group = make_peer_group(support::first_devices(3));
  const auto outcomes = on_ranks(group, [&](Communicator& c) {
    c.all_reduce(filled(c, 8, 1));
    const auto rank = static_cast<std::size_t>(c.rank());
    if (rank == 1)
      group[1].reset();
    else
      c.barrier();
  });
  for (const std::size_t r : {0u, 2u}) {
    CHECK(outcomes[r].rank == 1);
    CHECK(missing(outcomes[r].message, {"[exchange] rank 1", "left"}) == "");
  }
}

TEST_CASE("peer: abort wakes those who wait") {
  const Group group = make_peer_group(support::first_devices(3));
  const Counter calling;
  std::thread other([&] {
    calling.reaches(2);
    group[2]->abort("the data is gone");
  });
  const auto outcomes = on_ranks(group, [&](Communicator& c) {
    calling.add();
    if (c.rank() != 2) c.all_reduce(filled(c, 8, 1));
  });
  other.join();
  for (const std::size_t r : {0u, 1u}) {
    CHECK(outcomes[r].rank == 2);
    CHECK(missing(outcomes[r].message, {"rank 2 aborted: the data is gone"}) == "");
  }
  CHECK(group[2]->broken());
}

TEST_CASE("peer: a rank that fails on the way tells the others, and nobody's memory is still in use") {
  const auto devices = support::first_devices(3);
  for (const bool reduces : {true, false}) {
    const Group group = make_peer_group(devices);
    const auto outcomes = on_ranks(group, [&](Communicator& c) {
      Tensor x = filled(c, 1 << 16, 1 + c.rank()), all = filled(c, reduces ? 1 : 3 << 16, 0);
      c.barrier();
      std::vector<Tensor> held;
      if (c.rank() == 1 && reduces) held = all_memory(c.device());
      if (reduces) c.all_reduce(x);
      x.fill_(0), x = Tensor();  // not reached on the rank that has no memory
    });
    set_memory_limit(devices[1], 0);
    if (!reduces) {
      check_all_well(outcomes);
      continue;
    }
    CHECK(missing(outcomes[1].message, {"memory"}) == "");
    CHECK(!outcomes[1].comm_error);
    // The rank that failed by itself knows it as well as those that were told.
    for (const auto& communicator : group) CHECK(communicator->broken());
    REQUIRE(group[1]->failure());
    CHECK(group[1]->failure()->rank == 1);
    for (const std::size_t r : {0u, 2u}) {
      CHECK(outcomes[r].rank == 1);
      CHECK(missing(outcomes[r].message, {"[all_reduce] rank 1", "memory"}) == "");
    }
    CHECK(missing(message_of<CommError>([&] { group[1]->barrier(); }), {"[all_reduce] rank 1"}) == "");
  }
  expect_usable(devices);
}

TEST_CASE("peer: devices must be different ones of one kind") {
  support::needs_devices(2);
  CHECK_THROWS_AS(make_peer_group({}), InvalidArgument);
  CHECK_THROWS_AS(make_peer_group({Device::cpu()}), InvalidArgument);
  CHECK_THROWS_AS(make_peer_group(support::devices_at({0, 1, 0})), InvalidArgument);
  CHECK_THROWS_AS(make_peer_group({support::first_devices(1)[0], Device::cpu()}), InvalidArgument);
  CHECK_THROWS_AS(make_peer_group(support::first_devices(2), {.scratch_bytes = 0}), InvalidArgument);
  CHECK_THROWS_AS(make_peer_group(support::first_devices(2), {.timeout = Milliseconds(0)}), InvalidArgument);
}

TEST_CASE("peer: ranks find each other through a store, again and again") {
  const auto store = make_local_store();
  const auto devices = support::devices_at({1, 2, 0});
  for (int generation = 0; generation < 3; ++generation) {
    std::vector<std::string> problems(3);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        try {
          const auto c = make_peer_communicator(store, static_cast<int>(r), 3, devices[r]);
          const Tensor x = filled(*c, 10, c->rank());
          c->all_reduce(x);
          expect_all(x, 3, "the sum");
          c->barrier();
        } catch (const std::exception& error) {
          problems[r] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& problem : problems) CHECK(problem == "");
  }
  CHECK_THROWS_AS(make_peer_communicator(store, 3, 3, devices[0]), InvalidArgument);
  CHECK_THROWS_AS(make_peer_communicator(make_local_store(), 0, 2, devices[0], {.timeout = Milliseconds(20)}),
                  TimeoutError);
  const auto strange = make_local_store();
  strange->set("peer/1/process/1", "somebody else");
  strange->set("peer/1/device/1", device_name(0));
  CHECK(missing(message_of<CommError>([&] { make_peer_communicator(strange, 0, 2, devices[0]); }),
                {"rank 1", "one process"}) == "");
}

TEST_CASE("peer: two groups on the same devices do not wait for each other") {
  const auto devices = support::first_devices(3);
  std::vector<Outcome> outcomes[2];
  std::vector<std::thread> groups;
  for (std::vector<Outcome>& mine : outcomes)
    groups.emplace_back([&devices, &mine] {
      mine = on_ranks(make_peer_group(devices, {.timeout = Milliseconds(60'000)}), [](Communicator& c) {
        Stream stream(c.device());
        const StreamScope scope(stream);
        for (int round = 1; round <= 10; ++round) {
          const Tensor x =
              from_data(std::vector<float>(1000, static_cast<float>(c.rank() + round)), {1000}, {.device = c.device()});
          c.all_reduce(x);
          expect_all(x.to(Device::cpu()), static_cast<float>(3 + 3 * round), "the sum");
        }
      });
    });
  for (std::thread& group : groups) group.join();
  for (const std::vector<Outcome>& mine : outcomes) {
    CHECK(mine.size() == devices.size());
    check_all_well(mine);
  }
}
