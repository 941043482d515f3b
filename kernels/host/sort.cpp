// Running sums and sorting along the middle of [outer, size, inner].
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/lines.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/sort_key.h"

namespace lockstep::kernels::host {
namespace {

template <class T>
using Sum = std::conditional_t<functors::kInteger<T>, T, double>;

template <class T>
Sum<T> add(Sum<T> sum, T element) {
  return functors::plus(sum, static_cast<Sum<T>>(static_cast<functors::Compute<T>>(element)));
}
template <class T>
T stored(Sum<T> sum) {
  return static_cast<T>(static_cast<functors::Compute<T>>(sum));
}

// Of kRows rows that follow each other: one sum waits for the addition before it, several keep the processor busy.
template <std::int64_t kRows, class T>
void running_sums_of_rows(const T* from, T* to, std::int64_t size, bool reverse) {
  Sum<T> sums[std::size_t{kRows}] = {};
  const std::int64_t step = reverse ? -1 : 1;
  for (std::int64_t i = 0, at = reverse ? size - 1 : 0; i < size; ++i, at += step)
    for (std::int64_t r = 0; r < kRows; ++r) {
      sums[r] = add(sums[r], from[r * size + at]);
      to[r * size + at] = stored<T>(sums[r]);
    }
}

template <class T>
void running_sums(const CumsumArgs& a) {
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], size = shape[1], inner = shape[2];
  constexpr std::int64_t kRows = 4;  // more would not fit into the ways of the cache where size is a power of two
  const auto rows = [&](std::int64_t o, std::int64_t end) {
    for (; o + kRows <= end; o += kRows)
      running_sums_of_rows<kRows>(data<T>(a.x) + o * size, data<T>(a.y) + o * size, size, a.reverse);
    for (; o < end; ++o) running_sums_of_rows<1>(data<T>(a.x) + o * size, data<T>(a.y) + o * size, size, a.reverse);
  };
  const auto columns = [&](std::int64_t o, std::int64_t first, std::int64_t width) {
    Scratch scratch;
    auto* sums = scratch.take<Sum<T>>(width);
    std::fill_n(sums, width, Sum<T>(0));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t begin = (o * size + (a.reverse ? size - 1 - i : i)) * inner + first;
      const T* from = data<T>(a.x) + begin;
      T* to = data<T>(a.y) + begin;
      for (std::int64_t j = 0; j < width; ++j) {
        sums[j] = add(sums[j], from[j]);
        to[j] = stored<T>(sums[j]);
      }
    }
  };
  for_lines(outer, inner, 2 * size * static_cast<std::int64_t>(sizeof(T)), kRows,
            [&](std::int64_t begin, std::int64_t end, std::int64_t from, std::int64_t to) {
              if (inner == 1) return rows(begin, end);
              for (std::int64_t o = begin; o < end; ++o) columns(o, from, to - from);
            });
}

// Fewer are sorted by comparisons.
constexpr std::int64_t kLeastForDigits = 512;

template <class Key, class Position>
struct Entry {
  Key key;
  Position position;
  bool operator<(const Entry& other) const {
    return key != other.key ? key < other.key : position < other.position;  // total: any sort is stable
  }
};

constexpr int kDigitBits = 8;
constexpr std::int64_t kDigits = std::int64_t{1} << kDigitBits;
template <class E>
std::int64_t digit_of(const E& entry, int shift) {
  return static_cast<std::int64_t>(entry.key >> shift) & (kDigits - 1);
}

