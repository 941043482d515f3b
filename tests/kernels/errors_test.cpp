// What the entry points refuse, and that a refused call changes nothing.
#include <array>
#include <cstring>

#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;
using Catch::Matchers::Contains;

TEST_CASE("a view on another device than the stream is refused", "[errors]") {
  const Device other = test_device() == Device::host(0) ? Device::cpu() : Device::host(0);
  TestTensor x(DType::f32, {3}), elsewhere(DType::f32, {3}, Layout::contiguous, other);
  const auto before = elsewhere.bytes();
  CHECK_THROWS_AS(run(&KernelTable::unary, {.op = UnaryOp::neg, .in = x.in(), .out = elsewhere.out()}),
                  InvalidArgument);
  CHECK_THROWS_WITH(run(&KernelTable::binary, {.op = BinaryOp::add, .x = x.in(), .y = elsewhere.in(), .out = x.out()}),
                    Contains("[binary]") && Contains("cpu") && Contains("host:0") && Contains("f32 [3]"));
  CHECK(elsewhere.bytes() == before);
  // An absent operand has no device.
  TestTensor a(DType::f32, {1, 2, 2}), out(DType::f32, {1, 2, 2});
  a.fill_random(1);
  In absent;
  absent.view.device = other;
  run(&KernelTable::matmul, {.a = a.in(), .b = a.in(), .bias = absent, .out = out.inout()});
}

