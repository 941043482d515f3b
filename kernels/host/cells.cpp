// The cells of recurrent networks: each state element by itself, after the matrix products.
#include "lockstep/kernels/cell_functors.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/widen.h"

namespace lockstep::kernels::host {
namespace {

using functors::GruGates;
using functors::LstmGates;

// Calls f(state element, position of its gates' row, columns, memory) row by row, in pieces. `memory`: `width` numbers
// that a piece may write.
template <class C, class F>
void for_each_row(const View& state, std::int64_t gates, std::int64_t width, F&& f) {
  // Functions take several times as long as memory does.
  constexpr std::int64_t kElementCost = 8 * sizeof(C);
  const std::int64_t rows = state.shape[0], size = state.shape[1];
  for_pieces(rows, piece_rows(rows, gates * size * kElementCost, kPieceBytes),
             [&](std::int64_t begin, std::int64_t end) {
               Scratch scratch;
               C* memory = scratch.take<C>(width);
               for (std::int64_t r = begin; r < end; ++r) f(r * size, r * gates * size, size, memory);
             });
}

template <class C>
void lstm_forward(const LstmCellArgs& a) {
  Scratch scratch;
  const C* all_gates = read<C>(scratch, a.gates);
  const C* all_before = read<C>(scratch, a.c_before);
  const Writer<C> activated(scratch, a.activated), all_h(scratch, a.h), all_c(scratch, a.c);
  const std::int64_t width = activated.data() ? 0 : 4 * a.h.view.shape[1];
  for_each_row<C>(a.h.view, 4, width, [&](std::int64_t at, std::int64_t gates_at, std::int64_t size, C* memory) {
    const C *gates = all_gates + gates_at, *before = all_before + at;
    C *h = all_h.data() + at, *c = all_c.data() + at, *y = width > 0 ? memory : activated.data() + gates_at;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < size; ++j) {
      const LstmGates<C> x =
          functors::lstm_activate(LstmGates<C>{gates[j], gates[size + j], gates[2 * size + j], gates[3 * size + j]});
      functors::lstm_cell(x, before[j], &h[j], &c[j]);
      y[j] = x.i, y[size + j] = x.f, y[2 * size + j] = x.g, y[3 * size + j] = x.o;
    }
  });
  activated.finish(), all_h.finish(), all_c.finish();
}

template <class C>
void lstm_backward(const LstmCellGradArgs& a) {
  Scratch scratch;
  const View& state = a.c.view;
  const std::int64_t width = state.shape[1];
  C* zeros = scratch.take<C>(width);
  std::fill_n(zeros, width, C(0));
  const C *all_dh = read<C>(scratch, a.dh), *all_dc = read<C>(scratch, a.dc);
  const C* all_x = read<C>(scratch, a.activated);
  const C *all_before = read<C>(scratch, a.c_before), *all_c = read<C>(scratch, a.c);
  const Writer<C> dgates(scratch, a.dgates), dc_before(scratch, a.dc_before);
  for_each_row<C>(state, 4, width, [&](std::int64_t at, std::int64_t gates_at, std::int64_t size, C* unused) {
    const C *dh = all_dh ? all_dh + at : zeros, *dc = all_dc ? all_dc + at : zeros;
    const C *x = all_x + gates_at, *before = all_before + at, *c = all_c + at;
    C *y = dgates.data() + gates_at, *dbefore = dc_before.data() ? dc_before.data() + at : unused;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < size; ++j) {
      const LstmGates<C> d =
          functors::lstm_cell_grad(dh[j], dc[j], LstmGates<C>{x[j], x[size + j], x[2 * size + j], x[3 * size + j]},
                                   before[j], c[j], &dbefore[j]);
      y[j] = d.i, y[size + j] = d.f, y[2 * size + j] = d.g, y[3 * size + j] = d.o;
    }
  });
  dgates.finish(), dc_before.finish();
}

template <class C>
void gru_forward(const GruCellArgs& a) {
  Scratch scratch;
  const C *all_input = read<C>(scratch, a.input), *all_hidden = read<C>(scratch, a.hidden);
  const C* all_before = read<C>(scratch, a.h_before);
  const Writer<C> activated(scratch, a.activated), all_h(scratch, a.h);
  const std::int64_t width = activated.data() ? 0 : 3 * a.h.view.shape[1];
  for_each_row<C>(a.h.view, 3, width, [&](std::int64_t at, std::int64_t gates_at, std::int64_t size, C* memory) {
    const C *input = all_input + gates_at, *hidden = all_hidden + gates_at, *before = all_before + at;
    C *h = all_h.data() + at, *y = width > 0 ? memory : activated.data() + gates_at;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < size; ++j) {
      const GruGates<C> x = functors::gru_activate(GruGates<C>{input[j], input[size + j], input[2 * size + j]},
                                                   GruGates<C>{hidden[j], hidden[size + j], hidden[2 * size + j]});
      h[j] = functors::gru_cell(x, before[j]);
      y[j] = x.r, y[size + j] = x.z, y[2 * size + j] = x.n;
    }
  });
  activated.finish(), all_h.finish();
}

template <class C>
void gru_backward(const GruCellGradArgs& a) {
  Scratch scratch;
  const C *all_dh = read<C>(scratch, a.dh), *all_x = read<C>(scratch, a.activated);
  const C *all_hidden = read<C>(scratch, a.hidden), *all_before = read<C>(scratch, a.h_before);
  const Writer<C> dinput(scratch, a.dinput), dhidden(scratch, a.dhidden), dh_before(scratch, a.dh_before);
  const std::int64_t width = a.dh.view.shape[1];
  for_each_row<C>(a.dh.view, 3, width, [&](std::int64_t at, std::int64_t gates_at, std::int64_t size, C* unused) {
    const C *dh = all_dh + at, *x = all_x + gates_at, *hidden_n = all_hidden + gates_at + 2 * size;
    const C* before = all_before + at;
    C *di = dinput.data() + gates_at, *dg = dhidden.data() + gates_at;
    C* dbefore = dh_before.data() ? dh_before.data() + at : unused;
    LOCKSTEP_INDEPENDENT
    for (std::int64_t j = 0; j < size; ++j) {
      GruGates<C> input, hidden;
      functors::gru_cell_grad(dh[j], GruGates<C>{x[j], x[size + j], x[2 * size + j]}, hidden_n[j], before[j], &input,
                              &hidden, &dbefore[j]);
      di[j] = input.r, di[size + j] = input.z, di[2 * size + j] = input.n;
      dg[j] = hidden.r, dg[size + j] = hidden.z, dg[2 * size + j] = hidden.n;
    }
  });
  dinput.finish(), dhidden.finish(), dh_before.finish();
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const LstmCellArgs& args) {
  check_floating(LstmCellArgs::kName, args.gates.view.dtype, stream);
  dispatch_compute(args.gates.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, lstm_forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const LstmCellGradArgs& args) {
  check_floating(LstmCellGradArgs::kName, args.c.view.dtype, stream);
  dispatch_compute(args.c.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, lstm_backward<C>); });
}
void Kernels::enqueue(const Stream& stream, const GruCellArgs& args) {
  check_floating(GruCellArgs::kName, args.input.view.dtype, stream);
  dispatch_compute(args.input.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, gru_forward<C>); });
}
void Kernels::enqueue(const Stream& stream, const GruCellGradArgs& args) {
  check_floating(GruCellGradArgs::kName, args.dh.view.dtype, stream);
  dispatch_compute(args.dh.view.dtype, [&]<class C>(Type<C>) { launch(stream, args, gru_backward<C>); });
}

}  // namespace lockstep::kernels::host
