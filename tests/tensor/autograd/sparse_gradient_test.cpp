// Gradients that are rows of a matrix: what embeddings give, how they add up, and where matrices are made all the same.
#include "lockstep/tensor/ops/sparse_gradient.h"

#include <algorithm>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/devices.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

namespace {

using Indices = std::vector<std::int64_t>;
std::vector<Device> both_devices() { return {Device::cpu(), device_at(1)}; }

Tensor indices(const Indices& at, Device device = Device::cpu()) {
  return from_data(at, {static_cast<std::int64_t>(at.size())}, {.device = device});
}
Indices indices_of(const SparseGradient& g) { return g.indices.to_vector<std::int64_t>(); }

// first, first + 1, …: exact under sums.
Tensor counting_rows(const Shape& shape, double first, Device device, DType dtype = DType::f64) {
  Doubles numbers(static_cast<std::size_t>(element_count(shape)));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = first + static_cast<double>(i);
  return from_data(numbers, shape, {.dtype = dtype, .device = device});
}
Tensor weight_on(Device device, DType dtype = DType::f64) {
  return counting_rows({7, 3}, 1, device, dtype).set_requires_grad();
}
// The embedding at `at`, times distinct integers, so that its rows get distinct gradients.
void use(const Tensor& weight, const Indices& at, double first, const EmbeddingOptions& options) {
  const Tensor rows = embedding(weight, indices(at, weight.device()), options);
  (rows * counting_rows(rows.shape(), first, weight.device(), weight.dtype())).sum().backward();
}
EmbeddingOptions sparse(std::optional<std::int64_t> padding = std::nullopt) {
  return {.padding_index = padding, .sparse = true};
}
EmbeddingOptions dense(std::optional<std::int64_t> padding = std::nullopt) { return {.padding_index = padding}; }

}  // namespace

TEST_CASE("the rows of an embedding are the rows of its dense gradient, bit for bit") {
  for (const Device device : both_devices())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const Indices& at : {Indices{3}, Indices{5, 0, 5, 5, 2, 0}, Indices{6, 6, 6}, Indices{0, 1, 2, 3, 4, 5, 6},
                                Indices{4, 3, 2, 1, 1, 2, 3, 4, 6}, Indices{}})
        for (const auto& padding :
             {std::optional<std::int64_t>(), std::optional<std::int64_t>(5), std::optional<std::int64_t>(-7)}) {
          Tensor one = weight_on(device, dtype), other = weight_on(device, dtype);
          use(one, at, 1, dense(padding));
          use(other, at, 1, sparse(padding));
          const SparseGradient rows = other.sparse_grad();
          REQUIRE(rows.defined());
          CHECK(rows.shape == one.shape());
          CHECK(rows.values.device() == device);
          CHECK(indices_of(rows) == at);
          CHECK(values(rows.to_dense()) == values(one.grad()));
          const SparseGradient sums = rows.coalesce();
          Indices unique = at;
          std::sort(unique.begin(), unique.end());
          unique.erase(std::unique(unique.begin(), unique.end()), unique.end());
          CHECK(indices_of(sums) == unique);
          CHECK(sums.values.shape() == Shape{static_cast<std::int64_t>(unique.size()), 3});
          CHECK(values(sums.values) == values(index_select(one.grad(), 0, indices(unique, device))));
        }
}

TEST_CASE("rows of equal index are summed in the order in which they stand") {
  // 1e8 + 1 is 1e8 in f32.
  for (const auto& [numbers, sum] : {std::pair{Doubles{1e8, 1, -1e8, 2}, 2.0}, std::pair{Doubles{1e8, -1e8, 1, 2}, 3.0},
                                     std::pair{Doubles{1, 1e8, -1e8, 2}, 2.0}})
    for (int run = 0; run < 3; ++run) {
      const Tensor elements =
          from_data({numbers[0], 7.0, numbers[1], numbers[2], 5.0, numbers[3]}, {6, 1}, {.dtype = DType::f32});
      const SparseGradient sums = SparseGradient{indices({4, 1, 4, 4, 1, 4}), elements, {5, 1}}.coalesce();
      CHECK(indices_of(sums) == Indices{1, 4});
      CHECK(values(sums.values) == Doubles{12, sum});
    }
}

TEST_CASE("the form that does not block keeps the number of rows, the rest without effect") {
  const SparseGradient sums =
      detail::sum_rows({indices({4, 1, 4, 0, 1}), counting_rows({5, 2}, 1, Device::cpu()), {5, 2}});
  CHECK(indices_of(sums) == Indices{0, 1, 4, 4, 4});
  CHECK(values(sums.values) == Doubles{7, 8, 12, 14, 6, 8, 0, 0, 0, 0});
  CHECK(values(detail::first_of_equals(sums.indices)) == Doubles{1, 1, 1, 0, 0});
}

