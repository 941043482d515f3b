// unary, binary, copies, reductions, random numbers, SGD, Adam and unscaling on a CUDA device, see support/parity.h.
#include "support/parity.h"

using namespace lockstep;
using namespace support;

namespace {

const std::vector<Shape> kParityShapes = {{},     {0},          {1},          {31},      {5000},
                                          {3, 5}, {17, 1, 129}, {2, 3, 4, 5}, {2, 0, 3}, {1, 2, 1, 2, 1, 2, 1, 3}};

}  // namespace

TEST_CASE("CUDA parity: unary", "[cuda][parity]") {
  NEEDS_CUDA
  for (int op = 0; op < static_cast<int>(UnaryOp::count); ++op)
    for (const DType dtype : kAllDTypes)
      for (const Shape& shape : kParityShapes)
        for (const Layout in : kInputLayouts)
          for (const Layout out : kOutputLayouts) {
            const auto unary_op = static_cast<UnaryOp>(op);
            const bool is_bool = unary_op == UnaryOp::logical_not;
            TestTensor x(dtype, shape, in), y(is_bool ? DType::boolean : dtype, shape, out);
            const double reach = unary_op == UnaryOp::hardswish ? 5 : 3;  // beyond its kinks
            x.fill_random(static_cast<std::uint64_t>(op), unary_op == UnaryOp::pow_scalar ? 0.1 : -reach, reach);
            const UnaryArgs args{.op = unary_op, .in = x.in(), .out = y.out(), .a = 0.75, .b = 1.5};
            try {
              check_parity(compare_with_host(args, {&x, &y}, 24), cat("op ", op, " ", dtype, " ", shape));
            } catch (const NotSupported&) {
              const Stream stream = current_stream(Device::cpu());
              CHECK_THROWS_AS(kernels::table(DeviceType::host).entry<UnaryArgs>()(stream, args), NotSupported);
            }
          }
}

TEST_CASE("CUDA parity: binary", "[cuda][parity]") {
  NEEDS_CUDA
  for (int op = 0; op < static_cast<int>(BinaryOp::count); ++op)
    for (const DType dtype : kAllDTypes)
      for (const Shape& shape : kParityShapes)
        for (const Layout left : kInputLayouts)
          for (const Layout right : kInputLayouts) {
            const auto binary_op = static_cast<BinaryOp>(op);
            const bool is_bool = binary_op >= BinaryOp::eq && binary_op <= BinaryOp::logical_xor;
            // Devices' own exp and erfc, in sums that cancel.
            const bool transcendental = binary_op >= BinaryOp::softplus_grad && binary_op <= BinaryOp::gelu_tanh_grad;
            const double tolerance = transcendental ? 24 : binary_op == BinaryOp::pow ? 8 : 1;
            TestTensor x(dtype, shape, left), y(dtype, shape, right), z(is_bool ? DType::boolean : dtype, shape);
            const double reach = binary_op == BinaryOp::hardswish_grad ? 5 : 2;  // beyond its kinks
            x.fill_random(static_cast<std::uint64_t>(op), binary_op == BinaryOp::pow ? 0.1 : -3, 3),
                y.fill_random(9, -reach, reach);
            const BinaryArgs args{.op = binary_op, .x = x.in(), .y = y.in(), .out = z.out(), .alpha = -2};
            try {
              check_parity(compare_with_host(args, {&x, &y, &z}, tolerance), cat("op ", op, " ", dtype, " ", shape));
            } catch (const NotSupported&) {
              const Stream stream = current_stream(Device::cpu());
              CHECK_THROWS_AS(kernels::table(DeviceType::host).entry<BinaryArgs>()(stream, args), NotSupported);
            }
          }
  // In place.
  for (const std::int64_t count : {1, 257, 100003}) {
    TestTensor x(DType::f32, {count}), y(DType::f32, {count});
    x.fill_random(1), y.fill_random(2);
    check_parity(compare_with_host(BinaryArgs{.op = BinaryOp::mul, .x = x.in(), .y = y.in(), .out = x.out()}, {&x, &y}),
                 "in place");
  }
}

