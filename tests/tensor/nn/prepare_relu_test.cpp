// The relu behind a layer, or behind its norm, in a prepared module.
#include <functional>
#include <limits>
#include <map>
#include <string>

#include "lockstep/runtime/trace/trace.h"
#include "support/catch.h"
#include "tensor/nn/prepared_net.h"

using namespace lockstep;
using namespace prepare_tests;

namespace {

// How many kernels of each name the call enqueues.
template <class F>
std::map<std::string, int> kernels_of(F&& call) {
  trace::start();
  call();
  trace::stop();
  std::map<std::string, int> counts;
  for (const trace::Span& span : trace::spans())
    if (span.work.kind == trace::Kind::kernel) ++counts[span.work.name];
  return counts;
}

struct OddReLU : Module<OddReLU> {
  Conv2d conv{3, 3, 3, {.padding = 1}};
  BatchNorm2d norm{3};
  std::function<Tensor(const OddReLU&, const Tensor&)> way;
  Tensor forward(const Tensor& x) const { return way(*this, x); }
  void members(Members& m) override { m("conv", conv), m("norm", norm); }
};

}  // namespace

TEST_CASE("a layer, its norm and the relu behind them are one kernel in a prepared module") {
  const DType dtype = GENERATE(DType::f32, DType::f64, DType::bf16);
  const auto net = used(Sequential(Conv2d(3, 16, 3), BatchNorm2d(16), ReLU(), Conv2d(16, 16, 1), ReLU(),
                                   Conv2d(16, 16, 3, {.groups = 16}), BatchNorm2d(16), ReLU(), Flatten(),
                                   Linear(16 * 9, 5), BatchNorm1d(5), ReLU(), Linear(5, 4), ReLU(), Linear(4, 2)),
                        dtype);
  const auto fast = prepare(net);
  const Tensor x = input({3, 3, 7, 7}, dtype), expected = evaluated(net, x);
  const double tolerance = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 0.1;
  const Tensor y = fast(x);
  CHECK(relative_difference(y, expected) < tolerance);
  for (int i = 0; i < 2; ++i) CHECK_FALSE(differs(fast(x), y));
  auto kernels = kernels_of([&] { fast(x); });
  CHECK(kernels["conv2d"] == 3);
  CHECK(kernels["matmul"] == 3);
  CHECK(kernels["relu"] == 0);
  CHECK(kernels["batch_norm"] == 0);
  kernels = kernels_of([&] { evaluated(net, x); });
  CHECK(kernels["relu"] == 2);  // a chain computes the others with the norms before them
}

