// Images in channels_last: which operations keep the format, and that values and gradients are those of contiguous
// images.
#include "lockstep/tensor/io/dlpack.h"
#include "lockstep/tensor/io/safetensors.h"
#include "lockstep/tensor/ops/support.h"
#include "support/compare.h"
#include "support/devices.h"
#include "support/set_threads.h"
#include "support/temporary_folder.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::device_at;
using support::difference;

namespace {

constexpr MemoryFormat kRows = MemoryFormat::contiguous, kLast = MemoryFormat::channels_last;

DType checked_dtype = DType::f64;  // f64 is computed in contiguous images, the others as they are

Tensor noise(const Shape& shape, std::uint64_t seed, DType dtype = checked_dtype) {
  manual_seed(seed);
  return randn(shape, {.dtype = dtype});
}

// An operation that makes images of images.
struct Operation {
  const char* name;
  std::function<Tensor(const Tensor&)> f;
  bool of_rows = true;  // also of a row or a pixel
};
Tensor weight_for(const Tensor& x, std::int64_t outputs, std::int64_t kernel, std::int64_t groups = 1) {
  return noise({outputs, x.size(1) / groups, kernel, kernel}, 7).to(x.dtype());
}
Tensor of_channels(const Tensor& x, std::uint64_t seed) { return noise({x.size(1)}, seed).to(x.dtype()); }
int groups_of(const Tensor& x) { return static_cast<int>(x.size(1)); }

const std::vector<Operation> kOperations = {
    {"conv 3x3", [](const Tensor& x) { return conv2d(x, weight_for(x, 5, 3), noise({5}, 2), {.padding = 1}); }},
    {"conv 1x1", [](const Tensor& x) { return conv2d(x, weight_for(x, 6, 1)); }},
    {"conv, stride", [](const Tensor& x) { return conv2d(x, weight_for(x, 3, 3), {}, {.stride = 2, .padding = 1}); }},
    {"conv, dilation", [](const Tensor& x) { return conv2d(x, weight_for(x, 3, 2), {}, {.dilation = 2}); }, false},
    {"conv, depthwise",
     [](const Tensor& x) {
       const int g = groups_of(x);
       return conv2d(x, weight_for(x, 2 * g, 3, g), {}, {.padding = 1, .groups = g});
     }},
    {"conv_transpose2d",
     [](const Tensor& x) {
       return conv_transpose2d(x, noise({x.size(1), 3, 3, 3}, 5), noise({3}, 6), {.stride = 2, .output_padding = 1});
     }},
    {"batch_norm",
     [](const Tensor& x) {
       BatchNormState state{noise({x.size(1)}, 3), exp(noise({x.size(1)}, 4))};
       return batch_norm(x, of_channels(x, 8), of_channels(x, 9), state);
     }},
    {"batch_norm, evaluation",
     [](const Tensor& x) {
       BatchNormState state{noise({x.size(1)}, 3), exp(noise({x.size(1)}, 4)), false};
       return batch_norm(x, of_channels(x, 8), of_channels(x, 9), state);
     }},
    {"group_norm", [](const Tensor& x) { return group_norm(x, 1, of_channels(x, 8), of_channels(x, 9)); }},
    {"max_pool2d", [](const Tensor& x) { return max_pool2d(x, 3, {.stride = 2, .padding = 1}); }},
    {"avg_pool2d",
     [](const Tensor& x) { return avg_pool2d(x, 3, {.stride = 2, .padding = 1, .count_include_pad = false}); }},
    {"adaptive_avg_pool2d",
     [](const Tensor& x) {
       return adaptive_avg_pool2d(x, {3, 2});
     }},
    {"adaptive_avg_pool2d to one", [](const Tensor& x) { return adaptive_avg_pool2d(x, 1); }},
    {"mean of pixels",
     [](const Tensor& x) {
       return mean(x, {2, 3}, true);
     }},
    {"interpolate, nearest", [](const Tensor& x) { return interpolate(x, {.scale_factor = Scale2(2)}); }},
    {"interpolate, bilinear",
     [](const Tensor& x) { return interpolate(x, {.size = Size2(7, 4), .mode = InterpolateMode::bilinear}); }},
    {"relu", [](const Tensor& x) { return relu(x); }},
    {"gelu", [](const Tensor& x) { return gelu(x); }},
    {"x * 2 + 1", [](const Tensor& x) { return x * 2 + 1; }},
    {"x * x", [](const Tensor& x) { return x * x; }},
    {"x + bias",
     [](const Tensor& x) {
       return x + of_channels(x, 3).reshape({1, -1, 1, 1});
     }},
    {"x * gate", [](const Tensor& x) { return x * sigmoid(adaptive_avg_pool2d(x, 1)); }},
    {"maximum", [](const Tensor& x) { return maximum(x, sin(x)); }},
    {"where", [](const Tensor& x) { return where(x < 0.5, x, x * 3); }},
    {"in place", [](const Tensor& x) { return (x * 1).add_(x).mul_(3); }},
    {"dtype", [](const Tensor& x) { return x.to(DType::f32).to(DType::f64).to(x.dtype()); }},
    {"dropout", [](const Tensor& x) { return manual_seed(5), dropout(x, 0.4); }},
    {"clone", [](const Tensor& x) { return x.clone(); }},
    {"pad",
     [](const Tensor& x) {
       return pad(x, {1, 2, 0, 1}, 0.5);
     }},
    {"cat",
     [](const Tensor& x) {
       return cat({x, x * 2}, 1);
     }},
    {"narrow", [](const Tensor& x) { return relu(x.narrow(2, 0, (x.size(2) + 1) / 2)); }},
    {"of some channels", [](const Tensor& x) { return exp(x.narrow(1, 0, (x.size(1) + 1) / 2)) * 2; }},
    {"to another device and back", [](const Tensor& x) { return x.to(device_at(1)).to(Device::cpu()); }},
};

// Whether strides can tell the formats apart.
bool has_format(const Tensor& x) { return x.size(1) > 1 || x.size(2) * x.size(3) > 1; }

// The table of `type` whose image kernels take contiguous images alone, for a scope: they say so when they get others.
class WithoutChannelsLast {
 public:
  explicit WithoutChannelsLast(DeviceType type) : type_(type), before_(kernels::table(type)) {
    static KernelTable table;
    table = before_;
    table.takes_channels_last = false;
    watch(ArgsList<Conv2dArgs, Conv2dGradInputArgs, Conv2dGradWeightArgs, MaxPool2dArgs, MaxUnpool2dArgs, AvgPool2dArgs,
                   AvgPool2dGradArgs, Resample2dArgs>(),
          table);
    kernels::detail::install_table(type, table);
  }
  WithoutChannelsLast(const WithoutChannelsLast&) = delete;
  WithoutChannelsLast& operator=(const WithoutChannelsLast&) = delete;
  ~WithoutChannelsLast() { kernels::detail::install_table(type_, before_); }

