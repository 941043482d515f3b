// Products and convolutions of new sizes beside a collective that spins on the devices.
#include <cuda_runtime_api.h>

#include <memory>
#include <thread>

#include "fake_cuda/fake_cuda.h"
#include "lockstep/runtime/stream/growth_lock.h"
#include "lockstep/runtime/stream/watchdog.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;

namespace {

// A collective that ends when the thread that has begun it looks at it: whoever grows does, while it waits.
class Collective final : public detail::InFlight {
 public:
  Collective() { begin(); }
  ~Collective() override { end(); }

  void begin() {
    end();
    detail::begin_collective();
    spinning_ = std::make_unique<fake_cuda::SpinningCollective>();
  }
  int ended() const { return ended_; }

  void poll() noexcept override {
    if (std::this_thread::get_id() == owner_) end();
  }
  void break_off(const CommError&, const std::string&) noexcept override {}
  void tell(Device) override {}

 private:
  void end() noexcept {
    if (!spinning_) return;
    spinning_.reset();
    detail::end_collective();
    ++ended_;
  }

  const std::thread::id owner_ = std::this_thread::get_id();
  std::unique_ptr<fake_cuda::SpinningCollective> spinning_;
  int ended_ = 0;
};

}  // namespace

TEST_CASE("a product of new sizes waits until no collective spins, and later ones do not") {
  const Device device = support::device_at(1);
  const Tensor a = ones({6, 6}, {.device = device}), b = ones({6, 6}, {.device = device});
  matmul(a, b);  // handle, kernels and memory are there from here on
  const auto collective = std::make_shared<Collective>();
  detail::add_in_flight(collective);
  matmul(a, transpose(b, 0, 1));  // another plan, of the same sizes
  CHECK(collective->ended() == 1);
  collective->begin();
  matmul(a, transpose(b, 0, 1));
  CHECK(collective->ended() == 1);
  detail::remove_in_flight(collective.get());
  CHECK(fake_cuda::take_failures().empty());
}

// Alone in its program (ctest: fake_cuda/lost_product): the device is of no use afterwards.
TEST_CASE("a product of new sizes on a device that was lost names the loss, not the sizes", "[.lost_product]") {
  const Device device = support::device_at(1);
  const Tensor a = ones({6, 6}, {.device = device});
  fake_cuda::inject({.call = "cublasLtMatmulAlgoGetHeuristic",
                     .error = cudaErrorIllegalAddress,
                     .breaks_device = cudaErrorIllegalAddress});
  try {
    matmul(a, a);
    FAIL("nothing was thrown");
  } catch (const DeviceError& error) {
    CHECK(error.device == device);
    CHECK_THAT(error.what(), Catch::Matchers::Contains("cudaErrorIllegalAddress"));
  }
}

TEST_CASE("a convolution of new sizes waits until no collective spins, and later ones do not") {
  const Device device = support::device_at(1);
  const Tensor w = ones({3, 2, 3, 3}, {.device = device});
  const Tensor a = ones({1, 2, 7, 9}, {.device = device}), b = ones({1, 2, 9, 7}, {.device = device});
  conv2d(a, w);  // handle, kernels and memory are there from here on
  const auto collective = std::make_shared<Collective>();
  detail::add_in_flight(collective);
  conv2d(b, w);
  CHECK(collective->ended() == 1);
  collective->begin();
  conv2d(b, w);
  conv2d(a, w);
  CHECK(collective->ended() == 1);
  detail::remove_in_flight(collective.get());
  CHECK(fake_cuda::take_failures().empty());
}
