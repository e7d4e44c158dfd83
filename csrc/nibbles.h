// Eight fp4 numbers in each 32-bit lane, and their values: the J-th of every lane at once. And scale bytes as numbers,
// 2^(e - 127): e = 0 has no exponent of its own, 255 is NaN.
// Register tiles: kRows rows of weights by kTokens tokens are in registers together.
#pragma once

#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {

alignas(64) static constexpr float kFp4[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

#if defined(STATEWELL_AVX512)

constexpr int kRows = 2, kTokens = 4;
using Codes = __m512i;
static inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline Codes load_codes_part(const uint8_t* p, int64_t lanes) { return _mm512_maskz_loadu_epi32(first(lanes), p); }
// The permutation looks at the lowest four bits of a lane alone.
template <int J>
static inline Vec decoded(Codes codes) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(codes, 4 * J), load(kFp4));
}
static inline Vec powers(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i bits = _mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000));
    const __mmask16 none = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, none, _mm512_set1_epi32(0x7fc00000)));
}
// The scale of each lane: four of them hold a group of 32.
static inline Vec spread_scales(const float* scales) {
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutevar_ps(_mm512_broadcast_f32x4(_mm_loadu_ps(scales)), lane);
}

#elif defined(STATEWELL_AVX2)

constexpr int kRows = 1, kTokens = 4;
using Codes = __m256i;
static inline Codes load_codes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
static inline Codes load_codes_part(const uint8_t* p, int64_t lanes) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(p), first(lanes));
}
// The permutation looks at the lowest three bits of a lane; the fourth becomes the sign.
template <int J>
static inline Vec decoded(Codes codes) {
    const Vec magnitude = _mm256_permutevar8x32_ps(load(kFp4), _mm256_srli_epi32(codes, 4 * J));
    const __m256i sign = _mm256_slli_epi32(codes, 28 - 4 * J);
    return _mm256_xor_ps(magnitude, _mm256_and_ps(_mm256_castsi256_ps(sign), _mm256_set1_ps(-0.0f)));
}
static inline Vec powers(const uint8_t* p) {
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i bits = _mm256_max_epu32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x00400000));
    const __m256i none = _mm256_cmpeq_epi32(e, _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_and_si256(none, _mm256_set1_epi32(0x00400000))));
}
static inline Vec spread_scales(const float* scales) {
    return _mm256_set_m128(_mm_broadcast_ss(scales + 1), _mm_broadcast_ss(scales));
}

#elif defined(STATEWELL_NEON)

constexpr int kRows = 2, kTokens = 4;
using Codes = uint32x4_t;
static inline Codes load_codes(const uint8_t* p) { return vreinterpretq_u32_u8(vld1q_u8(p)); }
static inline Codes load_codes_part(const uint8_t* p, int64_t) { return load_codes(p); }  // 32 inputs fill the lanes
// The upper two bytes of each value come from two tables of bytes; the lower two are 0 in all of them.
template <int J>
static inline Vec decoded(Codes codes) {
    static const uint8_t upper[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                      0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0};
    static const uint8_t lower[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                      0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
    uint32x4_t code = codes;
    if constexpr (J > 0) code = vshrq_n_u32(codes, 4 * J);
    const uint8x16_t place = vreinterpretq_u8_u32(vandq_u32(code, vdupq_n_u32(15)));
    const uint32x4_t high = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(upper), place));
    const uint32x4_t low = vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(lower), place));
    return vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32(high, 24), vshlq_n_u32(low, 16)));
}
static inline Vec powers(const uint8_t* p) {
    const uint32_t bytes[4] = {p[0], p[1], p[2], p[3]};
    const uint32x4_t e = vld1q_u32(bytes), bits = vmaxq_u32(vshlq_n_u32(e, 23), vdupq_n_u32(0x00400000));
    const uint32x4_t none = vceqq_u32(e, vdupq_n_u32(255));
    return vreinterpretq_f32_u32(vorrq_u32(bits, vandq_u32(none, vdupq_n_u32(0x00400000))));
}
static inline Vec spread_scales(const float* scales) { return vdupq_n_f32(*scales); }

#else

constexpr int kRows = 1, kTokens = 2;
using Codes = uint32_t;
static inline Codes load_codes(const uint8_t* p) {
    Codes codes;
    __builtin_memcpy(&codes, p, sizeof codes);
    return codes;
}
static inline Codes load_codes_part(const uint8_t* p, int64_t) { return load_codes(p); }
template <int J>
static inline Vec decoded(Codes codes) {
    return kFp4[codes >> 4 * J & 15];
}
static inline Vec powers(const uint8_t* p) {
    const uint32_t bits = *p == 0 ? 0x00400000u : *p == 255 ? 0x7fc00000u : static_cast<uint32_t>(*p) << 23;
    Vec value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
static inline Vec spread_scales(const float* scales) { return *scales; }

#endif

}  // namespace STATEWELL_ISA
}  // namespace statewell
