// Modules with parameters in channels_last.
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/prepare.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/rmsprop.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using support::device_at;
using support::difference;

namespace {

constexpr MemoryFormat kPlainFormat = MemoryFormat::contiguous, kLastFormat = MemoryFormat::channels_last;

struct ImageNet : Module<ImageNet> {
  Conv2d first{3, 8, 3, {.padding = 1, .bias = false}}, second{8, 4, 1};
  BatchNorm2d norm{8};
  ConvTranspose2d third{4, 2, 2, {.stride = 2}};
  Linear head{2, 3};
  Tensor forward(const Tensor& x) const {
    const Tensor images = third(second(relu(norm(first(x)))));
    return head(mean(images, {2, 3}));
  }
  void members(Members& m) override {
    m("first", first), m("norm", norm), m("second", second), m("third", third), m("head", head);
  }
};

ImageNet make(MemoryFormat format) {
  const DefaultDType f64(DType::f64);
  manual_seed(3);
  ImageNet net;
  net.to(format);
  return net;
}
Tensor images(std::uint64_t seed) {
  manual_seed(seed);
  return randn({5, 3, 6, 7}, {.dtype = DType::f64});
}
double largest_difference(const ModuleBase& a, const ModuleBase& b) {
  const auto x = a.state_dict(), y = b.state_dict();
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    largest = std::max(largest, difference(x[i].tensor.detach().to(DType::f64), y[i].tensor.detach().to(DType::f64)));
  return largest;
}
// Whether all parameters of four dimensions, and their gradients, have it.
bool all_in(const ModuleBase& net, MemoryFormat format) {
  bool all = true;
  for (const Parameter& parameter : net.parameters()) {
    if (parameter.shape().rank() != 4) continue;
    all = all && parameter.tensor().memory_format() == format;
    if (const Tensor grad = parameter.grad(); grad.defined())
      all = all && grad.memory_format() == format && grad.contiguous_layout(format);
  }
  return all;
}

}  // namespace

TEST_CASE("a module in channels_last computes the same, in that format", "[memory_format]") {
  const ImageNet rows = make(kPlainFormat), last = make(kLastFormat);
  CHECK(all_in(rows, kPlainFormat));
  CHECK(all_in(last, kLastFormat));
  CHECK(largest_difference(rows, last) == 0);
  const Tensor x = images(1);
  CHECK(last.first(x).memory_format() == kLastFormat);
  CHECK(last.third(last.second(last.first(x))).memory_format() == kLastFormat);
  const Tensor y = rows(x), z = last(x);
  CHECK(difference(y, z) < 1e-12);
  y.sum().backward();
  z.sum().backward();
  CHECK(all_in(last, kLastFormat));
  for (std::size_t i = 0; i < rows.parameters().size(); ++i)
    CHECK(difference(rows.parameters()[i].grad(), last.parameters()[i].grad()) < 1e-11);
}

TEST_CASE("to(format) takes gradients along, and back again; other ranks stay", "[memory_format]") {
  ImageNet net = make(kPlainFormat);
  net(images(1)).sum().backward();
  std::vector<Tensor> before;
  for (const Parameter& parameter : net.parameters()) before.push_back(parameter.grad().clone());
  const TensorImpl* const bias = net.second.bias.tensor().identity();
  for (const MemoryFormat format : {kLastFormat, kPlainFormat, kLastFormat}) {
    net.to(format);
    CHECK(all_in(net, format));
    for (std::size_t i = 0; i < before.size(); ++i) CHECK(difference(net.parameters()[i].grad(), before[i]) == 0);
  }
  CHECK(net.second.bias.tensor().identity() == bias);
  net(images(2)).sum().backward();  // added to
  CHECK(all_in(net, kLastFormat));
  net.to(DType::f32);
  CHECK(all_in(net, kLastFormat));
  net.to(device_at(2));
  CHECK(all_in(net, kLastFormat));
  CHECK(all_in(deep_copy(net), kLastFormat));
  net.set_requires_grad(false);
  net.to(kPlainFormat);
  net.set_requires_grad(true);
  net.zero_grad();
  net(images(3).to(DType::f32).to(device_at(2)).to(kLastFormat)).sum().backward();
  CHECK(all_in(net, kPlainFormat));
  net.to(kLastFormat);
  const Tensor given = zeros(net.parameters()[0].shape(), {.dtype = DType::f32, .device = device_at(2)});
  net.parameters()[0].set_grad(given);
  CHECK(all_in(net, kLastFormat));
}

TEST_CASE("optimizers and their states: the same steps in either format", "[memory_format]") {
  const auto train = [](auto make_optimizer, MemoryFormat format, MemoryFormat later) {
    ImageNet net = make(format);
    auto optimizer = make_optimizer(net.parameters());
    GradScaler scaler({.init_scale = 4});
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        net.to(later);
        auto again = make_optimizer(net.parameters());
        again.load_state_dict(optimizer.state_dict());
        optimizer = std::move(again);
      }
      optimizer.zero_grad();
      scaler.scale(square(net(images(static_cast<std::uint64_t>(step)))).sum()).backward();
      CHECK(all_in(net, step < 3 ? format : later));
      scaler.step(optimizer);
      scaler.update();
    }
    return net;
  };
  const auto check = [&](auto make_optimizer) {
    const ImageNet want = train(make_optimizer, kPlainFormat, kPlainFormat);
    for (const MemoryFormat format : {kPlainFormat, kLastFormat})
      for (const MemoryFormat later : {kPlainFormat, kLastFormat})
        CHECK(largest_difference(want, train(make_optimizer, format, later)) < 1e-9);
  };
  check([](const std::vector<Parameter>& p) { return SGD(p, {.lr = 0.01, .momentum = 0.9}); });
  check([](const std::vector<Parameter>& p) { return Adam(p, {.lr = 0.01, .amsgrad = true}); });
  check([](const std::vector<Parameter>& p) { return RMSprop(p, {.lr = 0.01, .momentum = 0.5, .centered = true}); });
}

TEST_CASE("files and state dicts know no format: each module keeps its own", "[memory_format]") {
  const test::TemporaryFolder folder;
  const ImageNet last = make(kLastFormat);
  save_model(last, folder / "net.safetensors");
  for (const MemoryFormat format : {kPlainFormat, kLastFormat}) {
    ImageNet net = make(format);
    for (const Parameter& parameter : net.parameters()) parameter.assign(zeros(parameter.shape()));
    load_model(net, folder / "net.safetensors");
    CHECK(all_in(net, format));
    CHECK(largest_difference(net, last) == 0);
    for (const Parameter& parameter : net.parameters()) parameter.assign(zeros(parameter.shape()));
    net.load_state_dict(last.state_dict());
    CHECK(all_in(net, format));
    CHECK(largest_difference(net, last) == 0);
  }
}

TEST_CASE("a prepared module in channels_last", "[memory_format]") {
  ImageNet net = make(kLastFormat);
  net.eval();
  const auto fast = prepare(net);
  for (int i = 0; i < 3; ++i) CHECK(difference(fast(images(1)), net(images(1))) < 1e-11);
  CHECK(difference(fast(images(2).to(kLastFormat)), net(images(2))) < 1e-11);
}
