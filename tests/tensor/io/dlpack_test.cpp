#include "lockstep/tensor/io/dlpack.h"

#include <thread>

#include "lockstep/tensor/nn/parameter.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/counter.h"

using namespace lockstep;

namespace {

// What another library would hand over, and how often it was given back.
template <class Managed>
struct Foreign {
  std::vector<float> elements{0, 1, 2, 3, 4, 5};
  std::vector<std::int64_t> shape{2, 3}, strides{3, 1};
  int deleted = 0;
  Managed managed{};

  Foreign() {
    if constexpr (requires { managed.version; }) managed.version = {1, 3};
    managed.manager_context = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_context)->deleted; };
    managed.tensor = {.data = elements.data(),
                      .device = {dlpack::kCpu, 0},
                      .rank = 2,
                      .dtype = {dlpack::kFloat, 32, 1},
                      .shape = shape.data(),
                      .strides = strides.data(),
                      .byte_offset = 0};
  }
  Foreign(const Foreign&) = delete;
};
using Old = Foreign<dlpack::ManagedTensor>;
using New = Foreign<dlpack::ManagedTensorVersioned>;

template <class E, class Change>
void refuses(Change change) {
  New foreign;
  change(foreign);
  CHECK_THROWS_AS(from_dlpack(&foreign.managed), E);
  CHECK(foreign.deleted == 0);  // the caller has it still
}

}  // namespace

TEST_CASE("dlpack in: the elements are shared and given back once", "[dlpack]") {
  const auto check = [](auto& foreign) {
    {
      const Tensor tensor = from_dlpack(&foreign.managed);
      CHECK(tensor.data() == foreign.elements.data());
      CHECK(tensor.shape() == Shape{2, 3});
      CHECK(tensor.device() == Device::cpu());
      Tensor row = tensor.select(0, 1);
      row.add_(10);
      CHECK(foreign.elements[3] == 13);
      CHECK(foreign.deleted == 0);
    }
    CHECK(foreign.deleted == 1);
  };
  Old old;
  check(old);
  New fresh;
  check(fresh);
  New kept;
  Tensor view = from_dlpack(&kept.managed).narrow(0, 0, 1);
  CHECK(kept.deleted == 0);  // a view keeps it
  view = {};
  CHECK(kept.deleted == 1);
  New without;
  without.managed.deleter = nullptr;
  from_dlpack(&without.managed);
}

TEST_CASE("dlpack in: strides, offsets and shapes", "[dlpack]") {
  New transposed;
  transposed.shape = {3, 2};
  transposed.strides = {1, 3};
  transposed.managed.tensor.shape = transposed.shape.data();
  transposed.managed.tensor.strides = transposed.strides.data();
  CHECK(from_dlpack(&transposed.managed).to_vector<float>() == std::vector<float>{0, 3, 1, 4, 2, 5});
  New compact;
  compact.managed.tensor.strides = nullptr;
  CHECK(from_dlpack(&compact.managed).to_vector<float>() == compact.elements);
  New offset;
  offset.shape[0] = 1;
  offset.strides[0] = -77;  // of a size of 1: means nothing
  offset.managed.tensor.byte_offset = 12;
  const Tensor row = from_dlpack(&offset.managed);
  CHECK(row.to_vector<float>() == std::vector<float>{3, 4, 5});
  CHECK(row.contiguous_layout());
  New repeated;
  repeated.strides = {0, 1};
  CHECK(from_dlpack(&repeated.managed).to_vector<float>() == std::vector<float>{0, 1, 2, 0, 1, 2});
  New scalar;
  scalar.managed.tensor.rank = 0;
  scalar.managed.tensor.shape = scalar.managed.tensor.strides = nullptr;
  CHECK(from_dlpack(&scalar.managed).shape() == Shape{});
  New empty;
  empty.shape = {0, 3};
  empty.managed.tensor.shape = empty.shape.data();
  empty.managed.tensor.data = nullptr;
  CHECK(from_dlpack(&empty.managed).count() == 0);
}

