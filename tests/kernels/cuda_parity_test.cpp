// The kernels of a CUDA device against the host's: the same arguments, the same memory with its guard bytes, element by
// element. Without a CUDA device (or another table in the place of cpu's) there is nothing to compare.
#include <memory>

#include "lockstep/runtime/allocator.h"
#include "lockstep/runtime/copy.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// The device to compare with the host, or null.
const Device* parity_device() {
  static const std::unique_ptr<Device> device = [] {
    for (const Device d : all_devices())
      if (d.type() == DeviceType::cuda) return std::make_unique<Device>(d);
    if (&kernels::table(DeviceType::cpu) != &kernels::table(DeviceType::host))
      return std::make_unique<Device>(Device::cpu());
    return std::unique_ptr<Device>();
  }();
  return device.get();
}
#define NEEDS_CUDA                                            \
  if (!parity_device()) {                                     \
    WARN("no CUDA device: nothing to compare with the host"); \
    return;                                                   \
  }

// Host memory and its copy on the device.
class Mirror {
 public:
  Mirror(TestTensor& tensor, Stream& stream) : tensor_(tensor), block_(allocate(stream, tensor.storage_bytes())) {
    copy(block_->data, stream.device(), tensor.storage(), Device::cpu(), stream);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;
  ~Mirror() { release(block_); }

  bool holds(const void* data) const { return offset_of(data) < tensor_.storage_bytes(); }
  void* translate(void* data) const { return static_cast<std::byte*>(block_->data) + offset_of(data); }
  TestTensor download(Stream& stream) const {
    TestTensor result = tensor_;
    copy(result.storage(), Device::cpu(), block_->data, stream.device(), stream);
    return result;
  }

 private:
  std::size_t offset_of(const void* data) const {
    return static_cast<std::size_t>(static_cast<const std::byte*>(data) - tensor_.storage());
  }
  void copy(void* to, Device to_device, const void* from, Device from_device, Stream& stream) const {
    Stream& cpu = current_stream(Device::cpu());
    copy_bytes({to, to_device, from, from_device, tensor_.storage_bytes()}, from_device.is_cpu() ? cpu : stream,
               to_device.is_cpu() ? cpu : stream);
    if (!stream.synchronous()) synchronize(stream);
  }

  TestTensor& tensor_;
  Block* block_;
};

// Runs the entry on both; empty when all tensors agree afterwards. `tolerance` counts epsilons, relative to the larger
// of the number and `scale`.
template <class Args>
std::string compare(Kernel<Args> KernelTable::*entry, const Args& args, std::initializer_list<TestTensor*> tensors,
                    double tolerance = 0, double scale = 1) {
  const Device device = *parity_device();
  Stream& stream = current_stream(device);
  std::vector<std::unique_ptr<Mirror>> mirrors;
  for (TestTensor* t : tensors) mirrors.push_back(std::make_unique<Mirror>(*t, stream));
  Args there = args;
  there.views([&](const auto& use) {
    View& view = const_cast<View&>(use.view);
    if (!view.present) return;
    view.device = device;
    for (const auto& m : mirrors)
      if (m->holds(view.data)) {
        view.data = m->translate(view.data);
        return;
      }
    throw std::logic_error("a view of a tensor that is not in the list");
  });
  kernels::run(stream, entry, there);
  if (!stream.synchronous()) synchronize(stream);
  (kernels::table(DeviceType::host).*entry)(current_stream(Device::cpu()), args);
  std::size_t which = 0;
  for (TestTensor* want : tensors) {
    const TestTensor got = mirrors[which]->download(stream);
    const double eps = epsilon(want->dtype());
    for (std::int64_t i = 0; i < want->count(); ++i)
      if (!close(got[i], (*want)[i], tolerance * eps, tolerance * eps * scale))
        return cat(Args::kName, ": operand ", which, ", ", want->dtype(), " ", want->shape(), " at ", i, ": host ",
                   (*want)[i], ", device ", got[i]);
    if (!got.guards_intact()) return cat(Args::kName, ": operand ", which, ": a byte outside the elements was written");
    ++which;
  }
  return {};
}

void check(const std::string& error, const std::string& what) {
  if (!error.empty()) FAIL_CHECK(what << ": " << error);
}

const std::vector<Shape> kShapes = {{},     {0},          {1},          {31},      {5000},
                                    {3, 5}, {17, 1, 129}, {2, 3, 4, 5}, {2, 0, 3}, {1, 2, 1, 2, 1, 2, 1, 3}};

}  // namespace

