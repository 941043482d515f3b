// Images in channels_last in data parallelism: pieces, results and gradients keep the format, and are those of one
// device.
#include "lockstep/parallel/comm/factory/run_ranks.h"
#include "lockstep/parallel/ddp/distributed_data_parallel.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/sgd.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

constexpr MemoryFormat kPlain = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;

struct ImageNet : Module<ImageNet> {
  Conv2d first{3, 4, 3, {.padding = 1}}, second{4, 6, 3, {.stride = 2}};
  GroupNorm norm{2, 4};
  Tensor forward(const Tensor& x) const { return second(relu(norm(first(x)))); }
  void members(Members& m) override { m("first", first), m("norm", norm), m("second", second); }
};

// x * 2 where the piece has the format, else nothing.
struct Doubled : Module<Doubled> {
  MemoryFormat format;
  explicit Doubled(MemoryFormat f) : format(f) {}
  Tensor forward(const Tensor& x) const {
    if (x.memory_format() != format) throw Error("the piece has lost its format");
    return x * 2;
  }
};

Tensor images(const Shape& shape, MemoryFormat format, Device device) {
  return noise(shape, 3, device).to(format).set_requires_grad();
}

}  // namespace

TEST_CASE("pieces, gathered results and gradients of images in channels_last are channels_last", "[memory_format]") {
  for (const auto& devices : device_sets())
    for (const MemoryFormat format : {kPlain, kLast})
      for (const Device device : {devices.front(), devices.back(), Device::cpu()})
        for (const Shape& shape : {Shape{7, 3, 4, 5}, {7, 1, 4, 5}, {6, 4, 1, 1}}) {
          INFO(to_string(shape) << " from " << to_string(device) << ", " << devices.size() << " devices");
          const auto net = DataParallel(Doubled(format), {.devices = devices});
          const Tensor x = images(shape, format, device);
          const Tensor y = net(x);
          CHECK(y.device() == devices.front());
          CHECK(y.memory_format() == format);
          CHECK(y.contiguous_layout(format));
          CHECK(largest_difference(y, x * 2) == 0);
          y.backward(noise(shape, 4, y.device()));
          CHECK(x.grad().memory_format() == format);
          CHECK(largest_difference(x.grad(), noise(shape, 4) * 2) == 0);
        }
}

TEST_CASE("scatter along channels and rows, and gather there, keep channels_last", "[memory_format]") {
  const auto devices = first_devices(3);
  for (const std::int64_t dim : {1, 2, 3}) {
    INFO("dimension " << dim);
    const Tensor x = images({1, 6, 6, 6}, kLast, devices[0]);
    const std::vector<Tensor> pieces = scatter(x, devices, dim);
    for (const Tensor& piece : pieces) CHECK(piece.memory_format() == kLast);
    const Tensor y = gather(pieces, devices[1], dim);
    CHECK(y.memory_format() == kLast);
    CHECK(largest_difference(x, y) == 0);
  }
}

TEST_CASE("a network on images in channels_last on several devices is as on one", "[memory_format]") {
  const ImageNet reference = seeded<ImageNet>(1);
  for (const int count : {1, 2, 3}) {
    INFO(count << " devices");
    const auto train = [&](MemoryFormat format) {
      ImageNet own = deep_copy(reference);
      own.to(device_at(0));
      const auto net = DataParallel(own, {.devices = first_devices(count)});
      const Tensor x = images({7, 3, 9, 8}, format, device_at(0));
      const Tensor y = net(x);
      CHECK(y.memory_format() == format);
      y.backward(noise(y.shape(), 5, y.device()));
      CHECK(x.grad().memory_format() == format);
      std::vector<Tensor> results{y, x.grad()};
      for (const Parameter& parameter : own.parameters()) results.push_back(parameter.grad());
      return results;
    };
    ImageNet own = deep_copy(reference);
    const Tensor x = images({7, 3, 9, 8}, kPlain, Device::cpu());
    const Tensor y = own(x);
    y.backward(noise(y.shape(), 5));
    std::vector<Tensor> want{y, x.grad()};
    for (const Parameter& parameter : own.parameters()) want.push_back(parameter.grad());
    const std::vector<Tensor> got = train(kLast);
    REQUIRE(got.size() == want.size());
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(largest_difference(got[i], want[i]) < 1e-10);
  }
}

