// Autocast: which operations compute in which dtype, where gradients arrive, how long casts of parameters are kept.
#include "lockstep/tensor/autograd/autocast.h"

#include <cmath>

#include "lockstep/tensor/autograd/checkpoint.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/grad_scaler.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/compare.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::difference;

TEST_CASE("under autocast products compute in 16 bits, and what needs more in f32") {
  const Tensor x = randn({4, 6}), w = randn({3, 6}), image = randn({1, 2, 5, 5}), filter = randn({3, 2, 3, 3});
  const Tensor q = randn({1, 2, 3, 4}), i64 = ones({3}, {.dtype = DType::i64});
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Tensor half = x.to(dtype), square_half = randn({3, 3}).to(dtype), f64 = x.to(DType::f64);
    const Autocast scope(dtype);
    CHECK(matmul(x, w.t()).dtype() == dtype);
    CHECK(linear(x, w, randn({3})).dtype() == dtype);
    CHECK(linear(half, w).dtype() == dtype);
    CHECK(conv2d(image, filter).dtype() == dtype);
    CHECK(scaled_dot_product_attention(q, q, q, {.mask = randn({3, 3})}).dtype() == dtype);
    CHECK(lstm_cell(randn({2, 8}), randn({2, 2})).c.dtype() == dtype);
    CHECK(gru_cell(randn({2, 6}), randn({2, 6}), randn({2, 2})).dtype() == dtype);
    for (const Tensor& wide :
         {exp(half), log(half), pow(half, 2.0), pow(half, half), rsqrt(half), reciprocal(half), softplus(half),
          softmax(half, 1), log_softmax(half, 1), half.sum(), half.sum({1}), prod(half),
          layer_norm(half, {6}, ones({6})), batch_norm(half, ones({6}), zeros({6}), {.training = true}),
          mse_loss(half, half), l1_loss(half, x), bce_with_logits(half, half), cross_entropy(square_half, i64),
          nll_loss(square_half, i64)})
      CHECK(wide.dtype() == DType::f32);
    CHECK((half + half).dtype() == dtype);
    CHECK((half + x).dtype() == DType::f32);
    CHECK(relu(half).dtype() == dtype);
    CHECK(gelu(x).dtype() == DType::f32);
    CHECK(half.mean().dtype() == dtype);
    const Tensor rows = zeros({6}, {.dtype = DType::i64});
    CHECK(scatter_add(x, 1, zeros({4, 6}, {.dtype = DType::i64}), half).dtype() == DType::f32);
    CHECK(index_add(half, 1, rows, x).dtype() == DType::f32);
    CHECK(matmul(f64, f64.t()).dtype() == DType::f64);
    CHECK(exp(f64).dtype() == DType::f64);
    CHECK(difference(linear(x, w).to(DType::f32), linear(x.to(dtype), w.to(dtype)).to(DType::f32)) == 0);
  }
  CHECK(matmul(x, w.t()).dtype() == DType::f32);
}

TEST_CASE("autocast scopes nest, and one may turn it off") {
  const Tensor x = randn({2, 2});
  CHECK_FALSE(Autocast::enabled());
  {
    const Autocast outer(DType::bf16);
    CHECK(Autocast::dtype() == DType::bf16);
    {
      const Autocast inner(DType::f16);
      CHECK(matmul(x, x).dtype() == DType::f16);
      const Autocast off(DType::f16, false);
      CHECK_FALSE(Autocast::enabled());
      CHECK(matmul(x, x).dtype() == DType::f32);
      CHECK(exp(x.to(DType::f16)).dtype() == DType::f16);
      const Autocast again(DType::f16);
      CHECK(matmul(x, x).dtype() == DType::f16);
    }
    CHECK(matmul(x, x).dtype() == DType::bf16);
  }
  CHECK_FALSE(Autocast::enabled());
  CHECK_THROWS_WITH(Autocast(DType::f32), Contains("f16 or bf16, got f32"));
}

TEST_CASE("gradients arrive in the dtype of the parameters, also when backward runs inside the scope") {
  const Tensor x = randn({5, 4});
  Linear layer(4, 3);
  std::vector<float> inside, outside;
  for (const bool within : {false, true}) {
    layer.zero_grad();
    Tensor loss;
    {
      const Autocast scope(DType::bf16);
      const Tensor y = layer(x);
      CHECK(y.dtype() == DType::bf16);
      loss = square(y).sum();
      if (within) loss.backward();
    }
    if (!within) loss.backward();
    CHECK(loss.dtype() == DType::f32);
    CHECK(layer.weight.grad().dtype() == DType::f32);
    CHECK(layer.bias.grad().dtype() == DType::f32);
    (within ? inside : outside) = layer.weight.grad().to_vector<float>();
  }
  CHECK(inside == outside);
  layer.zero_grad();
  square(layer(x)).sum().backward();
  const Tensor exact = layer.weight.grad();
  CHECK(difference(exact, from_data(inside, {3, 4})) < 0.05 * (1 + std::abs(exact.to_vector<double>()[0])) + 0.5);
}

