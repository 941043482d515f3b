// First and second derivatives of reductions, products and the operations that arrange elements.
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/gradcheck.h"

using namespace lockstep;
using support::device_at;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {

void check(const std::string& name, const Function& f, const std::vector<Tensor>& inputs) {
  INFO(name);
  CHECK(gradcheck(f, inputs) == "");
  CHECK(gradgradcheck(f, inputs) == "");
}

// A function of one tensor, for contiguous and other inputs of `shape`. Squared, so that second derivatives exist.
void check_one(const std::string& name, Tensor (*f)(const Tensor& x), const Shape& shape) {
  const Function plain = [&](const std::vector<Tensor>& in) { return f(in[0]); };
  const Function squared = [&](const std::vector<Tensor>& in) { return square(f(square(in[0]))); };
  INFO(name << " of " << to_string(shape));
  CHECK(gradcheck(plain, {random_leaf(shape, 1)}) == "");
  CHECK(gradcheck(plain, {random_transposed_leaf(shape, 2)}) == "");
  CHECK(gradgradcheck(squared, {random_leaf(shape, 3, -1, 1)}) == "");
}

Tensor indices(const std::vector<std::int64_t>& values, const Shape& shape) { return from_data(values, shape); }

}  // namespace

TEST_CASE("gradcheck itself finds wrong derivatives") {
  const Function half = [](const std::vector<Tensor>& in) { return in[0] * in[0].detach(); };
  CHECK_FALSE(gradcheck(half, {random_leaf({3}, 1)}) == "");
  // The first derivative is right, the second is cut off.
  struct CutNode final : NodeOf<1> {
    const char* name() const override { return "cut"; }
    void backward(std::span<Tensor> grad_outputs, std::span<Tensor> grad_inputs) override {
      grad_inputs[0] = grad_outputs[0] * (x * 2);
    }
    Tensor x;
  };
  const Function cut = [](const std::vector<Tensor>& in) {
    Tensor y;
    {
      NoGrad no_grad;
      y = square(in[0]);
    }
    if (auto* node = record<CutNode>(y, in[0])) node->x = in[0].detach();
    return y;
  };
  CHECK(gradcheck(cut, {random_leaf({3}, 1)}) == "");
  CHECK_FALSE(gradgradcheck(cut, {random_leaf({3}, 1)}) == "");
}

TEST_CASE("derivatives of reductions") {
  for (const Shape& shape : {Shape{2, 3}, Shape{1, 4}, Shape{2, 1, 3}}) {
    check_one(
        "sum", [](const Tensor& x) { return sum(x); }, shape);
    check_one(
        "mean", [](const Tensor& x) { return mean(x); }, shape);
    check_one(
        "sum 0", [](const Tensor& x) { return sum(x, {0}); }, shape);
    check_one(
        "sum -1 kept", [](const Tensor& x) { return sum(x, {-1}, true); }, shape);
    check_one(
        "sum 0 and 1",
        [](const Tensor& x) {
          return sum(x, {1, 0});
        },
        shape);
    check_one(
        "sum of nothing", [](const Tensor& x) { return sum(x, {}); }, shape);
    check_one(
        "mean 1", [](const Tensor& x) { return mean(x, {1}); }, shape);
    check_one(
        "prod", [](const Tensor& x) { return prod(x); }, shape);
    check_one(
        "prod 1", [](const Tensor& x) { return prod(x, 1); }, shape);
    check_one(
        "prod 0 kept", [](const Tensor& x) { return prod(x, 0, true); }, shape);
    check_one(
        "norm", [](const Tensor& x) { return norm(x); }, shape);
    check_one(
        "norm 1", [](const Tensor& x) { return norm(x, {1}); }, shape);
    check_one(
        "max", [](const Tensor& x) { return max(x); }, shape);
    check_one(
        "min", [](const Tensor& x) { return min(x); }, shape);
    check_one(
        "max 1", [](const Tensor& x) { return max(x, 1).values; }, shape);
    check_one(
        "min 0 kept", [](const Tensor& x) { return min(x, 0, true).values; }, shape);
  }
  check_one("var", [](const Tensor& x) { return var(x); }, {2, 3});
  check_one("var 1", [](const Tensor& x) { return var(x, {1}, 0, true); }, {2, 3});
  check_one("stddev", [](const Tensor& x) { return stddev(x, {0}, 0); }, {3, 2});
  check_one("logsumexp", [](const Tensor& x) { return logsumexp(x, {0, 2}); }, {3, 2, 2});
  check_one("logsumexp kept", [](const Tensor& x) { return logsumexp(x, {1}, true); }, {3, 2});
  check_one("amax", [](const Tensor& x) { return amax(x, {0, 2}); }, {3, 2, 2});
  check_one("amin kept", [](const Tensor& x) { return amin(x, {-1}, true); }, {3, 2});
  check_one("cumprod", [](const Tensor& x) { return cumprod(x, 1); }, {2, 5});
  check_one("sum", [](const Tensor& x) { return sum(x); }, {});
  check_one("sum", [](const Tensor& x) { return sum(x); }, {0, 2});
  check_one("sum_to", [](const Tensor& x) { return sum_to(x, {3, 1}); }, {2, 3, 4});
}

