// Values: every collective with every dtype and reduction, exactly.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/tensor/ops/factory.h"
#include "parallel/comm/conformance.h"

namespace conformance {
namespace {

using Kind = Collective::Kind;
using Doubles = std::vector<double>;

constexpr Kind kKinds[] = {Kind::all_reduce, Kind::broadcast, Kind::reduce,         Kind::all_gather,
                           Kind::gather,     Kind::scatter,   Kind::reduce_scatter, Kind::all_to_all};
constexpr RedOp kReductions[] = {RedOp::sum, RedOp::avg, RedOp::max, RedOp::min, RedOp::product};

struct Call {
  Kind kind;
  DType dtype;
  RedOp reduction;
  std::int64_t count;
  int root;
  bool in_place;
};

std::string describe(const Call& call) {
  return cat(to_string(call.kind), '(', to_string(call.reduction), ", ", call.dtype, ", ", call.count, ", root ",
             call.root, call.in_place ? ", in place): " : "): ");
}

// Element i of part `part` of rank's input: an integer that the dtype holds, as its reductions over five ranks are.
double element(const Call& call, int rank, int part, std::int64_t i) {
  const std::int64_t x = i + 3 * part;
  const bool wide = size_of(call.dtype) >= 4;
  if (call.dtype == DType::boolean) return (x + rank * (x % 5)) % 3 == 0;
  if (call.reduction == RedOp::product && Collective{.kind = call.kind}.reduces())
    return static_cast<double>(1 + (x + rank) % (call.dtype == DType::i8 ? 2 : 3));
  if (call.reduction == RedOp::avg)
    return static_cast<double>(60 * ((wide ? x % 9000 : x + rank) % (wide ? 9000 : 4) + (wide ? rank : 0)));
  if (wide) return static_cast<double>(100'000 * (rank + 1) + x);  // distinct per rank and element
  return static_cast<double>((7 * x + 11 * rank + x / 50) % 50 - (call.dtype == DType::i8 ? 25 : 0));
}

double reduced(const Call& call, int ranks, int part, std::int64_t i) {
  double result = element(call, 0, part, i);
  const bool is_bool = call.dtype == DType::boolean;
  for (int r = 1; r < ranks; ++r) {
    const double next = element(call, r, part, i);
    switch (call.reduction) {
      case RedOp::sum:
        result = is_bool ? std::max(result, next) : result + next;
        break;
      case RedOp::avg:
        result += next;
        break;
      case RedOp::product:
        result *= next;
        break;
      case RedOp::max:
        result = std::max(result, next);
        break;
      case RedOp::min:
        result = std::min(result, next);
        break;
    }
  }
  return call.reduction == RedOp::avg ? result / ranks : result;
}

// A tensor in the middle of a larger one whose other elements must stay.
struct Guarded {
  static constexpr std::int64_t kGuard = 67;
  Tensor whole, inner;

  Guarded(const Doubles& values, DType dtype, Device device) {
    Doubles all(values.size() + 2 * kGuard, 1);
    std::copy(values.begin(), values.end(), all.begin() + kGuard);
    whole = tensor_of(all, dtype, device);
    inner = whole.narrow(0, kGuard, static_cast<std::int64_t>(values.size()));
  }
  std::string differs(const Doubles& expected) const {
    Doubles all(expected.size() + 2 * kGuard, 1);
    std::copy(expected.begin(), expected.end(), all.begin() + kGuard);
    const std::string difference = conformance::differs(whole, all);
    return difference.empty() ? "" : cat(difference, " (the first of the tensor is ", kGuard, ")");
  }
};

int input_parts(const Call& call, int ranks) {
  const bool many = call.kind == Kind::scatter || call.kind == Kind::reduce_scatter || call.kind == Kind::all_to_all;
  return many ? ranks : 1;
}
int output_parts(const Call& call, int ranks) {
  const bool many = call.kind == Kind::all_gather || call.kind == Kind::gather || call.kind == Kind::all_to_all;
  return many ? ranks : 1;
}

Doubles input_of(const Call& call, int ranks, int rank) {
  Doubles values;
  for (int part = 0; part < input_parts(call, ranks); ++part)
    for (std::int64_t i = 0; i < call.count; ++i) values.push_back(element(call, rank, part, i));
  return values;
}

Doubles output_of(const Call& call, int ranks, int rank) {
  Doubles values;
  for (int part = 0; part < output_parts(call, ranks); ++part) {
    for (std::int64_t i = 0; i < call.count; ++i) {
      switch (call.kind) {
        case Kind::all_reduce:
        case Kind::reduce:
          values.push_back(reduced(call, ranks, 0, i));
          break;
        case Kind::reduce_scatter:
          values.push_back(reduced(call, ranks, rank, i));
          break;
        case Kind::broadcast:
          values.push_back(element(call, call.root, 0, i));
          break;
        case Kind::scatter:
          values.push_back(element(call, call.root, rank, i));
          break;
        case Kind::all_to_all:
          values.push_back(element(call, part, rank, i));
          break;
        default:
          values.push_back(element(call, part, 0, i));
      }
    }
  }
  return values;
}

void perform(Communicator& comm, const Call& call, const Tensor& input, const Tensor& output) {
  switch (call.kind) {
    case Kind::all_reduce:
      return comm.all_reduce(input, output, call.reduction);
    case Kind::reduce:
      return comm.reduce(input, output, call.root, call.reduction);
    case Kind::reduce_scatter:
      return comm.reduce_scatter(input, output, call.reduction);
    case Kind::broadcast:
      return comm.broadcast(comm.rank() == call.root ? input : output, call.root);
    case Kind::all_gather:
      return comm.all_gather(input, output);
    case Kind::gather:
      return comm.gather(input, output, call.root);
    case Kind::scatter:
      return comm.scatter(input, output, call.root);
    default:
      return comm.all_to_all(input, output);
  }
}

// The smaller of input and output is this rank's part of the larger.
std::string in_place(Communicator& comm, const Call& call) {
  const int ranks = comm.size(), rank = comm.rank();
  const Doubles input = input_of(call, ranks, rank);
  const std::int64_t own = rank * call.count;
  if (call.kind == Kind::all_reduce || call.kind == Kind::reduce) {
    const Guarded both(input, call.dtype, comm.device());
    perform(comm, call, both.inner, both.inner);
    const bool written = call.kind == Kind::all_reduce || rank == call.root;
    return both.differs(written ? output_of(call, ranks, rank) : input);
  }
  if (output_parts(call, ranks) == ranks) {  // all_gather, gather
    if (call.kind == Kind::gather && rank != call.root) {
      const Guarded part(input, call.dtype, comm.device());
      perform(comm, call, part.inner, Tensor());
      return part.differs(input);
    }
    Doubles before(static_cast<std::size_t>(ranks * call.count), 1);
    std::copy(input.begin(), input.end(), before.begin() + own);
    const Guarded output(before, call.dtype, comm.device());
    perform(comm, call, output.inner.narrow(0, own, call.count), output.inner);
    return output.differs(output_of(call, ranks, rank));
  }
  // reduce_scatter, scatter: the other parts stay as they are.
  if (call.kind == Kind::scatter && rank != call.root) {
    const Guarded part(Doubles(static_cast<std::size_t>(call.count), 1), call.dtype, comm.device());
    perform(comm, call, Tensor(), part.inner);
    return part.differs(output_of(call, ranks, rank));
  }
  const Guarded all(input, call.dtype, comm.device());
  perform(comm, call, all.inner, all.inner.narrow(0, own, call.count));
  Doubles expected = input;
  const Doubles output = output_of(call, ranks, rank);
  std::copy(output.begin(), output.end(), expected.begin() + own);
  return all.differs(expected);
}

std::string apart(Communicator& comm, const Call& call) {
  const int ranks = comm.size(), rank = comm.rank();
  const bool is_root = rank == call.root;
  const bool reads = (call.kind != Kind::broadcast && call.kind != Kind::scatter) || is_root;
  const bool writes =
      call.kind == Kind::broadcast ? !is_root : (call.kind != Kind::reduce && call.kind != Kind::gather) || is_root;
  const Doubles values = input_of(call, ranks, rank),
                before(static_cast<std::size_t>(output_parts(call, ranks) * call.count), 1);
  const Guarded input(values, call.dtype, comm.device()), output(before, call.dtype, comm.device());
  perform(comm, call, reads ? input.inner : Tensor(), writes ? output.inner : Tensor());
  const std::string changed = input.differs(values);
  if (!changed.empty()) return "the input has changed: " + changed;
  return output.differs(writes ? output_of(call, ranks, rank) : before);
}

std::string attempt(Communicator& comm, Call call) {
  for (const bool same : {false, true}) {
    call.in_place = same;
    if (same && (call.kind == Kind::broadcast || call.kind == Kind::all_to_all)) continue;
    const std::string wrong = same ? in_place(comm, call) : apart(comm, call);
    if (!wrong.empty()) return describe(call) + wrong;
  }
  return "";
}

}  // namespace

void every_collective(const Ranks& ranks) {
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [&](Communicator& comm) -> std::string {
      int turn = 0;
      for (const Kind kind : kKinds) {
        for (const DType dtype : ranks.dtypes) {
          if (watched() && dtype != DType::f32 && dtype != DType::bf16) continue;
          const auto page = static_cast<std::int64_t>(4096 / size_of(dtype));
          for (const RedOp reduction : kReductions) {
            if (reduction == RedOp::avg && !is_floating(dtype)) continue;
            if (!Collective{.kind = kind}.reduces() && reduction != RedOp::sum) continue;
            for (const std::int64_t count :
                 {std::int64_t{0}, std::int64_t{1}, std::int64_t{7}, page - 1, page, page + 1}) {
              const std::string wrong = attempt(comm, {kind, dtype, reduction, count, turn++ % comm.size(), false});
              if (!wrong.empty()) return wrong;
            }
          }
        }
      }
      return "";
    });
  }
}

