// Reductions. The order of every sum is fixed by the shapes and strides alone: lanes over contiguous elements, joined
// as a tree; long runs are halved first, so that errors grow with the logarithm of the length. Floating-point sums
// accumulate in double, integer sums in 64 bits. The walk over memory is compiled once; what depends on the operation
// and the dtype is a handful of functions over contiguous elements.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "lockstep/kernels/common/loop_nest.h"
#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/fold.h"
#include "lockstep/kernels/host/gather.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/lines.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/host/streaming.h"
#include "lockstep/kernels/host/vector.h"

namespace lockstep::kernels::host {
namespace {

using functors::Compute;

constexpr std::int64_t kStrip = 2048;  // columns that are reduced together
constexpr std::int64_t kRows = 8;      // rows of a strip that are taken in together: accumulators stay in registers
// Rows, a multiple of kRows, after which a strip is added to the totals, for the accuracy of tall sums.
constexpr std::int64_t kFold = 1024;
constexpr std::int64_t kWidest = 8;        // bytes of an element or accumulator
constexpr std::int64_t kShort = 16;        // elements of a row, at most, for rows to be reduced side by side
constexpr std::int64_t kSideBySide = 128;  // rows, at most
// What is divided among threads where results are few, and each is of many elements: columns of a piece, at least, and
// elements of a part of a long row.
constexpr std::int64_t kFewResults = 16, kLeastColumns = 1024, kPart = std::int64_t{1} << 16;

// The functions of an operation J on elements L (float for f16 and bf16) with accumulators A and results T.
struct Reduction {
  void (*start)(void* accumulators, std::int64_t count);
  // Of rows of `count` elements, at most kRun, that begin `step` elements apart.
  void (*run)(const void* x, std::int64_t count, std::int64_t step, std::int64_t rows, void* accumulators);
  // One element to each accumulator of a row, of each of kRows rows. `ahead`: how many elements behind them there are
  // others to fetch; 0: none.
  void (*add_row)(const void* const* row, std::int64_t count, std::ptrdiff_t ahead, void* accumulators);
  void (*add_rows)(const void* const* rows, std::int64_t count, std::ptrdiff_t ahead, void* accumulators);
  void (*join)(const void* from, std::int64_t count, void* accumulators);
  void (*finish)(const void* accumulators, std::int64_t count, std::int64_t elements, void* out, std::int64_t stride);
  std::int64_t accumulator_bytes;
};

template <class J, class A>
void start(void* accumulators, std::int64_t count) {
  std::fill_n(static_cast<A*>(accumulators), count, J::start());
}

template <class J, class A>
void join(const void* from, std::int64_t count, void* accumulators) {
  auto* a = static_cast<A*>(accumulators);
  LOCKSTEP_INDEPENDENT
  for (std::int64_t i = 0; i < count; ++i) a[i] = J::join(a[i], static_cast<const A*>(from)[i]);
}

template <class J, class L, class A>
void run(const void* x, std::int64_t count, std::int64_t step, std::int64_t rows, void* accumulators) {
  for (std::int64_t r = 0; r < rows; ++r)
    static_cast<A*>(accumulators)[r] = fold<J, L, A>(static_cast<const L*>(x) + r * step, count);
}

template <class J, class L, class A, std::int64_t kCount>
void add_rows(const void* const* rows, std::int64_t count, [[maybe_unused]] std::ptrdiff_t ahead, void* accumulators) {
  auto* a = static_cast<A*>(accumulators);
  const L* x[std::size_t{kCount}];
  for (std::int64_t r = 0; r < kCount; ++r) x[r] = static_cast<const L*>(rows[r]);
  std::int64_t i = 0;
  if constexpr (Sums<J> && std::is_same_v<L, float> && std::is_same_v<A, double>) {
    constexpr std::int64_t kLine = 64 / sizeof(float);
    for (; i + kWidth<double> <= count; i += kWidth<double>) {
      // Each row is a new stream to the processor, which would have to wait for its first lines.
      if (ahead != 0 && i % kLine == 0)
        for (std::int64_t r = 0; r < kCount; ++r) __builtin_prefetch(x[r] + i + ahead);
      Vector<double> total = load(a + i);
      for (std::int64_t r = 0; r < kCount; ++r) total = J::take(total, widened(x[r] + i));
      store<double>(total, a + i);
    }
  }
  LOCKSTEP_INDEPENDENT
  for (; i < count; ++i) {
    A total = a[i];
    for (std::int64_t r = 0; r < kCount; ++r) total = J::take(total, static_cast<A>(x[r][i]));
    a[i] = total;
  }
}

enum class Finish { plain, mean, root };

template <class A, class T, Finish kFinish>
void finish(const void* accumulators, std::int64_t count, std::int64_t elements, void* out, std::int64_t stride) {
  const auto* a = static_cast<const A*>(accumulators);
  for (std::int64_t i = 0; i < count; ++i) {
    A value = a[i];
    if constexpr (kFinish == Finish::mean) value /= static_cast<A>(elements);
    if constexpr (kFinish == Finish::root) value = std::sqrt(value);
    static_cast<T*>(out)[i * stride] = static_cast<T>(static_cast<Compute<T>>(value));
  }
}

template <template <class> class J, class T, class A, Finish kFinish = Finish::plain>
Reduction make_reduction() {
  using L = Compute<T>;
  return {start<J<A>, A>,        run<J<A>, L, A>, add_rows<J<A>, L, A, 1>, add_rows<J<A>, L, A, kRows>, join<J<A>, A>,
          finish<A, T, kFinish>, sizeof(A)};
}

template <class T>
bool find_reduction(ReduceOp op, Reduction& found) {
  using L = Compute<T>;
  if constexpr (std::is_same_v<T, bool>) {
    switch (op) {
      case ReduceOp::max:
      case ReduceOp::any:
        return found = make_reduction<Larger, T, L>(), true;
      case ReduceOp::min:
      case ReduceOp::all:
        return found = make_reduction<Smaller, T, L>(), true;
      default:
        return false;
    }
  } else {
    using Wide = std::conditional_t<std::is_floating_point_v<L>, double, std::int64_t>;
    switch (op) {
      case ReduceOp::sum:
        return found = make_reduction<Add, T, Wide>(), true;
      case ReduceOp::prod:
        return found = make_reduction<Multiply, T, Wide>(), true;
      case ReduceOp::max:
        return found = make_reduction<Larger, T, L>(), true;
      case ReduceOp::min:
        return found = make_reduction<Smaller, T, L>(), true;
      case ReduceOp::mean:
        if constexpr (std::is_floating_point_v<L>) return found = make_reduction<Add, T, Wide, Finish::mean>(), true;
        return false;
      case ReduceOp::norm:
        if constexpr (std::is_floating_point_v<L>)
          return found = make_reduction<AddSquares, T, Wide, Finish::root>(), true;
        return false;
      default:
        return false;
    }
  }
}

// Contiguous elements as the functions want them: in place or gathered. Each piece has its own.
class Elements {
 public:
  explicit Elements(const View& in) : in_(in), mover_(find_mover(in.dtype, HalfAs::floats)) {}

