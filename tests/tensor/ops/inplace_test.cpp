// Writing into tensors: values, what becomes of the graph, and what is refused.
#include "lockstep/tensor/autograd/record.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/devices.h"
#include "support/gradcheck.h"
#include "support/tensors.h"
#include "tensor/ops/support.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using op_tests::f64;
using support::device_at;
using support::Function;
using support::gradcheck;
using support::gradgradcheck;
using support::leaf;
using support::random_leaf;
using support::values;

namespace {
using Doubles = std::vector<double>;
}  // namespace

TEST_CASE("in-place operations write, count as a write, and return the tensor") {
  Tensor x = f64({1, 2, 3, 4}, {2, 2});
  const Tensor same = x;
  const std::uint64_t version = x.version();
  CHECK(x.add_(f64({10, 20}, {2})).identity() == x.identity());
  CHECK(values(same) == Doubles{11, 22, 13, 24});
  CHECK(x.version() > version);
  CHECK(values(x.add_(f64({1}, {}), -2)) == Doubles{9, 20, 11, 22});
  CHECK(values(x.mul_(f64({2, 1}, {2, 1}))) == Doubles{18, 40, 11, 22});
  CHECK(values(x.add_(1.5)) == Doubles{19.5, 41.5, 12.5, 23.5});
  CHECK(values(x.mul_(2)) == Doubles{39, 83, 25, 47});
  CHECK(values(x.copy_(f64({5, 6}, {2}))) == Doubles{5, 6, 5, 6});
  CHECK(values(x.fill_(7)) == Doubles{7, 7, 7, 7});
  CHECK(values(x.zero_()) == Doubles{0, 0, 0, 0});
  // A view writes through.
  x.t().select(0, 1).fill_(3);
  CHECK(values(x) == Doubles{0, 3, 0, 3});
  x[1] += 2;
  x.t()[0] -= f64({1, 0}, {2});
  (x[0] *= 2) /= f64({1, 2}, {2});
  CHECK(values(x) == Doubles{-2, 3, 2, 5});
  CHECK(values(f64({8, 6}, {2}).sub_(f64({1, 2}, {2}), 2).div_(f64({2}, {1})).sub_(1).div_(4)) == Doubles{0.5, 0});
  // Integers fit into each other, bools into all; bools are or and and.
  CHECK(values(from_data({250, 3}, {2}, {.dtype = DType::u8}).add_(from_data({7, -4}, {2}))) == Doubles{1, 255});
  CHECK(values(from_data({5, 3}, {2}).mul_(from_data({true, false}, {2}))) == Doubles{5, 0});
  CHECK(values(from_data({true, false}, {2}).add_(from_data({true}, {1}))) == Doubles{1, 1});
  CHECK(values(from_data({true, false}, {2}).mul_(from_data({true, true}, {2}))) == Doubles{1, 0});
  // i64 in full.
  Tensor big = from_data({(std::int64_t{1} << 53) + 1}, {1});
  CHECK(big.add_(from_data({1}, {1})).item<std::int64_t>() == (std::int64_t{1} << 53) + 2);
}

TEST_CASE("copy_ converts, broadcasts and moves") {
  Tensor x = zeros({2, 3}, {.device = device_at(1)});
  x.copy_(from_data({1, 2, 3}, {3}));
  CHECK(values(x) == Doubles{1, 2, 3, 1, 2, 3});
  x.copy_(f64({1, 2, 3, 4, 5, 6}, {3, 2}).to(device_at(0)).t());
  CHECK(values(x) == Doubles{1, 3, 5, 2, 4, 6});
  Tensor y = zeros({2, 3});
  const std::uint64_t version = y.version();
  y.copy_(x);  // straight into place
  CHECK(values(y) == values(x));
  CHECK(y.version() > version);
  x.t().copy_(f64({9}, {1}));
  CHECK(values(x) == Doubles(6, 9));
  from_data({1.0}, {1}).copy_(from_data({1.0}, {1}));
}

