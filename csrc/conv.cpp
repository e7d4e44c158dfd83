// The short causal convolution. Each block of tokens walks its own columns of channels with the last W inputs (in the
// backward also the last W gradients) in registers. Products and sums must not be fused, see parts.h: the build
// compiles this file with -ffp-contract=off. fp32; the taps' gradients are summed token by token in a block, then
// over the blocks in order.
#include "parts.h"

#include "blocks.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

constexpr int64_t kTokens = 64;  // of a block, counted from the start of its segment

// A vector or a single channel under one set of names, so that the last channels run the same code.
struct Wide {
    using Type = Vec;
    static constexpr int64_t kLanes = LANES;
    static Vec load(const float* p) { return STATEWELL_ISA::load(p); }
    static void store(float* p, Vec x) { STATEWELL_ISA::store(p, x); }
    static Vec zero() { return STATEWELL_ISA::zero(); }
    static Vec mul(Vec a, Vec b) { return STATEWELL_ISA::mul(a, b); }
    static Vec add(Vec a, Vec b) { return STATEWELL_ISA::add(a, b); }
};
struct Single {
    using Type = float;
    static constexpr int64_t kLanes = 1;
    static float load(const float* p) { return *p; }
    static void store(float* p, float x) { *p = x; }
    static float zero() { return 0.0f; }
    static float mul(float a, float b) { return a * b; }
    static float add(float a, float b) { return a + b; }
};

// Tokens first .. last of one segment of `length`, whose rows start at these pointers.
struct Span {
    const float *x, *history, *dy;
    float *y, *dx, *dhistory, *dtaps;
    int64_t first, last, length;
};

// The input `back` tokens before token t of the segment.
inline const float* input(const Span& span, int64_t t, int64_t W, int64_t D) {
    return t >= 0 ? span.x + t * D : span.history + (t + W - 1) * D;
}

template <class Lane, int W>
void forward_columns(const Span& span, const float* taps, int64_t D, int64_t d) {
    using V = typename Lane::Type;
    V tap[W], kept[W];  // kept[lag]: the input `lag` tokens ago
    for (int lag = 0; lag < W; ++lag) tap[lag] = Lane::load(taps + (W - 1 - lag) * D + d);
    for (int lag = 1; lag < W; ++lag) kept[lag - 1] = Lane::load(input(span, span.first - lag, W, D) + d);
    for (int64_t t = span.first; t < span.last; ++t) {
        for (int lag = W - 1; lag > 0; --lag) kept[lag] = kept[lag - 1];
        kept[0] = Lane::load(span.x + t * D + d);
        V y = Lane::mul(kept[0], tap[0]);
        for (int lag = 1; lag < W; ++lag) y = Lane::add(y, Lane::mul(kept[lag], tap[lag]));
        Lane::store(span.y + t * D + d, y);
    }
}

template <class Lane, int W>
void backward_columns(const Span& span, const float* taps, int64_t D, int64_t d) {
    using V = typename Lane::Type;
    V tap[W], kept[W], ahead[W], dtap[W];  // ahead[lag]: dy `lag` tokens later
    for (int lag = 0; lag < W; ++lag) {
        tap[lag] = Lane::load(taps + (W - 1 - lag) * D + d);
        dtap[lag] = Lane::zero();
    }
    for (int lag = 1; lag < W; ++lag) kept[lag - 1] = Lane::load(input(span, span.first - lag, W, D) + d);
    const auto later = [&](int64_t t) { return t < span.length ? Lane::load(span.dy + t * D + d) : Lane::zero(); };
    for (int lag = 0; lag + 1 < W; ++lag) ahead[lag + 1] = later(span.first + lag);
    for (int64_t t = span.first; t < span.last; ++t) {
        for (int lag = W - 1; lag > 0; --lag) kept[lag] = kept[lag - 1];
        kept[0] = Lane::load(span.x + t * D + d);
        for (int lag = 0; lag + 1 < W; ++lag) ahead[lag] = ahead[lag + 1];
        ahead[W - 1] = later(t + W - 1);
        V dx = Lane::mul(ahead[0], tap[0]);
        for (int lag = 1; lag < W; ++lag) dx = Lane::add(dx, Lane::mul(ahead[lag], tap[lag]));
        Lane::store(span.dx + t * D + d, dx);
        for (int lag = 0; lag < W; ++lag) dtap[lag] = Lane::add(dtap[lag], Lane::mul(ahead[0], kept[lag]));
    }
    for (int lag = 0; lag < W; ++lag) Lane::store(span.dtaps + (W - 1 - lag) * D + d, dtap[lag]);
    // what the history lent to the first W-1 outputs
    for (int64_t p = 0; span.first == 0 && p < W - 1; ++p) {
        V sum = Lane::zero();
        for (int lag = static_cast<int>(W - 1 - p); lag < W; ++lag)
            sum = Lane::add(sum, Lane::mul(later(p - (W - 1) + lag), tap[lag]));
        Lane::store(span.dhistory + p * D + d, sum);
    }
}