 private:
  template <class... Args>
  static void watch(ArgsList<Args...>, KernelTable& table) {
    ((table.entry<Args>() =
          [](const Stream& stream, const Args& args) {
            args.views([](const auto& use) {
              const View& view = use.view;
              if (view.present && !is_contiguous(view.shape, view.strides)) throw Error("an image is not contiguous");
            });
            kernels::host::kernel_table().entry<Args>()(stream, args);
          }),
     ...);
  }
  DeviceType type_;
  const KernelTable& before_;
};

void check_all(DType dtype, const std::vector<Shape>& shapes) {
  checked_dtype = dtype;
  const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-4;
  for (const Shape& shape : shapes)
    for (const Operation& each : kOperations) {
      INFO(each.name << " of " << to_string(shape));
      if (std::min(shape[2], shape[3]) == 1 && !each.of_rows) continue;
      const Tensor x = noise(shape, 1).set_requires_grad();
      const Tensor last = x.detach().to(kLast).set_requires_grad();
      REQUIRE((last.memory_format() == kLast) == has_format(last));
      const Tensor y = each.f(x), z = each.f(last);
      CHECK(y.memory_format() == kRows);
      CHECK((z.memory_format() == kLast) == has_format(z));
      CHECK(z.contiguous_layout(kLast));
      CHECK(difference(y, z) < tolerance);
      const Tensor dy = noise(y.shape(), 11);
      const Tensor dx = grad({&y, 1}, {&x, 1}, {&dy, 1}, {.retain_graph = true})[0];
      const Tensor dy_last = dy.to(kLast);
      const Tensor dz = grad({&z, 1}, {&last, 1}, {&dy_last, 1}, {.retain_graph = true})[0];
      const bool repeats = dz.strides()[3] == 0;  // which has none
      CHECK((dz.memory_format() == kLast) == (has_format(dz) && !repeats));
      CHECK(difference(dx, dz) < 10 * tolerance);
      z.backward(dy);  // which is contiguous
      CHECK((last.grad().memory_format() == kLast) == has_format(last));
      CHECK(difference(dx, last.grad()) < 10 * tolerance);
    }
  checked_dtype = DType::f64;
}

// Leaves that step through a small network.
Tensor block(Inputs in) {
  const Tensor h = conv2d(in[0], in[1], in[2], {.padding = 1});
  return max_pool2d(relu(batch_norm(h, in[3], in[4], {})), 2);
}
std::vector<Tensor> block_inputs(MemoryFormat images, MemoryFormat weights) {
  const auto leaf = [](const Shape& shape, std::uint64_t seed, MemoryFormat format) {
    return random_leaf(shape, seed).detach().to(format).set_requires_grad();
  };
  return {leaf({2, 3, 4, 6}, 1, images), leaf({4, 3, 3, 3}, 2, weights), leaf({4}, 3, kRows), leaf({4}, 4, kRows),
          leaf({4}, 5, kRows)};
}

}  // namespace

