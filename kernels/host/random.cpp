// Random numbers; kernels/philox.h has the mapping from counters to elements.
#include <algorithm>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "lockstep/kernels/functors.h"
#include "lockstep/kernels/host/each.h"
#include "lockstep/kernels/host/independent.h"
#include "lockstep/kernels/host/kernels.h"
#include "lockstep/kernels/host/launch.h"
#include "lockstep/kernels/host/pieces.h"
#include "lockstep/kernels/philox.h"

namespace lockstep::kernels::host {
namespace {

// Blocks whose words are made together, so that the compiler makes vector code of it.
constexpr std::int64_t kBatch = 64;

struct Words {
  std::uint32_t words[4][kBatch];

  std::uint64_t number(std::ptrdiff_t half, std::int64_t block) const {
    return philox::join(words[2 * half][block], words[2 * half + 1][block]);
  }
};

// The words of `blocks` blocks, or a few more.
void make_words(std::uint64_t first, std::int64_t blocks, const RandomArgs& args, Words& out) {
  const std::uint64_t key = args.replayed ? args.replayed[0] : args.key;
  const std::uint64_t stream = args.replayed ? args.replayed[1] : args.stream;
#if defined(__AVX2__)
  // Four blocks at a time, one per 64-bit lane. Compilers do not find the multiplication of the lower halves; what
  // stands in the upper halves does not matter to it.
  for (std::int64_t b = 0; b < blocks; b += 4) {
    const __m256i counter =
        _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(first) + b), _mm256_setr_epi64x(0, 1, 2, 3));
    __m256i c0 = counter, c1 = _mm256_srli_epi64(counter, 32);
    __m256i c2 = _mm256_set1_epi64x(static_cast<long long>(stream)), c3 = _mm256_srli_epi64(c2, 32);
    __m256i key0 = _mm256_set1_epi64x(static_cast<long long>(key)), key1 = _mm256_srli_epi64(key0, 32);
    for (int round = 0; round < 10; ++round) {
      const __m256i p0 = _mm256_mul_epu32(c0, _mm256_set1_epi64x(0xD2511F53));
      const __m256i p1 = _mm256_mul_epu32(c2, _mm256_set1_epi64x(0xCD9E8D57));
      c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1), key0);
      c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3), key1);
      c1 = p1;
      c3 = p0;
      key0 = _mm256_add_epi32(key0, _mm256_set1_epi64x(0x9E3779B9));
      key1 = _mm256_add_epi32(key1, _mm256_set1_epi64x(0xBB67AE85));
    }
    const auto store_low = [b](__m256i lanes, std::uint32_t* to) {
      const __m256i low = _mm256_permutevar8x32_epi32(lanes, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + b), _mm256_castsi256_si128(low));
    };
    store_low(c0, out.words[0]), store_low(c1, out.words[1]), store_low(c2, out.words[2]), store_low(c3, out.words[3]);
  }
#else
  for (std::int64_t b = 0; b < blocks; ++b) {
    const philox::Block block = philox::block(first + static_cast<std::uint64_t>(b), stream, key);
    for (int w = 0; w < 4; ++w) out.words[w][b] = block.words[w];
  }
#endif
}

// make(words, block, out) computes the kPerBlock elements of one block.
template <int kPerBlock, class T, class Make>
void for_each_block(const RandomArgs& a, Make&& make) {
  constexpr std::int64_t kBatchElements = kBatch * kPerBlock;
  constexpr std::int64_t kElementCost = 16;  // of bytes: it is much arithmetic
  const std::int64_t count = element_count(a.out.view.shape), batches = (count + kBatchElements - 1) / kBatchElements;
  T* y = data<T>(a.out);
  for_pieces(batches, piece_rows(batches, kBatchElements * kElementCost, kPieceBytes),
             [&](std::int64_t batch, std::int64_t end) {
               Words words;
               T rest[std::size_t{kBatchElements}];
               for (; batch < end; ++batch) {
                 const std::int64_t first = batch * kBatchElements, elements = std::min(kBatchElements, count - first);
                 const std::int64_t blocks = (elements + kPerBlock - 1) / kPerBlock;
                 make_words(static_cast<std::uint64_t>(batch * kBatch), blocks, a, words);
                 T* to = elements == blocks * kPerBlock ? y + first : rest;
                 LOCKSTEP_INDEPENDENT
                 for (std::int64_t b = 0; b < blocks; ++b) make(words, b, to + b * kPerBlock);
                 if (to == rest) std::copy_n(rest, elements, y + first);
               }
             });
}