TEST_CASE("CUDA parity: unary", "[cuda][parity]") {
  NEEDS_CUDA
  for (int op = 0; op < 24; ++op)
    for (const DType dtype : kAllDTypes)
      for (const Shape& shape : kShapes)
        for (const Layout in : kInputLayouts)
          for (const Layout out : kOutputLayouts) {
            const auto unary_op = static_cast<UnaryOp>(op);
            const bool is_bool = unary_op == UnaryOp::logical_not;
            TestTensor x(dtype, shape, in), y(is_bool ? DType::boolean : dtype, shape, out);
            x.fill_random(static_cast<std::uint64_t>(op), unary_op == UnaryOp::pow_scalar ? 0.1 : -3, 3);
            const UnaryArgs args{.op = unary_op, .in = x.in(), .out = y.out(), .a = 0.75, .b = 1.5};
            try {
              check(compare(&KernelTable::unary, args, {&x, &y}, 24), cat("op ", op, " ", dtype, " ", shape));
            } catch (const NotSupported&) {
              Stream& stream = current_stream(Device::cpu());
              CHECK_THROWS_AS(kernels::table(DeviceType::host).unary(stream, args), NotSupported);
            }
          }
}

TEST_CASE("CUDA parity: binary", "[cuda][parity]") {
  NEEDS_CUDA
  for (int op = 0; op < 19; ++op)
    for (const DType dtype : kAllDTypes)
      for (const Shape& shape : kShapes)
        for (const Layout left : kInputLayouts)
          for (const Layout right : kInputLayouts) {
            const auto binary_op = static_cast<BinaryOp>(op);
            const bool is_bool = binary_op >= BinaryOp::eq && binary_op <= BinaryOp::logical_xor;
            TestTensor x(dtype, shape, left), y(dtype, shape, right), z(is_bool ? DType::boolean : dtype, shape);
            x.fill_random(static_cast<std::uint64_t>(op), binary_op == BinaryOp::pow ? 0.1 : -3, 3),
                y.fill_random(9, -2, 2);
            const BinaryArgs args{.op = binary_op, .x = x.in(), .y = y.in(), .out = z.out(), .alpha = -2};
            try {
              check(compare(&KernelTable::binary, args, {&x, &y, &z}, binary_op == BinaryOp::pow ? 8 : 1),
                    cat("op ", op, " ", dtype, " ", shape));
            } catch (const NotSupported&) {
              Stream& stream = current_stream(Device::cpu());
              CHECK_THROWS_AS(kernels::table(DeviceType::host).binary(stream, args), NotSupported);
            }
          }
  // In place.
  for (const std::int64_t count : {1, 257, 100003}) {
    TestTensor x(DType::f32, {count}), y(DType::f32, {count});
    x.fill_random(1), y.fill_random(2);
    check(compare(&KernelTable::binary, BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = y.in(), .out = x.out()},
                  {&x, &y}),
          "in place");
  }
}

