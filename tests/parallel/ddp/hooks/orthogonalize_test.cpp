#include "lockstep/parallel/ddp/hooks/orthogonalize.h"

#include "parallel/support.h"

using namespace parallel_test;
using detail::orthogonalize_rows;

TEST_CASE("rows become orthonormal and keep their span") {
  for (const int count : {1, 2, 5}) {
    const Tensor rows = noise({count, 5}, 3), before = rows.clone();
    CHECK(orthogonalize_rows(rows, 0).to_vector<bool>() == std::vector<bool>(static_cast<std::size_t>(count), true));
    Doubles identity(static_cast<std::size_t>(count * count));
    for (int i = 0; i < count; ++i) identity[static_cast<std::size_t>(i * (count + 1))] = 1;
    CHECK(largest_difference(matmul(rows, rows.t()), tensor(identity, {count, count})) < 1e-14);
    CHECK(largest_difference(matmul(matmul(before, rows.t()), rows), before) < 1e-14);
  }
}

TEST_CASE("rows that are zero or depend on others become zero, not noise or NaN") {
  const Tensor rows = tensor({0, 0, 0, 1, 1 / 3.0, 0.1, 3, 1, 0.3, 0, 1, 0, 1e-300, 0, 0}, {5, 3});
  CHECK(orthogonalize_rows(rows, 0).to_vector<bool>() == std::vector<bool>{false, true, false, true, false});
  CHECK(largest_difference(
            matmul(rows, rows.t()),
            tensor({0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, {5, 5})) < 1e-14);
}

TEST_CASE("an epsilon shortens rows") {
  const Tensor rows = tensor({3, 4}, {1, 2});
  orthogonalize_rows(rows, 5);
  CHECK(values(rows) == Doubles{0.3, 0.4});
}
