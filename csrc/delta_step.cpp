// Decode of the delta family: one token of many rows, the state read where it lies and written where it will lie.
#include "delta.h"
#include "delta_chunk.h"
#include "pool.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

// Vectors of value columns at a time, where there are so many: long runs of memory in a row, which the processor fetches
// ahead. Two sums of each are held in registers.
#if defined(STATEWELL_AVX512)
constexpr int WIDE = 8;
#else
constexpr int WIDE = WIDEST;
#endif

// One head of one row; the arrays over K are ready: exp(g), exp(g) k and scale exp(g) q.
struct Head {
    const float *k, *decay, *fading_k, *fading_q, *v, *state;
    float *o, *new_state;
    float beta, qk;
    int64_t K, V;
};

// Value columns at .. at + width: what k and q retrieve from the faded state, then the write.
template <int RULE, int NV>
void run_columns(const Head& x, int64_t at, int64_t width) {
    const bool whole = width >= NV * LANES;
    Vec r[NV], p[NV], u[NV];
    for (int j = 0; j < NV; ++j) r[j] = p[j] = zero();
    for (int64_t i = 0; i < x.K; ++i) {
        const Vec fk = set1(x.fading_k[i]), fq = set1(x.fading_q[i]);
        for (int j = 0; j < NV; ++j) {
            const Vec s = load_some(x.state + i * x.V + at + j * LANES, width - j * LANES, whole);
            if (corrects(RULE)) r[j] = fma(fk, s, r[j]);
            p[j] = fma(fq, s, p[j]);
        }
    }
    for (int j = 0; j < NV; ++j) {
        const int64_t from = at + j * LANES, left = width - j * LANES;
        u[j] = load_some(x.v + from, left, whole);
        if (corrects(RULE)) u[j] = mul(set1(x.beta), sub(u[j], r[j]));
        store_some(x.o + from, fma(set1(x.qk), u[j], p[j]), left, whole);
    }
    for (int64_t i = 0; i < x.K; ++i) {
        const Vec k = set1(x.k[i]), a = set1(fades(RULE) ? x.decay[i] : 1.0f);
        for (int j = 0; j < NV; ++j) {
            const int64_t from = i * x.V + at + j * LANES, left = width - j * LANES;
            const Vec s = load_some(x.state + from, left, whole);
            store_some(x.new_state + from, fma(k, u[j], fades(RULE) ? mul(a, s) : s), left, whole);
        }
    }
}

template <int RULE>
void run_head(const Head& x) {
    int64_t at = 0;
    for (; at + WIDE * LANES <= x.V; at += WIDE * LANES) run_columns<RULE, WIDE>(x, at, WIDE * LANES);
    for (; at + TILE <= x.V; at += TILE) run_columns<RULE, WIDEST>(x, at, TILE);
    for (; at < x.V; at += LANES) run_columns<RULE, 1>(x, at, x.V - at);
}

// decay, fading_k and fading_q of the head, in `room` [3, padded K].
template <int RULE>
void fade_keys(Head& x, float* room, const float* q, const float* g, float scale) {
    const int64_t wide = padded(x.K);
    float *decay = room, *fk = room + wide, *fq = fk + wide;
    Vec a = RULE == GATED_DELTA ? exp(set1(*g)) : set1(1.0f);
    for (int64_t i = 0; i < x.K; i += LANES) {
        if (RULE == KEY_DECAY) a = exp(load_part(g + i, x.K - i));
        const Vec k = load_part(x.k + i, x.K - i), qs = mul(set1(scale), load_part(q + i, x.K - i));
        store(decay + i, a);
        store(fk + i, fades(RULE) ? mul(a, k) : k);
        store(fq + i, fades(RULE) ? mul(a, qs) : qs);
    }
    x.decay = decay;
    x.fading_k = fk;
    x.fading_q = fq;
    x.qk = scale * dot(q, x.k, x.K);
}

template <int RULE>
void run_row(Head& x, float* room, const float* q, const float* g, float scale) {
    fade_keys<RULE>(x, room, q, g, scale);
    run_head<RULE>(x);
}

// z += k; o / (scale <q, z> + eps).
void normalise(const Head& x, const float* q, const float* z, float* new_z, float scale, float eps) {
    Vec total = zero();
    for (int64_t i = 0; i < x.K; i += LANES) {
        const Vec zi = add(load_part(z + i, x.K - i), load_part(x.k + i, x.K - i));
        store_part(new_z + i, zi, x.K - i);
        total = fma(zi, load_part(q + i, x.K - i), total);
    }
    const Vec weight = set1(scale * sum(total) + eps);
    for (int64_t i = 0; i < x.V; i += LANES)
        store_part(x.o + i, div(load_part(x.o + i, x.V - i), weight), x.V - i);
}

// Floats of state below which waking a thread costs more than it saves: 2 MiB are read and written in 60 us by one
// thread, and waking another alone takes 10.
constexpr int64_t WORTH_SHARING = 1 << 20;

}  // namespace

void delta_step(int threads, int rule, const float* q, const float* k, const float* v, const float* g,
                const float* beta, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t g_stride,
                int64_t beta_stride, const float* state, float* new_state, const float* z, float* new_z,
                const int64_t* rows, float* o, int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V, float scale,
                float eps) {
    if (N * HV * K * V < WORTH_SHARING) threads = 1;
    parallel_for(threads, N * HV, [&](int64_t i) {
        const int64_t n = i / HV, h = i % HV, hk = h / (HV / H), row = rows == nullptr ? n : rows[n];
        const int64_t matrix = (row * HV + h) * K * V;
        const float *key = k + n * k_stride + hk * K, *query = q + n * q_stride + hk * K;
        Head x{key, nullptr, nullptr, nullptr, v + n * v_stride + h * V, state + matrix, o + (n * HV + h) * V,
               new_state + matrix, rule == ADDITIVE ? 1.0f : beta[n * beta_stride + h], 0.0f, K, V};
        float* room = scratch(3 * padded(K));
        if (rule == ADDITIVE) run_row<ADDITIVE>(x, room, query, nullptr, scale);
        if (z != nullptr) normalise(x, query, z + (row * HV + h) * K, new_z + (row * HV + h) * K, scale, eps);
        if (rule == DELTA) run_row<DELTA>(x, room, query, nullptr, scale);
        if (rule == GATED_DELTA) run_row<GATED_DELTA>(x, room, query, g + n * g_stride + h, scale);
        if (rule == KEY_DECAY) run_row<KEY_DECAY>(x, room, query, g + n * g_stride + h * K, scale);
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