TEST_CASE("operations on images in channels_last keep the format, and values and gradients are the same",
          "[memory_format]") {
  for (const DType dtype : {DType::f64, DType::f32})
    check_all(dtype,
              {{2, 4, 6, 5}, {1, 4, 6, 5}, {3, 3, 5, 6}, {2, 17, 7, 3}, {2, 1, 6, 5}, {4, 5, 1, 1}, {2, 3, 1, 4}});
}

TEST_CASE("where kernels want contiguous images, the results have the format all the same", "[memory_format]") {
  const WithoutChannelsLast without(DeviceType::cpu);
  check_all(DType::f32, {{2, 4, 6, 5}, {2, 1, 6, 5}, {4, 5, 1, 1}});
}

TEST_CASE("first and second derivatives of a network of images in channels_last", "[memory_format]") {
  for (const MemoryFormat weights : {kRows, kLast}) {
    const std::vector<Tensor> inputs = block_inputs(kLast, weights);
    CHECK(block(inputs).memory_format() == kLast);
    CHECK(gradcheck(block, inputs) == "");
    CHECK(gradgradcheck(block, inputs) == "");
  }
  const Tensor y = block(block_inputs(kRows, kRows));
  for (const MemoryFormat images : {kRows, kLast})
    for (const MemoryFormat weights : {kRows, kLast}) {
      const std::vector<Tensor> inputs = block_inputs(images, weights);
      const Tensor z = block(inputs);
      CHECK(difference(y, z) < 1e-12);
      CHECK((z.memory_format() == kLast) == (images == kLast || weights == kLast));
      z.backward(noise(z.shape(), 2));
      CHECK(inputs[0].grad().memory_format() == images);
      CHECK(inputs[1].grad().memory_format() == weights);
    }
}

TEST_CASE("16 bits, f32 and any number of threads: channels_last is as near as contiguous, and has one result",
          "[memory_format]") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    INFO(to_string(dtype));
    const auto network = [&](MemoryFormat format) {
      const Tensor x = (noise({5, 16, 24, 20}, 1) * 0.5).to(dtype).to(format).set_requires_grad();
      const Tensor w = (noise({32, 16, 3, 3}, 2) * 0.1).to(dtype).set_requires_grad();
      const Tensor d = (noise({32, 1, 3, 3}, 3) * 0.3).to(dtype).set_requires_grad();
      const Tensor ones = lockstep::ones({32}, {.dtype = dtype}), zeros = lockstep::zeros({32}, {.dtype = dtype});
      Tensor h = relu(batch_norm(conv2d(x, w, {}, {.padding = 1}), ones, zeros, {}));
      h = conv2d(h, d, zeros, {.stride = 2, .padding = 1, .groups = 32});
      h = max_pool2d(h, 3, {.stride = 2, .padding = 1}) + 1;
      h.backward(noise(h.shape(), 4).to(dtype).to(format));
      CHECK(h.memory_format() == format);
      CHECK(x.grad().memory_format() == format);
      return std::vector<Doubles>{values(h), values(x.grad()), values(w.grad()), values(d.grad())};
    };
    const auto one = [&](MemoryFormat format) {
      const support::Threads threads(1);
      return network(format);
    };
    const std::vector<Doubles> rows = one(kRows), last = one(kLast);
    double largest = 0, scale = 0;
    for (std::size_t k = 0; k < rows.size(); ++k)
      for (std::size_t i = 0; i < rows[k].size(); ++i) {
        largest = std::max(largest, std::abs(rows[k][i] - last[k][i]));
        scale = std::max(scale, std::abs(rows[k][i]));
      }
    CHECK(largest < scale * (dtype == DType::f32 ? 1e-4 : dtype == DType::f16 ? 2e-2 : 1e-1));
    for (const int count : {2, 3, 7}) {
      const support::Threads threads(count);
      CHECK((network(kLast) == last));
    }
  }
}

