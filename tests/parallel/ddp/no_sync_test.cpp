// The scope of no_sync: conditional, handed on, ended in any order, or after its wrapper.
#include <optional>
#include <type_traits>

#include "parallel/ddp/support.h"

using namespace parallel_test;

static_assert(std::is_nothrow_move_constructible_v<NoSync> && std::is_nothrow_move_assignable_v<NoSync>);
static_assert(!std::is_copy_constructible_v<NoSync> && !std::is_copy_assignable_v<NoSync>);

namespace {

// Whether a backward stays on the rank now.
struct SyncProbe {
  DistributedDataParallel<Scale>& net;
  bool quiet() const {
    net.zero_grad();
    sum(net(full({1, 1}, net.communicator().rank(), {.dtype = DType::f64}))).backward();
    return values(net.module().weight.grad())[0] == net.communicator().rank();
  }
};

std::vector<Doubles> on_two(const std::function<Doubles(DistributedDataParallel<Scale>&, const SyncProbe&)>& body) {
  return run_ranks(2, [&](Communicator& communicator) {
    DistributedDataParallel<Scale> net(Scale(Doubles{1}), communicator);
    return body(net, SyncProbe{net});
  });
}

}  // namespace

TEST_CASE("no_sync may be conditional, moved and handed on") {
  const auto result = on_two([](auto& net, const SyncProbe& probe) {
    Doubles quiet;
    for (const bool wanted : {true, false}) {
      {
        const std::optional<NoSync> scope = wanted ? std::optional(net.no_sync()) : std::nullopt;
        quiet.push_back(probe.quiet());
      }
      {
        NoSync scope;
        if (wanted) scope = net.no_sync();
        quiet.push_back(probe.quiet());
      }
      {
        const auto make = [&] { return wanted ? net.no_sync() : NoSync(); };
        std::vector<NoSync> scopes;
        scopes.push_back(make());
        scopes.push_back(make());
        scopes.erase(scopes.begin());
        quiet.push_back(probe.quiet());
      }
      quiet.push_back(probe.quiet());
    }
    return quiet;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 1, 1, 0, 0, 0, 0, 0});
}

TEST_CASE("no_sync scopes end in any order, and by being assigned to") {
  const auto result = on_two([](auto& net, const SyncProbe& probe) {
    Doubles quiet;
    std::optional<NoSync> first(net.no_sync()), second(net.no_sync());
    first.reset();
    quiet.push_back(probe.quiet());
    NoSync moved = std::move(*second);
    second.reset();
    quiet.push_back(probe.quiet());
    moved = net.no_sync();
    quiet.push_back(probe.quiet());
    NoSync& same = moved;
    moved = std::move(same);
    quiet.push_back(probe.quiet());
    moved = NoSync();
    quiet.push_back(probe.quiet());
    return quiet;
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{1, 1, 1, 1, 0});
}

TEST_CASE("no_sync may end after its wrapper") {
  const auto result = run_ranks(2, [](Communicator& communicator) {
    NoSync late;
    {
      DistributedDataParallel<Scale> net(Scale(Doubles{1}), communicator);
      late = net.no_sync();
    }
    DistributedDataParallel<Scale> other(Scale(Doubles{1}), communicator);
    const bool quiet = SyncProbe{other}.quiet();
    late = other.no_sync();
    return Doubles{quiet ? 1.0 : 0.0, SyncProbe{other}.quiet() ? 1.0 : 0.0};
  });
  for (const Doubles& rank : result) CHECK(rank == Doubles{0, 1});
}