TEST_CASE("sparse gradients add up: rows to rows, rows to a matrix, a matrix to rows") {
  for (const Device device : both_devices()) {
    const auto expected = [&](auto&& body) {
      Tensor weight = weight_on(device);
      body(weight, dense(), dense());
      return values(weight.grad());
    };
    const auto two = [](Tensor& weight, const EmbeddingOptions& a, const EmbeddingOptions& b) {
      use(weight, {2, 5, 2}, 1, a);
      use(weight, {5, 6}, 40, b);
    };
    Tensor weight = weight_on(device);
    two(weight, sparse(), sparse());
    CHECK(indices_of(weight.sparse_grad()) == Indices{2, 5, 2, 5, 6});
    CHECK(values(weight.sparse_grad().to_dense()) == expected(two));
    weight.zero_grad();
    CHECK_FALSE(weight.sparse_grad().defined());
    CHECK_FALSE(weight.grad().defined());
    for (const auto& [a, b] : {std::pair{sparse(), dense()}, std::pair{dense(), sparse()}}) {
      Tensor mixed = weight_on(device);
      two(mixed, a, b);
      CHECK_FALSE(mixed.sparse_grad().defined());
      CHECK(values(mixed.grad()) == expected(two));
    }
    // In one graph.
    const auto together = [&](Tensor& w, const EmbeddingOptions& a, const EmbeddingOptions& b) {
      const Tensor x = embedding(w, indices({2, 5, 2}, device), a) * counting_rows({3, 3}, 1, device),
                   y = embedding(w, indices({5, 6}, device), b) * counting_rows({2, 3}, 40, device);
      (x.sum() + y.sum()).backward();
    };
    Tensor rows = weight_on(device);
    together(rows, sparse(), sparse());
    CHECK(indices_of(rows.sparse_grad()) == Indices{5, 6, 2, 5, 2});  // the latest operation first
    CHECK(values(rows.sparse_grad().to_dense()) == expected(together));
    Tensor mixed = weight_on(device);
    together(mixed, sparse(), dense());
    CHECK_FALSE(mixed.sparse_grad().defined());
    CHECK(values(mixed.grad()) == expected(together));
    // A weight that is also the weight of a product.
    const auto tied = [&](Tensor& w, const EmbeddingOptions& a, const EmbeddingOptions&) {
      const Tensor h = embedding(w, indices({2, 5, 2}, device), a);
      linear(h, w).sum().backward();
    };
    Tensor product = weight_on(device);
    tied(product, sparse(), {});
    CHECK(values(product.grad()) == expected(tied));
  }
}

TEST_CASE("where a matrix is needed, an embedding with sparse gives one") {
  const Indices at{2, 5, 2};
  Tensor one = weight_on(Device::cpu());
  use(one, at, 1, dense());
  const Doubles expected = values(one.grad());

  Tensor hooked = weight_on(Device::cpu());
  Doubles seen;
  const std::uint64_t hook = hooked.register_hook([&](Tensor& gradient) { seen = values(gradient); });
  use(hooked, at, 1, sparse());
  CHECK(seen == expected);
  CHECK(values(hooked.grad()) == expected);
  hooked.zero_grad();
  hooked.remove_hook(hook);
  use(hooked, at, 1, sparse());
  CHECK(hooked.sparse_grad().defined());

  Tensor weight = weight_on(Device::cpu());
  const auto loss = [&](const EmbeddingOptions& options, const Tensor& w) {
    return (square(embedding(w, indices(at), options)) * counting_rows({3, 3}, 1, Device::cpu())).sum();
  };
  CHECK(values(grad(loss(sparse(5), weight), {weight})[0]) == values(grad(loss(dense(5), weight), {weight})[0]));
  CHECK_FALSE(weight.sparse_grad().defined());
  const auto curvature = [&](const EmbeddingOptions& options) {
    return values(grad(square(grad(loss(options, weight), {weight}, {.create_graph = true})[0]).sum(), {weight})[0]);
  };
  CHECK(curvature(sparse(5)) == curvature(dense(5)));
  loss(sparse(), weight).backward({}, {.create_graph = true});
  CHECK(weight.grad().requires_grad());
  weight.zero_grad();  // the gradient's graph holds the weight, which holds the gradient

  Tensor again = weight_on(Device::cpu());  // checkpointed: rows all the same
  checkpoint([&](const Tensor& w) { return loss(sparse(5), w); }, again).backward();
  Tensor once = weight_on(Device::cpu());
  loss(dense(5), once).backward();
  CHECK(values(again.sparse_grad().to_dense()) == values(once.grad()));

  Tensor factor = weight_on(Device::cpu());  // a weight that was computed
  loss(sparse(), factor * 2.0).backward();
  Tensor plain = weight_on(Device::cpu());
  loss(dense(), plain * 2.0).backward();
  CHECK(values(factor.grad()) == values(plain.grad()));
}