// Sorts by the last `key_bits` bits of the keys, stably: by one digit after the other, the least significant first
// (Knuth, "The Art of Computer Programming", volume 3, 5.2.5). Returns where the result is: in one of the two buffers.
template <class E>
E* sort_from_last_digit(E* from, E* to, std::int64_t count, int key_bits) {
  const int passes = (key_bits + kDigitBits - 1) / kDigitBits;
  Scratch scratch;
  auto* places = scratch.take<std::int64_t>(passes * kDigits);  // how many have a digit, then where the next one goes
  std::fill_n(places, passes * kDigits, std::int64_t{0});
  for (std::int64_t i = 0; i < count; ++i)
    for (int pass = 0; pass < passes; ++pass) ++places[pass * kDigits + digit_of(from[i], pass * kDigitBits)];
  for (int pass = 0; pass < passes; ++pass, places += kDigits) {
    const int shift = pass * kDigitBits;
    if (places[digit_of(from[0], shift)] == count) continue;  // all have the same one
    std::exclusive_scan(places, places + kDigits, places, std::int64_t{0});
    for (std::int64_t i = 0; i < count; ++i) to[places[digit_of(from[i], shift)]++] = from[i];
    std::swap(from, to);
  }
  return from;
}

// How many of the last bits of the keys differ from entry to entry.
template <class E>
int differing_bits(const E* entries, std::int64_t count) {
  auto bits = entries[0].key ^ entries[0].key;
  for (std::int64_t i = 1; i < count; ++i) bits |= entries[i].key ^ entries[0].key;
  return static_cast<int>(std::bit_width(bits));
}

// The same. More entries than stay in the cache are divided by their first digits until they do, unless few passes are
// all they need: each pass over all of them fetches them anew.
template <class E>
E* radix_sort(E* from, E* to, std::int64_t count, int key_bits) {
  constexpr std::int64_t kCached = (std::int64_t{1} << 18) / sizeof(E), kLeast = 48;
  constexpr int kFewBits = 2 * kDigitBits;
  if (count <= kCached) return sort_from_last_digit(from, to, count, key_bits);
  const int bits = std::min(key_bits, differing_bits(from, count));
  if (bits <= kFewBits) return sort_from_last_digit(from, to, count, bits);
  const int shift = bits - kDigitBits;
  std::int64_t ends[kDigits] = {};  // how many have a digit, then where they begin, and at last where they end
  for (std::int64_t i = 0; i < count; ++i) ++ends[digit_of(from[i], shift)];
  std::exclusive_scan(ends, ends + kDigits, ends, std::int64_t{0});
  for (std::int64_t i = 0; i < count; ++i) to[ends[digit_of(from[i], shift)]++] = from[i];
  for_pieces(kDigits, 1, [&](std::int64_t d, std::int64_t) {
    const std::int64_t begin = d > 0 ? ends[d - 1] : 0, size = ends[d] - begin;
    E* const alike = to + begin;
    if (size < kLeast) return std::sort(alike, alike + size);
    const E* const sorted = radix_sort(alike, from + begin, size, shift);
    if (sorted != alike) std::copy_n(sorted, size, alike);
  });
  return to;
}

// The first `wanted` in order; `buffer` is as large as the entries. Compiled once for all dtypes with such entries.
template <class E>
[[gnu::noinline]] E* in_order(E* entries, E* buffer, std::int64_t count, std::int64_t wanted, int key_bits) {
  // A heap of those that are wanted, where they are few.
  if (wanted < count / 8)
    std::partial_sort(entries, entries + wanted, entries + count);
  else if (count < kLeastForDigits)
    std::sort(entries, entries + count);
  else
    return radix_sort(entries, buffer, count, key_bits);
  return entries;
}