  const void* contiguous(std::int64_t offset, std::int64_t stride, std::int64_t count) {
    if (in_place(stride)) return at(offset);
    mover_.gather(at(offset), stride, 0, gathered_, {1, count});
    return gathered_;
  }
  bool in_place(std::int64_t stride) const { return stride == 1 && mover_.buffer_bytes == size_of(in_.dtype); }
  const void* at(std::int64_t offset) const {
    return static_cast<const std::byte*>(in_.data) + offset * static_cast<std::int64_t>(size_of(in_.dtype));
  }
  // Whether the next call may overwrite what the last one returned.
  bool gathered(const void* elements) const { return elements == gathered_; }

 private:
  const View& in_;
  const Mover mover_;
  alignas(64) std::byte gathered_[kRun * kWidest];
};

class Reducer {
 public:
  Reducer(const Reduction& reduction, const View& in, const View& out)
      : reduction_(reduction),
        in_(in),
        out_(out),
        results_(element_count(out.shape)),
        element_bytes_(static_cast<std::int64_t>(size_of(in.dtype))) {
    Shape kept = in.shape, reduced = in.shape;
    for (int d = 0; d < in.rank(); ++d) {
      // A kept dimension of size 1 is no different from a reduced one.
      const bool is_kept = out.shape[d] != 1 || in.shape[d] == 1;
      (is_kept ? reduced : kept)[d] = 1;
      if (!is_kept) elements_ *= in.shape[d];
    }
    kept_ = make_loop_nest<2>(kept, {&in, &out});
    reduced_ = make_loop_nest<1>(reduced, {&in});
  }

