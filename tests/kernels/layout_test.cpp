#include "lockstep/kernels/layout.h"

#include "lockstep/kernels/dtype.h"
#include "support/catch.h"

using namespace lockstep;

TEST_CASE("Dims", "[layout]") {
  Dims dims{2, 3};
  dims.push_back(4);
  dims.insert(0, 1);
  CHECK(dims == Dims{1, 2, 3, 4});
  dims.insert(4, 5);
  CHECK(dims.back() == 5);
  dims.erase(1);
  CHECK(dims == Dims{1, 3, 4, 5});
  CHECK(to_string(dims) == "[1, 3, 4, 5]");
  CHECK(to_string(Dims{}) == "[]");
  CHECK(Dims{1} != Dims{1, 1});
  CHECK(Dims::filled(3, 7) == Dims{7, 7, 7});
  CHECK_THROWS_AS((Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}), InvalidArgument);
  Dims full = Dims::filled(8, 1);
  CHECK_THROWS_AS(full.push_back(1), InvalidArgument);
  CHECK(full.rank() == 8);
}

TEST_CASE("element_count", "[layout]") {
  CHECK(element_count({}) == 1);
  CHECK(element_count({2, 3}) == 6);
  CHECK(element_count({2, 0, 3}) == 0);
  CHECK(element_count({std::int64_t{1} << 40, 0, std::int64_t{1} << 40}) == 0);
  CHECK(element_count({std::int64_t{1} << 31, std::int64_t{1} << 31}) == std::int64_t{1} << 62);
  CHECK_THROWS_AS(element_count({std::int64_t{1} << 32, std::int64_t{1} << 31}), InvalidArgument);
  CHECK_THROWS_AS(element_count({3, -1}), InvalidArgument);
  CHECK_THROWS_AS(element_count({0, -1}), InvalidArgument);
}

TEST_CASE("strides", "[layout]") {
  CHECK(contiguous_strides({2, 3, 4}) == Strides{12, 4, 1});
  CHECK(contiguous_strides({}) == Strides{});
  CHECK(contiguous_strides({2, 0, 4}) == Strides{4, 4, 1});
  CHECK(is_contiguous({2, 3}, {3, 1}));
  CHECK(is_contiguous({2, 1, 3}, {3, 99, 1}));  // a dimension of size 1 may have any stride
  CHECK(is_contiguous({0, 3}, {99, 99}));
  CHECK(is_contiguous({4, 0}, {7, 7}));
  CHECK(is_contiguous({}, {}));
  CHECK_FALSE(is_contiguous({2, 3}, {1, 2}));
  CHECK_FALSE(is_contiguous({2, 3}, {4, 1}));
  CHECK_FALSE(is_contiguous({2}, {0}));
}

TEST_CASE("broadcasting", "[layout]") {
  CHECK(broadcast_shapes("add", {2, 3}, {2, 3}) == Shape{2, 3});
  CHECK(broadcast_shapes("add", {2, 1, 4}, {3, 1}) == Shape{2, 3, 4});
  CHECK(broadcast_shapes("add", {3, 1}, {2, 1, 4}) == Shape{2, 3, 4});
  CHECK(broadcast_shapes("add", {}, {5}) == Shape{5});
  CHECK(broadcast_shapes("add", {0}, {1}) == Shape{0});
  CHECK(broadcast_shapes("add", {1}, {0}) == Shape{0});
  CHECK_THROWS_WITH(broadcast_shapes("add", {2, 3}, {4}),
                    "[add] expected shapes that broadcast together, got [2, 3] and [4]");
  CHECK_THROWS_AS(broadcast_shapes("add", {0}, {2}), InvalidArgument);
  CHECK(broadcast_strides({3, 1}, {1, 1}, {2, 3, 4}) == Strides{0, 1, 0});
  CHECK(broadcast_strides({}, {}, {2, 2}) == Strides{0, 0});
  CHECK(broadcast_strides({2, 3}, {1, 2}, {2, 3}) == Strides{1, 2});
}

TEST_CASE("normalize_dim", "[layout]") {
  CHECK(normalize_dim("sum", -1, 3) == 2);
  CHECK(normalize_dim("sum", 0, 3) == 0);
  CHECK_THROWS_WITH(normalize_dim("sum", 3, 3), "[sum] expected a dimension in [-3, 3) for a tensor of rank 3, got 3");
  CHECK_THROWS_AS(normalize_dim("sum", -4, 3), InvalidArgument);
  CHECK_THROWS_AS(normalize_dim("sum", 0, 0), InvalidArgument);
}

TEST_CASE("dtypes", "[dtype]") {
  CHECK(to_string(DType::f32) == "f32");
  CHECK(to_string(DType::boolean) == "bool");
  CHECK(size_of(DType::bf16) == 2);
  CHECK(size_of(DType::i64) == 8);
  CHECK(is_floating(DType::bf16));
  CHECK_FALSE(is_floating(DType::i32));
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dispatch(dtype, []<class T>(Type<T>) { return dtype_of<T>(); }) == dtype);
    CHECK(dispatch(dtype, []<class T>(Type<T>) { return sizeof(T); }) == size_of(dtype));
  }
}
