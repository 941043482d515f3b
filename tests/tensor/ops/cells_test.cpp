// The cells of recurrent networks: what they compute, their derivatives, what they refuse.
#include "support/compare.h"
#include "tensor/ops/support.h"

using namespace op_tests;
using support::difference;

TEST_CASE("cells compute what their names say") {
  const Tensor gates = random_leaf({3, 8}, 1), c = random_leaf({3, 2}, 2);
  const std::vector<Tensor> g = chunk(gates, 4, 1);
  const LstmState got = lstm_cell(gates, c);
  const Tensor want = sigmoid(g[1]) * c + sigmoid(g[0]) * tanh(g[2]);
  CHECK(difference(got.c, want) < 1e-14);
  CHECK(difference(got.h, sigmoid(g[3]) * tanh(want)) < 1e-14);

  const Tensor input = random_leaf({3, 6}, 3), hidden = random_leaf({3, 6}, 4);
  const std::vector<Tensor> x = chunk(input, 3, 1), y = chunk(hidden, 3, 1);
  const Tensor r = sigmoid(x[0] + y[0]), z = sigmoid(x[1] + y[1]), n = tanh(x[2] + r * y[2]);
  CHECK(difference(gru_cell(input, hidden, c), (1 - z) * n + z * c) < 1e-14);
}

TEST_CASE("derivatives of the cells of recurrent networks") {
  const std::vector<Tensor> lstm{random_leaf({2, 12}, 1), random_leaf({2, 3}, 2)};
  check_gradients(
      "lstm",
      [](const std::vector<Tensor>& in) {
        return cat({lstm_cell(in[0], in[1]).h, lstm_cell(in[0], in[1]).c});
      },
      lstm);
  check_gradients(
      "lstm, h and c of one step",
      [](const std::vector<Tensor>& in) {
        const LstmState s = lstm_cell(in[0], in[1]);
        return s.h * s.c;
      },
      lstm);
  check_gradients(
      "lstm, h alone", [](const std::vector<Tensor>& in) { return lstm_cell(in[0], in[1]).h; }, lstm);
  check_gradients(
      "lstm, c alone", [](const std::vector<Tensor>& in) { return lstm_cell(in[0], in[1]).c; }, lstm);
  const Tensor fixed = random_leaf({2, 3}, 2).detach();
  check_gradients("lstm, a fixed state", [&](const std::vector<Tensor>& in) { return lstm_cell(in[0], fixed).h; },
                  {random_transposed_leaf({2, 12}, 1)});
  const Function gru = [](const std::vector<Tensor>& in) { return gru_cell(in[0], in[1], in[2]); };
  check_gradients("gru", gru, {random_leaf({2, 9}, 1), random_leaf({2, 9}, 2), random_leaf({2, 3}, 3)});
  check_gradients("gru, a fixed state", [&](const std::vector<Tensor>& in) { return gru_cell(in[0], in[1], fixed); },
                  {random_transposed_leaf({2, 9}, 1), random_leaf({2, 9}, 2)});
}

TEST_CASE("cells refuse gates that do not fit the state") {
  CHECK_THROWS_WITH(lstm_cell(zeros({2, 8}), zeros({2, 3})), Contains("[N, 4 H]"));
  CHECK_THROWS_WITH(lstm_cell(zeros({3, 8}), zeros({2, 2})), Contains("[N, 4 H]"));
  CHECK_THROWS_WITH(gru_cell(zeros({2, 6}), zeros({2, 8}), zeros({2, 2})), Contains("[N, 3 H]"));
  CHECK_THROWS_WITH(gru_cell(zeros({2, 6}), zeros({2, 6}), zeros({2, 2}, {.dtype = DType::f64})),
                    Contains("one floating"));
}