  void run() {
    if (kept_.empty) return;
    const std::int64_t bytes = elements_ * element_bytes_;  // of a result
    const bool columns = kept_.rank > 0 && reduced_.rank > 0 && kept_.inner_stride(0) < reduced_.inner_stride(0);
    if (columns) return reduce_columns(bytes);
    if (results_ < kFewResults && bytes > 2 * kPieceBytes) return reduce_long();
    const bool short_rows =
        reduced_.rank == 1 && !reduced_.empty && reduced_.inner_size() <= kShort && kept_.inner_size() > 1;
    std::int64_t results = piece_rows(results_, bytes, kPieceBytes);
    // Fewer pieces, which read more at one place of memory.
    if (takes_turns())
      results = std::max(results, lockstep::detail::computes_alone() ? results_ : results_ / kFewResults);
    for_pieces(results_, results, [&](std::int64_t begin, std::int64_t end) {
      short_rows ? reduce_short_rows(begin, end) : reduce_rows(begin, end);
    });
  }

 private:
  void store(const void* accumulators, std::int64_t count, std::int64_t offset, std::int64_t stride) {
    std::byte* to = static_cast<std::byte*>(out_.data) + offset * static_cast<std::int64_t>(size_of(out_.dtype));
    reduction_.finish(accumulators, count, elements_, to, stride);
  }

  // Whether rows of a result have rows of others between them in memory.
  bool takes_turns() const { return reduced_.rank > 1 && kept_.inner_stride(0) < reduced_.strides[1][0]; }

  static std::int64_t first_half(std::int64_t count) { return (count / 2 + 127) / 128 * 128; }

  void reduce_row(Elements& elements, std::int64_t offset, std::int64_t stride, std::int64_t count, void* accumulator) {
    if (count <= kRun) return reduction_.run(elements.contiguous(offset, stride, count), count, 0, 1, accumulator);
    const std::int64_t first = first_half(count);
    alignas(kWidest) std::byte other[kWidest];
    reduce_row(elements, offset, stride, first, accumulator);
    reduce_row(elements, offset + first * stride, stride, count - first, other);
    reduction_.join(other, 1, accumulator);
  }

  // As reduce_row, in pieces: the parts of the row at one depth of its halves.
  void reduce_long_row(std::int64_t offset, std::int64_t stride, std::int64_t size, void* accumulator) {
    constexpr int kMostDepth = 8;
    int depth = 0;
    while (depth < kMostDepth && (size >> depth) > kPart) ++depth;
    const std::int64_t parts = std::int64_t{1} << depth;
    alignas(64) std::byte totals[std::size_t{1} << kMostDepth][kWidest];
    for_pieces(parts, 1, [&](std::int64_t part, std::int64_t end) {
      Elements elements(in_);
      for (; part < end; ++part) {
        std::int64_t begin = 0, count = size;
        for (int d = depth - 1; d >= 0; --d) {
          const std::int64_t first = first_half(count);
          const bool second_half = (part >> d & 1) != 0;
          begin += second_half ? first : 0;
          count = second_half ? count - first : first;
        }
        reduce_row(elements, offset + begin * stride, stride, count, totals[part]);
      }
    });
    for (std::int64_t width = 1; width < parts; width *= 2)
      for (std::int64_t part = 0; part < parts; part += 2 * width)
        reduction_.join(totals[part + width], 1, totals[part]);
    std::memcpy(accumulator, totals[0], kWidest);
  }

  // Few results of many elements each: one after the other, each of them in pieces.
  void reduce_long() {
    const std::int64_t size = reduced_.inner_size(), stride = reduced_.inner_stride(0), rows = elements_ / size;
    Scratch scratch;
    auto* totals = scratch.take<std::byte>(rows * kWidest);
    for_each_row(
        kept_,
        [&](const std::array<std::int64_t, 2>& position) {
          if (rows < kFewResults && size > kPart) {
            std::byte* total = totals;
            for_each_row(reduced_, [&](const std::array<std::int64_t, 1>& row) {
              reduce_long_row(position[0] + row[0], stride, size, total);
              total += kWidest;
            });
          } else {
            for_pieces(rows, piece_rows(rows, size * element_bytes_, kPieceBytes),
                       [&](std::int64_t begin, std::int64_t end) {
                         Elements elements(in_);
                         std::byte* total = totals + begin * kWidest;
                         for_each_run(reduced_, begin * size, end * size, [&](const auto& row, auto, auto) {
                           reduce_row(elements, position[0] + row[0], stride, size, total);
                           total += kWidest;
                         });
                       });
          }
          if (reduced_.rank > 1) {
            alignas(kWidest) std::byte total[kWidest];
            reduction_.start(total, 1);
            for (std::int64_t r = 0; r < rows; ++r) reduction_.join(totals + r * kWidest, 1, total);
            store(total, 1, position[1], 1);
          } else {
            store(totals, 1, position[1], 1);
          }
        },
        0);
  }