TEST_CASE("the memory format of strides", "[memory_format]") {
  struct Row {
    Shape shape;
    Strides strides;
    bool last;
  };
  // As PyTorch's suggest_memory_format.
  const std::vector<Row> rows = {
      {{2, 3, 4, 5}, {60, 20, 5, 1}, false}, {{2, 3, 4, 5}, {60, 1, 15, 3}, true},
      {{2, 3, 4, 5}, {600, 1, 60, 6}, true},  // gaps
      {{1, 3, 4, 5}, {60, 1, 15, 3}, true},  {{2, 1, 4, 5}, {20, 20, 5, 1}, false},
      {{2, 1, 4, 5}, {20, 1, 5, 1}, true},   {{2, 3, 1, 1}, {3, 1, 1, 1}, false},
      {{2, 3, 1, 1}, {3, 1, 3, 3}, true},    {{2, 1, 1, 1}, {1, 1, 1, 1}, false},
      {{7, 1, 1, 1}, {5, 5, 5, 5}, false},   {{1, 1, 4, 1}, {4, 4, 1, 1}, false},
      {{1, 1, 4, 1}, {4, 1, 1, 1}, true},    {{2, 3, 4, 5}, {60, 1, 3, 12}, false},  // columns first
      {{2, 3, 4, 5}, {0, 1, 15, 3}, false},                                          // expanded
      {{2, 3, 4, 5}, {20, 0, 5, 1}, false},  {{0, 3, 4, 5}, {60, 1, 15, 3}, false},
      {{3, 4, 5}, {1, 15, 3}, false},
  };
  for (const Row& row : rows) {
    INFO(to_string(row.shape) << " " << to_string(row.strides));
    CHECK((format_of(row.shape, row.strides) == kLast) == row.last);
  }
  CHECK(format_strides({2, 3, 4, 5}, kLast) == Strides{60, 1, 15, 3});
  CHECK(format_strides({2, 3, 4, 5}, kRows) == Strides{60, 20, 5, 1});
  CHECK(is_dense({2, 3, 4, 5}, {60, 1, 15, 3}, kLast));
  CHECK_FALSE(is_dense({2, 3, 4, 5}, {60, 1, 15, 3}, kRows));
  CHECK_FALSE(is_dense({2, 3, 4, 5}, {120, 1, 15, 3}, kLast));
}

TEST_CASE("sizes of 1: both orders are one, and the format is kept by what to() gives", "[memory_format]") {
  for (const Shape& shape : {Shape{2, 1, 3, 4}, {2, 3, 1, 1}, {1, 3, 1, 1}}) {
    INFO(to_string(shape));
    const Tensor x = noise(shape, 1);
    CHECK(x.contiguous_layout(kLast));
    CHECK(x.contiguous_layout(kRows));
    CHECK(x.memory_format() == kRows);
    CHECK(x.contiguous(kLast).identity() == x.identity());
    const Tensor last = x.to(kLast);
    CHECK(last.memory_format() == kLast);
    CHECK(last.contiguous_layout());
    CHECK(values(last) == values(x));
    CHECK(last.to(kLast).identity() == last.identity());
    CHECK(last.to(kRows).memory_format() == kRows);
    CHECK((last + x).memory_format() == kLast);
    CHECK((x + last).memory_format() == kLast);
  }
  const Tensor nothing_to_tell = noise({3, 1, 1, 1}, 1);
  CHECK(nothing_to_tell.to(kLast).identity() == nothing_to_tell.identity());
  CHECK(nothing_to_tell.memory_format() == kRows);
}

