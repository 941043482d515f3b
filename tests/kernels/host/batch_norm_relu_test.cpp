// Batch normalisation with a relu behind it: the same bits as the two one after the other.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

const std::vector<Shape> kRectifiedShapes = {{8, 3, 1},  {300, 5, 1}, {37, 16, 1}, {4, 3, 7},   {3, 2, 50},
                                             {1, 4, 33}, {5, 3, 64},  {2, 8, 12},  {2, 37, 300}};

// A norm of random numbers, some of whose results are 0 and NaN, forwards and backwards.
struct RectifiedNorm {
  DType dtype;
  Shape shape;
  DType kept = dtype == DType::f64 ? dtype : DType::f32;
  std::int64_t channels = shape[1];
  TestTensor x{dtype, shape}, weight{dtype, {channels}}, bias{dtype, {channels}};
  TestTensor mean{kept, {channels}}, inv_std{kept, {channels}};

  RectifiedNorm(DType dtype_, const Shape& shape_, bool odd) : dtype(dtype_), shape(shape_) {
    x.fill_random(1, 0, 4), weight.fill_random(2, -1.5, 1.5), bias.fill_random(3);
    if (!odd) return;
    weight.set(0, 0), bias.set(0, -0.0);  // every result of this channel is 0 or -0, which passes no gradient
    weight.set(channels - 1, std::numeric_limits<double>::quiet_NaN());  // which passes all
  }
  std::vector<double> forward(bool relu, bool affine, bool training) {
    TestTensor y(dtype, shape), running_mean(dtype, {channels}), running_var(dtype, {channels});
    running_mean.fill_random(4), running_var.fill_random(5, 1, 2);
    BatchNormArgs args{.x = x.in(),
                       .running_mean = running_mean.inout(),
                       .running_var = running_var.inout(),
                       .y = y.out(),
                       .training = training,
                       .momentum = 0.1,
                       .eps = 1e-3,
                       .relu = relu};
    if (affine) args.weight = weight.in(), args.bias = bias.in();
    if (training) args.mean = mean.out(), args.inv_std = inv_std.out();
    run(args);
    return y.values();
  }
  // dx, then dweight, then dbias.
  std::vector<double> backward(const TestTensor& dy, bool relu, bool affine) {
    TestTensor dx(dtype, shape), dweight(dtype, {channels}), dbias(dtype, {channels});
    BatchNormGradArgs args{.dy = dy.in(),
                           .x = x.in(),
                           .mean = mean.in(),
                           .inv_std = inv_std.in(),
                           .dx = dx.out(),
                           .dweight = dweight.out(),
                           .dbias = dbias.out(),
                           .relu = relu};
    if (affine) args.weight = weight.in();
    if (affine && relu) args.bias = bias.in();
    run(args);
    std::vector<double> all = dx.values();
    for (const TestTensor* each : {&dweight, &dbias})
      for (const double value : each->values()) all.push_back(value);
    return all;
  }
};

// Where they differ, by a sign too; NaN is equal to NaN.
std::string first_difference(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return "sizes";
  for (std::size_t i = 0; i < got.size(); ++i)
    if ((got[i] != want[i] || std::signbit(got[i]) != std::signbit(want[i])) &&
        !(std::isnan(got[i]) && std::isnan(want[i])))
      return cat(i, ": ", got[i], " instead of ", want[i]);
  return "";
}

}  // namespace

TEST_CASE("batch_norm with a relu is one and then the other", "[batch_norm]") {
  for (const Shape& shape : kRectifiedShapes)
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false})
        for (const bool training : {true, false})
          for (const bool odd : {false, true}) {
            RectifiedNorm norm(dtype, shape, odd);
            std::vector<double> want = norm.forward(false, affine, training);
            bool cuts = false;
            for (double& value : want) cuts |= value < 0, value = value < 0 ? 0 : value;
            CAPTURE(to_string(dtype), to_string(shape), affine, training, odd);
            CHECK((cuts || odd));
            CHECK(first_difference(norm.forward(true, affine, training), want) == "");
          }
}

TEST_CASE("batch_norm_grad with a relu takes the gradient where the result is positive", "[batch_norm]") {
  for (const Shape& shape : kRectifiedShapes)
    for (const DType dtype : kFloatingDTypes)
      for (const bool affine : {true, false})
        for (const bool odd : {false, true}) {
          RectifiedNorm norm(dtype, shape, odd);
          const std::vector<double> y = norm.forward(false, affine, true);
          TestTensor dy(dtype, shape), cut(dtype, shape);
          dy.fill_random(6, -1, 1);
          cut.fill([&](std::int64_t i) { return y[static_cast<std::size_t>(i)] <= 0 ? 0 : dy[i]; });
          CAPTURE(to_string(dtype), to_string(shape), affine, odd);
          CHECK(first_difference(norm.backward(dy, true, affine), norm.backward(cut, false, affine)) == "");
          CHECK(first_difference(norm.backward(dy, true, affine), norm.backward(dy, false, affine)) != "");
        }
}

TEST_CASE("the relu of batch_norm is decided before the result is rounded to 16 bits", "[batch_norm]") {
  const Shape shape{6, 1, 1}, channel{1};
  const DType dtype = DType::f16;
  TestTensor x(dtype, shape), y(dtype, shape), dy(dtype, shape), dx(dtype, shape), weight(dtype, channel),
      dbias(dtype, channel), mean(DType::f32, channel), inv_std(DType::f32, channel), dweight(dtype, channel);
  x.fill([](std::int64_t i) { return i % 2 == 0 ? 0.25 : -0.25; });
  dy.fill([](std::int64_t) { return 1; });
  weight.set(0, 0x1p-24);  // the results are halves of the least number that f16 has, so that they round to 0
  run(BatchNormArgs{.x = x.in(),
                    .weight = weight.in(),
                    .y = y.out(),
                    .mean = mean.out(),
                    .inv_std = inv_std.out(),
                    .training = true,
                    .momentum = 0,
                    .eps = 0.25 - 0.0625,
                    .relu = true});
  run(BatchNormGradArgs{.dy = dy.in(),
                        .x = x.in(),
                        .weight = weight.in(),
                        .mean = mean.in(),
                        .inv_std = inv_std.in(),
                        .dx = dx.out(),
                        .dweight = dweight.out(),
                        .dbias = dbias.out(),
                        .relu = true});
  CHECK(y.values() == std::vector<double>(6, 0));
  CHECK(dbias[0] == 3);
}
