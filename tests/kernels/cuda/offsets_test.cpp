// The index arithmetic of the CUDA kernels, which also runs on the host.
#include "lockstep/kernels/cuda/offsets.h"

#include <limits>

#include "support/catch.h"

using namespace lockstep;
using namespace lockstep::kernels::cuda;

TEST_CASE("division by multiplication agrees with division", "[cuda][offsets]") {
  std::uint64_t state = 1;
  std::int64_t wrong = 0;
  const auto next = [&] {
    return static_cast<std::uint32_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 33);
  };
  for (int i = 0; i < 200000; ++i) {
    const std::uint32_t size = i < 70000 ? static_cast<std::uint32_t>(i + 1) : next() | 1u;
    const Divider divider(size);
    for (const std::uint32_t n : {0u, 1u, size - 1, size, next(), 0x7fffffffu, (0x7fffffffu / size) * size})
      if (n < 0x80000000u && divider.divide(n) != n / size) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("division of 64 bits by multiplication agrees with division", "[cuda][offsets]") {
  std::uint64_t state = 1;
  std::int64_t wrong = 0;
  const auto next = [&] {
    return static_cast<std::int64_t>((state = state * 6364136223846793005u + 1442695040888963407u) >> 1);
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < 200000; ++i) {
    const std::int64_t size = i < 70000 ? i + 1 : i < 71000 ? kMost - (i - 70000) : (next() >> i % 62) | 1;
    const WideDivider divider(size);
    for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, size - 1, size, next(), kMost, kMost / size * size})
      if (divider.divide(n) != n / size) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("positions beyond 2^31 find their elements", "[cuda][offsets]") {
  View a, b;
  const Shape shape{3, 40000, 70000};  // 8.4e9 elements
  a.shape = b.shape = shape;
  a.strides = contiguous_strides(shape);
  b.strides = {0, 1, 40000};
  const Offsets<2> offsets = row_major_offsets<2>(shape, {&a, &b});
  CHECK(!offsets.small);
  CHECK(offsets.count == 8400000000);
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{70001}, std::int64_t{1} << 31,
                                      (std::int64_t{1} << 32) + 12345, offsets.count - 1}) {
    const At<2> at = offsets.at(position);
    CHECK(at.view[0] == position);
    CHECK(at.view[1] == position / 70000 % 40000 + position % 70000 * 40000);
  }
  // One run needs no division at all.
  const Offsets<1> run = make_offsets<1>(shape, {&a});
  CHECK(run.rank == 1);
  CHECK(run.at(8399999999).view[0] == 8399999999);
  // The same arithmetic for small sizes.
  View c, d;
  c.shape = d.shape = {2, 3, 4, 5};
  c.strides = {1, 2, 6, 24};
  d.strides = {60, 0, 5, 1};
  const Offsets<2> few = row_major_offsets<2>(c.shape, {&c, &d});
  CHECK(few.small);
  for (std::int64_t i = 0; i < 120; ++i) {
    const At<2> at = few.at(i);
    CHECK(at.view[0] == i / 60 + i / 20 % 3 * 2 + i / 5 % 4 * 6 + i % 5 * 24);
    CHECK(at.view[1] == i / 60 * 60 + i / 5 % 4 * 5 + i % 5);
  }
}

TEST_CASE("a splitter gives quotient and remainder, small or large", "[cuda][offsets]") {
  for (const std::int64_t count : {std::int64_t{1} << 31, std::int64_t{1} << 40})
    for (const std::int64_t size : {1, 2, 7, 49, 65536, 1000003}) {
      const Splitter splitter(size, count);
      for (const std::int64_t n : {std::int64_t{0}, std::int64_t{1}, size - 1, size, 3 * size + 1, count - 1}) {
        std::int64_t rest;
        CHECK(splitter.split(n, &rest) == n / size);
        CHECK(rest == n % size);
      }
    }
}