TEST_CASE("a dtype that an operation does not have is named", "[errors]") {
  TestTensor i(DType::i64, {1, 2, 3, 4}), b(DType::boolean, {3}), f(DType::f32, {3});
  const auto refuses = [](auto entry, const auto& args, const char* op, const char* dtype) {
    CHECK_THROWS_AS(run(entry, args), NotSupported);
    CHECK_THROWS_WITH(run(entry, args), Contains(op) && Contains(dtype) && Contains(to_string(test_device())));
  };
  refuses(&KernelTable::unary, UnaryArgs{.op = UnaryOp::exp, .in = i.in(), .out = i.out()}, "[unary]", "i64");
  refuses(&KernelTable::unary, UnaryArgs{.op = UnaryOp::neg, .in = b.in(), .out = b.out()}, "[unary]", "bool");
  refuses(&KernelTable::binary, BinaryArgs{.op = BinaryOp::add, .x = b.in(), .y = b.in(), .out = b.out()}, "[binary]",
          "bool");
  refuses(&KernelTable::binary, BinaryArgs{.op = BinaryOp::div, .x = i.in(), .y = i.in(), .out = i.out()}, "[binary]",
          "i64");
  refuses(&KernelTable::reduce, ReduceArgs{.op = ReduceOp::sum, .in = b.in(), .out = b.out()}, "[reduce]", "bool");
  refuses(&KernelTable::reduce, ReduceArgs{.op = ReduceOp::mean, .in = i.in(), .out = i.out()}, "[reduce]", "i64");
  refuses(&KernelTable::reduce, ReduceArgs{.op = ReduceOp::any, .in = f.in(), .out = b.out()}, "[reduce]", "f32");
  refuses(&KernelTable::matmul, MatmulArgs{.a = i.in(), .b = i.in(), .out = i.inout()}, "[matmul]", "i64");
  refuses(&KernelTable::conv2d, Conv2dArgs{.x = i.in(), .w = i.in(), .y = i.out()}, "[conv2d]", "i64");
  refuses(&KernelTable::conv2d_grad_input, Conv2dGradInputArgs{.dy = i.in(), .w = i.in(), .dx = i.out()},
          "[conv2d_grad_input]", "i64");
  refuses(&KernelTable::conv2d_grad_weight, Conv2dGradWeightArgs{.dy = i.in(), .x = i.in(), .dw = i.out()},
          "[conv2d_grad_weight]", "i64");
  refuses(&KernelTable::max_pool2d, MaxPool2dArgs{.x = i.in(), .y = i.out(), .indices = i.out()}, "[max_pool2d]",
          "i64");
  refuses(&KernelTable::avg_pool2d, AvgPool2dArgs{.x = i.in(), .y = i.out()}, "[avg_pool2d]", "i64");
  refuses(&KernelTable::avg_pool2d_grad, AvgPool2dGradArgs{.dy = i.in(), .dx = i.out()}, "[avg_pool2d_grad]", "i64");
  refuses(&KernelTable::softmax, SoftmaxArgs{.x = i.in(), .y = i.out(), .log = false}, "[softmax]", "i64");
  refuses(&KernelTable::softmax_grad, SoftmaxGradArgs{.dy = i.in(), .y = i.in(), .dx = i.out(), .log = false},
          "[softmax_grad]", "i64");
  refuses(&KernelTable::batch_norm, BatchNormArgs{.x = i.in(), .y = i.out(), .training = true, .momentum = 0, .eps = 0},
          "[batch_norm]", "i64");
  refuses(&KernelTable::batch_norm_grad, BatchNormGradArgs{.dy = i.in(), .x = i.in(), .dx = i.out()},
          "[batch_norm_grad]", "i64");
  refuses(&KernelTable::group_norm, GroupNormArgs{.x = i.in(), .y = i.out(), .eps = 0}, "[group_norm]", "i64");
  refuses(&KernelTable::group_norm_grad, GroupNormGradArgs{.dy = i.in(), .x = i.in(), .dx = i.out()},
          "[group_norm_grad]", "i64");
  refuses(&KernelTable::resample2d, Resample2dArgs{.x = i.in(), .y = i.out(), .kind = ResampleKind::nearest},
          "[resample2d]", "i64");
  refuses(&KernelTable::cross_entropy,
          CrossEntropyArgs{.x = i.in(), .targets = i.in(), .loss = i.out(), .ignore_index = 0, .label_smoothing = 0},
          "[cross_entropy]", "i64");
  refuses(&KernelTable::cross_entropy_grad,
          CrossEntropyGradArgs{.x = i.in(), .dx = i.out(), .ignore_index = 0, .label_smoothing = 0},
          "[cross_entropy_grad]", "i64");
  refuses(&KernelTable::cumsum, CumsumArgs{.x = b.in(), .y = b.out(), .reverse = false}, "[cumsum]", "bool");
  refuses(&KernelTable::scatter_add, ScatterAddArgs{.in = b.in(), .index = i.in(), .out = b.inout(), .dim = 0},
          "[scatter_add]", "bool");
  refuses(&KernelTable::index_add, IndexAddArgs{.in = b.in(), .index = i.in(), .out = b.inout(), .dim = 0},
          "[index_add]", "bool");
  refuses(&KernelTable::random,
          RandomArgs{.kind = RandomKind::normal, .out = i.out(), .key = 1, .stream = 0, .a = 0, .b = 1}, "[random]",
          "i64");
  refuses(&KernelTable::arange, ArangeArgs{.out = b.out(), .start = 0, .step = 1}, "[arange]", "bool");
  SgdArgs sgd{{{i.inout(), i.in(), {}, true}}, 0.1, 0, 0, 0, false, false};
  refuses(&KernelTable::sgd, sgd, "[sgd]", "i64");
  AdamArgs adam{{{i.inout(), i.in(), i.inout(), i.inout(), {}, 1}}, 0.1, 0.9, 0.999, 1e-8, 0, false, false};
  refuses(&KernelTable::adam, adam, "[adam]", "i64");
  TestTensor found(DType::f32, {});
  refuses(&KernelTable::unscale, UnscaleArgs{{i.inout()}, found.inout(), 1}, "[unscale]", "i64");
}

TEST_CASE("the CUDA table has what the host's has, or is refused in a build without CUDA", "[errors]") {
  using Entry = void (*)();
  constexpr std::size_t kEntries = sizeof(KernelTable) / sizeof(Entry);
  const auto entries = [](const KernelTable& table) {
    std::array<Entry, kEntries> all;
    std::memcpy(all.data(), &table, sizeof table);
    return all;
  };
  const auto host = entries(kernels::table(DeviceType::host));
  try {
    const auto cuda = entries(kernels::table(DeviceType::cuda));
    for (std::size_t i = 0; i < kEntries; ++i) CHECK((cuda[i] != nullptr || host[i] == nullptr));
  } catch (const NotSupported& error) {
    CHECK_THAT(error.what(), Contains("cuda") && Contains("no CUDA in this build"));
  }
}
