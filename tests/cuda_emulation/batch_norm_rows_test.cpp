// Batch norm of rows of channels, which is what images in channels_last are: packs of neighbouring channels.
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// Runs the emulated kernel and the host's; each of `outs` is to be the same.
template <class Args>
void check_rows(const Args& args, const std::vector<TestTensor*>& outs) {
  run(args);
  std::vector<TestTensor> got;
  for (const TestTensor* out : outs) got.push_back(*out);
  kernels::table(DeviceType::host).entry<Args>()(current_stream(Device::cpu()), args);
  for (std::size_t k = 0; k < outs.size(); ++k) {
    CAPTURE(k);
    CHECK(mismatch(
              got[k], [&](std::int64_t i) { return (*outs[k])[i]; }, 16, 16) == "");
  }
}

}  // namespace

TEST_CASE("batch norm of rows of channels", "[batch_norm]") {
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t channels : {1, 3, 8, 16, 40, 264}) {
      CAPTURE(to_string(dtype), channels);
      const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
      const Shape shape{37, channels, 1};
      TestTensor x(dtype, shape), dy(dtype, shape), y(dtype, shape), dx(dtype, shape);
      TestTensor weight(dtype, {channels}), bias(dtype, {channels}), dweight(dtype, {channels}),
          dbias(dtype, {channels});
      TestTensor mean(wide, {channels}), inv_std(wide, {channels});
      TestTensor running_mean(dtype, {channels}), running_var(dtype, {channels});
      x.fill_random(1), dy.fill_random(2), weight.fill_random(3), bias.fill_random(4);
      running_mean.fill_random(5, -1, 1), running_var.fill_random(6, 0.5, 2);
      for (const bool relu : {true, false})
        check_rows(BatchNormArgs{.x = x.in(),
                                 .weight = weight.in(),
                                 .bias = bias.in(),
                                 .y = y.out(),
                                 .mean = mean.out(),
                                 .inv_std = inv_std.out(),
                                 .training = true,
                                 .eps = 1e-5,
                                 .relu = relu},
                   {&y, &mean, &inv_std});
      for (const bool relu : {false, true})
        check_rows(BatchNormGradArgs{.dy = dy.in(),
                                     .x = x.in(),
                                     .weight = weight.in(),
                                     .mean = mean.in(),
                                     .inv_std = inv_std.in(),
                                     .dx = dx.out(),
                                     .dweight = dweight.out(),
                                     .dbias = dbias.out(),
                                     .relu = relu,
                                     .bias = bias.in()},
                   {&dx, &dweight, &dbias});
      check_rows(BatchNormArgs{.x = x.in(),
                               .weight = weight.in(),
                               .bias = bias.in(),
                               .running_mean = running_mean.inout(),
                               .running_var = running_var.inout(),
                               .y = y.out(),
                               .training = false,
                               .eps = 1e-5},
                 {&y});
    }
}
