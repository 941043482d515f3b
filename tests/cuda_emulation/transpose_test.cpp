// Copies whose fastest dimensions differ, and which of them go through tiles.
#include "lockstep/kernels/cuda/transpose.h"

#include "lockstep/kernels/cuda/launch.cuh"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

// `t` with its dimensions in another order.
View permuted(const TestTensor& t, std::initializer_list<int> order) {
  View view = t.view();
  int d = 0;
  for (const int from : order) {
    view.shape[d] = t.view().shape[from];
    view.strides[d++] = t.view().strides[from];
  }
  return view;
}

}  // namespace

TEST_CASE("copies that transpose go through tiles", "[copy][transpose]") {
  struct Problem {
    Shape from;
    std::initializer_list<int> order;
    Layout to;
    bool tiled;
  };
  const Problem problems[] = {
      {{70, 131}, {1, 0}, Layout::contiguous, true},
      {{16, 16}, {1, 0}, Layout::contiguous, true},
      {{64, 64}, {1, 0}, Layout::contiguous, true},
      {{15, 200}, {1, 0}, Layout::contiguous, false},  // short
      {{3, 20, 65}, {0, 2, 1}, Layout::contiguous, true},
      {{3, 20, 65}, {2, 1, 0}, Layout::contiguous, false},  // three at the end
      {{20, 3, 65}, {2, 1, 0}, Layout::contiguous, true},
      {{20, 3, 65}, {1, 0, 2}, Layout::contiguous, false},  // rows stay rows
      {{2, 17, 5, 33}, {0, 3, 2, 1}, Layout::contiguous, true},
      {{2, 17, 5, 33}, {0, 3, 2, 1}, Layout::slice, true},
      {{2, 19, 4, 18}, {0, 2, 3, 1}, Layout::contiguous, true},
      {{2, 40, 30, 20}, {3, 2, 1, 0}, Layout::transposed, false},  // the same order
      {{0, 40, 30}, {0, 2, 1}, Layout::contiguous, false},
  };
  for (const Problem& p : problems)
    for (const DType dtype : kAllDTypes)
      for (const Layout layout : {Layout::contiguous, Layout::slice}) {
        TestTensor from(dtype, p.from, layout);
        from.fill([](std::int64_t n) { return static_cast<double>((n * 7 + n / 11) % 101); });
        const View in = permuted(from, p.order);
        TestTensor to(dtype, in.shape, p.to), want(dtype, in.shape, p.to);
        CAPTURE(to_string(dtype), p.from, name_of(layout), name_of(p.to));
        const CastArgs args{.in = {in}, .out = want.out()};
        kernels::table(DeviceType::host).entry<CastArgs>()(current_stream(Device::cpu()), args);
        CHECK(kernels::cuda::transpose(current_stream(Device::cpu()), "copy", in, to.view()) == p.tiled);
        if (!p.tiled) run(CastArgs{.in = {in}, .out = to.out()});
        CHECK(mismatch(
                  to, [&](std::int64_t i) { return want[i]; }, 0, 0) == "");
        CHECK(to.guards_intact());
      }
}

TEST_CASE("a copy takes the tiles where they help", "[copy][transpose]") {
  TestTensor from(DType::bf16, {3, 70, 90}), to(DType::bf16, {3, 90, 70});
  from.fill_random(1);
  const int before = emulation::barriers;
  run(CastArgs{.in = {permuted(from, {0, 2, 1})}, .out = to.out()});
  CHECK(emulation::barriers > before);
  for (std::int64_t n = 0; n < to.count(); ++n) REQUIRE(to[n] == from[n / 6300 * 6300 + n % 70 * 90 + n % 6300 / 70]);
}