TEST_CASE("CUDA parity: where, cast, fill, arange", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& shape : kShapes)
    for (const Layout layout : kInputLayouts)
      for (const DType dtype : kAllDTypes) {
        TestTensor c(DType::boolean, shape, layout), x(dtype, shape, layout), y(dtype, shape), z(dtype, shape);
        c.fill_random(1), x.fill_random(2), y.fill_random(3);
        check(compare(&KernelTable::where, WhereArgs{c.in(), x.in(), y.in(), z.out()}, {&c, &x, &y, &z}), "where");
        for (const DType to : kAllDTypes) {
          TestTensor cast_to(to, shape, layout == Layout::broadcast ? Layout::contiguous : layout);
          x.fill_random(4, -300, 300);
          check(compare(&KernelTable::cast, CastArgs{x.in(), cast_to.out()}, {&x, &cast_to}), cat(dtype, " to ", to));
        }
        if (layout == Layout::broadcast) continue;
        check(compare(&KernelTable::fill, FillArgs{x.out(), 1.25, 77}, {&x}), "fill");
        if (shape.rank() == 1 && dtype != DType::boolean)
          check(compare(&KernelTable::arange, ArangeArgs{x.out(), 3, 0.5}, {&x}), "arange");
      }
}

TEST_CASE("CUDA parity: reductions", "[cuda][parity]") {
  NEEDS_CUDA
  const std::vector<std::pair<Shape, Shape>> problems = {{{1}, {1}},
                                                         {{70001}, {1}},
                                                         {{300, 70}, {300, 1}},
                                                         {{300, 70}, {1, 70}},
                                                         {{2, 30000}, {2, 1}},
                                                         {{30000, 2}, {1, 2}},
                                                         {{7, 300, 40}, {1, 300, 1}},
                                                         {{3, 4, 5, 6}, {3, 1, 5, 1}},
                                                         {{5, 0}, {5, 1}},
                                                         {{}, {}}};
  for (const auto& [shape, out] : problems)
    for (const DType dtype : kAllDTypes)
      for (const Layout layout : kInputLayouts)
        for (const ReduceOp op :
             {ReduceOp::sum, ReduceOp::mean, ReduceOp::max, ReduceOp::min, ReduceOp::prod, ReduceOp::any}) {
          const bool is_bool = dtype == DType::boolean;
          if (is_bool != (op == ReduceOp::any)) continue;
          if (op == ReduceOp::mean && !is_floating(dtype)) continue;
          if ((op == ReduceOp::max || op == ReduceOp::min) && element_count(shape) == 0) continue;
          TestTensor x(dtype, shape, layout), y(dtype, out);
          if (op == ReduceOp::prod)
            x.fill_random(5, 0.999, 1.001);
          else
            x.fill_random(5, -2, 2);
          // A product of equal factors rounds the same way every time.
          const double tolerance = op == ReduceOp::prod ? 4 + static_cast<double>(element_count(shape)) : 2;
          check(compare(&KernelTable::reduce, ReduceArgs{op, x.in(), y.out()}, {&x, &y}, tolerance, 4),
                cat("op ", static_cast<int>(op), " ", dtype, " ", shape, " to ", out, " ", name_of(layout)));
        }
  for (const Shape& shape : {Shape{1}, Shape{70001}, Shape{33, 1000, 3}, Shape{5, 7}})
    for (const DType dtype : kAllDTypes)
      for (int dim = 0; dim < shape.rank(); ++dim)
        for (const ArgReduceOp op : {ArgReduceOp::max, ArgReduceOp::min}) {
          Shape out = shape;
          out[dim] = 1;
          TestTensor x(dtype, shape), y(DType::i64, out);
          x.fill_random(6, -20, 20);
          if (is_floating(dtype) && x.count() > 20) x.set(17, std::numeric_limits<double>::quiet_NaN());
          check(compare(&KernelTable::arg_reduce, ArgReduceArgs{op, dim, x.in(), y.out()}, {&x, &y}),
                cat("arg ", dtype, " ", shape));
        }
}