TEST_CASE("a module in channels_last in replicas: parameters, gradients and results as on one device",
          "[memory_format]") {
  const ImageNet reference = seeded<ImageNet>(1);
  for (const int count : {1, 2, 3}) {
    INFO(count << " devices");
    const auto train = [&](MemoryFormat format) {
      ImageNet own = deep_copy(reference);
      own.to(device_at(0));
      own.to(format);
      const auto net = DataParallel(own, {.devices = first_devices(count)});
      SGD optimizer(own.parameters(), {.lr = 0.1, .momentum = 0.9});
      for (std::uint64_t step = 0; step < 4; ++step) {
        if (step != 2) optimizer.zero_grad();
        const Tensor y = net(noise({7, 3, 9, 8}, step, device_at(0)));
        CHECK(y.memory_format() == format);
        y.backward(noise(y.shape(), 5, y.device()));
        for (const Parameter& parameter : own.parameters()) {
          if (parameter.shape().rank() != 4) continue;
          CHECK(parameter.tensor().memory_format() == format);
          CHECK(parameter.grad().memory_format() == format);
        }
        optimizer.step();
      }
      std::vector<Tensor> results;
      for (const Parameter& parameter : own.parameters()) results.push_back(parameter.tensor().detach());
      return results;
    };
    const std::vector<Tensor> want = train(kPlain), got = train(kLast);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(largest_difference(got[i], want[i]) < 1e-9);
  }
}

TEST_CASE("ranks train a module in channels_last as one in rows, and must agree on the format", "[memory_format]") {
  const auto train = [](MemoryFormat format, bool views) {
    return run_ranks(2, [&](Communicator& communicator) {
      ImageNet own = seeded<ImageNet>(1);
      own.to(format);
      DistributedDataParallel net(own, communicator, {.first_bucket_mb = 0.0005, .gradient_as_bucket_view = views});
      SGD optimizer(own.parameters(), {.lr = 0.1, .momentum = 0.9});
      bool kept = true;
      for (std::uint64_t step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const auto rank = static_cast<std::uint64_t>(communicator.rank());
        const Tensor y = net(noise({2, 3, 9, 8}, 10 * step + rank, communicator.device()));
        y.backward(noise(y.shape(), 5, y.device()));
        for (const Parameter& parameter : own.parameters())
          kept = kept && (parameter.shape().rank() != 4 || parameter.grad().memory_format() == format);
        optimizer.step();
      }
      Doubles all{kept ? 1.0 : 0.0};
      for (const Parameter& parameter : own.parameters())
        for (const double value : values(parameter.tensor().detach())) all.push_back(value);
      return all;
    });
  };
  for (const bool views : {true, false}) {
    INFO("views " << views);
    const auto want = train(kPlain, views), got = train(kLast, views);
    CHECK(got[0] == got[1]);
    REQUIRE(got[0].size() == want[0].size());
    CHECK(got[0][0] == 1);
    double largest = 0;
    for (std::size_t i = 0; i < got[0].size(); ++i) largest = std::max(largest, std::abs(got[0][i] - want[0][i]));
    CHECK(largest < 1e-9);
  }
  CHECK_THROWS_WITH(run_ranks(2,
                              [](Communicator& communicator) {
                                ImageNet own = seeded<ImageNet>(1);
                                if (communicator.rank() == 1) own.to(kLast);
                                DistributedDataParallel net(own, communicator);
                                return 0;
                              }),
                    Catch::Matchers::Contains("strides"));
}