TEST_CASE("CUDA parity: where, cast, fill, arange", "[cuda][parity]") {
  NEEDS_CUDA
  for (const Shape& shape : kParityShapes)
    for (const Layout layout : kInputLayouts)
      for (const DType dtype : kAllDTypes) {
        TestTensor c(DType::boolean, shape, layout), x(dtype, shape, layout), y(dtype, shape), z(dtype, shape);
        c.fill_random(1), x.fill_random(2), y.fill_random(3);
        check_parity(compare_with_host(WhereArgs{c.in(), x.in(), y.in(), z.out()}, {&c, &x, &y, &z}), "where");
        for (const DType to : kAllDTypes) {
          TestTensor cast_to(to, shape, layout == Layout::broadcast ? Layout::contiguous : layout);
          x.fill_random(4, -300, 300);
          check_parity(compare_with_host(CastArgs{x.in(), cast_to.out()}, {&x, &cast_to}), cat(dtype, " to ", to));
        }
        if (layout == Layout::broadcast) continue;
        check_parity(compare_with_host(FillArgs{x.out(), 1.25, 77}, {&x}), "fill");
        if (shape.rank() == 1 && dtype != DType::boolean)
          check_parity(compare_with_host(ArangeArgs{x.out(), 3, 0.5}, {&x}), "arange");
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
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::norm, ReduceOp::max, ReduceOp::min,
                                  ReduceOp::prod, ReduceOp::any}) {
          const bool is_bool = dtype == DType::boolean;
          if (is_bool != (op == ReduceOp::any)) continue;
          if ((op == ReduceOp::mean || op == ReduceOp::norm) && !is_floating(dtype)) continue;
          if ((op == ReduceOp::max || op == ReduceOp::min) && element_count(shape) == 0) continue;
          TestTensor x(dtype, shape, layout), y(dtype, out);
          if (op == ReduceOp::prod)
            x.fill_random(5, 0.999, 1.001);
          else
            x.fill_random(5, -2, 2);
          // A product of equal factors rounds the same way every time.
          const double tolerance = op == ReduceOp::prod ? 4 + static_cast<double>(element_count(shape))
                                   : op == ReduceOp::norm && dtype == DType::f64 ? 64  // squares have one sign
                                                                                 : 2;
          check_parity(compare_with_host(ReduceArgs{op, x.in(), y.out()}, {&x, &y}, tolerance, 4),
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
          check_parity(compare_with_host(ArgReduceArgs{op, dim, x.in(), y.out()}, {&x, &y}),
                       cat("arg ", dtype, " ", shape));
        }
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
        check_parity(compare_with_host(args, {&x}, kind == RandomKind::normal ? 4 : 0, 200), cat(dtype, " ", count));
      }
}

TEST_CASE("CUDA parity: what a replay has anew is read in memory", "[cuda][parity]") {
  NEEDS_CUDA
  const OnBothSides<std::uint64_t> numbers{0x123456789abcdefu, 77};
  const OnBothSides<double> rate{0.3}, constants{0.2, 0.7, 0.99};
  for (const DType dtype : kFloatingDTypes) {
    // The same as with these as arguments: neither the host's kernel nor the device's looks at the others.
    TestTensor x(dtype, {1026}), same(dtype, {1026});
    const RandomArgs direct{.kind = RandomKind::uniform,
                            .out = same.out(),
                            .key = numbers.data()[0],
                            .stream = numbers.data()[1],
                            .a = 0,
                            .b = 1};
    RandomArgs replayed = direct;
    replayed.out = x.out();
    replayed.key = replayed.stream = 1;
    replayed.replayed = numbers.data();
    check_parity(compare_with_host(replayed, {&x}), cat("random ", dtype));
    check_parity(compare_with_host(direct, {&same}), cat("random ", dtype));
    CHECK(x.values() == same.values());

    TestTensor p(dtype, {5000}), g(dtype, {5000}), m(dtype, {5000}), v(dtype, {5000});
    const auto refill = [&] {
      int seed = 1;
      for (TestTensor* t : {&p, &g, &m, &v}) t->fill_random(static_cast<std::uint64_t>(seed++), 0.25, 2);
    };
    refill();
    SgdArgs sgd{{{p.inout(), g.in(), m.inout(), false}}, 0.3, 0.9, 0.1, 0.01, false, false};
    check_parity(compare_with_host(sgd, {&p, &g, &m}), cat("sgd ", dtype));
    const std::vector<double> by_argument = p.values();
    refill();
    sgd.learning_rate = 17;
    sgd.replayed = rate.data();
    check_parity(compare_with_host(sgd, {&p, &g, &m}), cat("sgd ", dtype));
    CHECK(p.values() == by_argument);

    refill();
    AdamArgs adam{{{p.inout(), g.in(), m.inout(), v.inout(), {}, 9}}, 0.1, 0.9, 0.99, 1e-8, 0.1, true, false};
    check_parity(compare_with_host(adam, {&p, &g, &m, &v}, 4), cat("adam ", dtype));
    const std::vector<double> before = p.values();
    refill();
    adam.tensors[0].replayed = constants.data();
    check_parity(compare_with_host(adam, {&p, &g, &m, &v}, 4), cat("adam ", dtype));
    CHECK(p.values() != before);
    const std::vector<double> by_memory = p.values();
    refill();
    adam.tensors[0].step = 2;  // another step and rate, to which nobody looks
    adam.learning_rate = 3;
    check_parity(compare_with_host(adam, {&p, &g, &m, &v}, 4), cat("adam ", dtype));
    CHECK(p.values() == by_memory);
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
          check_parity(compare_with_host(args, {&p1, &g1, &m1, &p2, &g2, &m2, &p3, &g3, &m3}), cat(dtype));
        }
      }
}

