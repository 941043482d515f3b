// Results that outgrow the caches are written around them, and operands fetched ahead: the same bytes as part by part.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "lockstep/kernels/host/streaming.h"
#include "support/catch.h"
#include "support/views.h"

using namespace lockstep;
using namespace support;

namespace {

constexpr std::size_t kLine = 64;

// Memory that begins `shift` elements behind the start of a cache line, with more of it on both sides.
class FarMemory {
 public:
  FarMemory(const Shape& shape, DType dtype, std::int64_t shift = 0)
      : shape_(shape), dtype_(dtype), bytes_(static_cast<std::size_t>(element_count(shape)) * size_of(dtype)) {
    memory_.resize(bytes_ + 4 * kLine, std::byte{0xAB});
    const std::size_t past = reinterpret_cast<std::uintptr_t>(memory_.data()) % kLine;
    begin_ = 2 * kLine - past + static_cast<std::size_t>(shift) * size_of(dtype);
  }
  // Numbers between -2 and 2.
  FarMemory& fill_random(std::uint32_t seed) {
    std::uint32_t state = seed;
    for (std::size_t at = 0; at < bytes_; at += size_of(dtype_)) {
      state = state * 1664525u + 1013904223u;
      const float value = static_cast<float>(state >> 8) * 0x1p-22f - 2;
      const double wide = value;
      const bool flag = value > 0;
      const auto upper = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
      const void* const from = dtype_ == DType::bf16  ? static_cast<const void*>(&upper)
                               : dtype_ == DType::f64 ? static_cast<const void*>(&wide)
                               : dtype_ == DType::f32 ? static_cast<const void*>(&value)
                                                      : &flag;
      std::memcpy(&memory_[begin_ + at], from, size_of(dtype_));
    }
    return *this;
  }
  // The rows [from, to) of the first dimension.
  View rows(std::int64_t from, std::int64_t to) {
    Shape shape = shape_;
    shape[0] = to - from;
    const std::int64_t row = element_count(shape_) / shape_[0];
    std::byte* const data = &memory_[begin_ + static_cast<std::size_t>(from * row) * size_of(dtype_)];
    return {data, shape, contiguous_strides(shape), dtype_, test_device(), true};
  }
  View all() { return rows(0, shape_[0]); }
  const Shape& shape() const { return shape_; }
  // Compares the elements and what is around them; where the vectors begin is chance.
  bool same(const FarMemory& other) const {
    const auto part = [](const FarMemory& m) { return m.memory_.data() + m.begin_ - kLine; };
    return std::memcmp(part(*this), part(other), bytes_ + 2 * kLine) == 0;
  }