TEST_CASE("CUDA parity: matmul", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& p : {Shape{1, 1, 1, 1}, Shape{1, 64, 48, 32}, Shape{3, 17, 33, 65}, Shape{2, 1, 40, 7},
                         Shape{2, 40, 1, 7}, Shape{2, 5, 6, 0}, Shape{0, 5, 6, 2}, Shape{1, 100, 200, 300}})
    for (const DType dtype : kFloatingDTypes)
      for (const Layout left : kInputLayouts)
        for (const Layout right : kInputLayouts)
          for (const Layout layout : kOutputLayouts) {
            const std::int64_t b = p[0], m = p[1], n = p[2], k = p[3];
            if (m * n * k > 100000 && left != Layout::contiguous) continue;
            TestTensor x(dtype, {b, m, k}, left), y(dtype, {b, k, n}, right), bias(dtype, {n}),
                z(dtype, {b, m, n}, layout);
            x.fill_random(1, -1, 1), y.fill_random(2, -1, 1), bias.fill_random(3), z.fill_random(4);
            MatmulArgs args{.a = x.in(), .b = y.in(), .bias = {}, .out = z.inout(), .alpha = 1.5, .beta = 0};
            const double scale = 4 + static_cast<double>(k) / 8;
            const std::string what = cat(dtype, " ", p, " ", name_of(left), " ", name_of(right), " ", name_of(layout));
            check(compare(&KernelTable::matmul, args, {&x, &y, &z}, 4, scale), what);
            args.bias = bias.in();
            check(compare(&KernelTable::matmul, args, {&x, &y, &bias, &z}, 4, scale), what + " bias");
            args.beta = -0.5;
            check(compare(&KernelTable::matmul, args, {&x, &y, &bias, &z}, 4, scale), what + " bias beta");
          }
}

