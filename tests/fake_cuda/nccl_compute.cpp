// What the collectives of the fake NCCL compute.
#if __has_include(<nccl.h>)
#include <algorithm>
#include <cstring>

#include "fake_cuda/nccl_state.h"
#include "lockstep/kernels/half.h"

namespace fake_cuda {
namespace {

template <class F>
auto with_type(ncclDataType_t type, F&& f) {
  switch (type) {
    case ncclUint8:
      return f(std::uint8_t{});
    case ncclInt32:
      return f(std::int32_t{});
    case ncclInt64:
      return f(std::int64_t{});
    case ncclFloat16:
      return f(lockstep::Half{});
    case ncclFloat64:
      return f(double{});
    case ncclBfloat16:
      return f(lockstep::BFloat16{});
    default:
      return f(float{});
  }
}

// Halves in f32; integers wrap.
template <class T>
auto wide(T x) {
  if constexpr (std::is_same_v<T, lockstep::Half> || std::is_same_v<T, lockstep::BFloat16>)
    return static_cast<float>(x);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
  else
    return x;
}

template <class T, class W>
W combined(ncclRedOp_t op, W x, W y) {
  const auto less = [](W a, W b) {
    if constexpr (std::is_integral_v<W>)
      return static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b);
    else
      return a < b;
  };
  switch (op) {
    case ncclProd:
      return x * y;
    case ncclMax:
      return x != x || less(y, x) ? x : y;
    case ncclMin:
      return x != x || less(x, y) ? x : y;
    default:
      return x + y;
  }
}

// The elements [first, first + count) of all ranks, in an order that begins with any of them.
std::vector<std::byte> reduced(const NcclOperation& operation, std::size_t first, std::size_t count,
                               std::uint64_t seed) {
  const NcclCall& like = operation.calls[0];
  std::vector<std::byte> result(count * nccl_bytes(like.type));
  with_type(like.type, [&]<class T>(T) {
    const std::size_t ranks = operation.calls.size();
    const auto at = [&](std::size_t rank, std::size_t i) {
      T x;
      std::memcpy(&x, static_cast<const std::byte*>(operation.calls[rank].in) + (first + i) * sizeof(T), sizeof(T));
      return wide(x);
    };
    for (std::size_t i = 0; i < count; ++i) {
      auto sum = at(seed % ranks, i);
      for (std::size_t r = 1; r < ranks; ++r) sum = combined<T>(like.op, sum, at((seed + r) % ranks, i));
      if (like.op == ncclAvg) sum = sum / static_cast<decltype(sum)>(ranks);
      const T stored = static_cast<T>(sum);
      std::memcpy(result.data() + i * sizeof(T), &stored, sizeof(T));
    }
    return 0;
  });
  return result;
}

std::vector<std::byte> bytes_of(const void* memory, std::size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(memory);
  return {begin, begin + bytes};
}

}  // namespace

std::size_t nccl_bytes(ncclDataType_t type) {
  return with_type(type, [](auto x) { return sizeof x; });
}

void compute(NcclOperation& operation, std::uint64_t seed) {
  const NcclCall& like = operation.calls[0];
  const std::size_t bytes = like.count * nccl_bytes(like.type);
  const auto root = static_cast<std::size_t>(std::max(like.peer, 0));
  // Everything is read before anything is written: some work in place.
  std::vector<std::vector<std::byte>> results(operation.calls.size());
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!operation.calls[r].out) continue;  // nothing is wanted there, or another process computes it
    switch (like.kind) {
      case NcclCall::all_reduce:
        results[r] = reduced(operation, 0, like.count, seed);
        break;
      case NcclCall::reduce:
        if (r == root) results[r] = reduced(operation, 0, like.count, seed);
        break;
      case NcclCall::reduce_scatter:
        results[r] = reduced(operation, r * like.count, like.count, seed);
        break;
      case NcclCall::broadcast:
        results[r] = bytes_of(operation.calls[root].in, bytes);
        break;
      case NcclCall::all_gather:
        for (const NcclCall& call : operation.calls) {
          const std::vector<std::byte> part = bytes_of(call.in, bytes);
          results[r].insert(results[r].end(), part.begin(), part.end());
        }
        break;
      case NcclCall::send:
      case NcclCall::recv:
        if (r == 1) results[r] = bytes_of(operation.calls[0].in, bytes);
        break;
    }
  }
  for (std::size_t r = 0; r < results.size(); ++r)
    if (!results[r].empty()) std::memcpy(operation.calls[r].out, results[r].data(), results[r].size());
}

}  // namespace fake_cuda
#endif