 private:
  Shape shape_;
  DType dtype_;
  std::size_t bytes_, begin_ = 0;
  std::vector<std::byte> memory_;
};

// call(out, from, to) computes those rows of `out`: all at once the same as some at a time.
template <class Call>
void check_parts(const Shape& shape, DType dtype, std::int64_t shift, Call&& call) {
  INFO(cat(dtype, shape, " ", shift, " elements behind a cache line"));
  FarMemory whole(shape, dtype, shift), parts(shape, dtype, shift);
  call(whole, std::int64_t{0}, shape[0]);
  const std::int64_t step = shape[0] / 61 + 1;
  const auto bytes = [&](std::int64_t rows) {
    return element_count(shape) / shape[0] * rows * static_cast<std::int64_t>(size_of(dtype));
  };
  CHECK(kernels::host::outgrows_caches(bytes(shape[0])));
  CHECK_FALSE(kernels::host::outgrows_caches(bytes(step)));
  for (std::int64_t row = 0; row < shape[0]; row += step) call(parts, row, std::min(row + step, shape[0]));
  CHECK(whole.same(parts));
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kFew = true;  // sanitizers, to which the other cases look like the first
#else
constexpr bool kFew = false;
#endif

}  // namespace

TEST_CASE("elementwise results that outgrow the caches are those of their parts") {
  if (!test_device().is_cpu()) return;
  const std::int64_t count = 8'400'011;
  {
    FarMemory x({count}, DType::f32);
    x.fill_random(1);
    const auto exponentials = [&](FarMemory& y, std::int64_t from, std::int64_t to) {
      run(UnaryArgs{UnaryOp::exp, In{x.rows(from, to)}, Out{y.rows(from, to)}});
    };
    check_parts(x.shape(), DType::f32, 0, exponentials);
    if (kFew) return;
    check_parts(x.shape(), DType::f32, 3, exponentials);
    check_parts(x.shape(), DType::f64, 0, [&](FarMemory& y, std::int64_t from, std::int64_t to) {
      run(CastArgs{In{x.rows(from, to)}, Out{y.rows(from, to)}});
    });
    FarMemory flags({count}, DType::boolean), other({count}, DType::f32);
    flags.fill_random(7), other.fill_random(8);
    check_parts(x.shape(), DType::f32, 0, [&](FarMemory& y, std::int64_t from, std::int64_t to) {
      run(WhereArgs{In{flags.rows(from, to)}, In{x.rows(from, to)}, In{other.rows(from, to)}, Out{y.rows(from, to)}});
    });
    check_parts(x.shape(), DType::f32, 0, [&](FarMemory& y, std::int64_t from, std::int64_t to) {  // in place
      run(UnaryArgs{UnaryOp::neg, In{x.rows(from, to)}, Out{y.rows(from, to)}});
      run(BinaryArgs{BinaryOp::add, In{y.rows(from, to)}, In{x.rows(from, to)}, Out{y.rows(from, to)}, 3});
    });
  }
  for (const std::int64_t columns : {1'040, 1'027, 20}) {  // rows of whole cache lines, others, short ones
    const Shape shape{count / columns, columns};
    FarMemory x(shape, DType::f32), column({shape[0], 1}, DType::f32);
    x.fill_random(2), column.fill_random(3);
    check_parts(shape, DType::f32, 0, [&](FarMemory& y, std::int64_t from, std::int64_t to) {
      View repeated = column.rows(from, to);
      repeated.shape[1] = columns, repeated.strides[1] = 0;
      run(BinaryArgs{BinaryOp::mul, In{x.rows(from, to)}, In{repeated}, Out{y.rows(from, to)}});
    });
  }
  const std::int64_t side = 2'900;
  FarMemory square({side, side}, DType::f32), other({side, side}, DType::f32);
  square.fill_random(9), other.fill_random(10);
  check_parts(square.shape(), DType::f32, 0, [&](FarMemory& y, std::int64_t from, std::int64_t to) {
    View turned = square.rows(0, to - from);
    turned.data = static_cast<float*>(turned.data) + from;
    turned.shape = {to - from, side}, turned.strides = {1, side};
    run(BinaryArgs{BinaryOp::sub, In{turned}, In{other.rows(from, to)}, Out{y.rows(from, to)}});
  });
  FarMemory x({2 * count}, DType::bf16), y({2 * count}, DType::bf16);
  x.fill_random(4), y.fill_random(5);
  for (const std::int64_t shift : {0, 1})
    check_parts(x.shape(), DType::bf16, shift, [&](FarMemory& z, std::int64_t from, std::int64_t to) {
      run(BinaryArgs{BinaryOp::add, In{x.rows(from, to)}, In{y.rows(from, to)}, Out{z.rows(from, to)}});
    });
}

TEST_CASE("softmax that outgrows the caches is that of its parts") {
  if (!test_device().is_cpu() || kFew) return;
  for (const Shape& shape :
       {Shape{525'003, 16, 1}, Shape{8'209, 1'024, 1}, Shape{33'601, 250, 1}, Shape{2'099, 4'000, 1}})
    for (const bool log : {false, true}) {
      FarMemory x(shape, DType::f32);
      x.fill_random(6);
      check_parts(shape, DType::f32, 0, [&](FarMemory& y, std::int64_t from, std::int64_t to) {
        run(SoftmaxArgs{In{x.rows(from, to)}, Out{y.rows(from, to)}, log});
      });
    }
}