TEST_CASE("CUDA parity: convolution", "[cuda][parity]") {
  NEEDS_CUDA
  struct Problem {
    Shape x;
    std::int64_t outputs;
    int groups;
    Window2d window;
  };
  const std::vector<Problem> problems = {
      {{5, 3, 17, 13}, 8, 1, {.kernel = {3, 3}, .stride = {2, 1}, .padding = {1, 2}}},
      {{2, 8, 9, 9}, 12, 4, {.kernel = {3, 2}, .stride = {1, 1}, .padding = {1, 1}, .dilation = {2, 1}}},
      {{3, 6, 10, 7}, 12, 6, {.kernel = {3, 3}, .padding = {1, 1}}},
      {{4, 8, 5, 5}, 6, 2, {}},
      {{1, 16, 64, 64}, 4, 1, {.kernel = {5, 5}, .padding = {2, 2}}},
      {{0, 4, 5, 5}, 4, 1, {.kernel = {3, 3}}},
  };
  for (const Problem& p : problems)
    for (const DType dtype : kFloatingDTypes)
      for (const bool with_bias : {false, true}) {
        const auto size = [&](int d) {
          const Window2d& w = p.window;
          return (p.x[2 + d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1) / w.stride[d] + 1;
        };
        const Shape w_shape{p.outputs, p.x[1] / p.groups, p.window.kernel[0], p.window.kernel[1]};
        TestTensor x(dtype, p.x), w(dtype, w_shape), bias(dtype, {p.outputs}),
            y(dtype, {p.x[0], p.outputs, size(0), size(1)});
        x.fill_random(1, -1, 1), w.fill_random(2, -1, 1), bias.fill_random(3), y.fill_random(4, -1, 1);
        const std::string what = cat(dtype, " ", p.x, " groups ", p.groups);
        const auto terms = [](std::int64_t count) { return 1 + std::sqrt(static_cast<double>(count)); };
        Conv2dArgs args{.x = x.in(), .w = w.in(), .bias = {}, .y = y.out(), .window = p.window, .groups = p.groups};
        if (with_bias) args.bias = bias.in();
        const double scale = terms(element_count(w_shape) / p.outputs);
        check(compare(&KernelTable::conv2d, args, {&x, &w, &bias, &y}, 4, scale), what);
        if (with_bias) continue;
        TestTensor dx(dtype, p.x), dw(dtype, w_shape);
        y.fill_random(5, -1, 1);
        check(compare(&KernelTable::conv2d_grad_input,
                      Conv2dGradInputArgs{
                          .dy = y.in(), .w = w.in(), .dx = dx.out(), .window = p.window, .groups = p.groups},
                      {&y, &w, &dx}, 4, 4 * scale * terms(p.outputs)),
              what + " grad_input");
        check(compare(&KernelTable::conv2d_grad_weight,
                      Conv2dGradWeightArgs{
                          .dy = y.in(), .x = x.in(), .dw = dw.out(), .window = p.window, .groups = p.groups},
                      {&y, &x, &dw}, 4, 4 * scale * terms(p.x[0] * size(0) * size(1))),
              what + " grad_weight");
      }
}

TEST_CASE("CUDA parity: pooling", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Window2d& w :
       {Window2d{.kernel = {2, 2}, .stride = {2, 2}}, Window2d{.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
        Window2d{.kernel = {2, 3}, .stride = {1, 2}, .padding = {1, 1}, .dilation = {2, 1}}})
    for (const Shape& shape : {Shape{2, 3, 12, 13}, Shape{1, 1, 130, 131}, Shape{0, 2, 6, 6}})
      for (const DType dtype : kFloatingDTypes) {
        const auto size = [&](int d) {
          return (shape[2 + d] + 2 * w.padding[d] - w.dilation[d] * (w.kernel[d] - 1) - 1) / w.stride[d] + 1;
        };
        const Shape out{shape[0], shape[1], size(0), size(1)};
        TestTensor x(dtype, shape), y(dtype, out), indices(DType::i64, out), dx(dtype, shape);
        x.fill_random(1, -4, 4);
        if (x.count() > 50) x.set(40, std::numeric_limits<double>::quiet_NaN());
        const std::string what = cat(dtype, " ", shape);
        check(compare(&KernelTable::max_pool2d, MaxPool2dArgs{x.in(), y.out(), indices.out(), w}, {&x, &y, &indices}),
              what);
        y.fill_random(2);
        check(compare(&KernelTable::max_unpool2d, MaxUnpool2dArgs{y.in(), indices.in(), dx.out()}, {&y, &indices, &dx}),
              what);
        x.fill_random(3);
        check(compare(&KernelTable::avg_pool2d, AvgPool2dArgs{x.in(), y.out(), w}, {&x, &y}, 4), what);
        check(compare(&KernelTable::avg_pool2d_grad, AvgPool2dGradArgs{y.in(), dx.out(), w}, {&y, &dx}, 4), what);
      }
}

TEST_CASE("CUDA parity: batch_norm and softmax", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& shape : {Shape{8, 3, 1}, Shape{300, 70, 1}, Shape{4, 5, 49}, Shape{2, 3, 10000}, Shape{16, 2, 64}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool training : {true, false}) {
        const Shape c{shape[1]};
        TestTensor x(dtype, shape), y(dtype, shape), dx(dtype, shape), weight(dtype, c), bias(dtype, c),
            running_mean(dtype, c), running_var(dtype, c), mean(dtype, c), inv_std(dtype, c), dweight(dtype, c),
            dbias(dtype, c);
        x.fill_random(1, -1, 5), weight.fill_random(2), bias.fill_random(3), running_mean.fill_random(4),
            running_var.fill_random(5, 1, 2);
        BatchNormArgs args{.x = x.in(),
                           .weight = weight.in(),
                           .bias = bias.in(),
                           .running_mean = running_mean.inout(),
                           .running_var = running_var.inout(),
                           .y = y.out(),
                           .mean = {},
                           .inv_std = {},
                           .training = training,
                           .momentum = 0.1,
                           .eps = 1e-5};
        if (training) args.mean = mean.out(), args.inv_std = inv_std.out();
        const std::string what = cat(dtype, " ", shape);
        check(compare(&KernelTable::batch_norm, args,
                      {&x, &weight, &bias, &running_mean, &running_var, &y, &mean, &inv_std}, 4, 4),
              what);
        if (!training) continue;
        const BatchNormGradArgs grad{y.in(),       x.in(),   weight.in(),   mean.in(),
                                     inv_std.in(), dx.out(), dweight.out(), dbias.out()};
        check(compare(&KernelTable::batch_norm_grad, grad, {&y, &x, &weight, &mean, &inv_std, &dx, &dweight, &dbias}, 8,
                      8),
              what + " grad");
      }
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{70, 10, 1}, Shape{3, 5000, 1}, Shape{2, 33, 40}, Shape{4, 0, 2}, Shape{1, 3, 1000}})
    for (const DType dtype : kFloatingDTypes)
      for (const bool log : {false, true}) {
        TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape);
        x.fill_random(1, -9, 9), dy.fill_random(2);
        check(compare(&KernelTable::softmax, SoftmaxArgs{x.in(), y.out(), log}, {&x, &y}, 4, log ? 16 : 1),
              cat(dtype, " ", shape));
        check(
            compare(&KernelTable::softmax_grad, SoftmaxGradArgs{dy.in(), y.in(), dx.out(), log}, {&dy, &y, &dx}, 8, 64),
            cat(dtype, " ", shape));
      }
}