TEST_CASE("no matrix of the weight's size is made in a backward") {
  const Device device = device_at(1);
  const Embedding table = [&] {
    Embedding made(200'000, 8, {.sparse = true});
    made.to(device);
    return made;
  }();
  const Tensor at = indices({7, 199'999, 7}, device);
  const auto step = [&] {
    table.weight.zero_grad();
    square(table(at)).sum().backward();
    synchronize(device);
  };
  step();
  reset_peak(device);
  const std::size_t before = memory_stats(device).peak_in_use_bytes;
  step();
  CHECK(memory_stats(device).peak_in_use_bytes < before + table.weight.tensor().bytes() / 2);
  CHECK(indices_of(table.weight.sparse_grad().coalesce()) == Indices{7, 199'999});
}

TEST_CASE("a gradient that is kept does not follow the indices or the gradient it came from") {
  Tensor weight = weight_on(Device::cpu());
  Tensor at = indices({2, 5});
  Tensor from = counting_rows({2, 3}, 1, Device::cpu());
  embedding(weight, at, sparse()).backward(from);
  at.fill_(0);
  from.fill_(0);
  CHECK(indices_of(weight.sparse_grad()) == Indices{2, 5});
  CHECK(values(weight.sparse_grad().values) == Doubles{1, 2, 3, 4, 5, 6});
}

TEST_CASE("parameters have sparse gradients, frozen ones none") {
  Embedding table(7, 3, {.padding_index = 1, .sparse = true});
  const Tensor at = from_data({0, 1, 1, 6}, {2, 2});
  table(at).sum().backward();
  CHECK(indices_of(table.weight.sparse_grad()) == Indices{0, 1, 1, 6});
  CHECK(values(table.weight.sparse_grad().values) == Doubles{1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1});
  table.to(device_at(1));
  table.to(DType::f64);
  const SparseGradient moved = table.weight.sparse_grad();
  CHECK(moved.values.device() == device_at(1));
  CHECK(moved.indices.device() == device_at(1));
  CHECK(moved.values.dtype() == DType::f64);
  CHECK(values(moved.to_dense()) == Doubles{1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1});
  table.zero_grad();
  CHECK_FALSE(table.weight.sparse_grad().defined());
  table.weight.set_requires_grad(false);
  CHECK_FALSE(table(at.to(device_at(1))).requires_grad());
  CHECK_FALSE(table.weight.sparse_grad().defined());
  CHECK_FALSE(table.weight.grad().defined());
}

TEST_CASE("sparse gradients: errors") {
  struct Net : Module<Net> {
    Embedding words{7, 3, {.sparse = true}};
    void members(Members& m) override { m("words", words); }
  } net;
  (void)net.named_parameters();
  net.words(indices({1})).sum().backward();
  CHECK_THROWS_WITH(net.words.weight.grad(), Contains("[grad]") && Contains("'words.weight'") &&
                                                 Contains("1 rows of f32[7, 3] on cpu") && Contains("sparse_grad()"));
  Tensor weight = weight_on(Device::cpu());
  use(weight, {3}, 1, sparse());
  CHECK_THROWS_AS(weight.grad(), InvalidArgument);
  const Tensor rows = counting_rows({2, 3}, 1, Device::cpu());
  weight.set_sparse_grad({indices({0, 6}), rows, {7, 3}});
  CHECK(values(weight.sparse_grad().values) == values(rows));
  weight.set_sparse_grad({});
  CHECK_FALSE(weight.sparse_grad().defined());
  for (const SparseGradient& bad :
       {SparseGradient{indices({0}), rows, {7, 3}}, SparseGradient{indices({0, 6}), rows, {8, 3}},
        SparseGradient{indices({0, 6}).to(DType::i32), rows, {7, 3}}, SparseGradient{{}, rows, {7, 3}},
        SparseGradient{indices({0, 6}), rows.to(DType::f32), {7, 3}},
        SparseGradient{indices({0, 6}, device_at(1)), rows, {7, 3}}})
    CHECK_THROWS_WITH(weight.set_sparse_grad(bad), Contains("[set_sparse_grad]"));
  CHECK_THROWS_AS(weight.detach().set_sparse_grad({indices({0, 6}), rows, {7, 3}}), InvalidArgument);
  CHECK_THROWS_AS(SparseGradient{}.coalesce(), InvalidArgument);
  CHECK_THROWS_AS(SparseGradient{}.to_dense(), InvalidArgument);
  CHECK_THROWS_AS(embedding(weight, indices({7}), sparse()).to_vector<double>(), InvalidArgument);
  CHECK_THROWS_AS(embedding(weight, indices({0}), sparse(7)), InvalidArgument);
}
