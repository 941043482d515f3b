// The engine: what flows where, in which order, and what is an error.
#include "lockstep/tensor/engine/engine.h"

#include <thread>

#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/messages.h"
#include "support/tensors.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::leaf;
using support::message_of;

namespace {

using Doubles = std::vector<double>;

}  // namespace

TEST_CASE("a gradient reaches a leaf along every path once") {
  Tensor x = leaf({1, 2, 3});
  Tensor y = x * x + x * 3.0;  // 2x + 3
  y.sum().backward();
  CHECK(x.grad().to_vector<double>() == Doubles{5, 7, 9});
  (x * 2.0).sum().backward();
  CHECK(x.grad().to_vector<double>() == Doubles{7, 9, 11});
  x.zero_grad();
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("a graph a hundred thousand nodes deep runs and is freed without recursion") {
  Tensor x = leaf({1, 1});
  Tensor y = x;
  for (int i = 0; i < 100'000; ++i) y = y + 1.0;
  SECTION("backward") {
    y.sum().backward();
    CHECK(x.grad().to_vector<double>() == Doubles{1, 1});
  }
  SECTION("dropped without a backward") { y = Tensor(); }
}

TEST_CASE("two leaves that share a gradient do not share its memory") {
  Tensor a = leaf({1}), b = leaf({2});
  (a + b).backward();
  a.grad().fill_(7);
  CHECK(b.grad().item<double>() == 1);
}

TEST_CASE("grad leaves grads alone and names what the outputs do not depend on") {
  Tensor x = leaf({3}), unused = leaf({1});
  Tensor y = x * x;
  const auto gradients = grad(y, {x}, {.retain_graph = true});
  CHECK(gradients[0].item<double>() == 6);
  CHECK_FALSE(x.grad().defined());
  CHECK_THROWS_WITH(grad(y, {x, unused}, {.retain_graph = true}), Contains("input 1"));
  const auto allowed = grad(y, {x, unused}, {.allow_unused = true});
  CHECK(allowed[0].defined());
  CHECK_FALSE(allowed[1].defined());
}

TEST_CASE("grad gives gradients of intermediate results") {
  Tensor x = leaf({3});
  Tensor h = x * x;
  Tensor y = h * h;
  CHECK(grad(y, {h})[0].item<double>() == 18);
}

TEST_CASE("create_graph makes gradients differentiable") {
  Tensor x = leaf({2});
  Tensor y = x * x * x;
  Tensor first = grad(y, {x}, {.create_graph = true})[0];
  Tensor second = grad(first, {x}, {.create_graph = true})[0];
  CHECK(first.item<double>() == Approx(12));
  CHECK(second.item<double>() == Approx(12));
  CHECK(grad(second, {x})[0].item<double>() == Approx(6));
}

TEST_CASE("a second backward needs retain_graph") {
  Tensor x = leaf({2});
  Tensor y = x * x;
  y.backward({}, {.retain_graph = true});
  y.backward();
  CHECK(x.grad().item<double>() == 8);
  CHECK_THROWS_WITH(y.backward(), Contains("retain_graph"));
}

TEST_CASE("an in-place write of something saved is found out") {
  Tensor x = leaf({2});
  Tensor h = x * 1.0;
  Tensor y = h * h;
  {
    NoGrad no_grad;
    h.add_(1);
  }
  CHECK_THROWS_WITH(y.backward(), Contains("changed in place") && Contains("mul"));
}

TEST_CASE("hooks see, and may replace, the gradient of a result and of a leaf") {
  Tensor x = leaf({1});
  Tensor h = x * 2.0;
  h.register_hook([](Tensor& g) { g = g * 10.0; });
  std::vector<double> seen;
  const auto id = x.register_hook([&](Tensor& g) { seen.push_back(g.item<double>()); });
  Tensor y = h * 3.0;
  y.backward({}, {.retain_graph = true});
  CHECK(seen == Doubles{60});
  CHECK(x.grad().item<double>() == 60);
  x.remove_hook(id);
  y.backward();
  CHECK(seen.size() == 1);
}

TEST_CASE("hooks that are no functions are refused where they are set, and change nothing") {
  Tensor x = leaf({1});
  CHECK_THROWS_AS(x.register_hook(nullptr), InvalidArgument);
  CHECK_THROWS_WITH(x.register_post_accumulate_hook({}), Contains("expected a function, got an empty one"));
  std::string message;
  Tensor h = x * 2.0;
  h.register_hook([&](Tensor&) { message = message_of<InvalidArgument>([] { queue_backward_callback({}); }); });
  h.backward();
  CHECK_THAT(message, Contains("[queue_backward_callback] expected a function"));
  CHECK(x.grad().item<double>() == 2);
}

TEST_CASE("callbacks run at the end of the backward that queued them") {
  Tensor x = leaf({1});
  int calls = 0;
  Tensor h = x * 2.0;
  h.register_hook([&](Tensor&) {
    queue_backward_callback([&] {
      CHECK(x.grad().defined());
      ++calls;
      queue_backward_callback([&] { ++calls; });
    });
  });
  (h + 1.0).backward();
  CHECK(calls == 2);
  CHECK_THROWS_AS(queue_backward_callback([] {}), Error);
}

TEST_CASE("an exception in a hook ends the backward and is thrown as it is") {
  support::needs_devices(2);
  for (const bool two_devices : {false, true}) {
    Tensor x = leaf({1, 2}, device_at(0));
    Tensor h = two_devices ? (x.to(device_at(1)) * 2.0).to(device_at(0)) + x : x * 2.0;
    h.register_hook([](Tensor&) { throw std::runtime_error("from the hook"); });
    Tensor y = h.sum();
    CHECK_THROWS_WITH(y.backward(), "from the hook");
    Tensor z = (x * 2.0).sum();  // the runtime goes on
    x.zero_grad();
    z.backward();
    CHECK(x.grad().to_vector<double>() == Doubles{2, 2});
  }
}

TEST_CASE("a graph over several devices gives the gradients of one device, the same bits every time") {
  std::vector<double> values;
  for (int i = 0; i < 97; ++i) values.push_back(0.1 * i - 3.3);
  for (const auto& devices : support::device_sets()) {
    const auto gradient = [&](auto place) {
      Tensor x = leaf(values, place(devices[0]));
      Tensor sum;
      for (std::size_t d = 0; d < devices.size(); ++d) {
        const Device device = place(devices[d]);
        Tensor part = (tanh(x.to(device) * (0.7 + static_cast<double>(d))) * x.to(device)).to(place(devices.back()));
        sum = sum.defined() ? sum + part : part;
      }
      sum.sum().backward();
      return x.grad().to_vector<double>();
    };
    const Doubles plain = gradient([](Device) { return Device::cpu(); });
    const Doubles first = gradient([](Device device) { return device; });
    for (int run = 0; run < 5; ++run) CHECK(gradient([](Device device) { return device; }) == first);
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(first[i] == Approx(plain[i]).epsilon(1e-12));
  }
}

TEST_CASE("integer gradients, distinct per device and element, arrive exactly over every set of devices") {
  for (const auto& devices : support::device_sets()) {
    for (const Device source : {devices.front(), devices.back(), Device::cpu()}) {
      for (const std::int64_t count : {1, 7, 16}) {
        Doubles values, expected;
        for (std::int64_t i = 0; i < count; ++i) {
          values.push_back(static_cast<double>(i + 3));
          expected.push_back(0);
        }
        Tensor x = leaf(values, source);
        Tensor total;
        for (std::size_t d = 0; d < devices.size(); ++d) {
          Doubles weights;
          for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            weights.push_back(static_cast<double>(i * 31) + static_cast<double>(d) * 1000 + 1);
            expected[at] += 2 * values[at] * weights[at];
          }
          const Tensor there = x.to(devices[d]);
          const Tensor weight = from_data(weights, {count}, {.dtype = DType::f64, .device = devices[d]});
          const Tensor part = (there * there * weight).to(devices[0]);
          total = total.defined() ? total + part : part;
        }
        total.sum().backward();
        CHECK(x.grad().device() == source);
        CHECK(x.grad().to_vector<double>() == expected);
      }
    }
  }
}

TEST_CASE("double backward works across devices") {
  for (const auto& devices : support::device_sets()) {
    const Device home = devices.front(), other = devices.back();
    Tensor x = leaf({2, 3}, other);
    Tensor y = (x.to(home) * x.to(devices[devices.size() / 2]).to(home)).sum();
    Tensor first = grad(y, {x}, {.create_graph = true})[0];
    CHECK(first.device() == other);
    CHECK(grad(first.sum(), {x})[0].to_vector<double>() == Doubles{2, 2});
  }
}

TEST_CASE("a hook may run a backward of its own, also on a backward thread") {
  support::needs_devices(3);
  Tensor x = leaf({3}, device_at(0));
  Tensor y = x.to(device_at(1)) * 2.0;
  double inner = 0;
  y.register_hook([&](Tensor&) {
    GradMode on(true);
    Tensor z = leaf({5}, device_at(0));
    Tensor w = (z.to(device_at(1)) * z.to(device_at(2)).to(device_at(1))).to(device_at(0));
    w.backward();
    inner = z.grad().item<double>();
  });
  (y.to(device_at(0)) + x).backward();
  CHECK(inner == 10);
  CHECK(x.grad().item<double>() == 3);
}

TEST_CASE("threads with graphs of their own run backward at once") {
  const std::vector<Device> devices = support::first_devices(4);
  std::vector<std::thread> threads;
  std::vector<double> results(4);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([t, &results, &devices] {
      for (int i = 0; i < 50; ++i) {
        Tensor x = leaf({static_cast<double>(t + 1)}, devices[t]);
        Tensor y = (x * x).to(devices[(t + 1) % 4]) * 2.0;
        y.backward();
        results[t] = x.grad().item<double>();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(results == Doubles{4, 8, 12, 16});
}

TEST_CASE("roots are checked before anything runs") {
  Tensor x = leaf({1, 2});
  Tensor y = x * 2.0;
  CHECK_THROWS_WITH(y.backward(), Contains("other than one element"));
  CHECK_THROWS_WITH(y.backward(ones({3}, {.dtype = DType::f64})), Contains("[3]") && Contains("[2]"));
  CHECK_THROWS_WITH(ones({1}).backward(), Contains("requires a gradient"));
  y.backward(from_data(Doubles{1, 10}, {2}, {.dtype = DType::f64}));
  CHECK(x.grad().to_vector<double>() == Doubles{2, 20});
}