TEST_CASE("the gradient of a product with zeros in it") {
  for (const int zeros : {1, 2}) {
    Tensor x = random_leaf({5}, 1);
    {
      NoGrad no_grad;
      x.narrow(0, 1, zeros).fill_(0);
    }
    INFO(zeros << " zeros");
    const auto product = [](const std::vector<Tensor>& in) { return prod(in[0], 0); };
    CHECK(gradcheck(product, {x}) == "");
    CHECK(gradgradcheck(product, {x}) == "");
    CHECK(gradgradcheck([](const std::vector<Tensor>& in) { return cumprod(in[0], 0); }, {x}) == "");
  }
}

TEST_CASE("derivatives of views and copies") {
  const Shape shape{2, 3, 4};
  check_one(
      "reshape",
      [](const Tensor& x) {
        return x.reshape({4, -1});
      },
      shape);
  check_one(
      "flatten", [](const Tensor& x) { return x.flatten(1); }, shape);
  check_one(
      "transpose", [](const Tensor& x) { return x.transpose(0, -1); }, shape);
  check_one("t", [](const Tensor& x) { return x.t(); }, {2, 3});
  check_one(
      "permute",
      [](const Tensor& x) {
        return x.permute({2, 0, 1});
      },
      shape);
  check_one("expand", [](const Tensor& x) { return x.expand({2, 3, 4}); }, {3, 1});
  check_one("squeeze", [](const Tensor& x) { return x.squeeze(1); }, {2, 1, 3});
  check_one("unsqueeze", [](const Tensor& x) { return x.unsqueeze(1); }, {2, 3});
  check_one(
      "narrow", [](const Tensor& x) { return x.narrow(1, 1, 2); }, shape);
  check_one(
      "narrow to nothing", [](const Tensor& x) { return x.narrow(1, 1, 0); }, shape);
  check_one(
      "slice", [](const Tensor& x) { return x.slice(1, 0, {}, 2); }, shape);
  check_one(
      "slice of one", [](const Tensor& x) { return slice(x, 1, -1, {}, 1'000'000'000'000'000'000); }, shape);
  check_one(
      "select", [](const Tensor& x) { return x.select(1, -1); }, shape);
  check_one(
      "[]", [](const Tensor& x) { return x[1][2]; }, shape);
  check_one(
      "contiguous", [](const Tensor& x) { return x.transpose(0, 1).contiguous(); }, shape);
  check_one(
      "pad", [](const Tensor& x) { return pad(x, 1, 2, 1); }, shape);
  check_one(
      "flip",
      [](const Tensor& x) {
        return flip(x, {0, 2});
      },
      shape);
  check_one(
      "to a device", [](const Tensor& x) { return x.to(device_at(0)).to(device_at(1)).to(Device::cpu()); }, shape);
}

