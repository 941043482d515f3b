#include "lockstep/kernels/host/elementwise.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lockstep/kernels/host/parts.h"
#include "lockstep/kernels/host/streaming.h"

namespace lockstep::kernels::host {
namespace {

// A block is a few KiB per operand, well inside the first-level cache: a part of a row, or, with a transposed operand,
// a tile, so that the cache lines and pages of both sides are used whole.
constexpr std::int64_t kTileRows = 16, kTileColumns = 64, kBlock = kTileRows * kTileColumns;
// A call of a loop costs as much as this many elements: shorter rows are gathered until they are a block.
constexpr std::int64_t kShortRow = 32;

// One operand: where its elements come from or go to.
struct Operand {
  std::byte* base;
  std::int64_t stride, row_stride;  // along the inner dimension and the next one
  std::size_t element_bytes;
  bool direct;  // the loop can work on its memory
  Mover mover;

  std::byte* at(std::int64_t offset) const { return base + offset * static_cast<std::int64_t>(element_bytes); }
};

Operand make_operand(const View& view, std::int64_t begin, std::int64_t stride, std::int64_t row_stride, HalfAs half,
                     std::int64_t columns) {
  const Mover mover = find_mover(view.dtype, half);
  const bool direct =
      stride == 1 && mover.buffer_bytes == size_of(view.dtype) && (columns >= kShortRow || row_stride == columns);
  Operand operand{static_cast<std::byte*>(view.data), stride, row_stride, size_of(view.dtype), direct, mover};
  operand.base = operand.at(begin);
  return operand;
}

// If an input has gaps along the inner dimension, the dimension in which it has the smallest ones; 0: none has, or
// there is no other dimension.
template <std::size_t N>
int dimension_across(const LoopNest<N>& nest) {
  if (nest.rank < 2) return 0;
  for (std::size_t v = 1; v < N; ++v) {
    if (std::abs(nest.strides[0][v]) <= 1) continue;
    int next = 1;
    for (int d = 2; d < nest.rank; ++d)
      if (std::abs(nest.strides[d][v]) < std::abs(nest.strides[next][v])) next = d;
    return next;
  }
  return 0;
}

constexpr std::int64_t kFarBlock = 256;  // elements

// Rows of far operands, in blocks that stay in the first-level cache. The next blocks are fetched while one is
// computed: loops read a block more than once, some with much arithmetic, so that the processor does not see a stream
// by itself. Whole cache lines of the output are written around the caches where it is `streamed`.
template <std::size_t Inputs>
class FarRows {
 public:
  FarRows(const std::array<const View*, Inputs + 1>& views, HalfAs half, Loop<Inputs> loop, const Scalars& scalars,
          bool streamed)
      : loop_(loop), scalars_(scalars), streamed_(streamed) {
    for (std::size_t v = 0; v <= Inputs; ++v) {
      movers_[v] = find_mover(views[v]->dtype, half);
      bytes_[v] = static_cast<std::int64_t>(size_of(views[v]->dtype));
    }
  }

  void run(const std::array<const void*, Inputs>& from, std::byte* to, std::int64_t count) {
    for (std::int64_t begin = 0; begin < count; begin += kFarBlock) {
      const std::int64_t size = std::min(kFarBlock, count - begin), bytes = size * bytes_[0];
      std::array<const void*, Inputs> sources;
      for (std::size_t v = 0; v < Inputs; ++v) sources[v] = block(v + 1, from[v], begin, size, count);
      std::byte* const target = to + begin * bytes_[0];
      const bool whole = streamed_ && is_at_line(target) && bytes % kCacheLine == 0;
      std::byte* const written = whole ? lines_ : target;
      std::byte* const computed = converts(0) ? buffers_[0] : written;
      loop_(sources, computed, size, scalars_);
      if (converts(0)) movers_[0].scatter(computed, written, 1, size, {1, size});
      if (whole) stream_lines(lines_, target, static_cast<std::size_t>(bytes));
    }
  }

 private:
  static constexpr std::int64_t kAhead = 4;  // blocks

  bool converts(std::size_t v) const { return static_cast<std::int64_t>(movers_[v].buffer_bytes) != bytes_[v]; }

  const void* block(std::size_t v, const void* from, std::int64_t begin, std::int64_t size, std::int64_t count) {
    const auto* row = static_cast<const std::byte*>(from);
    const std::int64_t ahead = begin + kAhead * kFarBlock, end = std::min(ahead + kFarBlock, count);
    for (std::int64_t i = ahead * bytes_[v]; i < end * bytes_[v]; i += kCacheLine) __builtin_prefetch(row + i);
    row += begin * bytes_[v];
    if (!converts(v)) return row;
    movers_[v].gather(row, 1, size, buffers_[v], {1, size});
    return buffers_[v];
  }

