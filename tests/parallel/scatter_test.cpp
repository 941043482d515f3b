// scatter: tensors.
#include "lockstep/runtime/host/faults.h"
#include "parallel/support.h"

using namespace parallel_test;
using Sizes = std::vector<std::int64_t>;

TEST_CASE("a tensor becomes pieces along dim, each on its device, in order") {
  for (const auto& devices : device_sets()) {
    for (const std::int64_t count : {1, 2, 7, 9, 16}) {
      for (const Device source : {Device::cpu(), devices[0], device_at(5)}) {
        const Tensor x = counting({count, 2}, source);
        const std::vector<Tensor> pieces = scatter(x, devices);
        const Sizes expected = [&] {
          Sizes shares = ScatterPolicy().shares(count, static_cast<int>(devices.size()));
          std::erase(shares, 0);
          return shares;
        }();
        REQUIRE(sizes(pieces) == expected);
        Doubles joined;
        for (std::size_t i = 0; i < pieces.size(); ++i) {
          CHECK(pieces[i].device() == devices[i]);
          CHECK(pieces[i].dtype() == DType::f64);
          const Doubles part = values(pieces[i]);
          joined.insert(joined.end(), part.begin(), part.end());
        }
        CHECK(joined == values(x));
      }
    }
  }
}

TEST_CASE("the shares of the specification") {
  support::needs_devices(7);
  CHECK(sizes(scatter(counting({9}), first_devices(4))) == Sizes{3, 3, 3});
  CHECK(sizes(scatter(counting({10}), first_devices(4))) == Sizes{3, 3, 3, 1});
  CHECK(sizes(scatter(counting({36}), first_devices(7))) == Sizes{6, 6, 6, 6, 6, 6});
  CHECK(sizes(scatter(counting({2}), first_devices(5))) == Sizes{1, 1});
  CHECK(sizes(scatter(counting({9}), first_devices(4), 0, ScatterPolicy::balanced())) == Sizes{3, 2, 2, 2});
}

TEST_CASE("any dimension, also from the end, and tensors that are not contiguous") {
  support::needs_devices(3);
  const Tensor x = counting({2, 5, 3}, device_at(0));
  for (const std::int64_t dim : {1, -2}) {
    const std::vector<Tensor> pieces = scatter(x, first_devices(3), dim);
    REQUIRE(sizes(pieces, 1) == Sizes{2, 2, 1});
    CHECK(values(pieces[1]) == values(x.narrow(1, 2, 2)));
    CHECK(values(pieces[2]) == values(x.narrow(1, 4, 1)));
  }
  const Tensor turned = x.permute({2, 0, 1});
  const std::vector<Tensor> pieces = scatter(turned, devices_at({1, 0}), 0);
  CHECK(values(pieces[0]) == values(turned.narrow(0, 0, 2)));
  CHECK(values(pieces[1]) == values(turned.narrow(0, 2, 1)));
  CHECK(missing(message_of<InvalidArgument>([&] { scatter(x, first_devices(2), 3); }), {"3", "scatter"}) == "");
  CHECK_THROWS_AS(scatter(x, first_devices(2), -4), InvalidArgument);
}

TEST_CASE("a piece on the device where it already is, is a view; the others are copies") {
  const Tensor x = counting({4, 2}, device_at(1));
  const std::vector<Tensor> pieces = scatter(x, devices_at({0, 1}));
  CHECK(pieces[1].storage() == x.storage());
  CHECK(pieces[1].data<double>() == x.data<double>() + 4);
  CHECK(pieces[0].storage() != x.storage());
  const std::vector<Tensor> whole = scatter(x, devices_at({1}));
  CHECK(whole[0].data() == x.data());
}

TEST_CASE("a device whose share is zero is skipped") {
  const Pieces<Tensor> weighted = scatter_pieces(counting({6}), first_devices(3), 0, ScatterPolicy::weights({1, 0, 2}));
  CHECK(weighted.devices == devices_at({0, 2}));
  CHECK(sizes(weighted.values) == Sizes{2, 4});
  CHECK(weighted.values[1].device() == device_at(2));
  const Pieces<Tensor> sized = scatter_pieces(counting({3}), first_devices(3), 0, ScatterPolicy::sizes({0, 3, 0}));
  CHECK(sized.devices == devices_at({1}));
  CHECK(sizes(sized.values) == Sizes{3});
}

