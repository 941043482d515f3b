// The cells of recurrent networks against the formulas, one element at a time.
#include <cmath>

#include "support/catch.h"
#include "support/views.h"

using namespace support;

namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct CellSize {
  std::int64_t batch, hidden;
};
constexpr std::pair<CellSize, Layout> kCells[] = {{{1, 1}, Layout::contiguous},  {{3, 5}, Layout::contiguous},
                                                  {{2, 64}, Layout::contiguous}, {{2, 64}, Layout::shifted},
                                                  {{5, 33}, Layout::contiguous}, {{0, 4}, Layout::contiguous},
                                                  {{4, 0}, Layout::contiguous}};

// Element j of gate k of a row, in [batch, gates * hidden].
std::int64_t gate(const CellSize& s, std::int64_t row, int gates, int k, std::int64_t j) {
  return row * gates * s.hidden + k * s.hidden + j;
}

void check_close(const TestTensor& got, const std::vector<double>& want, const char* what) {
  const std::string error = mismatch(
      got, [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, 32, 32);
  if (!error.empty()) FAIL_CHECK(what << ": " << error);
}

std::vector<double> zeros_like(const TestTensor& t) { return std::vector<double>(static_cast<std::size_t>(t.count())); }
double& at(std::vector<double>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; }

}  // namespace

TEST_CASE("lstm_cell and its gradient follow the formulas", "[cells]") {
  for (const DType dtype : kFloatingDTypes)
    for (const auto& [s, layout] : kCells) {
      const Shape state{s.batch, s.hidden}, gates_shape{s.batch, 4 * s.hidden};
      TestTensor gates(dtype, gates_shape, layout), before(dtype, state), activated(dtype, gates_shape);
      TestTensor h(dtype, state), c(dtype, state), plain_h(dtype, state), plain_c(dtype, state);
      gates.fill_random(1), before.fill_random(2);
      run(LstmCellArgs{gates.in(), before.in(), activated.out(), h.out(), c.out()});
      run(LstmCellArgs{gates.in(), before.in(), {}, plain_h.out(), plain_c.out()});
      CHECK(plain_h.values() == h.values());
      CHECK(plain_c.values() == c.values());

      TestTensor dh(dtype, state, layout), dc(dtype, state), dgates(dtype, gates_shape), dbefore(dtype, state);
      dh.fill_random(3), dc.fill_random(4);
      run(LstmCellGradArgs{dh.in(), dc.in(), activated.in(), before.in(), c.in(), dgates.out(), dbefore.out()});
      // What is absent is zero.
      TestTensor zero(dtype, state), got(dtype, gates_shape), want(dtype, gates_shape), want_before(dtype, state);
      zero.fill([](std::int64_t) { return 0.0; });
      for (const bool of_h : {true, false}) {
        const In h_in = of_h ? dh.in() : zero.in(), c_in = of_h ? zero.in() : dc.in();
        run(LstmCellGradArgs{h_in, c_in, activated.in(), before.in(), c.in(), want.out(), want_before.out()});
        run(LstmCellGradArgs{
            of_h ? h_in : In{}, of_h ? In{} : c_in, activated.in(), before.in(), c.in(), got.out(), {}});
        CHECK(got.values() == want.values());
      }

      auto want_h = zeros_like(h), want_c = zeros_like(c), want_dgates = zeros_like(gates),
           want_dbefore = zeros_like(h);
      for (std::int64_t row = 0; row < s.batch; ++row)
        for (std::int64_t j = 0; j < s.hidden; ++j) {
          const std::int64_t n = row * s.hidden + j;
          const auto pre = [&](int k) { return gates[gate(s, row, 4, k, j)]; };
          const double i = sigmoid(pre(0)), f = sigmoid(pre(1)), g = std::tanh(pre(2)), o = sigmoid(pre(3));
          const double next = f * before[n] + i * g, t = std::tanh(next);
          at(want_c, n) = next;
          at(want_h, n) = o * t;
          const double into = dc[n] + dh[n] * o * (1 - t * t);
          at(want_dgates, gate(s, row, 4, 0, j)) = into * g * i * (1 - i);
          at(want_dgates, gate(s, row, 4, 1, j)) = into * before[n] * f * (1 - f);
          at(want_dgates, gate(s, row, 4, 2, j)) = into * i * (1 - g * g);
          at(want_dgates, gate(s, row, 4, 3, j)) = dh[n] * t * o * (1 - o);
          at(want_dbefore, n) = into * f;
        }
      check_close(h, want_h, "h"), check_close(c, want_c, "c");
      check_close(dgates, want_dgates, "dgates"), check_close(dbefore, want_dbefore, "dc_before");
    }
}

TEST_CASE("gru_cell and its gradient follow the formulas", "[cells]") {
  for (const DType dtype : kFloatingDTypes)
    for (const auto& [s, layout] : kCells) {
      const Shape state{s.batch, s.hidden}, gates_shape{s.batch, 3 * s.hidden};
      TestTensor input(dtype, gates_shape, layout), hidden(dtype, gates_shape), before(dtype, state);
      TestTensor activated(dtype, gates_shape), h(dtype, state), plain(dtype, state);
      input.fill_random(1), hidden.fill_random(2), before.fill_random(3);
      run(GruCellArgs{input.in(), hidden.in(), before.in(), activated.out(), h.out()});
      run(GruCellArgs{input.in(), hidden.in(), before.in(), {}, plain.out()});
      CHECK(plain.values() == h.values());

      TestTensor dh(dtype, state, layout), dinput(dtype, gates_shape), dhidden(dtype, gates_shape),
          dbefore(dtype, state);
      dh.fill_random(4);
      run(GruCellGradArgs{dh.in(), activated.in(), hidden.in(), before.in(), dinput.out(), dhidden.out(),
                          dbefore.out()});

      auto want_h = zeros_like(h), want_dinput = zeros_like(input), want_dhidden = zeros_like(input),
           want_dbefore = zeros_like(h);
      for (std::int64_t row = 0; row < s.batch; ++row)
        for (std::int64_t j = 0; j < s.hidden; ++j) {
          const std::int64_t at_n = row * s.hidden + j;
          const auto a = [&](int k) { return input[gate(s, row, 3, k, j)]; };
          const auto b = [&](int k) { return hidden[gate(s, row, 3, k, j)]; };
          const double r = sigmoid(a(0) + b(0)), z = sigmoid(a(1) + b(1)), n = std::tanh(a(2) + r * b(2));
          at(want_h, at_n) = (1 - z) * n + z * before[at_n];
          const double dn = dh[at_n] * (1 - z) * (1 - n * n), dr = dn * b(2) * r * (1 - r);
          const double dz = dh[at_n] * (before[at_n] - n) * z * (1 - z);
          const double of_input[] = {dr, dz, dn}, of_hidden[] = {dr, dz, dn * r};
          for (int k = 0; k < 3; ++k) {
            at(want_dinput, gate(s, row, 3, k, j)) = of_input[k];
            at(want_dhidden, gate(s, row, 3, k, j)) = of_hidden[k];
          }
          at(want_dbefore, at_n) = dh[at_n] * z;
        }
      check_close(h, want_h, "h"), check_close(dinput, want_dinput, "dinput");
      check_close(dhidden, want_dhidden, "dhidden"), check_close(dbefore, want_dbefore, "dh_before");
    }
}
