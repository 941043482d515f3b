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

}  // namespace lockstep::kernels::host
