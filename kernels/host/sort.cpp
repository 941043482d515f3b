// Running sums and sorting along the middle of [outer, size, inner].
#include <algorithm>

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/scratch.h"
#include "lockstep/kernels/sort_key.h"

namespace lockstep::kernels::host {
namespace {

template <class T>
void running_sums(const CumsumArgs& a) {
  using Sum = std::conditional_t<functors::kInteger<T>, T, double>;
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], size = shape[1], inner = shape[2];
  Scratch scratch;
  Sum* sums = scratch.take<Sum>(inner);
  for (std::int64_t o = 0; o < outer; ++o) {
    std::fill_n(sums, inner, Sum(0));
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t begin = (o * size + (a.reverse ? size - 1 - i : i)) * inner;
      const T* from = data<T>(a.x) + begin;
      T* to = data<T>(a.y) + begin;
      for (std::int64_t j = 0; j < inner; ++j) {
        sums[j] = functors::plus(sums[j], static_cast<Sum>(static_cast<functors::Compute<T>>(from[j])));
        to[j] = static_cast<T>(static_cast<functors::Compute<T>>(sums[j]));
      }
    }
  }
}

template <class T>
void sort_positions(const ArgsortArgs& a) {
  using C = functors::Compute<T>;
  struct Entry {
    SortKey<C> key;
    std::int64_t position;
    bool operator<(const Entry& other) const {
      return key != other.key ? key < other.key : position < other.position;  // total: any sort is stable
    }
  };
  const Shape& shape = a.x.view.shape;
  const std::int64_t outer = shape[0], size = shape[1], inner = shape[2], wanted = a.indices.view.shape[1];
  Scratch scratch;
  Entry* entries = scratch.take<Entry>(size);
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t j = 0; j < inner; ++j) {
      const T* from = data<T>(a.x) + o * size * inner + j;
      for (std::int64_t i = 0; i < size; ++i) {
        entries[i].key = sort_key(static_cast<C>(from[i * inner]), a.descending);
        entries[i].position = i;
      }
      // A heap of those that are wanted, where they are few.
      if (wanted < size / 8)
        std::partial_sort(entries, entries + wanted, entries + size);
      else
        std::sort(entries, entries + size);
      auto* to = data<std::int64_t>(a.indices) + o * wanted * inner + j;
      for (std::int64_t i = 0; i < wanted; ++i) to[i * inner] = entries[i].position;
    }
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const CumsumArgs& args) {
  const DType dtype = args.x.view.dtype;
  if (dtype == DType::i64) return launch(stream, args, running_sums<std::int64_t>);
  check_floating(CumsumArgs::kName, dtype, stream);
  dispatch_floating(dtype, [&]<class T>(Type<T>) { launch(stream, args, running_sums<T>); });
}
void Kernels::enqueue(const Stream& stream, const ArgsortArgs& args) {
  dispatch(args.x.view.dtype, [&]<class T>(Type<T>) { launch(stream, args, sort_positions<T>); });
}

}  // namespace lockstep::kernels::host
