// parallel_apply: who runs where, with what.
#include "lockstep/parallel/parallel_apply.h"

#include <thread>

#include "lockstep/runtime/thread/rendezvous.h"
#include "lockstep/tensor/ops/random.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

// Functions, one per device, that are given their number.
template <class F>
auto numbered(F function, int count) {
  std::vector<std::decay_t<F>> functions(static_cast<std::size_t>(count), function);
  return functions;
}
std::vector<int> counting_to(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

// Neither default-constructible nor copyable.
struct Ticket {
  explicit Ticket(int n) : number(n) {}
  Ticket(Ticket&&) = default;
  Ticket& operator=(Ticket&&) = default;
  int number;
};

}  // namespace

TEST_CASE("outputs come in order, whatever their type") {
  for (const auto& devices : device_sets()) {
    const int count = static_cast<int>(devices.size());
    const auto inputs = counting_to(count);
    CHECK(parallel_apply(numbered([](int i) { return 10 * i; }, count), inputs, devices).back() == 10 * (count - 1));
    const std::vector<Ticket> tickets =
        parallel_apply(numbered([](int i) { return Ticket(i); }, count), inputs, devices);
    REQUIRE(tickets.size() == devices.size());
    for (int i = 0; i < count; ++i) CHECK(tickets[static_cast<std::size_t>(i)].number == i);
    const std::vector<bool> odd = parallel_apply(numbered([](int i) { return i % 2 == 1; }, count), inputs, devices);
    for (int i = 0; i < count; ++i) CHECK(odd[static_cast<std::size_t>(i)] == (i % 2 == 1));
    std::vector<int> seen(devices.size(), -1);
    static_assert(std::is_void_v<decltype(parallel_apply(numbered([](int) {}, 1), inputs, devices))>);
    parallel_apply(numbered([&](int i) { seen[static_cast<std::size_t>(i)] = i; }, count), inputs, devices);
    CHECK(seen == inputs);
  }
}

TEST_CASE("a tuple holds the arguments, anything else is the only one") {
  support::needs_devices(3);
  const auto add = [](const Tensor& x, int n) { return x.item<double>() + n; };
  const std::vector<std::tuple<Tensor, int>> inputs{{counting({1}, device_at(0)), 5},
                                                    {counting({1}, device_at(1), 2), 6}};
  CHECK(parallel_apply(std::vector{add, add}, inputs) == Doubles{6, 8});
  const auto sum = [](const std::vector<Tensor>& list) { return list[0].item<double>(); };
  CHECK(parallel_apply(std::vector{sum}, std::vector<std::vector<Tensor>>{{counting({1}, device_at(2), 4)}}) ==
        Doubles{4});
}

TEST_CASE("lengths must agree, the message has both") {
  support::needs_devices(3);
  const auto one = [](int i) { return i; };
  CHECK(missing(message_of<InvalidArgument>([&] {
                  parallel_apply(std::vector{one, one}, std::vector{1, 2, 3}, first_devices(2));
                }),
                {"3 inputs", "2 replicas"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] {
                  parallel_apply(std::vector{one, one}, std::vector{1, 2}, first_devices(3));
                }),
                {"3 devices", "2 replicas"}) == "");
  CHECK(parallel_apply(std::vector<std::decay_t<decltype(one)>>{}, std::vector<int>{}, devices_at({})).empty());
}

TEST_CASE("absent devices come from the first tensor of each input") {
  const auto where = [](const std::pair<int, Tensor>&) { return DeviceThread::current()->device(); };
  const std::vector<std::pair<int, Tensor>> inputs{{1, counting({1}, device_at(3))}, {2, counting({1}, device_at(1))}};
  CHECK(parallel_apply(std::vector{where, where}, inputs) == devices_at({3, 1}));
  const auto nowhere = [](int i) { return i; };
  CHECK(missing(message_of<InvalidArgument>([&] { parallel_apply(std::vector{nowhere}, std::vector{1}); }),
                {"devices", "replica 0"}) == "");
  const std::vector<std::pair<int, Tensor>> same(2, {1, counting({1}, device_at(3))});
  CHECK(missing(message_of<InvalidArgument>([&] {
                  parallel_apply(std::vector{where, where}, same);
                }),
                {device_name(3), "twice"}) == "");
}