TEST_CASE("CUDA parity: adam", "[cuda][parity][adam]") {
  NEEDS_CUDA
  for (const DType dtype : kFloatingDTypes)
    for (const bool amsgrad : {false, true})
      for (const std::int64_t step : {1, 3}) {
        TestTensor p1(dtype, {5}), g1(dtype, {5}), m1(dtype, {5}), v1(dtype, {5}), x1(dtype, {5});
        TestTensor p2(dtype, {70001}), g2(dtype, {70001}), m2(dtype, {70001}), v2(dtype, {70001}), x2(dtype, {70001});
        int seed = 1;
        for (TestTensor* t : {&p1, &g1, &m1, &v1, &x1, &p2, &g2, &m2, &v2, &x2})
          t->fill_random(static_cast<std::uint64_t>(seed++), 0.25, 2);
        const AdamArgs args{{{p1.inout(), g1.in(), m1.inout(), v1.inout(), amsgrad ? x1.inout() : InOut{}, step},
                             {p2.inout(), g2.in(), m2.inout(), v2.inout(), amsgrad ? x2.inout() : InOut{}, step}},
                            0.1,
                            0.9,
                            0.99,
                            1e-8,
                            0.1,
                            amsgrad,
                            false};
        check_parity(compare_with_host(args, {&p1, &g1, &m1, &v1, &x1, &p2, &g2, &m2, &v2, &x2}, 4), cat(dtype));
      }
}

TEST_CASE("CUDA parity: copies of many tensors", "[cuda][parity]") {
  NEEDS_CUDA
  for (const DType dtype : kFloatingDTypes) {
    TestTensor a(dtype, {5}), b(dtype, {70001}), empty(dtype, {0}), to_a(dtype, {5}), to_b(dtype, {70001});
    a.fill_random(1), b.fill_random(2), to_a.fill_random(3), to_b.fill_random(4);
    const CopyManyArgs args{{{a.in(), to_a.out()}, {empty.in(), empty.out()}, {b.in(), to_b.out()}}};
    check_parity(compare_with_host(args, {&a, &b, &empty, &to_a, &to_b}), cat(dtype));
  }
}

TEST_CASE("CUDA parity: a sum in order", "[cuda][parity]") {
  NEEDS_CUDA
  for (const DType dtype : kFloatingDTypes)
    for (const std::int64_t count : {0, 1, 5, 70001})
      for (const int terms : {1, 2, 9, 64, 65, 130})
        for (const bool in_place : {false, true}) {
          if (in_place && terms > 64) continue;  // the term would be read after the first launch has written it
          TestTensor a(dtype, {count}), b(dtype, {count}), c(dtype, {count}), out(dtype, {count});
          a.fill_random(1), b.fill_random(2, -1e3, 1e3), c.fill_random(3);
          OrderedSumArgs args{{}, in_place ? b.out() : out.out()};
          for (int t = 0; t < terms; ++t) args.terms.push_back(t == 1 ? b.in() : t % 2 == 0 ? a.in() : c.in());
          check_parity(compare_with_host(args, {&a, &b, &c, &out}), cat(dtype, " ", count, " ", terms));
        }
}

TEST_CASE("CUDA parity: unscale", "[cuda][parity][unscale]") {
  NEEDS_CUDA
  for (const DType dtype : kFloatingDTypes)
    for (const bool finite : {true, false}) {
      TestTensor a(dtype, {5}), b(dtype, {70001}), found(DType::f32, {});
      a.fill_random(1), b.fill_random(2), found.set(0, 0);
      if (!finite) b.set(70000, std::numeric_limits<double>::infinity());
      const UnscaleArgs args{{a.inout(), b.inout()}, found.inout(), 0.125};
      check_parity(compare_with_host(args, {&a, &b, &found}), cat(dtype));
    }
}