TEST_CASE("a tensor without dimensions cannot be split") {
  support::needs_devices(2);
  const std::string message = message_of<InvalidArgument>([] { scatter(full({}, 3), first_devices(2)); });
  CHECK(missing(message, {"f32[]", "number"}) == "");
}

TEST_CASE("an empty batch is one empty piece on the first device") {
  for (const auto& policy :
       {ScatterPolicy(), ScatterPolicy::balanced(), ScatterPolicy::weights({0, 1}), ScatterPolicy::sizes({0, 0})}) {
    const std::vector<Tensor> pieces = scatter(counting({0, 3}), devices_at({2, 1}), 0, policy);
    REQUIRE(pieces.size() == 1);
    CHECK(pieces[0].shape() == Shape{0, 3});
    CHECK(pieces[0].device() == device_at(2));
  }
}

TEST_CASE("cpu is a device to scatter to") {
  const std::vector<Tensor> pieces = scatter(counting({3}, device_at(1)), {Device::cpu()});
  CHECK(pieces[0].device() == Device::cpu());
  CHECK(values(pieces[0]) == Doubles{1, 2, 3});
}

TEST_CASE("an undefined tensor is given to everybody") {
  support::needs_devices(3);
  CHECK(scatter(Tensor(), first_devices(3)).size() == 3);
  CHECK_FALSE(scatter(std::pair(Tensor(), counting({4})), first_devices(2))[1].first.defined());
}

TEST_CASE("scatter needs devices that come once") {
  const std::vector<Device> twice{device_at(1), device_at(0), device_at(1)};
  CHECK(missing(message_of<InvalidArgument>([&] { scatter(counting({6}), twice); }), {device_name(1), "twice"}) == "");
  CHECK(missing(message_of<InvalidArgument>([&] { scatter(7, twice); }), {device_name(1), "twice"}) == "");
}

TEST_CASE("scatter needs devices that exist") {
  CHECK_THROWS_AS(scatter(counting({3}), {}), InvalidArgument);
  CHECK_THROWS_AS(scatter(counting({3}), devices_at({0, 99})), InvalidArgument);
  const auto is_cuda = [](Device device) { return device.type() == DeviceType::cuda; };
  if (std::ranges::any_of(all_devices(), is_cuda)) return;
  const std::string message = message_of<InvalidArgument>([] { scatter(counting({3}), {Device::cuda(0)}); });
  CHECK(missing(message, {"got cuda:0; there are no CUDA devices: "}) == "");
  CHECK_FALSE(message.ends_with(": "));
}

TEST_CASE("a piece is usable at once on the current stream of its device") {
  Stream stream(device_at(1));
  const StreamScope scope(stream);
  const std::vector<Tensor> pieces = scatter(counting({4}, device_at(0)), first_devices(2));
  CHECK(values(pieces[1] * 2) == Doubles{6, 8});
}

TEST_CASE("what a copy still reads when its time is up is kept until the copy is over") {
  std::vector<double> elements(1 << 12, 1.0);
  bool given_back = false;
  lockstep::detail::host_faults().hang_task(1);
  bool under_way = false;
  {
    lockstep::detail::Departures departures(Milliseconds(1));
    const lockstep::detail::Departures::Scope scope(departures);
    const Tensor x = Tensor::over(
        Storage::external(Device::cpu(), elements.data(), elements.size() * sizeof(double), [&] { given_back = true; }),
        DType::f64, {1 << 12}, {1});
    try {
      (void)scatter(x, first_devices(2));
    } catch (const DeviceError&) {
      // inline: the fault is a task that comes to nothing
    }
    under_way = !default_stream(device_at(0)).synchronous();
  }
  CHECK(given_back == !under_way);
  lockstep::detail::host_faults().clear();
  for (const Device device : first_devices(2)) synchronize(device);
  (void)scatter(counting({4}, device_at(0)), first_devices(2));
  CHECK(given_back);
}

TEST_CASE("steady-state scattering allocates no raw memory") {
  support::needs_devices(4);
  const Tensor x = counting({8, 4}, device_at(0));
  for (int i = 0; i < 3; ++i) scatter(x, first_devices(4));
  const auto raw = [] {
    std::uint64_t count = 0;
    for (const Device device : first_devices(4)) count += memory_stats(device).raw_allocations;
    return count;
  };
  const std::uint64_t before = raw();
  for (int i = 0; i < 20; ++i) scatter(x, first_devices(4));
  CHECK(raw() == before);
}