TEST_CASE("replicas run on their own devices") {
  Scale net({2, 3});
  net.to(device_at(1));
  const auto replicas = replicate(net, devices_at({1, 0}));
  const std::vector<Tensor> inputs = scatter(counting({2, 2}), devices_at({1, 0}));
  const std::vector<Tensor> outputs = parallel_apply(replicas, inputs);
  CHECK(values(outputs[0]) == Doubles{2, 6});
  CHECK(outputs[1].device() == device_at(0));
  CHECK(values(outputs[1]) == Doubles{6, 12});
  CHECK_THROWS_AS(parallel_apply(replicas, inputs, devices_at({0, 1})), InvalidArgument);
}

TEST_CASE("a lone replica runs in the caller's thread, several on device threads") {
  support::needs_devices(4);
  const auto caller = std::this_thread::get_id();
  const auto here = [caller](int) { return std::this_thread::get_id() == caller; };
  CHECK(parallel_apply(std::vector{here}, std::vector{0}, devices_at({3})) == std::vector<bool>{true});
  CHECK(parallel_apply(std::vector{here, here}, std::vector{0, 0}, devices_at({3, 0})) ==
        std::vector<bool>{false, false});
  const auto device = [](int) { return DeviceThread::current()->device(); };
  CHECK(parallel_apply(std::vector{device, device}, std::vector{0, 0}, devices_at({3, 0})) == devices_at({3, 0}));
}

TEST_CASE("replicas see the caller's context, and leave no trace in the threads") {
  struct Seen {
    bool grad;
    DType dtype;
    std::int8_t training;
    std::uint64_t seed;
    int depth;
    bool operator==(const Seen&) const = default;
  };
  const auto look = [](int) {
    ThreadContext& context = thread_context();
    const Seen seen{context.grad_enabled, context.default_dtype, context.training, context.random_seed,
                    context.module_depth};
    context.grad_enabled = !context.grad_enabled;
    context.default_dtype = DType::i32;
    return seen;
  };
  for (const int count : {1, 2}) {
    const auto run = [&] { return parallel_apply(numbered(look, count), counting_to(count), first_devices(count)); };
    const NoGrad off;
    const DefaultDType dtype(DType::f64);
    const TrainingScope evaluation(false);
    manual_seed(77);
    for (const Seen& seen : run()) CHECK(seen == Seen{false, DType::f64, 0, 77, 0});
    {
      const GradMode on(true);
      const DefaultDType other(DType::f16);
      const TrainingScope training(true);
      for (const Seen& seen : run()) CHECK(seen == Seen{true, DType::f16, 1, 77, 0});
    }
    for (const Seen& seen : run()) CHECK(seen == Seen{false, DType::f64, 0, 77, 0});
    manual_seed(0);
  }
}

TEST_CASE("replicas compute on the caller's current streams") {
  support::needs_devices(2);
  const auto streams = [](int) {
    return std::vector{current_stream(device_at(0)).handle(), current_stream(device_at(1)).handle()};
  };
  Stream first(device_at(0)), second(device_at(1));
  const auto run = [&] { return parallel_apply(numbered(streams, 2), counting_to(2), first_devices(2)); };
  const StreamScope scope(second);
  for (const auto& seen : run()) CHECK(seen == std::vector{default_stream(device_at(0)).handle(), second.handle()});
  {
    const StreamScope inner(first);
    for (const auto& seen : run()) CHECK(seen == std::vector{first.handle(), second.handle()});
  }
  CHECK(parallel_apply(numbered(streams, 1), counting_to(1), first_devices(1))[0][1] == second.handle());
}