TEST_CASE("CUDA parity: indexing", "[cuda][parity]") {
  NEEDS_CUDA
  struct Problem {
    Shape in, index;
    int dim;
  };
  for (const Problem& p : std::vector<Problem>{{{5}, {9}, 0},
                                               {{100}, {9000}, 0},
                                               {{70000}, {5000}, 0},
                                               {{64, 10}, {64, 1}, 1},
                                               {{3, 40, 5}, {3, 70, 5}, 1},
                                               {{3, 4, 5}, {2, 4, 1}, 2},
                                               {{4, 6}, {4, 0}, 1}})
    for (const DType dtype : kAllDTypes)
      for (const Layout layout : kInputLayouts) {
        TestTensor x(dtype, p.in, layout), index(DType::i64, p.index, layout), y(dtype, p.index);
        x.fill_random(1), y.fill_random(2, -3, 3);
        index.fill([&](std::int64_t i) { return static_cast<double>(i * 7919 % 1009 % p.in[p.dim]); });
        const std::string what = cat(dtype, " ", p.in, " ", p.index, " ", name_of(layout));
        check(compare(&KernelTable::gather, GatherArgs{x.in(), index.in(), y.out(), p.dim}, {&x, &index, &y}), what);
        if (dtype == DType::boolean || layout == Layout::broadcast) continue;
        check(
            compare(&KernelTable::scatter_add, ScatterAddArgs{y.in(), index.in(), x.inout(), p.dim}, {&y, &index, &x}),
            what);
      }
  for (const auto& [rows, count] : {std::pair{7, 5}, std::pair{50, 300}, std::pair{3, 5000}, std::pair{9000, 5000}})
    for (const DType dtype : kAllDTypes)
      for (const int dim : {0, 1}) {
        Shape in{rows, 6}, picked{count, 6};
        if (dim == 1) in = {6, rows}, picked = {6, count};
        TestTensor x(dtype, in), index(DType::i64, {count}), y(dtype, picked);
        x.fill_random(1), y.fill_random(2, -3, 3);
        index.fill([&, rows = rows](std::int64_t i) { return static_cast<double>(i * 7919 % 10007 % rows); });
        const std::string what = cat(dtype, " ", in, " ", count, " dim ", dim);
        check(compare(&KernelTable::index_select, IndexSelectArgs{x.in(), index.in(), y.out(), dim}, {&x, &index, &y}),
              what);
        if (dtype == DType::boolean) continue;
        check(compare(&KernelTable::index_add, IndexAddArgs{y.in(), index.in(), x.inout(), dim}, {&y, &index, &x}),
              what);
      }
}