TEST_CASE("derivatives of joining and splitting") {
  check_one("split",
            [](const Tensor& x) {
              const auto parts = split(x, 2, 1);
              return parts[0].sum({1}) * parts[1].sum({1});
            },
            {2, 5});
  check_one("split, one part unused", [](const Tensor& x) { return split(x, 2, 0)[1]; }, {5, 2});
  check_one("chunk", [](const Tensor& x) { return chunk(x, 3)[0] * 2 + chunk(x, 3)[2]; }, {6});
  check_one("unbind", [](const Tensor& x) { return unbind(x, 1)[2] * unbind(x, 1)[0]; }, {2, 3});
  check_one("unbind, one part used", [](const Tensor& x) { return unbind(x)[1]; }, {3, 2});
  check_one("repeat", [](const Tensor& x) { return repeat(x, {2, 1, 3}); }, {2, 2});
  check_one("repeat_interleave", [](const Tensor& x) { return repeat_interleave(x, 2, 0); }, {3, 2});
  check_one("roll", [](const Tensor& x) { return roll(x, 2, 1) * x; }, {2, 5});
  check_one("tril and triu", [](const Tensor& x) { return tril(x, 1) * triu(x, -1); }, {3, 4});
  check_one("pad with a number", [](const Tensor& x) { return square(pad(x, {1, 0, 2, 1}, 3)); }, {2, 2});
  check("meshgrid",
        [](const std::vector<Tensor>& in) {
          const auto grids = meshgrid(in);
          return grids[0] * square(grids[1]);
        },
        {random_leaf({3}, 1), random_leaf({2}, 2)});
  check("cat",
        [](const std::vector<Tensor>& in) {
          return square(cat({in[0], in[1], in[2]}, 1));
        },
        {random_leaf({2, 3}, 1), random_leaf({2, 0}, 2), random_transposed_leaf({2, 2}, 3)});
  check("cat, one without gradient", [](const std::vector<Tensor>& in) { return square(cat(in, -1)); },
        {random_leaf({2, 3}, 1), random_leaf({2, 1}, 2).detach()});
  check("stack", [](const std::vector<Tensor>& in) { return square(stack(in, 1)); },
        {random_leaf({2, 3}, 1), random_leaf({2, 3}, 2)});
}

TEST_CASE("derivatives of indexing") {
  const Tensor picks = indices({2, 0, 2, 1}, {4});
  check("index_select 0", [&](const std::vector<Tensor>& in) { return square(index_select(in[0], 0, picks)); },
        {random_leaf({3, 2}, 1)});
  check("index_select 1", [&](const std::vector<Tensor>& in) { return square(index_select(in[0], 1, picks)); },
        {random_transposed_leaf({2, 3}, 1)});
  check("index_add", [&](const std::vector<Tensor>& in) { return square(index_add(in[0], 1, picks, in[1])); },
        {random_leaf({2, 3}, 1), random_leaf({2, 4}, 2)});
  const Tensor grid = indices({0, 2, 1, 1, 0, 0}, {2, 3});
  check("gather 1", [&](const std::vector<Tensor>& in) { return square(gather(in[0], 1, grid)); },
        {random_leaf({2, 4}, 1)});
  check("gather 0 of fewer columns", [&](const std::vector<Tensor>& in) { return square(gather(in[0], 0, grid)); },
        {random_leaf({3, 5}, 1)});
  check("scatter_add 1", [&](const std::vector<Tensor>& in) { return square(scatter_add(in[0], 1, grid, in[1])); },
        {random_leaf({2, 4}, 1), random_leaf({2, 3}, 2)});
  check("scatter_add 0 into more columns",
        [&](const std::vector<Tensor>& in) { return square(scatter_add(in[0], 0, grid, in[1])); },
        {random_leaf({3, 5}, 1), random_leaf({2, 3}, 2)});
}

TEST_CASE("derivatives of matrix products") {
  const std::pair<Shape, Shape> pairs[] = {
      {{2, 3}, {3, 4}},
      {{1, 3}, {3, 1}},
      {{3}, {3}},
      {{3}, {3, 2}},
      {{2, 3}, {3}},
      {{2, 2, 3}, {3, 4}},
      {{2, 2, 3}, {2, 3, 4}},
      {{1, 2, 3}, {2, 3, 2}},
      {{2, 2, 3}, {1, 3, 2}},
      {{2, 3}, {2, 3, 2}},
      {{2, 1, 2, 3}, {3, 3, 2}},
      {{3}, {2, 3, 2}},
      {{2, 2, 3}, {3}},
      {{2, 0}, {0, 3}},
      {{0, 3}, {3, 2}},
      {{1, 1}, {1, 1}},
      {{5, 1}, {1, 4}},
  };
  const Function f = [](const std::vector<Tensor>& in) { return matmul(in[0], in[1]); };
  for (const auto& [a, b] : pairs) {
    INFO(to_string(a) << " @ " << to_string(b));
    CHECK(gradcheck(f, {random_leaf(a, 1), random_leaf(b, 2)}) == "");
    CHECK(gradcheck(f, {random_transposed_leaf(a, 1), random_transposed_leaf(b, 2)}) == "");
    CHECK(gradgradcheck(f, {random_leaf(a, 1), random_leaf(b, 2)}) == "");
    CHECK(gradcheck(f, {random_leaf(a, 1).detach(), random_leaf(b, 2)}) == "");
  }
}