TEST_CASE("an operand that overlaps the written tensor is read before it is written") {
  Tensor x = f64({1, 2, 3, 4}, {2, 2});
  x.add_(x.t());
  CHECK(values(x) == Doubles{2, 5, 5, 8});
  x.mul_(x);
  CHECK(values(x) == Doubles{4, 25, 25, 64});
  x.copy_(x.t());
  Tensor row = f64({1, 2, 3, 4, 5}, {5});
  row.narrow(0, 1, 4).copy_(row.narrow(0, 0, 4));
  CHECK(values(row) == Doubles{1, 1, 2, 3, 4});
  row.narrow(0, 0, 4).add_(row[4]);
  CHECK(values(row) == Doubles{5, 5, 6, 7, 4});
}

TEST_CASE("in a graph, in-place operations differentiate like their counterparts") {
  support::needs_devices(2);
  const std::pair<const char*, Function> cases[] = {
      {"add_", [](const std::vector<Tensor>& in) { return square(in[0]).add_(in[1], 3) * in[0]; }},
      {"mul_", [](const std::vector<Tensor>& in) { return square(in[0]).mul_(in[1]) * in[0]; }},
      {"mul_ by a part of itself",
       [](const std::vector<Tensor>& in) {
         Tensor y = square(in[0]);
         return y.mul_(y) * in[1];
       }},
      {"div_", [](const std::vector<Tensor>& in) { return square(in[0]).div_(square(in[1]) + 1) * in[0]; }},
      {"div_ by itself",
       [](const std::vector<Tensor>& in) {
         Tensor y = square(in[0]) + 1;
         return y.div_(y) * in[1];
       }},
      {"operators",
       [](const std::vector<Tensor>& in) {
         Tensor y = square(in[0]);
         y += in[1], y *= in[0], y -= in[1], y /= 3, y -= 0.5, y *= 2, y += 1;
         return (y /= square(in[1]) + 1) * in[0];
       }},
      {"add_ number", [](const std::vector<Tensor>& in) { return square(in[0]).add_(3) * in[1]; }},
      {"mul_ number", [](const std::vector<Tensor>& in) { return square(in[0]).mul_(3) * in[1]; }},
      {"copy_", [](const std::vector<Tensor>& in) { return square(in[0]).copy_(in[1] * in[1]) * in[0]; }},
      {"fill_", [](const std::vector<Tensor>& in) { return square(in[0]).fill_(2) * in[0] * in[1]; }},
      {"into zeros",
       [](const std::vector<Tensor>& in) {
         Tensor y = zeros({2, 3}, {.dtype = DType::f64});
         y.add_(in[0]).mul_(in[1]);
         return y;
       }},
      {"several",
       [](const std::vector<Tensor>& in) {
         Tensor y = in[0] + 1;
         y.mul_(in[1]).add_(in[0]).mul_(0.5).add_(2).mul_(in[0]);
         return y;
       }},
      {"copy_ of f32 from another device",
       [](const std::vector<Tensor>& in) {
         return zeros({2, 3}, {.dtype = DType::f64}).copy_(square(in[0]).to(device_at(1))) * in[1];
       }},
  };
  for (const auto& [name, f] : cases) {
    INFO(name);
    CHECK(gradcheck(f, {random_leaf({2, 3}, 1), random_leaf({3}, 2)}) == "");
    CHECK(gradgradcheck(f, {random_leaf({2, 3}, 1), random_leaf({3}, 2)}) == "");
  }
}

TEST_CASE("what an in-place operation becomes part of") {
  const Tensor x = leaf({1, 2});
  Tensor y = zeros({2}, {.dtype = DType::f64});
  CHECK_FALSE(y.requires_grad());
  y.add_(x);
  CHECK(y.requires_grad());
  CHECK_FALSE(y.is_leaf());
  y.fill_(1);
  CHECK_FALSE(y.requires_grad());
  {
    NoGrad no_grad;
    y.copy_(x);
  }
  CHECK_FALSE(y.requires_grad());
}

TEST_CASE("a leaf that requires a gradient is written under NoGrad only") {
  Tensor x = leaf({1, 2});
  CHECK_THROWS_WITH(x.add_(1), Contains("[add_]") && Contains("leaf") && Contains("f64[2] on cpu"));
  CHECK_THROWS_AS(x.mul_(x), InvalidArgument);
  CHECK_THROWS_AS(x.copy_(x.detach()), InvalidArgument);
  CHECK_THROWS_AS(x.fill_(0), InvalidArgument);
  CHECK(values(x) == Doubles{1, 2});
  NoGrad no_grad;
  x.mul_(3);
  CHECK(values(x) == Doubles{3, 6});
  CHECK(x.requires_grad());
  CHECK(x.is_leaf());
}