// As in_order, of all entries, for keys of 64 bits: by 32 bits of their distances from the least one, and those that
// these do not tell apart by the bits below. Half as large, entries move half as far.
using Half = Entry<std::uint32_t, std::uint32_t>;
[[gnu::noinline]] const Half* halves_in_order(const std::uint64_t* keys, Half* entries, Half* buffer,
                                              std::int64_t count) {
  constexpr int kBits = 32;
  std::uint64_t least = keys[0], most = least;
  for (std::int64_t i = 1; i < count; ++i) least = std::min(least, keys[i]), most = std::max(most, keys[i]);
  const int below = std::max(static_cast<int>(std::bit_width(most - least)) - kBits, 0);
  for (std::int64_t i = 0; i < count; ++i)
    entries[i] = {static_cast<std::uint32_t>((keys[i] - least) >> below), static_cast<std::uint32_t>(i)};
  Half* const sorted = in_order(entries, buffer, count, count, kBits);
  if (below == 0) return sorted;
  Half* const other = sorted == entries ? buffer : entries;
  const std::uint64_t mask = (std::uint64_t{1} << below) - 1;
  for (std::int64_t begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && sorted[end].key == sorted[begin].key;) ++end;
    if (end == begin + 1) continue;
    for (std::int64_t i = begin; i < end; ++i)
      sorted[i].key = static_cast<std::uint32_t>((keys[sorted[i].position] - least) & mask);
    const Half* run = in_order(sorted + begin, other + begin, end - begin, end - begin, kBits);
    if (run != sorted + begin) std::copy_n(run, end - begin, sorted + begin);
  }
  return sorted;
}

template <class T, class Position>
void sort_positions(const ArgsortArgs& a) {
  using C = functors::Compute<T>;
  using E = Entry<SortKey<C>, Position>;
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], size = shape[1], inner = shape[2], wanted = a.indices.view.shape[1];
  constexpr std::int64_t kElementCost = 16 * sizeof(E);  // an entry is moved many times
  constexpr bool kHasHalves = kSortKeyBits<C> == 64 && sizeof(Position) == 4;
  const bool by_halves = kHasHalves && size >= kLeastForDigits && wanted >= size / 8;
  const std::int64_t lines = outer * inner;
  for_pieces(lines, piece_rows(lines, size * kElementCost, kPieceBytes), [&](std::int64_t line, std::int64_t end) {
    Scratch scratch;
    auto* const keys = scratch.take<SortKey<C>>(by_halves ? size : 0);
    auto* const halves = scratch.take<Half>(by_halves ? 2 * size : 0);
    E* const entries = scratch.take<E>(by_halves ? 0 : 2 * size);
    for (; line < end; ++line) {
      const std::int64_t o = line / inner, j = line % inner;
      const T* from = data<T>(a.x) + o * size * inner + j;
      const auto key = [&](std::int64_t i) { return sort_key(static_cast<C>(from[i * inner]), a.descending); };
      auto* to = data<std::int64_t>(a.indices) + o * wanted * inner + j;
      const auto store = [&](const auto* sorted) {
        for (std::int64_t i = 0; i < wanted; ++i) to[i * inner] = static_cast<std::int64_t>(sorted[i].position);
      };
      if constexpr (kHasHalves)
        if (by_halves) {
          for (std::int64_t i = 0; i < size; ++i) keys[i] = key(i);
          store(halves_in_order(keys, halves, halves + size, size));
          continue;
        }
      for (std::int64_t i = 0; i < size; ++i) {
        entries[i].key = key(i);
        entries[i].position = static_cast<Position>(i);
      }
      store(in_order(entries, entries + size, size, wanted, kSortKeyBits<C>));
    }
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const CumsumArgs& args) {
  const DType dtype = args.x.view.dtype;
  if (dtype == DType::i64) return launch(stream, args, running_sums<std::int64_t>);
  check_floating(CumsumArgs::kName, dtype, stream);
  dispatch_floating(dtype, [&]<class T>(Type<T>) { launch(stream, args, running_sums<T>); });
}
void Kernels::enqueue(const Stream& stream, const ArgsortArgs& args) {
  // Entries half as large are sorted in half the time.
  const bool few = args.x.view.shape[1] <= std::numeric_limits<std::uint32_t>::max();
  dispatch(args.x.view.dtype, [&]<class T>(Type<T>) {
    launch(stream, args, few ? sort_positions<T, std::uint32_t> : sort_positions<T, std::int64_t>);
  });
}

}  // namespace lockstep::kernels::host