template <class T>
void uniform(const RandomArgs& args) {
  if constexpr (std::is_same_v<T, double>) {
    for_each_block<2, T>(args, [a = args.a, b = args.b](const Words& w, std::int64_t block, T* to) {
      each<2>([&](auto j) { to[j] = philox::uniform<T>(philox::fraction(w.number(j, block)), a, b); });
    });
  } else {
    const auto a = static_cast<float>(args.a), b = static_cast<float>(args.b);
    for_each_block<4, T>(args, [a, b](const Words& w, std::int64_t block, T* to) {
      each<4>([&](auto j) { to[j] = philox::uniform<T>(philox::fraction<T>(w.words[j][block]), a, b); });
    });
  }
}

template <class T>
void normal(const RandomArgs& args) {
  if constexpr (std::is_same_v<T, double>) {
    for_each_block<2, T>(args, [a = args.a, b = args.b](const Words& w, std::int64_t block, T* to) {
      philox::normal(philox::open_fraction(w.number(0, block)), philox::fraction(w.number(1, block)), a, b, &to[0],
                     &to[1]);
    });
  } else {
    const auto mean = static_cast<float>(args.a), deviation = static_cast<float>(args.b);
    for_each_block<4, T>(args, [mean, deviation](const Words& w, std::int64_t block, T* to) {
      each<2>([&](auto j) {
        float first, second;
        philox::normal(philox::open_fraction(w.words[2 * j][block]), philox::fraction<float>(w.words[2 * j + 1][block]),
                       mean, deviation, &first, &second);
        to[2 * j] = static_cast<T>(first);
        to[2 * j + 1] = static_cast<T>(second);
      });
    });
  }
}

template <class T>
void bernoulli(const RandomArgs& args) {
  const std::uint64_t threshold = philox::threshold(args.a);
  for_each_block<4, T>(args, [threshold](const Words& w, std::int64_t block, T* to) {
    for (int j = 0; j < 4; ++j) to[j] = functors::convert<T>(static_cast<std::int32_t>(w.words[j][block] < threshold));
  });
}

template <class T>
void integer(const RandomArgs& args) {
  const auto low = static_cast<std::int64_t>(args.a);
  const auto range = static_cast<std::uint64_t>(static_cast<std::int64_t>(args.b) - low);
  for_each_block<2, T>(args, [low, range](const Words& w, std::int64_t block, T* to) {
    for (int j = 0; j < 2; ++j)
      to[j] = functors::convert<T>(low + static_cast<std::int64_t>(philox::multiply_high(w.number(j, block), range)));
  });
}

}  // namespace

void Kernels::enqueue(const Stream& stream, const RandomArgs& args) {
  const DType dtype = args.out.view.dtype;
  switch (args.kind) {
    case RandomKind::uniform:
      check_floating(RandomArgs::kName, dtype, stream);
      return dispatch_floating(dtype, [&]<class T>(Type<T>) { launch(stream, args, uniform<T>); });
    case RandomKind::normal:
      check_floating(RandomArgs::kName, dtype, stream);
      return dispatch_floating(dtype, [&]<class T>(Type<T>) { launch(stream, args, normal<T>); });
    case RandomKind::bernoulli:
      return dispatch(dtype, [&]<class T>(Type<T>) { launch(stream, args, bernoulli<T>); });
    case RandomKind::integer:
      LOCKSTEP_CHECK(args.a < args.b || element_count(args.out.view.shape) == 0,
                     "[random] expected integers from a non-empty range, got [", args.a, ", ", args.b, ")");
      return dispatch(dtype, [&]<class T>(Type<T>) { launch(stream, args, integer<T>); });
    case RandomKind::count:
      break;
  }
}

}  // namespace lockstep::kernels::host