  // The innermost dimension is a reduced one. Results whose rows take turns in memory take turns, too.
  void reduce_rows(std::int64_t begin, std::int64_t end) {
    const std::int64_t size = reduced_.inner_size(), stride = reduced_.inner_stride(0);
    const bool one_row = reduced_.rank <= 1 && !reduced_.empty;
    Elements elements(in_);
    alignas(64) std::byte totals[kSideBySide][kWidest];
    const bool at_once = one_row && size <= kRun && elements.in_place(stride);
    const std::int64_t most = at_once || takes_turns() ? kSideBySide : 1;
    for_each_run(kept_, begin, end, [&](const std::array<std::int64_t, 2>& run, std::int64_t from, std::int64_t to) {
      for (; from < to; from += most) {
        const std::int64_t count = std::min(most, to - from), step = kept_.inner_stride(0);
        const std::int64_t in = run[0] + from * step, out = run[1] + from * kept_.inner_stride(1);
        if (at_once) {
          reduction_.run(elements.at(in), size, step, count, totals);
          store(totals, count, out, kept_.inner_stride(1));
          continue;
        }
        if (one_row) {
          reduce_row(elements, in, stride, size, totals[0]);
        } else {
          for (std::int64_t i = 0; i < count; ++i) reduction_.start(totals[i], 1);
          alignas(kWidest) std::byte row_total[kWidest];
          for_each_row(reduced_, [&](const std::array<std::int64_t, 1>& row) {
            for (std::int64_t i = 0; i < count; ++i) {
              reduce_row(elements, in + i * step + row[0], stride, size, row_total);
              reduction_.join(row_total, 1, totals[i]);
            }
          });
        }
        for (std::int64_t i = 0; i < count; ++i) store(totals[i], 1, out + i * kept_.inner_stride(1), 1);
      }
    });
  }

  // Rows so short that a call for each costs more than its sum: many at once, in the order in which `run` takes one.
  void reduce_short_rows(std::int64_t first_result, std::int64_t last_result) {
    const std::int64_t size = reduced_.inner_size(), along = reduced_.inner_stride(0);
    const std::int64_t stride = kept_.inner_stride(0), out_stride = kept_.inner_stride(1);
    alignas(64) std::byte lanes[kShort][kSideBySide * kWidest];
    Elements elements(in_);
    for_each_run(kept_, first_result, last_result, [&](const auto& run, std::int64_t from, std::int64_t to) {
      for (std::int64_t begin = from; begin < to; begin += kSideBySide) {
        const std::int64_t count = std::min(kSideBySide, to - begin);
        for (std::int64_t i = 0; i < size; ++i) {
          const void* x = elements.contiguous(run[0] + begin * stride + i * along, stride, count);
          reduction_.start(lanes[i], count);
          reduction_.add_row(&x, count, 0, lanes[i]);
        }
        for (auto width = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(size))) / 2; width > 0;
             width /= 2)
          for (std::int64_t i = 0; i < std::min(width, size - width); ++i)
            reduction_.join(lanes[i + width], count, lanes[i]);
        store(lanes[0], count, run[1] + begin * out_stride, out_stride);
      }
    });
  }

  // The innermost dimension stays: columns are divided among threads, and the rows of few tall columns.
  void reduce_columns(std::int64_t bytes) {
    const std::int64_t columns = std::max(piece_rows(results_, bytes, kPieceBytes), kLeastColumns);
    if (elements_ <= kFold || results_ > kFewResults * columns || results_ * bytes < 2 * kPieceBytes)
      for_pieces(results_, columns, [&](std::int64_t begin, std::int64_t end) { reduce_whole_columns(begin, end); });
    else
      reduce_tall_columns(std::min(columns, results_));
  }

