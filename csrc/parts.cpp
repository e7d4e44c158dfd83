// Elementwise pieces: SwiGLU, SiTU and the two retention gates, with their gradients. fp32 throughout.
#include "parts.h"

#include <cfloat>

#include "blocks.h"
#include "curves.h"

namespace statewell {
namespace STATEWELL_ISA {

namespace {

// Loops stand in functions of their own, with their numbers by value: what a lambda captures might alias what the
// loop writes, and that keeps it from being vectorised.

struct Bounds {
    float beta, per_beta, linear_beta, per_linear;

    Bounds(float beta_, float linear_beta_)
        : beta(beta_), per_beta(1.0f / beta_), linear_beta(linear_beta_),
          per_linear(linear_beta_ == 0.0f ? 0.0f : 1.0f / linear_beta_) {}
};

template <bool bounded>
void situ_forward_loop(const float* gate, const float* up, float* out, int64_t n, Bounds by) {
    const float scale = by.beta * (bounded ? by.linear_beta : 1.0f);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float factor = curves::tanh(gate[i] * by.per_beta) * curves::sigmoid(gate[i]);
        out[i] = factor * (bounded ? curves::tanh(up[i] * by.per_linear) : up[i]) * scale;
    }
}

template <bool bounded>
void situ_backward_loop(const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t n,
                        Bounds by) {
    const float scale = bounded ? by.linear_beta : 1.0f;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float t = curves::tanh(gate[i] * by.per_beta), s = curves::sigmoid(gate[i]);
        const float linear = bounded ? curves::tanh(up[i] * by.per_linear) : up[i];
        const float slope = bounded ? 1.0f - linear * linear : 1.0f;
        dup[i] = dout[i] * by.beta * (t * s) * slope;  // linear_beta cancels
        // beta cancels in the slope of beta * tanh(gate / beta)
        dgate[i] = dout[i] * linear * scale * (s * (1.0f - t * t) + by.beta * t * (s * (1.0f - s)));
    }
}

void swiglu_forward_loop(const float* gate, const float* up, float* out, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = gate[i] * curves::sigmoid(gate[i]) * up[i];
}

void swiglu_backward_loop(const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float s = curves::sigmoid(gate[i]);
        dup[i] = dout[i] * (gate[i] * s);
        dgate[i] = dout[i] * up[i] * (s * (1.0f + gate[i] * (1.0f - s)));
    }
}

}  // namespace

void swiglu_forward(int threads, const float* gate, const float* up, float* out, int64_t count) {
    Blocks(count, 1).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        swiglu_forward_loop(gate + begin, up + begin, out + begin, end - begin);
    });
}

void swiglu_backward(int threads, const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                     int64_t count) {
    Blocks(count, 1).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        swiglu_backward_loop(gate + begin, up + begin, dout + begin, dgate + begin, dup + begin, end - begin);
    });
}

void situ_forward(int threads, const float* gate, const float* up, float* out, int64_t count, float beta,
                  float linear_beta) {
    const auto loop = linear_beta == 0.0f ? situ_forward_loop<false> : situ_forward_loop<true>;
    const Bounds by(beta, linear_beta);
    Blocks(count, 1).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        loop(gate + begin, up + begin, out + begin, end - begin, by);
    });
}

void situ_backward(int threads, const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                   int64_t count, float beta, float linear_beta) {
    const auto loop = linear_beta == 0.0f ? situ_backward_loop<false> : situ_backward_loop<true>;
    const Bounds by(beta, linear_beta);
    Blocks(count, 1).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        loop(gate + begin, up + begin, dout + begin, dgate + begin, dup + begin, end - begin, by);
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

void decay_forward_loop(const float* z, const float* rate, const float* bias, float* g, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) g[i] = -rate[i] * curves::softplus(z[i] + bias[i]);
}

void bounded_forward_loop(const float* z, const float* rate, const float* bias, float* g, int64_t n, float low) {
    const float lowest = __builtin_nextafterf(low, 0.0f);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        float value = low * curves::sigmoid(rate[i] * (z[i] + bias[i]));
        // strictly inside its ends under rounding; NaN stays
        value = value < lowest ? lowest : value;
        value = value > -FLT_MIN ? -FLT_MIN : value;
        g[i] = value;
    }
}

// One row's gradients, and its part of the sums over the rows.
struct GateGradients {
    float *dz, *drate, *dbias;
};

void decay_backward_loop(const float* z, const float* rate, const float* bias, const float* g, const float* dg,
                         GateGradients to, int64_t n) {
    float *dz = to.dz, *drate = to.drate, *dbias = to.dbias;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float grad = -dg[i] * rate[i] * curves::sigmoid(z[i] + bias[i]);
        dz[i] = grad;
        dbias[i] += grad;
        drate[i] += dg[i] * g[i];
    }
}

void bounded_backward_loop(const float* z, const float* rate, const float* bias, const float* g, const float* dg,
                           GateGradients to, int64_t n, float low) {
    float *dz = to.dz, *drate = to.drate, *dbias = to.dbias;
    const float per_low = 1.0f / low, lowest = __builtin_nextafterf(low, 0.0f);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        float slope = g[i] * (1.0f - g[i] * per_low) * rate[i];
        // at its ends, where the forward holds it, the sigmoid is flat
        slope = g[i] <= lowest ? 0.0f : slope;
        slope = g[i] >= -FLT_MIN ? 0.0f : slope;
        const float grad = dg[i] * slope;
        dz[i] = grad;
        dbias[i] += grad;
        drate[i] += grad * (z[i] + bias[i]);
    }
}

}  // namespace

void gate_forward(int threads, const float* z_rows, const float* A_log, const float* dt_bias, float* g_rows, int64_t M,
                  int64_t HV, int64_t K, float lower_bound) {
    const Pattern pattern(HV, K);
    const int64_t L = pattern.length, count = M * pattern.width;
    const Blocks blocks(pattern.rows(M), L);
    float *rate = scratch(2 * L), *bias = rate + L;
    pattern.write(A_log, dt_bias, K, rate, bias);
    const float low = lower_bound;
    blocks.each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* z = z_rows + row * L;
            float* g = g_rows + row * L;
            const int64_t n = least(L, count - row * L);
            if (low == 0.0f)
                decay_forward_loop(z, rate, bias, g, n);
            else
                bounded_forward_loop(z, rate, bias, g, n, low);
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
    const float low = lower_bound;
    blocks.each(threads, [&](int64_t block, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float *z = z_rows + row * L, *g = g_rows + row * L, *dg = dg_rows + row * L;
            const int64_t n = least(L, count - row * L);
            const GateGradients to{dz_rows + row * L, sums.of(block), sums.of(block) + L};
            if (low == 0.0f)
                decay_backward_loop(z, rate, bias, g, dg, to, n);
            else
                bounded_backward_loop(z, rate, bias, g, dg, to, n, low);
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
