// The part of parallel_apply that knows no types.
#include "lockstep/parallel/replica_call.h"

#include <atomic>
#include <thread>

#include "parallel/support.h"

using namespace parallel_test;

namespace {

// Says in which thread it dies, as an exception or the code of a plug-in would notice.
class Mortal final : public detail::ReplicaCall {
 public:
  Mortal(std::span<const Device> devices, std::thread::id& died) : ReplicaCall(devices), died_(died) {}
  ~Mortal() override { died_ = std::this_thread::get_id(); }

 private:
  void run(std::size_t) override {}
  void forget(std::size_t) noexcept override {}
  std::thread::id& died_;
};

}  // namespace

TEST_CASE("a call dies in the thread of its caller, not in a device's") {
  support::needs_devices(2);
  const std::vector<Device> devices = support::first_devices(2);
  // Several callers, more than there are cores for: threads are interrupted everywhere.
  std::atomic<int> elsewhere = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 16; ++caller)
    callers.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        std::thread::id died;
        {
          const auto call = std::make_shared<Mortal>(devices, died);
          detail::run_replicas(call, Milliseconds(60'000));
        }
        elsewhere += died == std::this_thread::get_id() ? 0 : 1;
      }
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(elsewhere == 0);
}
