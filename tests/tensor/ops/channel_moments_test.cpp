// What batch normalisation with shared statistics is made of.
#include "lockstep/tensor/ops/channel_moments.h"

#include "lockstep/tensor/ops/factory.h"
#include "lockstep/tensor/ops/ops.h"
#include "support/catch.h"
#include "support/gradcheck.h"

using namespace lockstep;
using support::gradcheck;
using support::gradgradcheck;
using support::random_leaf;
using support::random_transposed_leaf;

namespace {
Tensor two_rows(const Tensor& moments) { return moments.narrow(0, 0, 2); }
}  // namespace

TEST_CASE("channel moments are mean, squared distances and count") {
  const Tensor x = from_data(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 10}, {2, 2, 2});
  CHECK(detail::channel_moments(x).to_vector<double>() == std::vector<double>{3.5, 6, 17, 30, 4, 4});
  for (const Shape& empty : {Shape{0, 2}, Shape{3, 2, 0}})
    CHECK(detail::channel_moments(zeros(empty)).to_vector<double>() == std::vector<double>(6));
  const Tensor narrow = full({300, 1, 300}, 7, {.dtype = DType::f16});
  CHECK(detail::channel_moments(narrow).to_vector<double>() == std::vector<double>{7, 0, 90000});
}

TEST_CASE("channel moments have derivatives") {
  const auto moments = [](const std::vector<Tensor>& in) { return two_rows(detail::channel_moments(in[0])); };
  for (const Tensor& x : {random_leaf({4, 2}, 1), random_leaf({2, 3, 2}, 2), random_transposed_leaf({2, 3, 2, 2}, 3)}) {
    CHECK(gradcheck(moments, {x}) == "");
    CHECK(gradgradcheck(moments, {x}) == "");
  }
}

TEST_CASE("channels are normalised by given statistics") {
  const Tensor x = from_data(std::vector<double>{1, 2, 3, 4}, {2, 2});
  const auto of = [](double a, double b) { return from_data(std::vector<double>{a, b}, {2}); };
  const Tensor y = detail::normalize_channels(x, of(1, 2), of(3, 15), of(10, 20), of(1, -1), 1);
  CHECK(y.to_vector<double>() == std::vector<double>{1, -1, 11, 9});
  CHECK(detail::normalize_channels(x, of(1, 2), of(3, 15), {}, {}, 1).to_vector<double>() ==
        std::vector<double>{0, 0, 1, 0.5});
  CHECK(detail::normalize_channels(zeros({0, 2}, {.dtype = DType::bf16}), of(1, 2), of(3, 15), {}, {}, 1).shape() ==
        Shape{0, 2});
}

TEST_CASE("normalised channels have derivatives in everything") {
  const auto normalize = [](const std::vector<Tensor>& in) {
    return detail::normalize_channels(in[0], in[1], in[2], in.size() > 3 ? in[3] : Tensor(),
                                      in.size() > 3 ? in[4] : Tensor(), 1e-3);
  };
  for (const Tensor& x : {random_leaf({4, 2}, 1), random_transposed_leaf({2, 2, 3}, 2)}) {
    const std::vector<Tensor> all{x, random_leaf({2}, 3), random_leaf({2}, 4, 0.5, 2), random_leaf({2}, 5),
                                  random_leaf({2}, 6)};
    CHECK(gradcheck(normalize, all) == "");
    CHECK(gradgradcheck(normalize, all) == "");
    CHECK(gradcheck(normalize, {all[0], all[1], all[2]}) == "");
  }
}
