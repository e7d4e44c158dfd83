// Elementwise pieces: SiTU and the two retention gates, with their gradients. fp32 throughout.
#include "parts.h"

#include <cfloat>

#include "blocks.h"
#include "curves.h"

namespace statewell {
namespace STATEWELL_ISA {

void situ_forward(int threads, const float* gate, const float* up, float* out, int64_t count, float beta, float linear_beta) {
    const bool bounded = linear_beta != 0.0f;
    const float per_beta = 1.0f / beta, per_linear = bounded ? 1.0f / linear_beta : 0.0f;
    const float scale = beta * (bounded ? linear_beta : 1.0f);
    Blocks(count, 1).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        if (bounded) {
#pragma omp simd
            for (int64_t i = begin; i < end; ++i) {
                const float factor = curves::tanh(gate[i] * per_beta) * curves::sigmoid(gate[i]);
                out[i] = factor * curves::tanh(up[i] * per_linear) * scale;
            }
        } else {
#pragma omp simd
            for (int64_t i = begin; i < end; ++i)
                out[i] = curves::tanh(gate[i] * per_beta) * curves::sigmoid(gate[i]) * up[i] * scale;
        }
    });
}

void situ_backward(int threads, const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t count,
                   float beta, float linear_beta) {
    const bool bounded = linear_beta != 0.0f;
    const float per_beta = 1.0f / beta, per_linear = bounded ? 1.0f / linear_beta : 0.0f;
    const float scale = bounded ? linear_beta : 1.0f;
    Blocks(count, 1).each(threads, [&](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) {
            const float t = curves::tanh(gate[i] * per_beta), s = curves::sigmoid(gate[i]);
            // the tanh of `up` and its slope; 0 * up leaves tanh = 0, slope = 1 where `up` is not bounded
            const float bend = curves::tanh(up[i] * per_linear);
            const float linear = bounded ? bend : up[i];
            const float slope = 1.0f - bend * bend;
            dup[i] = dout[i] * beta * (t * s) * slope;
            // beta cancels in the slope of beta * tanh(gate / beta)
            dgate[i] = dout[i] * linear * scale * (s * (1.0f - t * t) + beta * t * (s * (1.0f - s)));
        }
    });
}

namespace {

// One token's row of gates, repeated until it is long enough to vectorise: heads alone may be 4 numbers.
struct Pattern {
    static constexpr int64_t kLeast = 64;
    int64_t width, length;

    Pattern(int64_t HV, int64_t K) : width(HV * K), length(width * most(1, kLeast / most(1, width))) {}
    int64_t rows(int64_t M) const { return (M * width + length - 1) / length; }
    // exp(A_log) and dt_bias, [length] each.
    void write(const float* A_log, const float* dt_bias, int64_t K, float* rate, float* bias) const {
        for (int64_t i = 0; i < length; ++i) {
            rate[i] = __builtin_expf(A_log[i % width / K]);
            bias[i] = dt_bias[i % width];
        }
    }
};

}  // namespace

void gate_forward(int threads, const float* z_rows, const float* A_log, const float* dt_bias, float* g_rows, int64_t M,
                  int64_t HV, int64_t K, float lower_bound) {
    const Pattern pattern(HV, K);
    const int64_t L = pattern.length, count = M * pattern.width;
    const Blocks blocks(pattern.rows(M), L);
    float *rate = scratch(2 * L), *bias = rate + L;
    pattern.write(A_log, dt_bias, K, rate, bias);
    const float low = lower_bound, lowest = __builtin_nextafterf(low, 0.0f);
    blocks.each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* z = z_rows + row * L;
            float* g = g_rows + row * L;
            const int64_t n = least(L, count - row * L);
            if (low == 0.0f) {
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) g[i] = -rate[i] * curves::softplus(z[i] + bias[i]);
            } else {
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    float value = low * curves::sigmoid(rate[i] * (z[i] + bias[i]));
                    // strictly inside its ends under rounding; NaN stays
                    value = value < lowest ? lowest : value;
                    g[i] = value > -FLT_MIN ? -FLT_MIN : value;
                }
            }
        }
    });
}

void gate_backward(int threads, const float* z_rows, const float* A_log, const float* dt_bias, const float* g_rows,
                   const float* dg_rows, float* dz_rows, float* dA_log, float* ddt_bias, int64_t M, int64_t HV,
                   int64_t K, float lower_bound) {
    const Pattern pattern(HV, K);
    const int64_t L = pattern.length, count = M * pattern.width;
    const Blocks blocks(pattern.rows(M), L);
    const BlockRows sums(blocks, 2 * L, 4 * L);
    sums.zero();
    float *rate = sums.extra(), *bias = rate + L, *total = bias + L;
    pattern.write(A_log, dt_bias, K, rate, bias);
    const float low = lower_bound, per_low = low == 0.0f ? 0.0f : 1.0f / low;
    blocks.each(threads, [&](int64_t block, int64_t begin, int64_t end) {
        float *drate = sums.of(block), *dbias = drate + L;
        for (int64_t row = begin; row < end; ++row) {
            const float *z = z_rows + row * L, *g = g_rows + row * L, *dg = dg_rows + row * L;
            float* dz = dz_rows + row * L;
            const int64_t n = least(L, count - row * L);
            if (low == 0.0f) {
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    dz[i] = -dg[i] * rate[i] * curves::sigmoid(z[i] + bias[i]);
                    dbias[i] += dz[i];
                    drate[i] += dg[i] * g[i];
                }
            } else {
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) {
                    dz[i] = dg[i] * g[i] * (1.0f - g[i] * per_low) * rate[i];
                    dbias[i] += dz[i];
                    drate[i] += dz[i] * (z[i] + bias[i]);
                }
            }
        }
    });
    sums.total(total, 2 * L);
    for (int64_t h = 0; h < HV; ++h) dA_log[h] = 0.0f;
    for (int64_t d = 0; d < pattern.width; ++d) ddt_bias[d] = 0.0f;
    for (int64_t i = 0; i < L; ++i) {
        dA_log[i % pattern.width / K] += total[i];
        ddt_bias[i % pattern.width] += total[L + i];
    }
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