TEST_CASE("views that are part of a graph are not written") {
  const Tensor x = leaf({1, 2, 3, 4});
  Tensor y = x * 2;
  CHECK_THROWS_WITH(y.narrow(0, 0, 2).add_(1), Contains("[add_]") && Contains("which is a view"));
  CHECK_THROWS_AS(y.reshape({2, 2}).mul_(2), InvalidArgument);
  CHECK_THROWS_AS(split(y, 2)[0].fill_(0), InvalidArgument);
  Tensor orphan = (x * 2).narrow(0, 0, 2);  // also when its base is gone
  CHECK_THROWS_AS(orphan.add_(1), InvalidArgument);
  // Nor is their base while they are there: their origin would be wrong.
  {
    const Tensor view = y[0];
    CHECK_THROWS_WITH(y.mul_(2),
                      Contains("[mul_]") && Contains("whose elements another tensor has too") && !Contains("view"));
  }
  // A view of a plain tensor becomes part of no graph either: its base would not know.
  Tensor plain = zeros({4}, {.dtype = DType::f64});
  CHECK_THROWS_AS(plain.narrow(0, 0, 2).copy_(x.narrow(0, 0, 2)), InvalidArgument);
  CHECK(values(y) == Doubles{2, 4, 6, 8});
  CHECK(values(plain) == Doubles(4, 0));
  y.mul_(2);
  NoGrad no_grad;
  y.narrow(0, 0, 2).fill_(0);
  CHECK(values(y) == Doubles{0, 0, 12, 16});
}

TEST_CASE("expanded tensors, and shapes and dtypes that do not fit, are not written") {
  Tensor x = zeros({2, 3});
  CHECK_THROWS_WITH(zeros({3}).expand({2, 3}).add_(1), Contains("[add_]") && Contains("expanded"));
  CHECK_THROWS_AS(zeros({1}).expand({3}).fill_(1), InvalidArgument);
  CHECK_THROWS_WITH(x.add_(zeros({2, 2, 3})), Contains("[add_]") && Contains("[2, 2, 3]"));
  CHECK_THROWS_WITH(x.copy_(zeros({2})), Contains("[copy_]") && Contains("f32[2]"));
  CHECK_THROWS_AS(zeros({1, 3}).mul_(x), InvalidArgument);
  CHECK_THROWS_AS(Tensor().add_(1), InvalidArgument);
  x.add_(zeros({3}, {.dtype = DType::f64}));  // floating dtypes fit into each other
  x.copy_(from_data({1, 2, 3}, {3}));
  Tensor counts = zeros({2}, {.dtype = DType::i64});
  CHECK_THROWS_AS(counts.mul_(0.5), InvalidArgument);
  CHECK_THROWS_WITH(counts.add_(zeros({2})), Contains("[add_]") && Contains("i64[2]") && Contains("f32[2]"));
  CHECK_THROWS_WITH(counts.div_(counts), Contains("[div_]") && Contains("i64[2]"));
  CHECK_THROWS_AS(counts.div_(2), InvalidArgument);
  CHECK_THROWS_AS(from_data({true}, {1}).add_(from_data({1}, {1})), InvalidArgument);
  CHECK_THROWS_AS(from_data({true}, {1}).add_(from_data({true}, {1}), 2), InvalidArgument);
  counts.copy_(from_data({1.7, -1.7}, {2}));
  CHECK(counts.to_vector<int>() == std::vector<int>{1, -1});
}