void large_messages(const Ranks& ranks) {
#ifdef __SANITIZE_THREAD__  // which looks at each number
  static constexpr std::int64_t kCounts[] = {16'384, 40'007};
#else
  static constexpr std::int64_t kCounts[] = {16'384, 90'007};
#endif
  for (const int n : counts(ranks)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      for (const Kind kind : kKinds) {
        for (const std::int64_t count : kCounts) {
          const std::string wrong = attempt(comm, {kind, DType::f32, RedOp::sum, count, comm.size() - 1, false});
          if (!wrong.empty()) return wrong;
        }
      }
      return "";
    });
  }
}

void order_of_ranks(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    for (const std::int64_t count : {5, 5'000, 100'003}) {
      expect_all(ranks, n, [&](Communicator& comm) -> std::string {
        // Values of very different size: another order, or another grouping, gives other sums.
        const auto value = [](int rank, std::int64_t i) {
          const auto mixed =
              static_cast<std::uint32_t>(i + 1) * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u;
          return static_cast<float>(mixed % 1000 + 1) * std::ldexp(1.0f, static_cast<int>(mixed >> 12) % 40 - 20) *
                 (mixed & 1 ? 1.0f : -1.0f);
        };
        Doubles mine, in_order;
        for (std::int64_t i = 0; i < count; ++i) {
          mine.push_back(value(comm.rank(), i));
          float sum = value(0, i);
          for (int r = 1; r < comm.size(); ++r) sum += value(r, i);
          in_order.push_back(sum);
        }
        const Tensor x = tensor_of(mine, DType::f32, comm.device());
        comm.all_reduce(x);
        if (ranks.rank_order) {
          const std::string wrong = differs(x, in_order);
          if (!wrong.empty()) return wrong;
        }
        // The same bits everywhere.
        const std::vector<float> got = x.to_vector<float>();
        const std::string bits(reinterpret_cast<const char*>(got.data()), std::min<std::size_t>(got.size() * 4, 4096));
        for (const std::string& other : comm.all_gather_bytes(bits))
          if (other != bits) return "the ranks have different bits";
        return "";
      });
    }
  }
}

