// Graphs of replicas where the devices have none: every call is ordinary, and says so. tests/fake_cuda/parallel has the
// others.
#include "lockstep/parallel/replicas/replica_graphs.h"

#include "lockstep/tensor/nn/linear.h"
#include "parallel/support.h"

using namespace parallel_test;

namespace {

struct Keyed {
  Tensor first;
  std::vector<std::optional<Tensor>> others;
  void fields(auto& f) { f(first, others); }
};

template <class T>
detail::TensorList list_of(const T& value) {
  detail::TensorList list;
  list.add(value);
  return list;
}

}  // namespace

TEST_CASE("graphs: devices that have none are called in the ordinary way") {
  if (support::device_type() != DeviceType::host) support::skip("these devices have graphs");
  for (const auto& devices : device_sets()) {
    auto net = DataParallel(Linear(3, 2), {.devices = devices, .graphs = 2});
    net.eval();
    const auto ordinary = DataParallel(net.module(), {.devices = devices});
    const Tensor x = noise({static_cast<std::int64_t>(devices.size()), 3}, 1, devices[0]).to(DType::f32);
    const NoGrad no_grad;
    for (int i = 0; i < 3; ++i) CHECK(values(net(x)) == values(ordinary(x)));
    const ReplicaGraphStats stats = net.stats().graphs;
    CHECK(stats.ordinary == 3 * devices.size());
    CHECK(stats.replayed + stats.captured == 0);
    CHECK_THAT(stats.why, Catch::Matchers::Contains(": the device has no graphs"));
    CHECK(ordinary.stats().graphs.ordinary == 0);
  }
}

TEST_CASE("graphs: the form of arguments is their structure, dtypes, shapes and strides") {
  const Tensor a = counting({2, 3}), b = counting({3, 2});
  const auto same = [](const auto& x, const auto& y) { return list_of(x).form == list_of(y).form; };
  CHECK(same(a, a + 1));
  CHECK_FALSE(same(a, b));
  CHECK_FALSE(same(a, b.t()));
  CHECK_FALSE(same(a, a.to(DType::f32)));
  CHECK_FALSE(same(a, Tensor()));
  CHECK_FALSE(same(a, a.reshape({2, 3, 1})));
  using Lists = std::vector<std::vector<Tensor>>;
  CHECK(same(Lists{{a}, {a, b}}, Lists{{a}, {a, b}}));
  CHECK_FALSE(same(Lists{{a}, {a, b}}, Lists{{a, a}, {b}}));
  CHECK_FALSE(same(Keyed{a, {std::nullopt, b}}, Keyed{a, {b, std::nullopt}}));
  CHECK(list_of(Keyed{a, {std::nullopt, b, Tensor()}}).tensors.size() == 2);
  CHECK_FALSE(list_of(std::tuple(Keyed{a, {}}, std::array{a, b})).others);
  CHECK(list_of(std::pair(a, 1.5)).others);
  CHECK(list_of(std::map<std::string, Tensor>{{"a", a}}).others);
  CHECK(list_of(Value(a)).others);
}
