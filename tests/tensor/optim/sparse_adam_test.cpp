// Optimizers, clipping and scaling with gradients that are rows.
#include "lockstep/tensor/optim/sparse_adam.h"

#include <cmath>
#include <limits>
#include <map>

#include "lockstep/tensor/nn/linear.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/clip.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/devices.h"
#include "tensor/optim/optim_support.h"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using support::device_at;

namespace {

using Indices = std::vector<std::int64_t>;
constexpr std::int64_t kTableRows = 6, kSize = 2;

Parameter matrix(DType dtype = DType::f64, Device device = Device::cpu()) {
  Doubles at;
  for (int i = 0; i < kTableRows * kSize; ++i) at.push_back(i - 5);
  return Parameter(from_data(at, {kTableRows, kSize}, {.dtype = dtype, .device = device}));
}
// Row k of the gradient is numbers[k] twice.
SparseGradient rows(const Parameter& p, const Indices& at, const Doubles& numbers) {
  const auto count = static_cast<std::int64_t>(at.size());
  const TensorOptions options{.dtype = p.dtype(), .device = p.device()};
  return {from_data(at, {count}, {.device = p.device()}),
          from_data(numbers, {count, 1}, options).expand({count, kSize}).clone(), p.shape()};
}

// Adam on those rows alone, in plain loops.
struct PlainSparseAdam {
  Doubles p, m = Doubles(kTableRows * kSize), v = Doubles(kTableRows * kSize);
  double lr, beta1, beta2, eps, sign;
  int t = 0;
  void step(const Indices& at, const Doubles& numbers) {
    ++t;
    std::map<std::int64_t, double> sums;
    for (std::size_t k = 0; k < at.size(); ++k) sums[at[k]] += sign * numbers[k];
    for (const auto& [row, g] : sums)
      for (std::size_t i = static_cast<std::size_t>(row * kSize); i < static_cast<std::size_t>((row + 1) * kSize);
           ++i) {
        m[i] += (1 - beta1) * (g - m[i]);
        v[i] += (1 - beta2) * (g * g - v[i]);
        p[i] -= lr * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)) * m[i] / (std::sqrt(v[i]) + eps);
      }
  }
};

const std::vector<Indices> kAt{{1, 4, 1}, {4}, {}, {0, 5, 0, 0, 1}, {2, 2}, {4, 1, 4, 4}};
const std::vector<Doubles> kNumbers{{3, -2, 5}, {1}, {}, {1, 2, -4, 8, 16}, {7, -7}, {2, 3, 4, 8}};

}  // namespace

TEST_CASE("sgd moves the rows of a sparse gradient as it does those of a matrix, bit for bit") {
  for (const Device device : {Device::cpu(), device_at(1)})
    for (const DType dtype : {DType::f64, DType::f32, DType::f16})
      for (const bool maximize : {false, true}) {
        const Parameter one = matrix(dtype, device), other = matrix(dtype, device),
                        plain = parameter({1, 2}, dtype, device);
        SGD dense({one}, {.lr = 0.25, .maximize = maximize});
        SGD sparse({{.parameters = {other}}, {.parameters = {plain}, .momentum = 0.5}},
                   {.lr = 0.25, .maximize = maximize});
        for (std::size_t i = 0; i < kAt.size(); ++i) {
          one.set_grad(rows(one, kAt[i], kNumbers[i]).to_dense());
          other.set_sparse_grad(rows(other, kAt[i], kNumbers[i]));
          set_grad(plain, {8, 8});
          const std::uint64_t version = other.tensor().version();
          dense.step();
          sparse.step();
          CHECK(values(other.tensor()) == values(one.tensor()));
          CHECK(other.tensor().version() > version);
        }
        CHECK(values(plain.tensor())[0] != 1);
      }
}

TEST_CASE("sparse adam is Adam on the rows that appear") {
  for (const Device device : {Device::cpu(), device_at(1)})
    for (const DType dtype : {DType::f64, DType::f32})
      for (const SparseAdamOptions& o :
           {SparseAdamOptions{}, SparseAdamOptions{.lr = 0.1, .betas = {0.5, 0.75}, .eps = 1e-3, .maximize = true}}) {
        const Parameter p = matrix(dtype, device);
        SparseAdam optimizer({p}, o);
        PlainSparseAdam plain{.p = values(p.tensor()),
                              .lr = o.lr,
                              .beta1 = o.betas.first,
                              .beta2 = o.betas.second,
                              .eps = o.eps,
                              .sign = o.maximize ? -1.0 : 1.0};
        for (std::size_t i = 0; i < kAt.size(); ++i) {
          p.set_sparse_grad(rows(p, kAt[i], kNumbers[i]));
          optimizer.step();
          plain.step(kAt[i], kNumbers[i]);
        }
        check_close(values(p.tensor()), plain.p, tolerance(dtype));
        CHECK(values(p.tensor()[3]) == Doubles{1, 2});  // never appeared: the very bits
        p.zero_grad();
        const Doubles before = values(p.tensor());
        optimizer.step();
        CHECK(values(p.tensor()) == before);
      }
}

TEST_CASE("a training with sparse adam goes on from its state bit for bit") {
  const Parameter p = matrix(), q = matrix();
  SparseAdam one({p}, {.lr = 0.1}), two({{.parameters = {q}, .lr = 0.5}});
  const auto step = [](SparseAdam& optimizer, const Parameter& of, std::size_t i) {
    of.set_sparse_grad(rows(of, kAt[i], kNumbers[i]));
    optimizer.step();
  };
  step(one, p, 0), step(one, p, 3);
  std::vector<std::string> names;
  for (const NamedTensor& entry : one.state_dict()) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"state.0.group", "state.0.step", "state.0.exp_avg", "state.0.exp_avg_sq",
                                          "groups.0.lr", "groups.0.beta1", "groups.0.beta2", "groups.0.eps",
                                          "groups.0.maximize"});
  two.load_state_dict(one.state_dict());
  q.assign(p.tensor().detach());
  step(one, p, 4), step(two, q, 4);
  CHECK(two.lr() == 0.1);
  CHECK(values(q.tensor()) == values(p.tensor()));
}

