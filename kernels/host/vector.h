// A register full of numbers, for the few loops that compilers do not vectorise by themselves.
#pragma once

#include <cmath>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace lockstep::kernels::host {

#if defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
inline constexpr int kWidth = kVectorBytes / sizeof(T);

template <class T>
Vector<T> load(const T* from) {
  Vector<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
void store(const Vector<T>& v, T* to) {
  std::memcpy(to, &v, sizeof v);
}

// The first `count` numbers and zeros; memory behind them is not touched.
inline Vector<float> load_first(const float* from, long count) {
#if defined(__AVX2__)
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes));
#else
  Vector<float> v = {};
  for (long i = 0; i < count; ++i) v[i] = from[i];
  return v;
#endif
}
inline Vector<double> load_first(const double* from, long count) {
#if defined(__AVX2__)
  const __m256i lanes = _mm256_setr_epi64x(0, 1, 2, 3);
  return _mm256_maskload_pd(from, _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), lanes));
#else
  Vector<double> v = {};
  for (long i = 0; i < count; ++i) v[i] = from[i];
  return v;
#endif
}

// The widest registers there are, for products: an element is a chain of additions of its own there, so their width
// does not change its bits.
#if defined(__AVX512F__)
inline constexpr int kTileBytes = 64;
#else
inline constexpr int kTileBytes = kVectorBytes;
#endif
template <class T>
struct TileVectorOf {
  typedef T type __attribute__((vector_size(kTileBytes)));
};
template <class T>
using TileVector = typename TileVectorOf<T>::type;
template <class T>
inline constexpr int kTileWidth = kTileBytes / sizeof(T);

template <class T>
TileVector<T> load_tile(const T* from) {
  TileVector<T> v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
template <class T>
void store_tile(const TileVector<T>& v, T* to) {
  std::memcpy(to, &v, sizeof v);
}

// a * b + c; fused where the processor can.
inline Vector<float> multiply_add(float a, const Vector<float>& b, const Vector<float>& c) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(_mm256_set1_ps(a), b, c);
#else
  return a * b + c;
#endif
}
inline Vector<double> multiply_add(double a, const Vector<double>& b, const Vector<double>& c) {
#if defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_pd(_mm256_set1_pd(a), b, c);
#else
  return a * b + c;
#endif
}

// The first `count` numbers and zeros, as load_first.
#if defined(__AVX512F__)
inline TileVector<float> load_first_tile(const float* from, long count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << count) - 1), from);
}
inline TileVector<double> load_first_tile(const double* from, long count) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1U << count) - 1), from);
}
#else
template <class T>
TileVector<T> load_first_tile(const T* from, long count) {
  return load_first(from, count);
}
#endif

#if defined(__AVX512F__)
inline TileVector<float> multiply_add(float a, const TileVector<float>& b, const TileVector<float>& c) {
  return _mm512_fmadd_ps(_mm512_set1_ps(a), b, c);
}
inline TileVector<double> multiply_add(double a, const TileVector<double>& b, const TileVector<double>& c) {
  return _mm512_fmadd_pd(_mm512_set1_pd(a), b, c);
}
#endif

}  // namespace lockstep::kernels::host