template <int W, bool backward>
void block_of(const Span& span, const float* taps, int64_t D) {
    int64_t d = 0;
    for (; d + Wide::kLanes <= D; d += Wide::kLanes)
        backward ? backward_columns<Wide, W>(span, taps, D, d) : forward_columns<Wide, W>(span, taps, D, d);
    for (; d < D; ++d)
        backward ? backward_columns<Single, W>(span, taps, D, d) : forward_columns<Single, W>(span, taps, D, d);
}

template <bool backward>
void block_any(const Span& span, const float* taps, int64_t D, int64_t W) {
    switch (W) {
        case 2: return block_of<2, backward>(span, taps, D);
        case 3: return block_of<3, backward>(span, taps, D);
        default: return block_of<4, backward>(span, taps, D);
    }
}

int64_t blocks_in(int64_t length) { return (length + kTokens - 1) / kTokens; }

int64_t blocks_before(const int64_t* bounds, int64_t n) {
    int64_t count = 0;
    for (int64_t s = 0; s < n; ++s) count += blocks_in(bounds[s + 1] - bounds[s]);
    return count;
}

void to_rows(const float* weight, float* taps, int64_t D, int64_t W) {
    for (int64_t d = 0; d < D; ++d)
        for (int64_t j = 0; j < W; ++j) taps[j * D + d] = weight[d * W + j];
}

// run(span, block) for every block of every segment; consecutive blocks share a thread until they are worth one.
template <class Run>
void each_block(int threads, const Span& whole, const int64_t* bounds, int64_t N, int64_t D, int64_t W, const Run& run) {
    const Blocks groups(blocks_before(bounds, N), kTokens * D);
    groups.each(threads, [&](int64_t, int64_t begin, int64_t end) {
        int64_t start = 0;
        for (int64_t n = 0; n < N && start < end; ++n) {
            const int64_t length = bounds[n + 1] - bounds[n], count = blocks_in(length);
            const int64_t at = bounds[n] * D, kept = n * (W - 1) * D;
            Span span = whole;
            span.x += at;
            span.history += kept;
            span.length = length;
            if (span.dy != nullptr) {
                span.dy += at;
                span.dx += at;
                span.dhistory += kept;
            } else {
                span.y += at;
            }
            for (int64_t block = most(0, begin - start); block < least(count, end - start); ++block) {
                span.first = block * kTokens;
                span.last = least(length, span.first + kTokens);
                run(span, start + block);
            }
            start += count;
        }
    });
}

}  // namespace

void conv_forward(int threads, const float* x, const float* weight, const float* history, float* y,
                  const int64_t* bounds, int64_t N, int64_t D, int64_t W) {
    float* taps = scratch(W * D);
    to_rows(weight, taps, D, W);
    const Span whole{x, history, nullptr, y, nullptr, nullptr, nullptr, 0, 0, 0};
    each_block(threads, whole, bounds, N, D, W, [&](const Span& span, int64_t) { block_any<false>(span, taps, D, W); });
}

void conv_backward(int threads, const float* x, const float* weight, const float* history, const float* dy, float* dx,
                   float* dweight, float* dhistory, const int64_t* bounds, int64_t N, int64_t D, int64_t W) {
    const int64_t blocks = blocks_before(bounds, N);
    float *taps = scratch((blocks + 1) * W * D), *dtaps = taps + W * D;
    to_rows(weight, taps, D, W);
    const Span whole{x, history, dy, nullptr, dx, dhistory, nullptr, 0, 0, 0};
    each_block(threads, whole, bounds, N, D, W, [&](Span span, int64_t block) {
        span.dtaps = dtaps + block * W * D;
        block_any<true>(span, taps, D, W);
    });
    float* total = taps;  // no longer needed
    for (int64_t i = 0; i < W * D; ++i) total[i] = 0.0f;
    for (int64_t block = 0; block < blocks; ++block)
        for (int64_t i = 0; i < W * D; ++i) total[i] += dtaps[block * W * D + i];
    for (int64_t d = 0; d < D; ++d)
        for (int64_t j = 0; j < W; ++j) dweight[d * W + j] = total[j * D + d];
    // a segment without tokens has no block to write it
    for (int64_t n = 0; n < N; ++n)
        for (int64_t i = 0; bounds[n + 1] == bounds[n] && i < (W - 1) * D; ++i) dhistory[n * (W - 1) * D + i] = 0.0f;
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