TEST_CASE("a backward inside a scope computes in the dtypes of its forward") {
  const Tensor x = randn({4}).to(DType::bf16).set_requires_grad();
  const Tensor y = pow(x, 3.0).sum();
  bool enabled = true;
  y.register_hook([&](Tensor&) { enabled = Autocast::enabled(); });
  const Autocast scope(DType::bf16);
  y.backward();
  CHECK_FALSE(enabled);
  CHECK(x.grad().dtype() == DType::bf16);
}

TEST_CASE("casts of parameters are made once in a scope, unless the parameter changes") {
  Linear layer(4, 3);
  const Tensor w = layer.weight.tensor();
  const Autocast scope(DType::bf16);
  const Tensor first = detail::narrowed(w);
  CHECK(detail::narrowed(w).identity() == first.identity());
  {
    const Autocast inner(DType::bf16);
    CHECK(detail::narrowed(w).identity() == first.identity());
    const Autocast other(DType::f16);
    CHECK(detail::narrowed(w).dtype() == DType::f16);
  }
  {
    const NoGrad no_grad;
    CHECK_FALSE(detail::narrowed(w).requires_grad());  // a cast without a graph …
  }
  CHECK(detail::narrowed(w).requires_grad());  // … does not take the place of one with
  layer.weight.assign(ones({3, 4}));
  CHECK(detail::narrowed(w).to_vector<float>() == std::vector<float>(12, 1));
  const Tensor x = randn({4});
  CHECK(detail::narrowed(x).identity() != detail::narrowed(x).identity());
  // Not in the parameter: what is no product sees its own elements.
  CHECK(layer.weight.on(Device::cpu()).dtype() == DType::f32);
}

TEST_CASE("a parameter that set_data has given other strides over the same storage is cast anew") {
  const Parameter weight(randn({4, 4}));
  Tensor handle = weight.tensor();
  const Tensor x = randn({2, 4});
  const Autocast scope(DType::bf16);
  const Tensor first = linear(x, handle);
  handle.set_data(handle.detach().t());
  CHECK(equal(linear(x, handle), linear(x, handle.detach())));
  CHECK_FALSE(equal(linear(x, handle), first));
}

TEST_CASE("the casts of a scope go with it") {
  Linear layer(4, 3);
  const Tensor w = layer.weight.tensor();
  Ref<Storage> storage;
  {
    const Autocast scope(DType::f16);
    storage = detail::narrowed(w).storage();
    CHECK(storage->use_count() == 2);
  }
  CHECK(storage->use_count() == 1);
}

TEST_CASE("a model trains under autocast with a loss scale") {
  manual_seed(2);
  const Tensor x = randn({64, 8}), wanted = (x.sum({1}) > 0.0).to(DType::i64);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Sequential net(Linear(8, 32), LayerNorm(32), GELU(), Linear(32, 2));
    SGD optimizer(net.parameters(), {.lr = 0.2});
    GradScaler scaler;
    double first = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      Tensor loss;
      {
        const Autocast scope(dtype);
        loss = cross_entropy(net(x), wanted);
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    CHECK(last < 0.3 * first);
    for (const Parameter& p : net.parameters()) CHECK(p.dtype() == DType::f32);
  }
}

TEST_CASE("all kinds of sequence layers run under autocast") {
  const Autocast scope(DType::bf16);
  const Tensor x = randn({3, 2, 8});
  TransformerEncoderLayer layer(8, 2, {.feedforward = 16});
  layer(x, {.key_padding = zeros({2, 3}, {.dtype = DType::boolean})}).sum().backward();
  CHECK(layer.self_attn.in_proj_weight.grad().dtype() == DType::f32);
  LSTM lstm(8, 4, {.layers = 2, .bidirectional = true});
  lstm(x).output.sum().backward();
  CHECK(lstm.weights()[3].weight_hh.grad().dtype() == DType::f32);
  GRU gru(8, 4);
  gru(x, randn({1, 2, 4})).h.sum().backward();
  CHECK(gru.weights()[0].bias_hh.grad().dtype() == DType::f32);
}
