// Kernels that move packs, where packs end and where they are not aligned: the elements are the host's, and a sum has
// the same bits wherever its row begins.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

namespace {

// As contiguous memory that begins `offset` elements into the tensor's.
View part_of(const TestTensor& tensor, const Shape& shape, std::int64_t offset) {
  View view = tensor.view();
  view.shape = shape;
  view.strides = contiguous_strides(shape);
  view.data = static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  return view;
}

}  // namespace

TEST_CASE("CUDA parity: packs of elements", "[cuda][parity]") {
  NEEDS_CUDA
  // One, around a pack, around the packs of a block, and several packs for each thread of all blocks.
  for (const std::int64_t count : {1, 7, 8, 9, 1023, 1025, 4099, 70003})
    for (const std::int64_t offset : {0, 1, 8}) {
      const auto check = [&](const std::string& error, auto... what) {
        check_parity(error, cat(count, " behind ", offset, " ", what...));
      };
      for (const DType dtype : kAllDTypes) {
        TestTensor x(dtype, {count + 8}), y(dtype, {count + 8}), z(dtype, {count + 8});
        TestTensor picks(DType::boolean, {count + 8}), less(DType::boolean, {count + 8});
        x.fill_random(1, 0, 5), y.fill_random(2, 0, 5);
        picks.fill([](std::int64_t i) { return i * i % 3 == 1 ? 1.0 : 0.0; });
        const In a{part_of(x, {count}, offset)}, b{part_of(y, {count}, offset)};
        const Out out{part_of(z, {count}, offset)}, to_bool{part_of(less, {count}, offset)};
        check(compare_with_host(CastArgs{a, out}, {&x, &z}), dtype, " moved");
        check(compare_with_host(WhereArgs{{part_of(picks, {count}, offset)}, a, b, out}, {&picks, &x, &y, &z}), dtype,
              " picked");
        check(compare_with_host(BinaryArgs{.op = BinaryOp::lt, .x = a, .y = b, .out = to_bool}, {&x, &y, &less}), dtype,
              " compared");
        const RandomArgs drawn{.kind = RandomKind::bernoulli, .out = out, .key = 3, .stream = 7, .a = 0.3, .b = 0};
        check(compare_with_host(drawn, {&z}), dtype, " drawn");
        if (dtype == DType::boolean) continue;
        check(compare_with_host(BinaryArgs{.op = BinaryOp::mul, .x = a, .y = b, .out = out}, {&x, &y, &z}, 1), dtype,
              " multiplied");
        check(compare_with_host(UnaryArgs{.op = UnaryOp::square, .in = a, .out = out}, {&x, &z}, 1), dtype, " squared");
        for (const DType to : kAllDTypes) {
          TestTensor other(to, {count + 8});
          check(compare_with_host(CastArgs{a, {part_of(other, {count}, offset)}}, {&x, &other}, 1), dtype, " to ", to);
        }
      }
    }
}

TEST_CASE("CUDA parity: rows of packs", "[cuda][parity]") {
  NEEDS_CUDA
  // A lane with one pack, lanes with several, rows that stay in registers and rows that do not, and rows of no whole
  // packs.
  for (const std::int64_t size : {8, 24, 250, 256, 264, 1024, 1032, 5000, 17000})
    for (const DType dtype : kFloatingDTypes) {
      const std::int64_t rows = 3, room = rows * size + 1;
      const Shape shape{rows, size, 1}, flat{rows, size};
      TestTensor x(dtype, {room}), y(dtype, {room}), dy(dtype, {room}), dx(dtype, {room});
      TestTensor weight(dtype, {size + 1}), bias(dtype, {size + 1});
      TestTensor mean(dtype == DType::f64 ? DType::f64 : DType::f32, flat), inv(mean.dtype(), flat);
      const std::string what = cat(dtype, " ", size);
      std::vector<std::vector<double>> first;
      for (const std::int64_t offset : {0, 1}) {
        const auto in = [&](const TestTensor& t, const Shape& s) { return In{part_of(t, s, offset)}; };
        const auto out = [&](const TestTensor& t, const Shape& s) { return Out{part_of(t, s, offset)}; };
        // The same numbers, wherever they begin.
        const auto fill = [&](TestTensor& t, int step, double scale) {
          t.fill([&](std::int64_t i) { return scale * static_cast<double>((i - offset + 1) * step % 17 - 8); });
        };
        fill(x, 5, 0.5), fill(dy, 7, 0.25), fill(weight, 3, 0.125), fill(bias, 11, 0.0625);
        const Shape groups{rows, 1, size, 1};
        std::vector<std::vector<double>> results;
        const auto run = [&](const auto& args, std::initializer_list<TestTensor*> tensors, const TestTensor& result,
                             const char* name) {
          check_parity(compare_with_host(args, tensors, 32, 32), cat(name, " ", what, " behind ", offset));
          const TestTensor got = on_device(args, tensors, &result);
          std::vector<double> values;
          for (std::int64_t i = 0; i < rows * size; ++i) values.push_back(got[i + offset]);
          results.push_back(values);
        };
        for (const bool log : {false, true}) {
          run(SoftmaxArgs{in(x, shape), out(y, shape), log}, {&x, &y}, y, "softmax");
          run(SoftmaxGradArgs{in(dy, shape), in(y, shape), out(dx, shape), log}, {&dy, &y, &dx}, dx, "softmax_grad");
        }
        const In w = in(weight, {size});
        run(RmsNormArgs{in(x, flat), w, out(y, flat), {part_of(inv, {rows}, 0)}, 1e-3}, {&x, &weight, &y, &inv}, y,
            "rms_norm");
        RmsNormGradArgs rms{.dy = in(dy, flat), .x = in(x, flat), .weight = w};
        rms.inv_rms = {part_of(inv, {rows}, 0)}, rms.dx = out(dx, flat);
        run(rms, {&dy, &x, &weight, &inv, &dx}, dx, "rms_norm_grad");
        GroupNormArgs norm{.x = in(x, groups), .y = out(y, groups), .eps = 1e-3};
        norm.weight = w, norm.bias = in(bias, {size});
        norm.mean = {part_of(mean, {rows, 1}, 0)}, norm.inv_std = {part_of(inv, {rows, 1}, 0)};
        run(norm, {&x, &weight, &bias, &y, &mean, &inv}, y, "group_norm");
        GroupNormGradArgs grad{.dy = in(dy, groups), .x = in(x, groups), .weight = w};
        grad.mean = {part_of(mean, {rows, 1}, 0)}, grad.inv_std = {part_of(inv, {rows, 1}, 0)};
        grad.dx = out(dx, groups);
        run(grad, {&dy, &x, &weight, &mean, &inv, &dx}, dx, "group_norm_grad");
        if (offset == 0) first = results;
        for (std::size_t k = 0; k < results.size(); ++k)
          if (results[k] != first[k]) FAIL_CHECK(what << ": result " << k << " has other bits one element further on");
      }
    }
}