  const Loop<Inputs> loop_;
  const Scalars& scalars_;
  const bool streamed_;
  std::array<Mover, Inputs + 1> movers_;  // the output's first
  std::array<std::int64_t, Inputs + 1> bytes_;
  alignas(kCacheLine) std::byte buffers_[Inputs + 1][kFarBlock * sizeof(float)], lines_[kFarBlock * 8];
};

template <std::size_t Inputs>
class Blocks {
 public:
  using Offsets = std::array<std::int64_t, Inputs + 1>;

  // `begin`: of the nest in each view; `across`: see dimension_across(); `streamed`: see FarRows.
  Blocks(const LoopNest<Inputs + 1>& nest, const Offsets& begin, const std::array<const View*, Inputs + 1>& views,
         HalfAs half, Loop<Inputs> loop, const Scalars& scalars, int across, bool streamed)
      : nest_(nest), loop_(loop), scalars_(scalars), transposed_(across > 0), streamed_(streamed) {
    if (transposed_) {
      std::swap(nest_.sizes[1], nest_.sizes[across]);
      std::swap(nest_.strides[1], nest_.strides[across]);
    }
    const auto operand = [&](std::size_t v) {
      return make_operand(*views[v], begin[v], nest_.inner_stride(v),
                          nest_.rank > 1 ? nest_.strides[1][v] : nest_.inner_size(), half, nest_.inner_size());
    };
    for (std::size_t v = 0; v < Inputs; ++v) inputs_[v] = operand(v + 1);
    output_ = operand(0);
  }

  void run() {
    const std::int64_t columns = nest_.inner_size(), rows = nest_.rank > 1 ? nest_.sizes[1] : 1;
    // Of short rows, as many as a block holds.
    const Tile step =
        transposed_ ? Tile{kTileRows, kTileColumns} : Tile{std::max<std::int64_t>(kBlock / columns, 1), kBlock};
    for_each_row(
        nest_,
        [&](const Offsets& offsets) {
          const auto run_at = [&](std::int64_t r, std::int64_t c) {
            run_tile(offsets, r, c, {std::min(step.rows, rows - r), std::min(step.columns, columns - c)});
          };
          if (transposed_) {
            // Down first: a transposed operand is read along its memory.
            for (std::int64_t c = 0; c < columns; c += step.columns)
              for (std::int64_t r = 0; r < rows; r += step.rows) run_at(r, c);
          } else {
            for (std::int64_t r = 0; r < rows; r += step.rows)
              for (std::int64_t c = 0; c < columns; c += step.columns) run_at(r, c);
          }
        },
        2);
  }

 private:
  // By way of a buffer where the output has gaps too, or would be written in pieces of cache lines.
  void move_tile(const std::byte* from, std::byte* to, Tile tile) {
    const Operand& input = inputs_[0];
    const bool at_once = output_.direct && (tile.rows == 1 || (!transposed_ && output_.row_stride == tile.columns));
    input.mover.gather(from, input.stride, input.row_stride, at_once ? to : buffers_[0], tile);
    if (!at_once) output_.mover.scatter(buffers_[0], to, output_.stride, output_.row_stride, tile);
  }

  void run_tile(const Offsets& offsets, std::int64_t row, std::int64_t column, Tile tile) {
    std::byte* to = output_.at(offsets[0] + row * output_.row_stride + column * output_.stride);
    if constexpr (Inputs == 1)
      if (!loop_)
        return move_tile(inputs_[0].at(offsets[1] + row * inputs_[0].row_stride + column * inputs_[0].stride), to,
                         tile);
    std::array<std::byte*, Inputs> sources;
    std::array<std::int64_t, Inputs> steps;  // bytes from row to row
    for (std::size_t v = 0; v < Inputs; ++v) {
      const Operand& o = inputs_[v];
      std::byte* from = o.at(offsets[v + 1] + row * o.row_stride + column * o.stride);
      if (o.direct) {
        sources[v] = from;
        steps[v] = o.row_stride * static_cast<std::int64_t>(o.element_bytes);
        continue;
      }
      sources[v] = buffers_[v];
      steps[v] = tile.columns * static_cast<std::int64_t>(o.mover.buffer_bytes);
      if (o.stride == 0 && tile.rows == 1) {
        // The next block of a long row finds the buffer full of the right element.
        if (repeated_[v] == from) continue;
        repeated_[v] = from;
        o.mover.gather(from, 0, 0, buffers_[v], {1, std::min(kBlock, nest_.inner_size())});
      } else {
        repeated_[v] = nullptr;
        o.mover.gather(from, o.stride, o.row_stride, buffers_[v], tile);
      }
    }
    const auto bytes = static_cast<std::size_t>(tile.rows * tile.columns) * output_.element_bytes;
    const bool in_lines = streamed_ && output_.direct && (tile.rows == 1 || output_.row_stride == tile.columns) &&
                          is_at_line(to) && bytes % kCacheLine == 0;
    const bool direct = output_.direct && !in_lines;
    std::byte* target = direct ? to : buffers_[Inputs];
    const std::int64_t target_step = direct ? output_.row_stride * static_cast<std::int64_t>(output_.element_bytes)
                                            : tile.columns * static_cast<std::int64_t>(output_.mover.buffer_bytes);
    bool one_run = target_step == tile.columns * static_cast<std::int64_t>(output_.mover.buffer_bytes);
    for (std::size_t v = 0; v < Inputs; ++v)
      one_run &= steps[v] == tile.columns * static_cast<std::int64_t>(inputs_[v].mover.buffer_bytes);
    const Tile calls = one_run ? Tile{1, tile.rows * tile.columns} : tile;
    std::array<const void*, Inputs> arguments;
    for (std::int64_t r = 0; r < calls.rows; ++r, target += target_step) {
      for (std::size_t v = 0; v < Inputs; ++v) arguments[v] = sources[v] + r * steps[v];
      loop_(arguments, target, calls.columns, scalars_);
    }
    if (direct) return;
    if (!in_lines) return output_.mover.scatter(buffers_[Inputs], to, output_.stride, output_.row_stride, tile);
    stream_lines(buffers_[Inputs], to, bytes);
  }

