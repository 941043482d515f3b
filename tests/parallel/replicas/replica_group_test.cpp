// Replicas of one call that meet, by threads that stand for them.
#include "lockstep/parallel/replicas/replica_group.h"

#include <thread>

#include "parallel/support.h"

using namespace parallel_test;
using detail::ReplicaGroup;

namespace {

Tensor number(double value) { return full({1}, value, {.dtype = DType::f64}); }
double value_of(const Tensor& x) { return x.item<double>(); }

// Each gets the sum of what all have brought, and its own number after the point.
std::vector<Tensor> sums(const std::vector<Tensor>& brought) {
  double sum = 0;
  for (const Tensor& x : brought) sum += value_of(x);
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < brought.size(); ++i) results.push_back(number(sum + 0.25 * static_cast<double>(i)));
  return results;
}

// What body(replica) returns or throws, by replica; each leaves as a replica of a call does.
std::vector<std::string> run(ReplicaGroup& group, int count, const std::function<std::string(int)>& body) {
  std::vector<std::string> said(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      const ReplicaGroup::Scope scope(group, i);
      std::exception_ptr error;
      try {
        said[static_cast<std::size_t>(i)] = body(i);
      } catch (...) {
        error = std::current_exception();
        said[static_cast<std::size_t>(i)] = detail::describe(error);
      }
      group.leave(i, error);
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}
std::vector<Device> three() { return std::vector<Device>(3, Device::cpu()); }

const ReplicaGroup::Place kHere{"Norm", "here"}, kThere{"Norm", "there"};

}  // namespace

TEST_CASE("replicas that meet get what all have brought, as often as they come") {
  ReplicaGroup group(three());
  const auto said = run(group, 3, [&](int replica) {
    std::string values;
    for (int visit = 0; visit < 50; ++visit) {
      for (const ReplicaGroup::Place* place : {&kHere, &kThere}) {
        const double mine = visit * 10 + replica + (place == &kHere ? 0 : 1000);
        values += cat(value_of(group.meet(*place, replica, number(mine), sums)), ' ');
      }
    }
    return values;
  });
  for (int replica = 0; replica < 3; ++replica) {
    std::string expected;
    for (int visit = 0; visit < 50; ++visit)
      for (const int far : {0, 3000}) expected += cat(visit * 30 + 3.0 + far + 0.25 * replica, ' ');
    CHECK(said[static_cast<std::size_t>(replica)] == expected);
  }
  CHECK(ReplicaGroup::current() == nullptr);
}

TEST_CASE("who meets is not kept waiting by one that does not come") {
  const auto meet = [](ReplicaGroup& group, const ReplicaGroup::Place& place, int replica) {
    return cat(value_of(group.meet(place, replica, number(1), sums)));
  };
  {
    ReplicaGroup group(three());
    const auto said = run(group, 3, [&](int replica) { return replica == 1 ? "" : meet(group, kHere, replica); });
    for (const int waits : {0, 2})
      CHECK(missing(said[static_cast<std::size_t>(waits)],
                    {"[Norm]", "come to 'here'", "replica 1 on cpu has returned"}) == "");
  }
  {
    ReplicaGroup group(three());
    const auto said = run(group, 3, [&](int replica) -> std::string {
      if (replica == 2) throw std::runtime_error("no more");
      return meet(group, kHere, replica);
    });
    for (const int waits : {0, 1})
      CHECK(missing(said[static_cast<std::size_t>(waits)], {"'here'", "replica 2 on cpu threw: no more"}) == "");
  }
  {
    ReplicaGroup group(three());
    const auto said =
        run(group, 3, [&](int replica) { return replica == 1 ? meet(group, kThere, 1) : meet(group, kHere, replica); });
    for (const std::string& each : said)
      CHECK(missing(each, {"in the same order", "replica 0 on cpu is at 'here'", "replica 1 on cpu is at 'there'",
                           "replica 2 on cpu is at 'here'"}) == "");
  }
}

TEST_CASE("what fails at a meeting fails for all who came, and for those who come later") {
  ReplicaGroup group(three());
  const auto said = run(group, 3, [&](int replica) {
    const auto fails = [](const std::vector<Tensor>&) -> std::vector<Tensor> { throw Error("nothing fits"); };
    try {
      group.meet(kHere, replica, number(1), fails);
      return std::string("no error");
    } catch (const Error&) {
    }
    return cat(value_of(group.meet(kThere, replica, number(1), sums)));
  });
  for (const std::string& each : said) CHECK(each == "nothing fits");
}

TEST_CASE("who combines throws what it met, and the others say that it is not their own") {
  ReplicaGroup group(three());
  std::vector<int> kinds(3);  // 1: what was thrown, 2: that of the group
  const auto said = run(group, 3, [&](int replica) -> std::string {
    const auto fails = [](const std::vector<Tensor>&) -> std::vector<Tensor> { throw InvalidArgument("nothing fits"); };
    try {
      group.meet(kHere, replica, number(1), fails);
    } catch (const InvalidArgument&) {
      kinds[static_cast<std::size_t>(replica)] = 1;
      throw;
    } catch (const ReplicaGroup::Failure&) {
      kinds[static_cast<std::size_t>(replica)] = 2;
      throw;
    }
    return "";
  });
  for (const std::string& each : said) CHECK(each == "nothing fits");
  std::sort(kinds.begin(), kinds.end());
  CHECK(kinds == std::vector<int>{1, 2, 2});
}

TEST_CASE("a group that is failed wakes who waits") {
  ReplicaGroup group(three());
  Latch failed;
  const auto said = run(group, 3, [&](int replica) {
    if (replica == 2) {
      group.fail("given up");
      failed.open();
      return std::string();
    }
    if (replica == 1) failed.wait();  // it comes after the end
    return cat(value_of(group.meet(kHere, replica, number(1), sums)));
  });
  CHECK(said == std::vector<std::string>{"given up", "given up", ""});
}