TEST_CASE("substitutes reach the replicas") {
  support::needs_devices(2);
  Scale net({2, 3});
  net.to(device_at(0));
  const auto replicas = replicate(net, first_devices(2));
  const auto scope = substitute(net, {tensor({10, 20}, {2}, device_at(0))});
  const auto outputs = parallel_apply(replicas, scatter(counting({2, 2}), first_devices(2)));
  CHECK(values(outputs[0]) == Doubles{10, 40});
  CHECK(values(outputs[1]) == Doubles{30, 80});
}

TEST_CASE("random numbers depend on the seed, the call and the replica, not on timing") {
  const auto draw = [](int i) {
    std::this_thread::sleep_for(std::chrono::microseconds(100 * (i * 7 % 3)));
    const Doubles first = values(rand({3}, {.dtype = DType::f64}));
    return std::pair(first, values(rand({3}, {.dtype = DType::f64})));
  };
  const auto run = [&](int count) {
    return parallel_apply(numbered(draw, count), counting_to(count), first_devices(count));
  };
  manual_seed(5);
  const auto first = run(3), second = run(3);
  const auto lone = run(1);
  manual_seed(5);
  for (int i = 0; i < 10; ++i) {
    manual_seed(5);
    CHECK(run(3) == first);
    CHECK(run(3) == second);
    CHECK(run(1) == lone);
  }
  CHECK(first[0] != first[1]);
  CHECK(first[1] != first[2]);
  CHECK(first != second);
  CHECK(first[0].first != first[0].second);
  manual_seed(6);
  CHECK(run(3) != first);
  manual_seed(5);
  CHECK(run(1)[0] == first[0]);  // replica 0 draws the same, alone or not
}

TEST_CASE("node numbers go on from the caller's and come back") {
  const auto number = [](int i) { return thread_context().sequence += static_cast<std::uint64_t>(10 * i + 1); };
  for (const int count : {1, 3}) {
    const std::uint64_t before = thread_context().sequence;
    const auto seen = parallel_apply(numbered(number, count), counting_to(count), first_devices(count));
    for (int i = 0; i < count; ++i) {
      CHECK(seen[static_cast<std::size_t>(i)] == before + static_cast<std::uint64_t>(10 * i + 1));
    }
    CHECK(thread_context().sequence == seen.back());
  }
}

TEST_CASE("a call from inside a replica is an error, also inside a lone one") {
  support::needs_devices(6);
  const auto inner = [](int) {
    return message_of<Error>(
        [] { parallel_apply(std::vector{[](int i) { return i; }}, std::vector{1}, devices_at({5})); });
  };
  for (const int count : {1, 2}) {
    for (const std::string& message :
         parallel_apply(numbered(inner, count), counting_to(count), first_devices(count))) {
      CHECK(missing(message, {"inside a replica"}) == "");
    }
  }
}

TEST_CASE("calls from several threads on the same devices in different orders do not wait for each other") {
  support::needs_devices(2);
  // Replicas of one call meet each other: with tasks enqueued in different orders on two devices this would never end.
  const auto meet = [](const std::shared_ptr<Rendezvous>& rendezvous, int i) {
    rendezvous->arrive_and_wait(i, Deadline::after(kDefaultTimeout));
  };
  using Input = std::tuple<std::shared_ptr<Rendezvous>, int>;
  const auto caller = [&](std::vector<Device> devices) {
    for (int round = 0; round < 200; ++round) {
      const auto rendezvous = std::make_shared<Rendezvous>(2);
      parallel_apply(std::vector{meet, meet}, std::vector<Input>{{rendezvous, 0}, {rendezvous, 1}}, devices);
    }
  };
  std::thread other([&] { caller(devices_at({1, 0})); });
  caller(devices_at({0, 1}));
  other.join();
}