  LoopNest<Inputs + 1> nest_;
  const Loop<Inputs> loop_;
  const Scalars& scalars_;
  const bool transposed_, streamed_;
  std::array<Operand, Inputs> inputs_;
  Operand output_;
  std::array<const std::byte*, Inputs> repeated_{};  // the element that a buffer is full of
  alignas(kCacheLine) std::byte buffers_[Inputs + 1][kBlock * 8];
};

}  // namespace

template <std::size_t Inputs>
void elementwise(const std::array<const View*, Inputs>& in, const View& out, HalfAs half, Loop<Inputs> loop,
                 const Scalars& scalars) {
  std::array<const View*, Inputs + 1> views{&out};
  std::copy(in.begin(), in.end(), views.begin() + 1);
  const LoopNest<Inputs + 1> nest = make_loop_nest<Inputs + 1>(out.shape, views);
  bool rows = nest.rank < 2 || nest.inner_size() >= kShortRow;  // of which no operand has gaps
  bool converted = false;
  std::array<std::int64_t, Inputs + 1> element_bytes;
  std::int64_t bytes = 0;
  const std::int64_t count = element_count(out.shape);
  bool streamed = outgrows_caches(count * static_cast<std::int64_t>(size_of(out.dtype)));
  for (std::size_t v = 0; v <= Inputs; ++v) {
    if (v > 0 && views[v]->data == out.data) streamed = false;  // its lines are in the caches already
    rows &= nest.inner_stride(v) == 1;
    if (half == HalfAs::floats) converted |= views[v]->dtype == DType::f16 || views[v]->dtype == DType::bf16;
    bytes += element_bytes[v] = static_cast<std::int64_t>(size_of(views[v]->dtype));
  }
  using Offsets = std::array<std::int64_t, Inputs + 1>;
  const bool far = is_far(count * bytes), in_blocks = !rows || (converted && (!far || nest.inner_size() < kFarBlock));
  const int across = in_blocks ? dimension_across(nest) : 0;
  const auto compute = [&](const LoopNest<Inputs + 1>& part, const Offsets& begin) {
    if (in_blocks) {
      Blocks<Inputs>(part, begin, views, half, loop, scalars, across, streamed).run();
    } else {
      const auto each_row = [&](auto&& run) {
        std::array<const void*, Inputs> sources;
        for_each_row(part, [&](const Offsets& row) {
          const auto at = [&](std::size_t v) {
            return static_cast<std::byte*>(views[v]->data) + (begin[v] + row[v]) * element_bytes[v];
          };
          for (std::size_t v = 0; v < Inputs; ++v) sources[v] = at(v + 1);
          run(sources, at(0));
        });
      };
      if (far) {
        FarRows<Inputs> far_rows(views, half, loop, scalars, streamed);
        each_row([&](const auto& sources, std::byte* to) { far_rows.run(sources, to, part.inner_size()); });
      } else {
        each_row([&](const auto& sources, std::byte* to) { loop(sources, to, part.inner_size(), scalars); });
      }
    }
    if (streamed) end_streaming();
  };
  for_parts(nest, bytes, compute, across);
}

template void elementwise<1>(const std::array<const View*, 1>&, const View&, HalfAs, Loop<1>, const Scalars&);
template void elementwise<2>(const std::array<const View*, 2>&, const View&, HalfAs, Loop<2>, const Scalars&);
template void elementwise<3>(const std::array<const View*, 3>&, const View&, HalfAs, Loop<3>, const Scalars&);

}  // namespace lockstep::kernels::host