TEST_CASE("what else is done with the result of a layer or its norm before a relu is right") {
  using Way = std::function<Tensor(const OddReLU&, const Tensor&)>;
  static bool late;  // one for all rows, which are made once
  late = false;
  struct Row {
    std::string name;
    Way way;
    int relus, norms = 0;  // kernels of the last call
  };
  const Row row = GENERATE(values<Row>({
      {"a chain", [](const OddReLU& m, const Tensor& x) { return relu(m.norm(m.conv(x))); }, 0},
      {"no norm", [](const OddReLU& m, const Tensor& x) { return relu(m.conv(x)); }, 0},
      {"added to the normed", [](const OddReLU& m, const Tensor& x) { return relu(m.norm(m.conv(x)) + x); }, 1},
      {"used again",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.norm(m.conv(x));
         return relu(y) + y;
       },
       1},
      {"used before",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.norm(m.conv(x));
         return y - relu(y);
       },
       1},
      {"two relus",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.norm(m.conv(x));
         return relu(y) * relu(y);
       },
       2},
      {"a relu of a relu", [](const OddReLU& m, const Tensor& x) { return relu(relu(m.norm(m.conv(x)))); }, 1},
      {"a relu before the norm", [](const OddReLU& m, const Tensor& x) { return m.norm(relu(m.conv(x))); }, 0, 1},
      {"a relu and a norm",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.conv(x);
         return relu(y) + m.norm(y);
       },
       1, 1},
      {"a norm and a relu",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.conv(x);
         return m.norm(y) + relu(y);
       },
       1, 1},
      {"two calls that differ",
       [](const OddReLU& m, const Tensor& x) { return relu(m.norm(m.conv(x))) + m.norm(m.conv(x * 2)); }, 1},
      {"two calls that differ more",
       [](const OddReLU& m, const Tensor& x) { return relu(m.conv(x)) + relu(m.norm(m.conv(x * 2))); }, 2, 1},
      {"two calls alike",
       [](const OddReLU& m, const Tensor& x) { return relu(m.norm(m.conv(x))) + relu(m.norm(m.conv(x * 2))); }, 0},
      {"changed in place",
       [](const OddReLU& m, const Tensor& x) {
         Tensor y = m.norm(m.conv(x));
         y.add_(1);
         return relu(y);
       },
       1},
      {"x changed between the norm and the relu",
       [](const OddReLU& m, const Tensor& x) {
         Tensor z = x * 2;
         const Tensor y = m.norm(m.conv(z));
         z.fill_(7);
         return relu(y);
       },
       1},
      {"weights changed between the norm and the relu",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.norm(m.conv(x)), before = m.norm.bias.tensor().clone();
         m.norm.bias.tensor().fill_(9);
         const Tensor z = relu(y);
         m.norm.bias.tensor().copy_(before);
         return z;
       },
       0},
      {"read later on",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.norm(m.conv(x)), z = relu(y);
         return late ? z + y : z;
       },
       1},
      {"the layer's read later on",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = relu(m.norm(y));
         return late ? z + y : z;
       },
       1, 1},
      {"a relu of the layer's later on",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = m.norm(y);
         return late ? z + relu(y) : z;
       },
       0, 1},
      {"no relu later on",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.norm(m.conv(x));
         return late ? y : relu(y);
       },
       1},
      {"a second norm before the relu later on",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = m.norm(y);
         const Tensor second = late ? relu(m.norm(y)) : x;
         return late ? second * relu(z) : relu(z);
       },
       1, 1},
      {"given back",
       [](const OddReLU& m, const Tensor& x) {
         const Tensor y = m.conv(x), z = relu(y);
         return late ? y : z;
       },
       1},
  }));
  INFO(row.name);
  OddReLU odd;
  odd.way = row.way;
  const auto net = used(odd);
  const auto fast = prepare(net);
  const Tensor x = input({2, 3, 5, 5});
  for (const bool now : {false, true, false}) {
    late = now;
    const Tensor expected = evaluated(net, x);
    for (int i = 0; i < 2; ++i) CHECK(relative_difference(fast(x), expected) < 1e-12);
  }
  auto kernels = kernels_of([&] { fast(x); });
  CHECK(kernels["relu"] == row.relus);
  CHECK(kernels["batch_norm"] == row.norms);
}

TEST_CASE("a relu in a prepared module keeps NaN, and negative zero as relu does") {
  auto net = Sequential(Conv2d(1, 2, 1, {.bias = false}), ReLU());
  net[0].parameters()[0].tensor().set_data(from_data({1.0F, 1.0F}, {2, 1, 1, 1}));
  net.to(support::device_at(0));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = from_data({nan, -1.0F, 2.0F, -nan}, {1, 1, 2, 2}).to(support::device_at(0));
  const auto fast = prepare(net);
  for (int i = 0; i < 3; ++i) {
    const auto y = fast(x).to_vector<float>(), want = evaluated(net, x).to_vector<float>();
    for (std::size_t k = 0; k < y.size(); ++k) CHECK((std::isnan(want[k]) ? std::isnan(y[k]) : y[k] == want[k]));
    CHECK(std::isnan(y[0]));
    CHECK(y[1] == 0);
  }
}

TEST_CASE("relu outside of a prepared call is as ever, also in a thread that has made one, and in nested calls") {
  const auto inner = prepare(used(Sequential(Conv2d(3, 3, 3), ReLU())));
  OddReLU odd;
  odd.way = [inner](const OddReLU& m, const Tensor& x) { return relu(m.norm(m.conv(inner(x)))); };
  const auto net = used(odd);
  const auto fast = prepare(net);
  const Tensor x = input({1, 3, 7, 7}), expected = evaluated(net, x);
  for (int i = 0; i < 3; ++i) CHECK(relative_difference(fast(x), expected) < 1e-12);
  CHECK(kernels_of([&] { fast(x); })["relu"] == 0);
  CHECK(kernels_of([&] { relu(x); })["relu"] == 1);
}
