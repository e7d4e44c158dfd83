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
