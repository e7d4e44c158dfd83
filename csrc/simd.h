// One vector type per instruction set. A kernel file is compiled once for each, inside namespace STATEWELL_ISA.
//
// Kernel files must not instantiate library templates (std::vector, std::max on a file's own types is fine, algorithms
// are not): the linker keeps one copy of an inline function, which could be the one with the newest instructions.
// Where an operand is NaN, `max` and `min` give the second.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(STATEWELL_AVX512) || defined(STATEWELL_AVX2)
#include <immintrin.h>
#elif defined(STATEWELL_NEON)
#include <arm_neon.h>
#endif

namespace statewell {
namespace STATEWELL_ISA {

#if defined(STATEWELL_AVX512)

constexpr int LANES = 16;
using Vec = __m512;
static inline __mmask16 first(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1u); }
static inline Vec zero() { return _mm512_setzero_ps(); }
static inline Vec set1(float x) { return _mm512_set1_ps(x); }
static inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
static inline Vec load_part(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
static inline void store_part(float* p, Vec x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
static inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
static inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
static inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
static inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
static inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
static inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
static inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
static inline Vec sqrt(Vec a) { return _mm512_sqrt_ps(a); }
static inline Vec round(Vec a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Vec scale_by_power(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
static inline float sum(Vec a) { return _mm512_reduce_add_ps(a); }

#elif defined(STATEWELL_AVX2)

constexpr int LANES = 8;
using Vec = __m256;
static inline __m256i first(int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
}
static inline Vec zero() { return _mm256_setzero_ps(); }
static inline Vec set1(float x) { return _mm256_set1_ps(x); }
static inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
static inline Vec load_part(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
static inline void store_part(float* p, Vec x, int64_t n) { _mm256_maskstore_ps(p, first(n), x); }
static inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
static inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
static inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
static inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
static inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
static inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
static inline Vec sqrt(Vec a) { return _mm256_sqrt_ps(a); }
static inline Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Vec power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// In two factors: one alone cannot be 2^-150, the smallest that still rounds to a number.
static inline Vec scale_by_power(Vec a, Vec n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(_mm256_sub_epi32(whole, half)));
}
static inline float sum(Vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

#elif defined(STATEWELL_NEON)

constexpr int LANES = 4;
using Vec = float32x4_t;
static inline Vec zero() { return vdupq_n_f32(0.0f); }
static inline Vec set1(float x) { return vdupq_n_f32(x); }
static inline Vec load(const float* p) { return vld1q_f32(p); }
static inline void store(float* p, Vec x) { vst1q_f32(p, x); }
static inline Vec load_part(const float* p, int64_t n) {
    float held[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int64_t i = 0; i < n && i < 4; ++i) held[i] = p[i];
    return vld1q_f32(held);
}
static inline void store_part(float* p, Vec x, int64_t n) {
    float held[4];
    vst1q_f32(held, x);
    for (int64_t i = 0; i < n && i < 4; ++i) p[i] = held[i];
}
static inline Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
static inline Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
static inline Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
static inline Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
static inline Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
static inline Vec fnma(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
static inline Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
static inline Vec sqrt(Vec a) { return vsqrtq_f32(a); }
static inline Vec round(Vec a) { return vrndnq_f32(a); }
static inline Vec power_of_two(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
static inline Vec scale_by_power(Vec a, Vec n) {
    const int32x4_t whole = vcvtq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    return mul(mul(a, power_of_two(half)), power_of_two(vsubq_s32(whole, half)));
}
static inline float sum(Vec a) { return vaddvq_f32(a); }

#else

constexpr int LANES = 1;
using Vec = float;
static inline Vec zero() { return 0.0f; }
static inline Vec set1(float x) { return x; }
static inline Vec load(const float* p) { return *p; }
static inline void store(float* p, Vec x) { *p = x; }
static inline Vec load_part(const float* p, int64_t n) { return n > 0 ? *p : 0.0f; }
static inline void store_part(float* p, Vec x, int64_t n) {
    if (n > 0) *p = x;
}
static inline Vec add(Vec a, Vec b) { return a + b; }
static inline Vec sub(Vec a, Vec b) { return a - b; }
static inline Vec mul(Vec a, Vec b) { return a * b; }
static inline Vec div(Vec a, Vec b) { return a / b; }
static inline Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
static inline Vec fnma(Vec a, Vec b, Vec c) { return c - a * b; }
static inline Vec max(Vec a, Vec b) { return a > b ? a : b; }
static inline Vec min(Vec a, Vec b) { return a < b ? a : b; }
static inline Vec sqrt(Vec a) { return __builtin_sqrtf(a); }
static inline Vec round(Vec a) { return __builtin_rintf(a); }
static inline Vec scale_by_power(Vec a, Vec n) { return __builtin_ldexpf(a, n == n ? static_cast<int>(n) : 0); }
static inline float sum(Vec a) { return a; }

#endif

// e^x within 2 units in the last place for every x: 0 from -104 down (and for -inf), inf above 88.73, NaN for NaN.
// The polynomial is the one of Cephes' expf (Moshier), on [-ln 2 / 2, ln 2 / 2].
static inline Vec exp(Vec x) {
    x = min(set1(89.0f), max(set1(-105.0f), x));
    const Vec n = round(mul(x, set1(1.44269504088896341f)));
    Vec r = fnma(n, set1(0.693359375f), x);
    r = fnma(n, set1(-2.12194440e-4f), r);
    Vec p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    return scale_by_power(add(fma(mul(r, r), p, r), set1(1.0f)), n);
}

// n rounded up to whole vectors.
static inline int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

}  // namespace STATEWELL_ISA
}  // namespace statewell
