// What does not fit is an InvalidArgument that names the operation and both sides, thrown before anything is computed.
#include <limits>

#include "lockstep/runtime/memory/allocator.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "support/catch.h"
#include "support/devices.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::device_at;
using support::device_name;

namespace {

// The call throws InvalidArgument whose text has all of the parts, and leaves no memory behind.
template <class F>
void check_refused(F&& call, const std::vector<std::string>& parts) {
  const std::size_t before = memory_stats(Device::cpu()).in_use_bytes;
  std::string message = "nothing was thrown";
  try {
    call();
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  for (const std::string& part : parts) CHECK_THAT(message, Contains(part));
  CHECK(memory_stats(Device::cpu()).in_use_bytes == before);
}

}  // namespace

TEST_CASE("shapes that do not fit") {
  const Tensor a = zeros({2, 3}), b = zeros({4, 5}), v = zeros({7}), image = zeros({1, 2, 4, 4});
  check_refused([&] { a + b; }, {"[add]", "f32[2, 3] on cpu", "f32[4, 5] on cpu"});
  check_refused([&] { where(a > 0.0, a, b); }, {"[where]", "[2, 3]", "[4, 5]"});
  check_refused([&] { matmul(a, b); }, {"[matmul]", "f32[2, 3] on cpu", "f32[4, 5] on cpu"});
  check_refused([&] { matmul(zeros({2, 2, 3}), zeros({3, 3, 2})); }, {"[matmul]", "[2, 2, 3]", "[3, 3, 2]"});
  check_refused([&] { matmul(a, zeros({})); }, {"[matmul]", "f32[]"});
  check_refused([&] { linear(a, b); }, {"[linear]", "[2, 3]", "[4, 5]"});
  check_refused([&] { linear(a, zeros({4, 3}), v); }, {"[linear]", "bias [4]", "[7]"});
  check_refused([&] { a.reshape({4, 2}); }, {"[reshape]", "f32[2, 3]", "[4, 2]"});
  check_refused([&] { a.reshape({-1, -1}); }, {"[reshape]"});
  check_refused([&] { a.reshape({-1, 4}); }, {"[reshape]"});
  check_refused([&] { a.expand({3, 3}); }, {"[expand]", "[2, 3]", "[3, 3]"});
  check_refused([&] { a.expand({3}); }, {"[expand]"});
  check_refused([&] { a.permute({0, 0}); }, {"[permute]", "[0, 0]"});
  check_refused([&] { a.permute({0}); }, {"[permute]"});
  check_refused([&] { a.transpose(0, 2); }, {"[transpose]", "2"});
  check_refused([&] { v.t(); }, {"[t]", "[7]"});
  check_refused([&] { a.narrow(1, 2, 2); }, {"[narrow]", "f32[2, 3]"});
  check_refused([&] { a.narrow(1, -1, 1); }, {"[narrow]"});
  check_refused([&] { a.select(0, 2); }, {"[select]", "2"});
  check_refused([&] { a[-3]; }, {"[select]", "-3"});
  check_refused([&] { a.flatten(1, 0); }, {"[flatten]"});
  check_refused([&] { sum(a, {2}); }, {"[sum]", "2"});
  check_refused([&] { sum(a, {0, -2}); }, {"[sum]", "once"});
  check_refused([&] { max(zeros({0, 2}), 0); }, {"[max]", "[0, 2]"});
  check_refused([&] { max(zeros({0})); }, {"[max]", "[0]"});
  check_refused([&] { argmin(zeros({2, 0}), 1); }, {"[argmin]", "[2, 0]"});
  check_refused([&] { cat({a, b}); }, {"[cat]", "[2, 3]", "[4, 5]"});
  check_refused([&] { cat(std::vector<Tensor>{}); }, {"[cat]", "none"});
  check_refused([&] { stack({a, b}); }, {"[stack]", "[2, 3]", "[4, 5]"});
  check_refused([&] { split(a, 0); }, {"[split]"});
  check_refused([&] { split_lengths(a, std::vector<std::int64_t>{1, 1, 1}, 0); }, {"[split]", "[1, 1, 1]", "2"});
  check_refused([&] { sum_to(a, {2}); }, {"[sum_to]", "[2, 3]", "[2]"});
  check_refused([&] { pad(a, 0, -1, 0); }, {"[pad]", "-1"});
  check_refused([&] { pad(a, {1, 0, -1, 2}); }, {"[pad]", "[1, 0, -1, 2]", "f32[2, 3]"});
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  check_refused([&] { pad(a, 1, kMost, kMost); }, {"[pad]", "2^63", "f32[2, 3]", "9223372036854775807"});
  check_refused([&] { pad(a, {kMost, 0}); }, {"[pad]", "2^63", "f32[2, 3]"});
  check_refused([&] { repeat(v, {kMost}); }, {"[repeat]", "2^63", "f32[7]"});
  check_refused([&] { repeat_interleave(v, kMost, 0); }, {"[repeat_interleave]", "2^63", "f32[7]"});
  const Tensor long_one = zeros({1}).expand({kMost});
  check_refused([&] { cat({long_one, long_one}); }, {"[cat]", "2^63", "9223372036854775807"});
  check_refused([&] { v.unsqueeze(3); }, {"[unsqueeze]", "[-2, 2)", "f32[7]", "3"});
  check_refused([&] { pad(v, {1, 0, 1}); }, {"[pad]", "[1, 0, 1]"});
  check_refused([&] { pad(v, {1, 0, 1, 0}); }, {"[pad]", "[1, 0, 1, 0]", "f32[7]"});
  check_refused([&] { repeat(a, {2}); }, {"[repeat]", "[2]", "f32[2, 3]"});
  check_refused([&] { repeat(v, {-1}); }, {"[repeat]", "[-1]"});
  check_refused([&] { repeat_interleave(v, -1, 0); }, {"[repeat_interleave]", "-1"});
  check_refused([&] { roll(v, 1, 1); }, {"[roll]", "1"});
  check_refused([&] { tril(v); }, {"[tril]", "f32[7]"});
  check_refused([&] { meshgrid(std::vector<Tensor>{v, a}); }, {"[meshgrid]", "f32[2, 3]"});
  check_refused([&] { unbind(zeros({})); }, {"[unbind]", "rank 0"});
  check_refused([&] { masked_fill(a, b > 0.0, 1); }, {"[masked_fill]", "[2, 3]", "[4, 5]"});
  check_refused([&] { masked_fill(v, zeros({2, 7}) > 0.0, 1); }, {"[masked_fill]", "f32[7]", "[2, 7]"});
  check_refused([&] { masked_fill(a, a, 1); }, {"[masked_fill]", "bool", "f32[2, 3]"});
  check_refused([&] { masked_fill(a.to(DType::i32), a > 0.0, 0.5); }, {"[masked_fill]", "i32", "0.5"});
  check_refused([&] { amax(zeros({2, 0}), {1}); }, {"[amax]", "[2, 0]"});
  check_refused([&] { mm(a, v); }, {"[mm]", "f32[2, 3]", "f32[7]"});
  check_refused([&] { bmm(zeros({1, 2, 3}), zeros({2, 3, 4})); }, {"[bmm]", "[1, 2, 3]", "[2, 3, 4]"});
  check_refused([&] { dot(v, zeros({6})); }, {"[matmul]", "f32[7]", "f32[6]"});
  check_refused([&] { outer(v, a); }, {"[outer]", "f32[7]", "f32[2, 3]"});
  check_refused([&] { multinomial(v, 8); }, {"[multinomial]", "8", "f32[7]"});
  check_refused([&] { multinomial(zeros({2, 2, 2}), 1); }, {"[multinomial]", "[2, 2, 2]"});
  check_refused([&] { linspace(0, 1, -1); }, {"[linspace]", "-1"});
  check_refused([&] { clamp(a, 1, 0); }, {"[clamp]"});
  check_refused([&] { conv2d(image, zeros({3, 1, 3, 3})); }, {"[conv2d]", "f32[1, 2, 4, 4]", "f32[3, 1, 3, 3]"});
  check_refused([&] { conv2d(image, zeros({3, 2, 5, 5})); }, {"[conv2d]", "[1, 2, 4, 4]", "[3, 2, 5, 5]"});
  check_refused(
      [&] {
        conv2d(image, zeros({3, 1, 3, 3}), {}, {.groups = 2});
      },
      {"[conv2d]", "2 groups", "[3, 1, 3, 3]"});
  check_refused([&] { conv2d(a, b); }, {"[conv2d]", "[2, 3]"});
  check_refused([&] { conv2d(image, zeros({3, 2, 3, 3}), v); }, {"[conv2d]", "bias [3]", "[7]"});
  check_refused([&] { conv2d(image, zeros({3, 2, 3, 3}), {}, {.stride = 0}); }, {"[conv2d]", "stride 0x0"});
  check_refused(
      [&] {
        conv2d_grad_input(image, zeros({2, 2, 3, 3}), {1, 2, 4, 4});
      },
      {"[conv2d_grad_input]", "[1, 2, 2, 2]"});
  check_refused([&] { max_pool2d(image, 5); }, {"[max_pool2d]", "5x5", "[1, 2, 4, 4]"});
  check_refused([&] { max_pool2d(image, 2, {.padding = 2}); }, {"[max_pool2d]", "half"});
  check_refused([&] { max_pool2d(image, {1, 3}, {.padding = {1, 0}}); }, {"[max_pool2d]", "half", "1x3"});
  check_refused([&] { avg_pool2d(image, 2, {.dilation = 2}); }, {"[avg_pool2d]", "2x2"});
  check_refused([&] { batch_norm(v, {}, {}, {}); }, {"[batch_norm]", "[7]"});
  check_refused([&] { batch_norm(zeros({1, 3}), {}, {}, {}); }, {"[batch_norm]", "more than one", "[1, 3]"});
  check_refused([&] { batch_norm(a, v, {}, {}); }, {"[batch_norm]", "weight [3]", "[7]"});
  check_refused([&] { layer_norm(a, {2}); }, {"[layer_norm]", "[2]", "[2, 3]"});
  check_refused(
      [&] {
        embedding(a, from_data({0}, {1}), {.padding_index = 2});
        embedding(a.clone().set_requires_grad(), from_data({0}, {1}), {.padding_index = 2});
      },
      {"[embedding]", "2"});
  check_refused([&] { dropout(a, 1.5); }, {"[dropout]", "1.5"});
  check_refused([&] { gather(a, 1, from_data({0, 0, 0}, {3, 1})); }, {"[gather]", "[3, 1]", "[2, 3]"});
  check_refused([&] { scatter_add(a, 1, from_data({0}, {1, 1}), b); }, {"[scatter_add]", "[4, 5]"});
  check_refused([&] { index_select(a, 0, from_data({0}, {1, 1})); }, {"[index_select]", "[1, 1]"});
}

TEST_CASE("a refused call has allocated nothing") {
  const Device device = device_at(3);
  const TensorOptions there{.device = device};
  const Tensor a = zeros({2, 3}, there), b = zeros({4, 5}, there), image = zeros({1, 2, 4, 4}, there);
  const Tensor weight = zeros({3, 1, 3, 3}, there);
  reset_peak(device);
  const std::size_t before = memory_stats(device).peak_in_use_bytes;
  CHECK_THROWS_AS(a + b, InvalidArgument);
  CHECK_THROWS_AS(matmul(a, b), InvalidArgument);
  CHECK_THROWS_AS(matmul(a.t(), b), InvalidArgument);
  CHECK_THROWS_AS(linear(a.t(), b), InvalidArgument);
  CHECK_THROWS_AS(conv2d(image.transpose(2, 3), weight), InvalidArgument);
  CHECK_THROWS_AS(max_pool2d(image.transpose(2, 3), 7), InvalidArgument);
  CHECK_THROWS_AS(batch_norm(image.transpose(2, 3), a, {}, {}), InvalidArgument);
  CHECK_THROWS_AS(layer_norm(a.t(), {3}), InvalidArgument);
  CHECK_THROWS_AS(cat({a, b}), InvalidArgument);
  CHECK_THROWS_AS(stack({a, b}), InvalidArgument);
  CHECK_THROWS_AS(where(a, a, b), InvalidArgument);
  CHECK(memory_stats(device).peak_in_use_bytes == before);
}

TEST_CASE("targets that do not fit") {
  const Tensor logits = zeros({2, 3});
  check_refused([&] { cross_entropy(logits, from_data({0, 1, 2}, {3})); }, {"[cross_entropy]", "[2, 3]", "i64[3]"});
  check_refused([&] { cross_entropy(logits, zeros({2})); }, {"[cross_entropy]", "integer", "f32[2]"});
  check_refused(
      [&] {
        cross_entropy(logits, from_data({0, 1}, {2}), {.label_smoothing = 2});
      },
      {"[cross_entropy]", "2"});
  check_refused(
      [&] {
        nll_loss(logits, from_data({0, 1}, {2}), {.weight = zeros({2})});
      },
      {"[nll_loss]", "weight [3]"});
  check_refused([&] { mse_loss(logits, zeros({3})); }, {"[mse_loss]", "[2, 3]", "[3]"});
  check_refused([&] { l1_loss(logits, zeros({3})); }, {"[l1_loss]"});
  check_refused([&] { bce_with_logits(logits, zeros({3})); }, {"[bce_with_logits]"});
  CHECK_THROWS_WITH(cross_entropy(logits, from_data({0, 3}, {2})), Contains("[0, 3)") && Contains("got 3"));
  CHECK_THROWS_AS(one_hot(from_data({4}, {1}), 4), InvalidArgument);
}

TEST_CASE("tensors on two devices") {
  support::needs_devices(2);
  const Tensor a = zeros({2, 2}, {.device = device_at(0)}), b = zeros({2, 2}, {.device = device_at(1)});
  const Tensor scalar = zeros({});
  const std::vector<std::string> both{device_name(0), device_name(1), ".to(device)"};
  check_refused([&] { a + b; }, both);
  check_refused([&] { a + scalar; }, {"[add]", "f32[2, 2] on " + device_name(0), "f32[] on cpu"});
  check_refused([&] { matmul(a, b); }, both);
  check_refused([&] { a == b; }, both);
  check_refused([&] { cat({a, b}); }, both);
  check_refused([&] { where(a > 0.0, a, b); }, both);
  check_refused([&] { linear(a, b); }, both);
  check_refused([&] { mse_loss(a, b); }, both);
  check_refused([&] { gather(a, 0, from_data({0}, {1, 1})); }, {"[gather]", device_name(0), "cpu"});
  check_refused([&] { a.clone().add_(b); }, both);
  CHECK_THROWS_AS(a.to(device_at(77)), InvalidArgument);
  CHECK_THROWS_AS(zeros({1}, {.device = device_at(77)}), InvalidArgument);
}

TEST_CASE("undefined tensors") {
  const Tensor nothing, x = zeros({2});
  check_refused([&] { nothing + x; }, {"[add]", "undefined"});
  check_refused([&] { x* nothing; }, {"[mul]", "undefined"});
  check_refused([&] { exp(nothing); }, {"[exp]", "undefined"});
  check_refused([&] { nothing + 1; }, {"[add]", "undefined"});
  check_refused([&] { sum(nothing); }, {"[sum]", "undefined"});
  check_refused([&] { matmul(x, nothing); }, {"[matmul]", "undefined"});
  check_refused([&] { cat({x, nothing}); }, {"[cat]", "undefined"});
  check_refused([&] { nothing.reshape({1}); }, {"undefined"});
}

TEST_CASE("dtypes that an operation does not take") {
  const Tensor f32 = zeros({2, 2}), f64 = zeros({2, 2}, {.dtype = DType::f64}),
               i64 = zeros({2, 2}, {.dtype = DType::i64});
  const Tensor flags = f32 > 0.0;
  check_refused([&] { matmul(f32, f64); }, {"[matmul]", "f32[2, 2]", "f64[2, 2]"});
  check_refused([&] { matmul(i64, i64); }, {"[matmul]", "floating", "i64"});
  check_refused([&] { linear(f32, f64); }, {"[linear]", "f32", "f64"});
  check_refused([&] { where(f32, f32, f32); }, {"[where]", "bool condition", "f32"});
  check_refused([&] { -flags; }, {"[neg]", "bool"});
  check_refused([&] { flags - flags; }, {"[sub]", "bool"});
  check_refused([&] { dropout(i64); }, {"[dropout]", "i64"});
  check_refused([&] { index_select(f32, 0, zeros({1})); }, {"[index_select]", "integer"});
  check_refused([&] { embedding(f32, flags); }, {"[embedding]", "integer"});
  check_refused([&] { i64.clone().add_(0.5); }, {"[add_]", "0.5", "i64"});
  check_refused([&] { i64.clone().add_(f32); }, {"[add_]", "i64", "f32"});
  check_refused([&] { zeros({1}, {.dtype = DType::i64, .requires_grad = true}); }, {"[zeros]", "i64"});
  check_refused([&] { randn({1}, {.dtype = DType::i64}); }, {"[randn]", "i64"});
}
