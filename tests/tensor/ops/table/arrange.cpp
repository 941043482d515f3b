// Views, copies, joining, splitting, indexing, order along a dimension.
#include "support/devices.h"
#include "tensor/ops/table/table.h"

namespace op_tests {

namespace {

const std::vector<Shape> kCube{{2, 3, 4}};

// Indices where x is.
Tensor picks(const Tensor& x) { return there(x, {2, 0, 2, 1}, {4}); }
Tensor grid(const Tensor& x) { return there(x, {0, 2, 1, 1, 0, 0}, {2, 3}); }

std::vector<Row> views() {
  return {
      of_one(
          "reshape", "",
          [](const Tensor& x) {
            return reshape(x, {4, -1});
          },
          kCube),
      of_one(
          "flatten", "", [](const Tensor& x) { return flatten(x, 1); }, kCube),
      of_one(
          "transpose", "", [](const Tensor& x) { return transpose(x, 0, -1); }, kCube),
      of_one("transpose", "t", [](const Tensor& x) { return x.t(); }, {{2, 3}}),
      of_one(
          "permute", "",
          [](const Tensor& x) {
            return permute(x, {2, 0, 1});
          },
          kCube),
      of_one("expand", "",
             [](const Tensor& x) {
               return expand(x, {2, 3, 4});
             },
             {{3, 1}}),
      of_one("squeeze", "", [](const Tensor& x) { return squeeze(x, 1); }, {{2, 1, 3}}),
      of_one("squeeze", "all", [](const Tensor& x) { return squeeze(x); }, {{2, 1, 3}}),
      of_one("unsqueeze", "", [](const Tensor& x) { return unsqueeze(x, 1); }, {{2, 3}}),
      of_one(
          "narrow", "", [](const Tensor& x) { return narrow(x, 1, 1, 2); }, kCube),
      of_one(
          "narrow", "to nothing", [](const Tensor& x) { return narrow(x, 1, 1, 0); }, kCube),
      of_one(
          "slice", "", [](const Tensor& x) { return slice(x, 1, 0, {}, 2); }, kCube),
      of_one(
          "slice", "of one", [](const Tensor& x) { return slice(x, 1, -1, {}, 1'000'000'000'000'000'000); }, kCube),
      of_one(
          "select", "", [](const Tensor& x) { return select(x, 1, -1); }, kCube),
      of_one(
          "select", "[]", [](const Tensor& x) { return x[1][2]; }, kCube),
      of_one(
          "contiguous", "", [](const Tensor& x) { return x.transpose(0, 1).contiguous(); }, kCube),
      of_one(
          "to", "two devices",
          [](const Tensor& x) { return x.to(support::device_at(0)).to(support::device_at(1)).to(x.device()); }, kCube),
  };
}

std::vector<Row> copies() {
  return {
      of_one(
          "pad", "", [](const Tensor& x) { return pad(x, 1, 2, 1); }, kCube),
      of_one("pad", "with a number",
             [](const Tensor& x) {
               return square(pad(x, {1, 0, 2, 1}, 3));
             },
             {{2, 2}}),
      of_one(
          "flip", "",
          [](const Tensor& x) {
            return flip(x, {0, 2});
          },
          kCube),
      of_one("repeat", "",
             [](const Tensor& x) {
               return repeat(x, {2, 1, 3});
             },
             {{2, 2}}),
      of_one("repeat_interleave", "", [](const Tensor& x) { return repeat_interleave(x, 2, 0); }, {{3, 2}}),
      of_one("roll", "", [](const Tensor& x) { return roll(x, 2, 1) * x; }, {{2, 5}}),
      of_one("tril", "", [](const Tensor& x) { return tril(x, 1); }, {{3, 4}}),
      of_one("triu", "", [](const Tensor& x) { return triu(x, -1); }, {{3, 4}}),
      of_one("tril", "and triu", [](const Tensor& x) { return tril(x, 1) * triu(x, -1); }, {{3, 4}}),
      of_all("meshgrid", "",
             [](Inputs in) {
               const auto grids = meshgrid(in);
               return grids[0] * square(grids[1]);
             },
             {{{{3}}, {{2}}}}),
  };
}

std::vector<Row> parts() {
  return {
      of_one("split", "",
             [](const Tensor& x) {
               const auto parts = split(x, 2, 1);
               return parts[0].sum({1}) * parts[1].sum({1});
             },
             {{2, 5}}),
      of_one("split", "one part unused", [](const Tensor& x) { return split(x, 2, 0)[1]; }, {{5, 2}}),
      of_one("split_lengths", "",
             [](const Tensor& x) {
               const std::int64_t lengths[] = {1, 4};
               const auto parts = split_lengths(x, lengths, 1);
               return parts[0] * parts[1];
             },
             {{2, 5}}),
      of_one("chunk", "", [](const Tensor& x) { return chunk(x, 3)[0] * 2 + chunk(x, 3)[2]; }, {{6}}),
      of_one("unbind", "", [](const Tensor& x) { return unbind(x, 1)[2] * unbind(x, 1)[0]; }, {{2, 3}}),
      of_one("unbind", "one part used", [](const Tensor& x) { return unbind(x)[1]; }, {{3, 2}}),
      of_all("cat", "", [](Inputs in) { return square(cat(in, 1)); }, {{{{2, 3}}, {{2, 0}}, {{2, 2}}}}),
      of_all("cat", "one without a gradient", [](Inputs in) { return square(cat(in, -1)); },
             {{{{2, 3}}, {{2, 1}, -2, 2, Elements::constant}}}),
      of_all("stack", "", [](Inputs in) { return square(stack(in, 1)); }, {{{{2, 3}}, {{2, 3}}}}),
  };
}

std::vector<Row> indexing() {
  return {
      of_one("index_select", "0", [](const Tensor& x) { return square(index_select(x, 0, picks(x))); }, {{3, 2}}),
      of_one("index_select", "1", [](const Tensor& x) { return square(index_select(x, 1, picks(x))); }, {{2, 3}}),
      of_all("index_add", "", [](Inputs in) { return square(index_add(in[0], 1, picks(in[0]), in[1])); },
             {{{{2, 3}}, {{2, 4}}}}),
      of_one("gather", "1", [](const Tensor& x) { return square(gather(x, 1, grid(x))); }, {{2, 4}}),
      of_one("gather", "0 of fewer columns", [](const Tensor& x) { return square(gather(x, 0, grid(x))); }, {{3, 5}}),
      of_all("scatter_add", "1", [](Inputs in) { return square(scatter_add(in[0], 1, grid(in[0]), in[1])); },
             {{{{2, 4}}, {{2, 3}}}}),
      of_all("scatter_add", "0 into more columns",
             [](Inputs in) { return square(scatter_add(in[0], 0, grid(in[0]), in[1])); }, {{{{3, 5}}, {{2, 3}}}}),
      with(Gradient::none,
           of_all("one_hot", "", [](Inputs in) { return one_hot(in[0], 4); }, {{{{2, 3}, 0, 4, Elements::whole}}})),
      of_one("cumsum", "0", [](const Tensor& x) { return square(cumsum(x, 0)); }, {{2, 3, 4}, {}}),
      of_one(
          "cumsum", "1", [](const Tensor& x) { return square(cumsum(x, 1)); }, kCube),
      of_one(
          "cumsum", "2", [](const Tensor& x) { return square(cumsum(x, 2)); }, kCube),
      of_one("cumprod", "", [](const Tensor& x) { return cumprod(x, 1); }, {{2, 5}}),
      of_one("sort", "", [](const Tensor& x) { return square(sort(x, 1, true).values) * 3; }, {{3, 5}}),
      with(Gradient::none, of_one("argsort", "", [](const Tensor& x) { return argsort(x, 0); }, {{3, 5}})),
      of_one("topk", "", [](const Tensor& x) { return square(topk(x, 2, 0, false).values); }, {{4, 3}}),
  };
}

}  // namespace

std::vector<Row> arrange_rows() {
  std::vector<Row> rows;
  for (std::vector<Row> more : {views(), copies(), parts(), indexing()})
    rows.insert(rows.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  return rows;
}

}  // namespace op_tests