TEST_CASE("dlpack in: what is read-only is copied unless the caller promises", "[dlpack]") {
  New foreign;
  foreign.managed.flags = dlpack::kReadOnly;
  Tensor copy = from_dlpack(&foreign.managed);
  CHECK(foreign.deleted == 1);
  copy.add_(1);
  CHECK(foreign.elements[0] == 0);
  New alias;
  alias.managed.flags = dlpack::kReadOnly | dlpack::kCopied;
  CHECK(from_dlpack(&alias.managed, {.alias_read_only = true}).data() == alias.elements.data());
}

TEST_CASE("dlpack in: what does not fit is refused and left to the caller", "[dlpack]") {
  CHECK_THROWS_AS(from_dlpack(static_cast<dlpack::ManagedTensor*>(nullptr)), InvalidArgument);
  refuses<NotSupported>([](New& f) { f.managed.version = {2, 0}; });
  refuses<NotSupported>([](New& f) { f.managed.version = {0, 8}; });
  refuses<NotSupported>([](New& f) { f.managed.tensor.device = {dlpack::kCuda, 99}; });
  refuses<NotSupported>([](New& f) { f.managed.tensor.device.type = 7; });  // Vulkan
  refuses<NotSupported>([](New& f) { f.managed.tensor.dtype.lanes = 4; });
  refuses<NotSupported>([](New& f) { f.managed.tensor.dtype = {dlpack::kInt, 16, 1}; });
  refuses<NotSupported>([](New& f) { f.managed.tensor.dtype = {5, 64, 1}; });
  refuses<NotSupported>([](New& f) { f.strides[1] = -1; });
  refuses<NotSupported>([](New& f) { f.managed.tensor.byte_offset = 2; });
  refuses<NotSupported>([](New& f) {
    f.shape.assign(9, 1);
    f.managed.tensor.shape = f.shape.data();
    f.managed.tensor.strides = nullptr;
    f.managed.tensor.rank = 9;
  });
  refuses<InvalidArgument>([](New& f) { f.managed.tensor.rank = -1; });
  refuses<InvalidArgument>([](New& f) { f.managed.tensor.shape = nullptr; });
  refuses<InvalidArgument>([](New& f) { f.managed.tensor.data = nullptr; });
  refuses<InvalidArgument>([](New& f) { f.shape[0] = -2; });
  refuses<InvalidArgument>([](New& f) {
    f.shape = {std::int64_t{1} << 62, 4};
    f.managed.tensor.shape = f.shape.data();
  });
  refuses<InvalidArgument>([](New& f) { f.strides[0] = std::int64_t{1} << 62; });
  // Read-only ones too.
  New foreign;
  foreign.managed.flags = dlpack::kReadOnly;
  foreign.strides[1] = -1;
  CHECK_THROWS_AS(from_dlpack(&foreign.managed), NotSupported);
  CHECK(foreign.deleted == 0);
}

TEST_CASE("dlpack out: elements, strides and dtypes of every kind", "[dlpack]") {
  const Tensor x = arange(24, {.dtype = DType::f32}).reshape({2, 3, 4});
  const Tensor view = x.transpose(0, 2).narrow(1, 1, 2);
  auto* managed = to_dlpack(view);
  CHECK(managed->version.major == 1);
  CHECK(managed->flags == 0);
  CHECK(managed->tensor.device.type == dlpack::kCpu);
  CHECK(managed->tensor.device.id == 0);
  REQUIRE(managed->tensor.rank == 3);
  for (int i = 0; i < 3; ++i) {
    CHECK(managed->tensor.shape[i] == view.shape()[i]);
    CHECK(managed->tensor.strides[i] == view.strides()[i]);
  }
  CHECK(static_cast<const std::byte*>(managed->tensor.data) + managed->tensor.byte_offset == view.data());
  managed->deleter(managed);

  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const Tensor wanted = from_data({0, 1, 0, 1, 0, 1}, {6}).to(dtype);
    const void* data = wanted.data();
    const Tensor back = from_dlpack(to_dlpack(wanted));
    CHECK(back.dtype() == dtype);
    CHECK(back.data() == data);
    CHECK(back.to_vector<int>() == wanted.to_vector<int>());
    CHECK(from_dlpack(to_dlpack_unversioned(wanted)).data() == data);
  }
  CHECK(from_dlpack(to_dlpack(zeros({}))).shape() == Shape{});
  CHECK(from_dlpack(to_dlpack(zeros({0, 2}))).shape() == Shape{0, 2});
  CHECK_THROWS_AS(to_dlpack(Tensor()), InvalidArgument);
  CHECK_THROWS_AS(to_dlpack_unversioned(x, {.read_only = true}), NotSupported);
  Stream elsewhere(Device::host(1));
  CHECK_THROWS_AS(to_dlpack(x, {.stream = elsewhere}), InvalidArgument);
  CHECK_THROWS_AS(to_dlpack(x, {.native_stream = &elsewhere}), InvalidArgument);
  auto* guarded = to_dlpack(x, {.read_only = true});
  CHECK(guarded->flags == dlpack::kReadOnly);
  guarded->deleter(guarded);
}