TEST_CASE("CUDA: an index out of range is reported, and the device works on", "[cuda][parity]") {
  NEEDS_CUDA
  const Device device = *parity_device();
  if (device.is_cpu()) return;
  Stream& stream = current_stream(device);
  TestTensor x(DType::f32, {4}), index(DType::i64, {3}), y(DType::f32, {3});
  x.fill_random(1), index.fill([](std::int64_t i) { return i == 1 ? 9.0 : 2.0; });
  const Mirror there_x(x, stream), there_index(index, stream), there_y(y, stream);
  const auto on_device = [&](View view, const Mirror& mirror) {
    view.data = mirror.translate(view.data);
    view.device = device;
    return view;
  };
  kernels::run(
      stream, &KernelTable::gather,
      GatherArgs{
          {on_device(x.view(), there_x)}, {on_device(index.view(), there_index)}, {on_device(y.view(), there_y)}, 0});
  CHECK_THROWS_WITH(synchronize(stream), Catch::Matchers::Contains("gather") && Catch::Matchers::Contains("9"));
  const TestTensor result = there_y.download(stream);
  CHECK(result[0] == x[2]);
  CHECK(result[1] == 0);
}

TEST_CASE("CUDA parity: random numbers", "[cuda][parity]") {
  NEEDS_CUDA
  for (const std::int64_t count : {0, 1, 2, 3, 5, 1026, 100001})
    for (const DType dtype : kAllDTypes)
      for (const RandomKind kind :
           {RandomKind::uniform, RandomKind::normal, RandomKind::bernoulli, RandomKind::integer}) {
        if (!is_floating(dtype) && (kind == RandomKind::uniform || kind == RandomKind::normal)) continue;
        TestTensor x(dtype, {count});
        const RandomArgs args{.kind = kind,
                              .out = x.out(),
                              .key = 0x123456789abcdefu,
                              .stream = 77,
                              .a = kind == RandomKind::bernoulli ? 0.3 : -1.7,
                              .b = 100.3};
        // Of a normal number that lies near 0, the sine or cosine is what is exact.
        check(compare(&KernelTable::random, args, {&x}, kind == RandomKind::normal ? 4 : 0, 200),
              cat(dtype, " ", count));
      }
}

TEST_CASE("CUDA parity: sgd", "[cuda][parity]") {
  NEEDS_CUDA
  for (const DType dtype : kFloatingDTypes)
    for (const bool first : {true, false})
      for (const double momentum : {0.0, 0.9}) {
        TestTensor p1(dtype, {5}), g1(dtype, {5}), m1(dtype, {5}), p2(dtype, {70001}), g2(dtype, {70001}),
            m2(dtype, {70001}), p3(dtype, {0}), g3(dtype, {0}), m3(dtype, {0});
        int seed = 1;
        for (TestTensor* t : {&p1, &g1, &m1, &p2, &g2, &m2}) t->fill_random(static_cast<std::uint64_t>(seed++));
        SgdArgs args{{}, 0.1, momentum, 0.1, 0.01, momentum != 0, true};
        for (int repeat = 0; repeat < 2; ++repeat) {  // in one call a tensor comes once: two calls
          args.tensors = {{p1.inout(), g1.in(), m1.inout(), first},
                          {p3.inout(), g3.in(), m3.inout(), first},
                          {p2.inout(), g2.in(), m2.inout(), first}};
          if (momentum == 0)
            for (SgdTensor& t : args.tensors) t.momentum = {};
          check(compare(&KernelTable::sgd, args, {&p1, &g1, &m1, &p2, &g2, &m2, &p3, &g3, &m3}), cat(dtype));
        }
      }
}