  // Takes `width` columns of the rows [begin, end) into a strip.
  void take_rows(Elements& elements, std::int64_t offset, std::int64_t width, std::int64_t begin, std::int64_t end,
                 void* strip) const {
    const std::int64_t stride = kept_.inner_stride(0), along = reduced_.inner_stride(0);
    const bool far = is_far(results_ * elements_ * element_bytes_);
    const void* rows[kRows];
    std::int64_t held = 0;
    for_each_run(reduced_, begin, end, [&](const auto& run, std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        rows[held] = elements.contiguous(offset + run[0] + i * along, stride, width);
        if (elements.gathered(rows[held])) {
          reduction_.add_row(rows, width, 0, strip);
        } else if (++held == kRows) {
          reduction_.add_rows(rows, width, far ? kRows * along : 0, strip);
          held = 0;
        }
      }
    });
    for (std::int64_t r = 0; r < held; ++r) reduction_.add_row(rows + r, width, 0, strip);
  }

  // A strip of columns at a time, row by row.
  void reduce_whole_columns(std::int64_t first_result, std::int64_t last_result) {
    alignas(64) std::byte totals[kStrip * kWidest], strip[kStrip * kWidest];
    Elements elements(in_);
    for_each_run(kept_, first_result, last_result, [&](const auto& run, std::int64_t from, std::int64_t to) {
      for (std::int64_t begin = from; begin < to; begin += kStrip) {
        const std::int64_t width = std::min(kStrip, to - begin);
        reduction_.start(totals, width);
        for (std::int64_t row = 0; row < elements_; row += kFold) {
          reduction_.start(strip, width);
          take_rows(elements, run[0] + begin * kept_.inner_stride(0), width, row, std::min(row + kFold, elements_),
                    strip);
          reduction_.join(strip, width, totals);
        }
        store(totals, width, run[1] + begin * kept_.inner_stride(1), kept_.inner_stride(1));
      }
    });
  }

  // The same sums: every strip of kFold rows is kept until all can be added in their order. A piece has some columns of
  // one strip or several.
  void reduce_tall_columns(std::int64_t columns) {
    const std::int64_t column_pieces = (results_ + columns - 1) / columns, folds = (elements_ + kFold - 1) / kFold;
    const std::int64_t folds_each = piece_rows(folds, kFold * columns * element_bytes_, kPieceBytes);
    const std::int64_t row_pieces = (folds + folds_each - 1) / folds_each;
    Scratch scratch;
    auto* strips = scratch.take<std::byte>(folds * results_ * reduction_.accumulator_bytes);
    const auto strip_at = [&](std::int64_t fold, std::int64_t column) {
      return strips + (fold * results_ + column) * reduction_.accumulator_bytes;
    };
    const auto take_piece = [&](std::int64_t first_fold, std::int64_t first_column) {
      Elements elements(in_);
      for (std::int64_t fold = first_fold; fold < std::min(first_fold + folds_each, folds); ++fold) {
        const std::int64_t row = fold * kFold, row_end = std::min(row + kFold, elements_);
        std::int64_t column = first_column;
        const std::int64_t end = std::min(first_column + columns, results_);
        for_each_run(kept_, first_column, end, [&](const auto& run, std::int64_t from, std::int64_t to) {
          for (std::int64_t begin = from; begin < to; begin += kStrip) {
            const std::int64_t width = std::min(kStrip, to - begin);
            std::byte* strip = strip_at(fold, column);
            reduction_.start(strip, width);
            take_rows(elements, run[0] + begin * kept_.inner_stride(0), width, row, row_end, strip);
            column += width;
          }
        });
      }
    };
    for_pieces(row_pieces * column_pieces, 1, [&](std::int64_t piece, std::int64_t end) {
      for (; piece < end; ++piece) take_piece(piece / column_pieces * folds_each, piece % column_pieces * columns);
    });
    auto* totals = scratch.take<std::byte>(results_ * reduction_.accumulator_bytes);
    reduction_.start(totals, results_);
    for (std::int64_t fold = 0; fold < folds; ++fold) reduction_.join(strip_at(fold, 0), results_, totals);
    std::int64_t column = 0;
    for_each_run(kept_, 0, results_, [&](const auto& run, std::int64_t from, std::int64_t to) {
      store(totals + column * reduction_.accumulator_bytes, to - from, run[1], kept_.inner_stride(1));
      column += to - from;
    });
  }

  const Reduction& reduction_;
  const View& in_;
  const View& out_;
  LoopNest<2> kept_;     // strides: in, out
  LoopNest<1> reduced_;  // strides: in
  std::int64_t results_;
  std::int64_t elements_ = 1;  // that make one result
  std::int64_t element_bytes_;
};

}  // namespace

void Kernels::enqueue(const Stream& stream, const ReduceArgs& args) {
  const View& in = args.in.view;
  Reduction reduction;
  if (!dispatch(in.dtype, [&]<class T>(Type<T>) { return find_reduction<T>(args.op, reduction); })) [[unlikely]]
    fail_dtype(ReduceArgs::kName, in.dtype, stream);
  if (args.op == ReduceOp::max || args.op == ReduceOp::min)
    LOCKSTEP_CHECK(element_count(in.shape) > 0 || element_count(args.out.view.shape) == 0,
                   "[reduce] expected at least one element for max and min, got shape ", in.shape);
  launch(stream, args, [reduction](const ReduceArgs& a) { Reducer(reduction, a.in.view, a.out.view).run(); });
}

}  // namespace lockstep::kernels::host