TEST_CASE("optimizers refuse gradients they cannot use, by name, before anything is changed") {
  struct Net : Module<Net> {
    Embedding words{6, 2, {.sparse = true}};
    Linear head{2, 1};
    void members(Members& m) override { m("words", words), m("head", head); }
  } net;
  const auto all = net.parameters();
  for (const Parameter& p : all) p.set_grad(ones(p.shape()));
  net.words.weight.set_sparse_grad(rows(net.words.weight, {1}, {1}));
  const auto refuses = [&](Optimizer& optimizer, const std::string& instead) {
    std::vector<Doubles> before;
    for (const Parameter& p : all) before.push_back(values(p.tensor()));
    CHECK_THROWS_WITH(optimizer.step(), Contains(cat('[', optimizer.name(), ']')) && Contains("'words.weight'") &&
                                            Contains("1 rows of f32[6, 2]") && Contains(instead));
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(values(all[i].tensor()) == before[i]);
  };
  Adam adam(all);
  AdamW adam_w(all);
  SGD momentum(all, {.momentum = 0.9}), decay(all, {.weight_decay = 0.1});
  for (Optimizer* optimizer : std::initializer_list<Optimizer*>{&adam, &adam_w, &momentum, &decay})
    refuses(*optimizer, "SparseAdam");
  SparseAdam sparse(all);
  const Doubles before = values(net.words.weight.tensor());
  CHECK_THROWS_WITH(sparse.step(), Contains("[SparseAdam]") && Contains("'head.weight'") && Contains("use Adam"));
  CHECK(values(net.words.weight.tensor()) == before);
  CHECK_THROWS_AS(SparseAdam({net.words.weight}, {.eps = 0}), InvalidArgument);
  CHECK_THROWS_AS(SparseAdam({net.words.weight}, {.betas = {1, 0.9}}), InvalidArgument);
  CHECK_THROWS_AS(SparseAdam({net.words.weight}, {.lr = -1}), InvalidArgument);
  CHECK_THROWS_AS(SparseAdam({net.words.weight, net.words.weight}), InvalidArgument);
}

TEST_CASE("clipping sums the rows of a sparse gradient") {
  for (const Device device : {Device::cpu(), device_at(1)})
    for (const double type : {2.0, 1.0, 3.0, std::numeric_limits<double>::infinity()}) {
      const Parameter one = matrix(DType::f64, device), other = matrix(DType::f64, device),
                      dense = parameter({0}, DType::f32);
      const SparseGradient gradient = rows(one, {1, 4, 1, 1}, {3, -2, -5, 1});  // row 1: -1
      one.set_grad(gradient.to_dense());
      other.set_sparse_grad(gradient);
      set_grad(dense, {2});
      const double expected = clip_grad_norm({{one, dense}}, 1, {.norm_type = type}).item<double>();
      set_grad(dense, {2});
      CHECK(clip_grad_norm({{other, dense}}, 1, {.norm_type = type}).item<double>() == expected);
      check_close(values(other.sparse_grad().to_dense()), values(one.grad()), 1e-12);
    }
  const Parameter p = matrix();
  p.set_sparse_grad(rows(p, {1, 4, 1, 1}, {3, -2, -5, 1}));
  clip_grad_value(std::vector<Parameter>{p}, 1.5);
  CHECK(values(p.sparse_grad().to_dense()) == Doubles{0, 0, -1, -1, 0, 0, 0, 0, -1.5, -1.5, 0, 0});
  const Parameter half = matrix(DType::f16);
  half.set_sparse_grad(rows(half, {2, 2}, {60000, 60000}));  // whose sum is beyond f16
  CHECK(clip_grad_norm({{half}}, 1).item<double>() == Approx(120000 * std::sqrt(2.0)));
}

TEST_CASE("a scaler divides the rows of sparse gradients, and skips the step for one that is infinite") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16}) {
    const Parameter p = matrix(dtype, device_at(1));
    SGD optimizer({p}, {.lr = 1});
    GradScaler scaler({.init_scale = 8});
    const Doubles before = values(p.tensor());
    p.set_sparse_grad(rows(p, {1, 4, 1}, {8, 16, INFINITY}));
    CHECK_FALSE(scaler.step(optimizer));
    CHECK(values(p.tensor()) == before);
    scaler.update();
    CHECK(scaler.scale() == 4);
    p.set_sparse_grad(rows(p, {1, 4, 1}, {8, 16, 4}));
    scaler.unscale_(optimizer);
    CHECK(values(p.sparse_grad().to_dense()) == Doubles{0, 0, 3, 3, 0, 0, 0, 0, 4, 4, 0, 0});
    CHECK(scaler.step(optimizer));
    scaler.update();
    CHECK(values(p.tensor()[1]) == Doubles{before[2] - 3, before[3] - 3});
  }
  const Parameter half = matrix(DType::f16);
  SGD optimizer({half}, {.lr = 1});
  GradScaler scaler({.init_scale = 8});
  half.set_sparse_grad(rows(half, {2, 2}, {60000, 60000}));
  CHECK_FALSE(scaler.step(optimizer));  // their sum is infinite
}
