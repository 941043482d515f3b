// Layers with weights in fewer bits: members, dtypes, copies, files, replicas; and what a whole module costs.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/nn/layers.h"
#include "lockstep/tensor/nn/quantize_linears.h"
#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "lockstep/tensor/ops/random.h"
#include "lockstep/tensor/optim/adam.h"
#include "lockstep/tensor/optim/sgd.h"
#include "support/catch.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/golden.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using Catch::Matchers::Contains;
using support::state_texts;

namespace {

using Names = std::vector<std::string>;

struct QuantizableNet : Module<QuantizableNet> {
  Embedding words{9, 40};
  Linear first{40, 64, {.activation = Activation::relu}}, second{64, 40, {.bias = false}},
      lm_head{40, 9, {.bias = false}};
  Tensor forward(const Tensor& x) const { return lm_head(second(first(x))); }
  void members(Members& m) override {
    m("words", words), m("first", first), m("second", second), m("lm_head", lm_head);
  }
};

double furthest(const Tensor& a, const Tensor& b) { return max(abs(a - b)).item<double>(); }

}  // namespace

TEST_CASE("a quantised layer has its codes, scales and bias under the layer's names") {
  Linear layer(70, 6, {.activation = Activation::relu});
  const Tensor weight = layer.weight.tensor().detach(), bias = layer.bias.tensor().detach(), x = randn({3, 70});
  layer.set_quantized(quantize(weight, {.bits = 4, .group_size = 32}));
  CHECK(state_texts(layer) == Names{"weight u8[6, 35] on cpu", "scales f32[6, 3] on cpu", "bias f32[6] on cpu"});
  CHECK((!layer.weight.defined() && !layer.bias.defined() && layer.quantized()));
  CHECK(layer.parameters().size() == 1);  // the bias
  const Tensor want =
      linear(x, layer.quantized()->quantized_weight(Device::cpu()).dequantize(), bias, Activation::relu);
  const NoGrad no_grad;
  CHECK(allclose(layer(x), want, 1e-5, 1e-5));
  CHECK_THROWS_WITH(layer.set_quantized(quantize(weight)), Contains("that is quantised"));
  Linear other(70, 5);
  CHECK_THROWS_WITH(other.set_quantized(quantize(weight)),
                    Contains("expected a weight of [5, 70], got one of [6, 70]"));
}

TEST_CASE("a quantised layer keeps f32 scales in another dtype, and its copies are its own") {
  Linear layer(64, 6);
  layer.set_quantized(quantize(layer.weight.tensor()));
  Linear copy = deep_copy(layer);
  copy.to(DType::bf16);
  CHECK(state_texts(copy) == Names{"weight i8[6, 64] on cpu", "scales f32[6, 1] on cpu", "bias bf16[6] on cpu"});
  CHECK(copy(randn({2, 64}).to(DType::bf16)).dtype() == DType::bf16);
  deep_copy(copy).to(DType::f16);
  copy.buffers()[1].tensor().fill_(0);
  CHECK(max(abs(layer.buffers()[1].tensor())).item<double>() > 0);
  const Device device = support::device_at(1);
  const Tensor x = randn({2, 64}), want = layer(x);
  layer.to(device);
  CHECK(furthest(layer(x.to(device)).to(Device::cpu()), want) < 1e-5);
}

TEST_CASE("quantize_linears takes the layers that are not skipped, and tells what each costs") {
  manual_seed(1);
  QuantizableNet net;
  const Tensor x = randn({4, 40});
  const NoGrad no_grad;
  const Tensor before = net(x);
  const Tensor weight = net.first.weight.tensor().detach().clone();
  const auto [bits, bound] = GENERATE(std::pair{8, 0.02}, std::pair{4, 0.2});
  const QuantizationReport report = quantize_linears(net, {{.bits = bits, .group_size = 32}});
  REQUIRE(report.layers.size() == 2);
  CHECK((report.layers[0].name == "first" && report.layers[1].name == "second"));
  CHECK(report.kept == Names{"lm_head"});
  CHECK((net.first.quantized() && net.second.quantized() && !net.lm_head.quantized() && net.words.weight.defined()));
  const QuantizedLayer& first = report.layers[0];
  CHECK((first.shape == Shape{64, 40} && first.bits == bits && first.bytes_before == 64 * 40 * 4));
  CHECK(first.bytes_after == (bits == 8 ? 64 * 40 + 64 * 4 : 64 * 20 + 64 * 2 * 4));
  const Tensor error = weight - net.first.quantized()->quantized_weight(Device::cpu()).dequantize();
  CHECK(first.max_error == Approx(max(abs(error)).item<double>()));
  CHECK(first.relative_error ==
        Approx(std::sqrt((sum(square(error)) / sum(square(weight))).item<double>())).epsilon(1e-4));
  CHECK(first.relative_error < bound);
  CHECK(furthest(net(x), before) < bound * max(abs(before)).item<double>() * 3);
  CHECK(furthest(net(x), before) > 0);
  CHECK_THAT(report.to_table(),
             Contains("first") && Contains("64      40") && Contains(std::to_string(report.bytes_after())));
  CHECK_THAT(report.to_json(),
             Contains("\"name\": \"second\", \"shape\": [40, 64], \"bits\": " + std::to_string(bits)) &&
                 Contains("\"kept\": [\"lm_head\"]"));
  CHECK(quantize_linears(net, {}).layers.empty());
}

