// Forward of the delta family: token by token, with the value columns in tiles whose state stays in L1.
//
// The lanes run over value columns. One pass over a tile does the write of token t-1 and both reads of token t: with
// S' the faded state, o = S'^T q + <q, k> u needs no pass of its own, because S_t = S' + k u^T. Start at delta_forward.
#include "delta.h"

#include "delta_chunk.h"
#include "pool.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

// The tokens of one chunk. The arrays over K are padded to whole vectors.
struct Chunk {
    int64_t tokens;
    const float* k[CHUNK];
    const float* v[CHUNK];
    float* o[CHUNK];
    float* errors[CHUNK];  // null where none are kept
    float beta[CHUNK];
    float alpha[CHUNK];  // exp(g) of a head
    float qk[CHUNK];     // scale <q, k>
    float* decay;        // [CHUNK, K] exp(g) of every channel
    float* fading_k;     // [CHUNK, K] exp(g) k
    float* fading_q;     // [CHUNK, K] scale exp(g) q
};

template <int RULE>
void fade_keys(Chunk& chunk, int64_t t, const float* q, const float* k, const float* g, int64_t K, float scale) {
    const int64_t at = t * padded(K);
    Vec a = set1(1.0f);
    if (RULE == GATED_DELTA) {
        a = exp(set1(*g));
        chunk.alpha[t] = first_lane(a);
    }
    for (int64_t i = 0; i < K; i += LANES) {
        const Vec qi = mul(set1(scale), load_part(q + i, K - i)), ki = load_part(k + i, K - i);
        if (RULE == KEY_DECAY) {
            a = exp(load_part(g + i, K - i));
            store(chunk.decay + at + i, a);
        }
        if (corrects(RULE)) store(chunk.fading_k + at + i, fades(RULE) ? mul(a, ki) : ki);
        store(chunk.fading_q + at + i, fades(RULE) ? mul(a, qi) : qi);
    }
    chunk.qk[t] = scale * dot(q, k, K);
}

// S = S' + k u^T for token t, over the rows of a tile; with `READ` also r and p, what fading_k and fading_q of token
// `next` retrieve from it.
template <int RULE, int NV, bool WRITE, bool READ>
inline void pass(const Chunk& chunk, int64_t t, int64_t next, const Vec* u, float* S, int64_t K, Vec* r, Vec* p) {
    const float* decay = chunk.decay + t * padded(K);
    const float* k = chunk.k[t];
    const float *fk = chunk.fading_k + next * padded(K), *fq = chunk.fading_q + next * padded(K);
    const Vec alpha = set1(RULE == GATED_DELTA ? chunk.alpha[t] : 1.0f);
    Vec rs[NV], ps[NV], us[NV];
    for (int j = 0; j < NV; ++j) rs[j] = ps[j] = zero();
    for (int j = 0; j < NV; ++j) us[j] = WRITE ? u[j] : zero();
    for (int64_t i = 0; i < K; ++i) {
        float* row = S + i * NV * LANES;
        const Vec ki = set1(WRITE ? k[i] : 0.0f), ai = RULE == KEY_DECAY && WRITE ? set1(decay[i]) : alpha;
        const Vec fki = set1(READ && corrects(RULE) ? fk[i] : 0.0f), fqi = set1(READ ? fq[i] : 0.0f);
        for (int j = 0; j < NV; ++j) {
            Vec s = load(row + j * LANES);
            if (WRITE) {
                s = fma(ki, us[j], fades(RULE) ? mul(ai, s) : s);
                store(row + j * LANES, s);
            }
            if (READ && corrects(RULE)) rs[j] = fma(fki, s, rs[j]);
            if (READ) ps[j] = fma(fqi, s, ps[j]);
        }
    }
    for (int j = 0; READ && j < NV; ++j) {
        r[j] = rs[j];
        p[j] = ps[j];
    }
}

// All tokens of the chunk through the tile S [K, NV * LANES] that holds value columns v0 .. v0 + width.
template <int RULE, int NV>
void run_tile(const Chunk& chunk, float* S, int64_t K, int64_t v0, int64_t width) {
    const bool whole = width == NV * LANES;
    Vec r[NV], p[NV], u[NV];
    for (int64_t t = 0; t < chunk.tokens; ++t) {
        if (t == 0)
            pass<RULE, NV, false, true>(chunk, 0, 0, u, S, K, r, p);
        else
            pass<RULE, NV, true, true>(chunk, t - 1, t, u, S, K, r, p);
        for (int j = 0; j < NV; ++j) {
            const int64_t at = v0 + j * LANES, left = width - j * LANES;
            u[j] = load_some(chunk.v[t] + at, left, whole);
            if (corrects(RULE)) {
                u[j] = sub(u[j], r[j]);
                if (chunk.errors[t] != nullptr) store_some(chunk.errors[t] + at, u[j], left, whole);
                u[j] = mul(set1(chunk.beta[t]), u[j]);
            }
            store_some(chunk.o[t] + at, fma(set1(chunk.qk[t]), u[j], p[j]), left, whole);
        }
    }
    pass<RULE, NV, true, false>(chunk, chunk.tokens - 1, 0, u, S, K, r, p);
}

// A tile between [K, V] in memory, where the tile starts at `matrix`, and [K, wide] here, padded with zeros.
void read_tile(const float* matrix, float* S, int64_t K, int64_t V, int64_t width, int64_t wide) {
    for (int64_t i = 0; i < K; ++i)
        for (int64_t j = 0; j < wide; j += LANES)
            store(S + i * wide + j, matrix == nullptr ? zero() : load_part(matrix + i * V + j, width - j));
}