TEST_CASE("what meets a wider dtype in place is rounded once, at the end") {
  const TensorOptions half{.dtype = DType::f16}, full{.dtype = DType::f32};
  const Tensor wide = from_data({98304.0, 98304.0}, {2}, full);
  CHECK(values(from_data({0.5, -0.25}, {2}, half).mul_(wide)) == Doubles{49152, -24576});
  CHECK(values(from_data({-6e4, -5e4}, {2}, half).add_(wide)) == Doubles{38304, 48320});
  CHECK(values(from_data({-6e4, 5e4}, {2}, half).sub_(wide, -0.5)) == Doubles{-10848, INFINITY});
  CHECK(values(from_data({49152.0, 24576.0}, {2}, half).div_(wide)) == Doubles{0.5, 0.25});
  // Into a view, of an operand that is broadcast.
  Tensor whole = from_data({1.0, 2.0, 3.0, 4.0}, {2, 2}, half);
  whole.select(1, 1).mul_(from_data({1e5}, {1}, full)).div_(from_data({2e5}, {1}, full));
  CHECK(values(whole)[0] == 1);
  // Gradients: those of the counterparts that are not in place, each in the dtype of its operand.
  const auto gradients = [&](auto&& function) {
    Tensor a = from_data({0.5, -0.25}, {2}, half).set_requires_grad();
    Tensor b = from_data({1e5, 2e5}, {2}, full).set_requires_grad();
    function(a * 1, b).sum().backward();
    CHECK(a.grad().dtype() == DType::f16);
    CHECK(b.grad().dtype() == DType::f32);
    return std::pair(values(a.grad()), values(b.grad()));
  };
  CHECK(gradients([](Tensor a, const Tensor& b) { return a.div_(b).to(DType::f32) * 1e5; }) ==
        gradients([](const Tensor& a, const Tensor& b) { return (a / b).to(DType::f16).to(DType::f32) * 1e5; }));
  CHECK(gradients([](Tensor a, const Tensor& b) { return a.mul_(b).to(DType::f32) * 1e-2; }) ==
        gradients([](const Tensor& a, const Tensor& b) { return (a * b).to(DType::f16).to(DType::f32) * 1e-2; }));
  CHECK(gradients([](Tensor a, const Tensor& b) { return a.add_(b, 0.1).to(DType::f32); }) ==
        gradients([](const Tensor& a, const Tensor& b) { return add(a, b, 0.1).to(DType::f16).to(DType::f32); }));
}

TEST_CASE("a write into something saved for backward is found") {
  const auto backward_of = [](const char* op, auto&& forward, int changed) {
    INFO(op);
    Tensor inputs[] = {leaf({1, 2}) + 0, leaf({3, 4}) + 0};
    Tensor y = forward(inputs[0], inputs[1]);
    if (changed == 2) {
      NoGrad no_grad;
      y.add_(1);
    } else {
      NoGrad no_grad;
      inputs[changed].add_(1);
    }
    CHECK_THROWS_WITH(y.sum().backward(), Contains(std::string("[") + op + "]") && Contains("f64[2] on cpu"));
  };
  backward_of(
      "mul", [](const Tensor& a, const Tensor& b) { return a * b; }, 0);
  backward_of(
      "mul", [](const Tensor& a, const Tensor& b) { return a * b; }, 1);
  backward_of(
      "exp", [](const Tensor& a, const Tensor&) { return exp(a); }, 2);
  backward_of(
      "sin", [](const Tensor& a, const Tensor&) { return sin(a); }, 0);
  backward_of(
      "div", [](const Tensor& a, const Tensor& b) { return a / b; }, 1);
  // What is not needed may change.
  Tensor a = leaf({1, 2}) + 0;
  Tensor y = a + 1;
  {
    NoGrad no_grad;
    a.add_(5);
    y.add_(5);
  }
  y.sum().backward();
}

TEST_CASE("a graph whose saved tensors were freed says so") {
  const Tensor x = leaf({1, 2});
  const Tensor y = (x * x).sum();
  y.backward();
  CHECK_THROWS_WITH(y.backward(), Contains("[mul]") && Contains("retain_graph"));
  const Tensor z = (x * x).sum();
  z.backward({}, {.retain_graph = true});
  z.backward();
  CHECK(values(x.grad()) == Doubles{6, 12});
}

TEST_CASE("without grad mode nothing is recorded") {
  support::needs_devices(2);
  const Tensor x = leaf({1, 2});
  NoGrad no_grad;
  CHECK_FALSE((x * x).requires_grad());
  CHECK_FALSE(x.reshape({2, 1}).requires_grad());
  CHECK_FALSE(cat({x, x}).requires_grad());
  CHECK_FALSE(split(x, 1)[0].requires_grad());
  CHECK_FALSE(x.to(device_at(1)).requires_grad());
  CHECK(x.requires_grad());
}