TEST_CASE("quantize_linears skips whole parts of names, and weights that others share") {
  struct Outer : Module<Outer> {
    QuantizableNet inner;
    Linear first_one{4, 4}, tied{40, 9, {.bias = false}};
    void members(Members& m) override { m("inner", inner), m("first_one", first_one), m("tied", tied); }
  } outer;
  outer.tied.weight = outer.inner.words.weight;
  QuantizeLinearsOptions options;
  options.skip = {"first", "inner.lm_head"};
  const QuantizationReport report = quantize_linears(outer, options);
  CHECK(report.kept == Names{"inner.first", "inner.lm_head", "tied"});
  REQUIRE(report.layers.size() == 2);
  CHECK((report.layers[0].name == "inner.second" && report.layers[1].name == "first_one"));
  QuantizableNet broken;
  broken.second.weight.tensor().detach().fill_(INFINITY);
  CHECK_THROWS_WITH(quantize_linears(broken), Contains("[quantize_linears] second: ") && Contains("got inf in row 0"));
}

TEST_CASE("a module with quantised layers is saved and loaded, and its biases learn") {
  manual_seed(2);
  const test::TemporaryFolder folder;
  QuantizableNet net, other;
  quantize_linears(net, {{.bits = 4}});
  quantize_linears(other, {{.bits = 4}});
  save_model(net, folder / "net.safetensors");
  load_model(other, folder / "net.safetensors");
  const Tensor x = randn({4, 40});
  CHECK(furthest(net(x), other(x)) == 0);
  SGD sgd(net.parameters(), {.lr = 0.1});
  const Tensor before = net.first.quantized()->bias.tensor().clone();
  sum(square(net(x))).backward();
  sgd.step();
  CHECK(furthest(net.first.quantized()->bias.tensor(), before) > 0);
}

TEST_CASE("a network that reads digits reads as many of them with 8 bits") {
  const auto folder = std::filesystem::path(test::golden_path("")).parent_path() / "../../docs/examples/data/digits";
  const auto bytes_of = [&](const char* name, std::ptrdiff_t head) {
    std::ifstream file(folder / name, std::ios::binary);
    const std::vector<char> all{std::istreambuf_iterator<char>(file), {}};
    REQUIRE(static_cast<std::ptrdiff_t>(all.size()) > head);
    return std::vector<float>(all.begin() + head, all.end());
  };
  const std::vector<float> pixels = bytes_of("images-idx3-ubyte", 16), labels = bytes_of("labels-idx1-ubyte", 8);
  const auto count = static_cast<std::int64_t>(labels.size()), trained = count * 4 / 5;
  const Tensor images = from_data(pixels, {count, 64}) / 16, classes = from_data(labels, {count}).to(DType::i64);
  manual_seed(6);
  struct Reader : Module<Reader> {
    Linear hidden{64, 48, {.activation = Activation::relu}}, head{48, 10};
    Tensor forward(const Tensor& x) const { return head(hidden(x)); }
    void members(Members& m) override { m("hidden", hidden), m("head", head); }
  } reader;
  Adam adam(reader.parameters(), {.lr = 0.02});
  for (int step = 0; step < 60; ++step) {
    reader.zero_grad();
    cross_entropy(reader(images.narrow(0, 0, trained)), classes.narrow(0, 0, trained)).backward();
    adam.step();
  }
  const NoGrad no_grad;
  const auto right = [&](const Reader& each) {
    const Tensor guesses = argmax(each(images.narrow(0, trained, count - trained)), 1);
    return sum((guesses == classes.narrow(0, trained, count - trained)).to(DType::f32)).item<double>();
  };
  const double before = right(reader);
  REQUIRE(before > 0.85 * static_cast<double>(count - trained));
  for (const bool rounds : {false, true}) {
    Reader fewer = deep_copy(reader);
    QuantizeLinearsOptions options;
    options.int8_activations = rounds;
    CHECK(quantize_linears(fewer, options).layers.size() == 2);
    CHECK(right(fewer) >= 0.99 * before);
  }
}
