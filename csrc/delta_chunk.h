// One chunk of tokens of one head, made ready for all its tiles of value columns; shared by forward and backward.
#pragma once

#include "delta.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {

constexpr int TILE = LANES == 1 ? 8 : 32;  // value columns of a tile, at most
constexpr int WIDEST = TILE / LANES;       // the same in vectors

constexpr bool corrects(int rule) { return rule != ADDITIVE; }
constexpr bool fades(int rule) { return rule == GATED_DELTA || rule == KEY_DECAY; }

static inline float first_lane(Vec x) {
    float lanes[LANES];
    store(lanes, x);
    return lanes[0];
}

static inline float dot(const float* a, const float* b, int64_t n) {
    Vec total = zero();
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) total = fma(load(a + i), load(b + i), total);
    if (i < n) total = fma(load_part(a + i, n - i), load_part(b + i, n - i), total);
    return sum(total);
}

// out[r] = the sum of the LANES floats of row r, for n rows; four at a time, which share the sums across lanes.
static inline void sum_rows(const float* rows, int64_t n, float* out) {
    int64_t r = 0;
#if defined(STATEWELL_AVX512) || defined(STATEWELL_AVX2)
    const auto half = [rows](int64_t row) {
        const float* at = rows + row * LANES;
#if defined(STATEWELL_AVX512)
        return _mm256_add_ps(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8));
#else
        return _mm256_loadu_ps(at);
#endif
    };
    for (; r + 4 <= n; r += 4) {
        const __m256 low = _mm256_hadd_ps(half(r), half(r + 1)), high = _mm256_hadd_ps(half(r + 2), half(r + 3));
        const __m256 both = _mm256_hadd_ps(low, high);
        _mm_storeu_ps(out + r, _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1)));
    }
#endif
    for (; r < n; ++r) out[r] = sum(load(rows + r * LANES));
}

#if defined(STATEWELL_AVX512) || defined(STATEWELL_AVX2)
static inline void transpose_eight(const float* from, int64_t from_step, float* to, int64_t to_step) {
    __m256 x[8], y[8];
    for (int i = 0; i < 8; ++i) x[i] = _mm256_loadu_ps(from + i * from_step);
    for (int i = 0; i < 8; i += 2) {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(to + i * to_step, _mm256_permute2f128_ps(x[i], x[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_step, _mm256_permute2f128_ps(x[i], x[i + 4], 0x31));
    }
}
#endif

// to[c][r] = from[r][c] for `rows` rows and `columns` columns, whose rows are from_step and to_step apart.
static inline void transpose(const float* from, int64_t from_step, float* to, int64_t to_step, int64_t rows,
                             int64_t columns) {
    int64_t r = 0;
#if defined(STATEWELL_AVX512) || defined(STATEWELL_AVX2)
    for (; r + 8 <= rows; r += 8) {
        int64_t c = 0;
        for (; c + 8 <= columns; c += 8) transpose_eight(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
        for (; c < columns; ++c)
            for (int64_t i = r; i < r + 8; ++i) to[c * to_step + i] = from[i * from_step + c];
    }
#endif
    for (; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) to[c * to_step + r] = from[r * from_step + c];
}

// Whole vectors where `whole`, else the first n lanes.
static inline Vec load_some(const float* p, int64_t n, bool whole) { return whole ? load(p) : load_part(p, n); }
static inline void store_some(float* p, Vec x, int64_t n, bool whole) {
    if (whole)
        store(p, x);
    else
        store_part(p, x, n);
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
