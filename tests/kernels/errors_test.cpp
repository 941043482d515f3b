// What the entry points refuse, and that a refused call changes nothing.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;
using Catch::Matchers::Contains;

TEST_CASE("a view on another device than the stream is refused", "[errors]") {
  const Device other = test_device() == Device::host(0) ? Device::cpu() : Device::host(0);
  TestTensor x(DType::f32, {3}), elsewhere(DType::f32, {3}, Layout::contiguous, other);
  const auto before = elsewhere.bytes();
  CHECK_THROWS_AS(run(UnaryArgs{.op = UnaryOp::neg, .in = x.in(), .out = elsewhere.out()}), InvalidArgument);
  CHECK_THROWS_WITH(run(BinaryArgs{.op = BinaryOp::add, .x = x.in(), .y = elsewhere.in(), .out = x.out()}),
                    Contains("[binary]") && Contains("cpu") && Contains("host:0") && Contains("f32 [3]"));
  CHECK(elsewhere.bytes() == before);
  // An absent operand has no device.
  TestTensor a(DType::f32, {1, 2, 2}), out(DType::f32, {1, 2, 2});
  a.fill_random(1);
  In absent;
  absent.view.device = other;
  run(MatmulArgs{.a = a.in(), .b = a.in(), .bias = absent, .out = out.inout()});
}

TEST_CASE("a dtype that an operation does not have is named", "[errors]") {
  TestTensor i(DType::i64, {1, 2, 3, 4}), b(DType::boolean, {3}), f(DType::f32, {3});
  const auto refuses = [](const auto& args, const char* op, const char* dtype) {
    CHECK_THROWS_AS(run(args), NotSupported);
    CHECK_THROWS_WITH(run(args), Contains(op) && Contains(dtype) && Contains(to_string(test_device())));
  };
  refuses(UnaryArgs{.op = UnaryOp::exp, .in = i.in(), .out = i.out()}, "[unary]", "i64");
  refuses(UnaryArgs{.op = UnaryOp::neg, .in = b.in(), .out = b.out()}, "[unary]", "bool");
  refuses(BinaryArgs{.op = BinaryOp::add, .x = b.in(), .y = b.in(), .out = b.out()}, "[binary]", "bool");
  refuses(BinaryArgs{.op = BinaryOp::div, .x = i.in(), .y = i.in(), .out = i.out()}, "[binary]", "i64");
  refuses(ReduceArgs{.op = ReduceOp::sum, .in = b.in(), .out = b.out()}, "[reduce]", "bool");
  refuses(ReduceArgs{.op = ReduceOp::mean, .in = i.in(), .out = i.out()}, "[reduce]", "i64");
  refuses(ReduceArgs{.op = ReduceOp::any, .in = f.in(), .out = b.out()}, "[reduce]", "f32");
  refuses(MatmulArgs{.a = i.in(), .b = i.in(), .out = i.inout()}, "[matmul]", "i64");
  refuses(Conv2dArgs{.x = i.in(), .w = i.in(), .y = i.out()}, "[conv2d]", "i64");
  refuses(Conv2dGradInputArgs{.dy = i.in(), .w = i.in(), .dx = i.out()}, "[conv2d_grad_input]", "i64");
  refuses(Conv2dGradWeightArgs{.dy = i.in(), .x = i.in(), .dw = i.out()}, "[conv2d_grad_weight]", "i64");
  refuses(MaxPool2dArgs{.x = i.in(), .y = i.out(), .indices = i.out()}, "[max_pool2d]", "i64");
  refuses(AvgPool2dArgs{.x = i.in(), .y = i.out()}, "[avg_pool2d]", "i64");
  refuses(AvgPool2dGradArgs{.dy = i.in(), .dx = i.out()}, "[avg_pool2d_grad]", "i64");
  refuses(SoftmaxArgs{.x = i.in(), .y = i.out(), .log = false}, "[softmax]", "i64");
  refuses(SoftmaxGradArgs{.dy = i.in(), .y = i.in(), .dx = i.out(), .log = false}, "[softmax_grad]", "i64");
  refuses(BatchNormArgs{.x = i.in(), .y = i.out(), .training = true, .momentum = 0, .eps = 0}, "[batch_norm]", "i64");
  refuses(BatchNormGradArgs{.dy = i.in(), .x = i.in(), .dx = i.out()}, "[batch_norm_grad]", "i64");
  refuses(GroupNormArgs{.x = i.in(), .y = i.out(), .eps = 0}, "[group_norm]", "i64");
  refuses(GroupNormGradArgs{.dy = i.in(), .x = i.in(), .dx = i.out()}, "[group_norm_grad]", "i64");
  refuses(Resample2dArgs{.x = i.in(), .y = i.out(), .kind = ResampleKind::nearest}, "[resample2d]", "i64");
  refuses(CrossEntropyArgs{.x = i.in(), .targets = i.in(), .loss = i.out(), .ignore_index = 0, .label_smoothing = 0},
          "[cross_entropy]", "i64");
  refuses(CrossEntropyGradArgs{.x = i.in(), .dx = i.out(), .ignore_index = 0, .label_smoothing = 0},
          "[cross_entropy_grad]", "i64");
  refuses(CumsumArgs{.x = b.in(), .y = b.out(), .reverse = false}, "[cumsum]", "bool");
  refuses(ScatterAddArgs{.in = b.in(), .index = i.in(), .out = b.inout(), .dim = 0}, "[scatter_add]", "bool");
  refuses(IndexAddArgs{.in = b.in(), .index = i.in(), .out = b.inout(), .dim = 0}, "[index_add]", "bool");
  refuses(RandomArgs{.kind = RandomKind::normal, .out = i.out(), .key = 1, .stream = 0, .a = 0, .b = 1}, "[random]",
          "i64");
  refuses(ArangeArgs{.out = b.out(), .start = 0, .step = 1}, "[arange]", "bool");
  SgdArgs sgd{{{i.inout(), i.in(), {}, true}}, 0.1, 0, 0, 0, false, false};
  refuses(sgd, "[sgd]", "i64");
  AdamArgs adam{{{i.inout(), i.in(), i.inout(), i.inout(), {}, 1}}, 0.1, 0.9, 0.999, 1e-8, 0, false, false};
  refuses(adam, "[adam]", "i64");
  TestTensor found(DType::f32, {});
  refuses(UnscaleArgs{{i.inout()}, found.inout(), 1}, "[unscale]", "i64");
  refuses(CopyManyArgs{{{i.in(), i.out()}}}, "[copy_many]", "i64");
  refuses(OrderedSumArgs{{i.in(), i.in()}, i.out()}, "[ordered_sum]", "i64");
}

TEST_CASE("the CUDA table has what the host's has, or is refused in a build without CUDA", "[errors]") {
  const KernelTable& host = kernels::table(DeviceType::host);
  try {
    const KernelTable& cuda = kernels::table(DeviceType::cuda);
    const auto check = [&]<class... Args>(ArgsList<Args...>) {
      (
          [&] {
            INFO(Args::kName);
            // Where CUDA has none the tensor layer takes a dequantised weight and a product.
            constexpr bool kComposed = std::is_same_v<Args, QuantizedMatmulArgs>;
            CHECK((kComposed || cuda.entry<Args>() != nullptr || host.entry<Args>() == nullptr));
          }(),
          ...);
    };
    check(AllArgs());
  } catch (const NotSupported& error) {
    CHECK_THAT(error.what(), Contains("cuda") && Contains("no CUDA in this build"));
  }
}