void write_tile(float* matrix, const float* S, int64_t K, int64_t V, int64_t width, int64_t wide) {
    for (int64_t i = 0; i < K; ++i)
        for (int64_t j = 0; j < width; j += LANES) store_part(matrix + i * V + j, load(S + i * wide + j), width - j);
}

// The narrowest tile, in vectors, that holds `width` columns.
int64_t vectors_for(int64_t width) {
    int64_t n = 1;
    while (n < WIDEST && n * LANES < width) n *= 2;
    return n;
}

template <int RULE>
void run_tile_of(int64_t vectors, const Chunk& chunk, float* S, int64_t K, int64_t v0, int64_t width) {
    if (vectors == 1) return run_tile<RULE, 1>(chunk, S, K, v0, width);
    if constexpr (WIDEST >= 2)
        if (vectors == 2) return run_tile<RULE, 2>(chunk, S, K, v0, width);
    if constexpr (WIDEST >= 4)
        if (vectors == 4) return run_tile<RULE, 4>(chunk, S, K, v0, width);
    if constexpr (WIDEST >= 8) return run_tile<RULE, 8>(chunk, S, K, v0, width);
}

struct ForwardCall {
    const float *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride;
    const float* initial;
    const int64_t* bounds;
    float *o, *final, *errors, *kept;
    int64_t H, HV, K, V;
    float scale;

    // The chunk of value head h that starts at token t0.
    template <int RULE>
    void prepare(Chunk& chunk, int64_t h, int64_t t0) const {
        const int64_t hk = h / (HV / H);
        for (int64_t i = 0; i < chunk.tokens; ++i) {
            const int64_t t = t0 + i;
            chunk.k[i] = k + t * k_stride + hk * K;
            chunk.v[i] = v + t * v_stride + h * V;
            chunk.o[i] = o + (t * HV + h) * V;
            chunk.errors[i] = errors == nullptr ? nullptr : errors + (t * HV + h) * V;
            chunk.beta[i] = corrects(RULE) ? beta[t * beta_stride + h] : 1.0f;
            const float* gate = fades(RULE) ? g + t * g_stride + (RULE == KEY_DECAY ? h * K : h) : nullptr;
            fade_keys<RULE>(chunk, i, q + t * q_stride + hk * K, chunk.k[i], gate, K, scale);
        }
    }

    // Value columns v0 .. v1 of value head h of segment n, from its first token to its last.
    template <int RULE>
    void run(int64_t n, int64_t h, int64_t v0, int64_t v1) const {
        const int64_t tiles = (v1 - v0 + TILE - 1) / TILE, rows = CHUNK * padded(K);
        Chunk chunk;
        chunk.decay = scratch(3 * rows + tiles * K * TILE);
        chunk.fading_k = chunk.decay + rows;
        chunk.fading_q = chunk.fading_k + rows;
        float* S = chunk.fading_q + rows;
        const auto each_tile = [&](auto&& fn) {
            for (int64_t i = 0; i < tiles; ++i) {
                const int64_t at = v0 + i * TILE, width = v1 - at < TILE ? v1 - at : TILE;
                fn(S + i * K * TILE, at, width, vectors_for(width));
            }
        };
        const int64_t matrix = (n * HV + h) * K * V, start = bounds[n], stop = bounds[n + 1];
        each_tile([&](float* tile, int64_t at, int64_t width, int64_t vectors) {
            read_tile(initial == nullptr ? nullptr : initial + matrix + at, tile, K, V, width, vectors * LANES);
        });
        for (int64_t t = start; t < stop; t += CHUNK) {
            chunk.tokens = stop - t < CHUNK ? stop - t : CHUNK;
            prepare<RULE>(chunk, h, t);
            const int64_t slot = start / CHUNK + n + (t - start) / CHUNK;
            each_tile([&](float* tile, int64_t at, int64_t width, int64_t vectors) {
                if (kept != nullptr) write_tile(kept + (slot * HV + h) * K * V + at, tile, K, V, width, vectors * LANES);
                run_tile_of<RULE>(vectors, chunk, tile, K, at, width);
            });
        }
        each_tile([&](float* tile, int64_t at, int64_t width, int64_t vectors) {
            write_tile(final + matrix + at, tile, K, V, width, vectors * LANES);
        });
    }
};

}  // namespace

void delta_forward(int threads, int rule, const float* q, const float* k, const float* v, const float* g,
                   const float* beta, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t g_stride,
                   int64_t beta_stride, const float* initial, const int64_t* bounds, float* o, float* final,
                   float* errors, float* kept, int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V, float scale) {
    const ForwardCall call{q,       k,      v, g,     beta,   q_stride, k_stride, v_stride, g_stride, beta_stride,
                           initial, bounds, o, final, errors, kept,     H,        HV,       K,        V,
                           scale};
    // A head by itself unless that leaves threads idle: each part of it prepares the chunk's keys again.
    const int64_t tiles = (V + TILE - 1) / TILE, tasks = N * HV;
    int64_t parts = threads == 1 || tasks == 0 ? 1 : (2 * threads + tasks - 1) / tasks;
    if (parts > tiles) parts = tiles;
    const int64_t columns = (tiles + parts - 1) / parts * TILE;
    parallel_for(threads, tasks * parts, [&](int64_t i) {
        const int64_t part = i % parts, h = i / parts % HV, n = i / parts / HV;
        const int64_t v0 = part * columns, v1 = v0 + columns < V ? v0 + columns : V;
        if (v0 >= v1) return;
        if (rule == ADDITIVE) call.run<ADDITIVE>(n, h, v0, v1);
        if (rule == DELTA) call.run<DELTA>(n, h, v0, v1);
        if (rule == GATED_DELTA) call.run<GATED_DELTA>(n, h, v0, v1);
        if (rule == KEY_DECAY) call.run<KEY_DECAY>(n, h, v0, v1);
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