TEST_CASE("dlpack out: the elements live until the deleter runs, in whatever thread", "[dlpack]") {
  dlpack::ManagedTensorVersioned* managed = nullptr;
  {
    Tensor x = full({1000}, 3).set_requires_grad();
    managed = to_dlpack(x * 2.0);  // a graph stays behind
  }
  const Tensor other = zeros({1000});  // would get the memory if it were free
  CHECK(static_cast<const float*>(managed->tensor.data)[999] == 6);
  std::thread([&] { managed->deleter(managed); }).join();
}

TEST_CASE("dlpack out: without a stream the host may read at once, with one the stream waits", "[dlpack]") {
  const Device device = Device::host(1);
  Stream producer(device), consumer(device);
  const lockstep::test::Counter door;
  dlpack::ManagedTensorVersioned* managed = nullptr;
  Tensor sum;
  {
    const StreamScope scope(producer);
    Tensor x = full({100}, 1, {.device = device});
    if (!producer.synchronous()) producer.enqueue([door] { door.reaches(1); });
    x.add_(1);
    managed = to_dlpack(x, {.stream = consumer});  // would hang for a minute if it blocked
    {
      const StreamScope as_consumer(consumer);
      sum = x.sum();  // in mode strict: ordered after the producer's writes, or a RaceError
    }
    x = {};
    door.add();
    const lockstep::test::Counter second_door;
    // Opened by nobody before the host has come to wait; a host that does not wait is done by then.
    std::thread later([second_door] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      second_door.add();
    });
    if (!producer.synchronous()) producer.enqueue([second_door] { second_door.reaches(1); });
    const Tensor y = full({100}, 7, {.device = device});
    auto* for_host = to_dlpack(y);
    const float seen = static_cast<const float*>(for_host->tensor.data)[99];
    later.join();
    CHECK(seen == 7);
    for_host->deleter(for_host);
  }
  managed->deleter(managed);
  const StreamScope as_consumer(consumer);
  CHECK(sum.item<float>() == 200);
}

TEST_CASE("dlpack out: an alias of a parameter counts as a write when it is given back", "[dlpack]") {
  const Parameter parameter(ones({3}));
  const std::uint64_t before = parameter.tensor().version();
  auto* managed = to_dlpack(parameter.tensor());
  CHECK(parameter.tensor().version() == before);
  static_cast<float*>(managed->tensor.data)[0] = 5;
  managed->deleter(managed);
  CHECK(parameter.tensor().version() > before);
  CHECK(parameter.tensor().to_vector<float>()[0] == 5);
  const std::uint64_t after = parameter.tensor().version();
  auto* guarded = to_dlpack(parameter.tensor(), {.read_only = true});
  guarded->deleter(guarded);
  CHECK(parameter.tensor().version() == after);
  const Tensor plain = ones({3});
  auto* other = to_dlpack(plain);
  other->deleter(other);
  CHECK(plain.version() == ones({3}).version());
}