TEST_CASE("contiguous and to of a format: values, identity, errors", "[memory_format]") {
  const Tensor x = noise({2, 3, 4, 5}, 1), last = x.to(kLast);
  CHECK(last.shape() == x.shape());
  CHECK(last.strides() == Strides{60, 1, 15, 3});
  CHECK(values(last) == values(x));
  CHECK(last.contiguous(kLast).identity() == last.identity());
  CHECK(last.to(kRows).contiguous_layout());
  CHECK(last.contiguous().contiguous_layout());
  CHECK(x.to(kRows).identity() == x.identity());
  CHECK(last.permute({0, 2, 3, 1}).contiguous_layout());
  CHECK(values(last.flatten(1)) == values(x));
  CHECK(last.flatten(1).contiguous_layout());
  CHECK(values(last.reshape({6, 20})) == values(x));
  // With gaps: the format, but not its layout.
  const Tensor part = last.narrow(1, 1, 2);
  CHECK(part.memory_format() == kLast);
  CHECK_FALSE(part.contiguous_layout(kLast));
  CHECK(part.to(kLast).contiguous_layout(kLast));
  CHECK(values(part.contiguous(kLast)) == values(x.narrow(1, 1, 2)));
  CHECK((x + last).memory_format() == kRows);
  CHECK(zeros_like(last).memory_format() == kLast);
  CHECK(ones_like(last, DType::i64).memory_format() == kLast);
  CHECK((last > 0.0).memory_format() == kLast);
  CHECK(values(Tensor(zeros_like(last)).copy_(x)) == values(x));
  const Tensor there = zeros_like(last).to(device_at(2));
  CHECK(there.memory_format() == kLast);
  CHECK(values(Tensor(there).copy_(x)) == values(x));
  CHECK(values(Tensor(there).copy_(last)) == values(x));

  CHECK_THROWS_WITH(noise({2, 3}, 1).to(kLast),
                    "[to] expected four dimensions [N, C, H, W] for channels_last, got f64[2, 3] on cpu");
  CHECK_THROWS_WITH(
      noise({2, 3, 4, 5, 1}, 1).contiguous(kLast),
      "[contiguous] expected four dimensions [N, C, H, W] for channels_last, got f64[2, 3, 4, 5, 1] on cpu");
  CHECK(noise({2, 3}, 1).to(kRows).shape() == Shape{2, 3});
}

TEST_CASE("the gradient of a tensor has its format, whatever arrives", "[memory_format]") {
  const Tensor x = noise({2, 3, 4, 5}, 1), wanted = noise({2, 3, 4, 5}, 2);
  for (const MemoryFormat format : {kRows, kLast})
    for (const MemoryFormat arriving : {kRows, kLast}) {
      Tensor leaf = x.detach().to(format);
      leaf.set_requires_grad();
      (leaf * 1).backward(wanted.to(arriving));
      CHECK(leaf.grad().memory_format() == format);
      CHECK(values(leaf.grad()) == values(wanted));
      leaf.contiguous(arriving).backward(wanted);
      CHECK(leaf.grad().memory_format() == format);
      CHECK(difference(leaf.grad(), wanted * 2) == 0);
      leaf.zero_grad();
      leaf.flatten(1).sum().backward();
      CHECK(leaf.grad().memory_format() == format);
      leaf.zero_grad();
      leaf.sum().backward({}, {.create_graph = true});
      CHECK(leaf.grad().memory_format() == format);
      leaf.zero_grad();
    }
}

TEST_CASE("a gradient that comes through a reshape has the format on the way too", "[memory_format]") {
  for (const Shape& shape : {Shape{2, 3, 4, 5}, {2, 3, 1, 1}}) {  // copied, and a view
    const Tensor x = noise(shape, 1).to(kLast).set_requires_grad();
    const Tensor h = x * 2, y = h.flatten(1);
    const Tensor dy = noise(y.shape(), 2);
    const Tensor dh = grad({&y, 1}, {&h, 1}, {&dy, 1})[0];
    CHECK(dh.memory_format() == kLast);
    CHECK(values(dh) == values(dy));
  }
}

TEST_CASE("files and other libraries get the elements of images in channels_last in their order", "[memory_format]") {
  const Tensor x = noise({2, 3, 4, 5}, 1, DType::f32), last = x.to(kLast);
  const test::TemporaryFolder folder;
  save_safetensors(folder / "images", {{"x", last}, {"part", last.narrow(1, 1, 2)}});
  const Safetensors file = load_safetensors(folder / "images");
  for (const NamedTensor& each : file.tensors)
    CHECK(values(each.tensor) == values(each.name == "x" ? x : x.narrow(1, 1, 2)));

  dlpack::ManagedTensorVersioned* managed = to_dlpack(last);
  CHECK(managed->tensor.strides[1] == 1);
  CHECK(managed->tensor.strides[3] == 3);
  const Tensor back = from_dlpack(managed);
  CHECK(back.memory_format() == kLast);
  CHECK(back.data() == last.data());
  CHECK(values(back) == values(x));
}