void rounds_once(const Ranks& ranks) {
  if (!ranks.rank_order) return;
  for (const int n : counts(ranks, 3)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      for (const std::int64_t count : {3, 9'001}) {
        // 1 + a quarter of a unit in the last place, twice or more: rounded at every step it would stay 1.
        const double f16_step = 0x1p-12 * 2, bf16_step = 0x1p-9 * 2;
        for (const auto& [dtype, step] : {std::pair{DType::f16, f16_step}, std::pair{DType::bf16, bf16_step}}) {
          const double mine = comm.rank() == 0 ? 1 : step * 0.75;
          const Tensor x = tensor_of(Doubles(static_cast<std::size_t>(count), mine), dtype, comm.device());
          comm.all_reduce(x);
          const float sum = 1 + static_cast<float>(comm.size() - 1) * static_cast<float>(step * 0.75);
          const double expected = dtype == DType::f16 ? float(Half(sum)) : float(BFloat16(sum));
          const std::string wrong = differs(x, Doubles(static_cast<std::size_t>(count), expected));
          if (!wrong.empty()) return cat(dtype, ": ", wrong);
        }
      }
      return "";
    });
  }
}

void many_in_a_row(const Ranks& ranks) {
  for (const int n : counts(ranks, 2)) {
    expect_all(ranks, n, [](Communicator& comm) -> std::string {
      constexpr std::int64_t kElements = 20'000;
      std::uint32_t random = 12345;  // the same on all ranks
      const auto next = [&](std::uint32_t below) {
        random = random * 1664525u + 1013904223u;
        return (random >> 8) % below;
      };
      // What each rank's tensor is, computed by every rank beside the collectives.
      std::vector<Doubles> expected(static_cast<std::size_t>(comm.size()), Doubles(kElements));
      for (std::size_t r = 0; r < expected.size(); ++r)
        for (std::size_t i = 0; i < kElements; ++i) expected[r][i] = static_cast<double>((i * 31 + r * 977) % 1009);
      Doubles& mine = expected[static_cast<std::size_t>(comm.rank())];
      const Tensor x = tensor_of(mine, DType::i64, comm.device());
      // Not waited for in between: each works on what the one before made.
      for (int round = 0; round < (watched() ? 150 : 400); ++round) {
        const std::size_t count = round % 9 == 0 ? next(kElements) : next(600), begin = next(400) % (kElements - count);
        const std::size_t root = next(static_cast<std::uint32_t>(comm.size()));
        const Tensor part = x.narrow(0, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(count));
        const std::uint32_t kind = next(4);
        for (std::size_t i = begin; i < begin + count; ++i) {
          double low = mine[i], high = mine[i];
          for (const Doubles& its : expected) low = std::min(low, its[i]), high = std::max(high, its[i]);
          for (std::size_t r = 0; r < expected.size(); ++r) {
            if (kind == 0) expected[r][i] = high;
            if (kind == 1 && r != root) expected[r][i] = expected[root][i];
            if (kind == 2 && r == root) expected[r][i] = low;
          }
        }
        if (kind == 0) comm.all_reduce(part, RedOp::max);
        if (kind == 1) comm.broadcast(part, static_cast<int>(root));
        if (kind == 2) comm.reduce(part, part, static_cast<int>(root), RedOp::min);
        if (kind == 3) {  // keeps the ranks' values apart
          Tensor(x).add_(comm.rank());
          for (std::size_t r = 0; r < expected.size(); ++r)
            for (double& value : expected[r]) value += static_cast<double>(r);
        }
      }
      return differs(x, mine);
    });
  }
}

}  // namespace conformance
