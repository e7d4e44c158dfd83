// Backward of the delta family: last token first, over tiles of value columns whose states are made again from a kept one.
//
// The lanes run over key channels, so that dq, dk and dg add up without sums across lanes; a state lies here as
// [V, K]. One pass over state s finishes token s (what its fade and its correction pass back) and starts token s-1 (what
// its read and its write pass back): both need that state and no other. With S' the faded state, e = v - S'^T k,
// u = beta e and f = beta du, the steps are
//   start:   dS += scale q do^T    dq = scale S do    dk += dS u    du = dS^T k    dv = f    dbeta = <du, e>
//   finish:  dS = exp(g) (dS - k f^T)      dk -= exp(g) S f      dg = sum_V dS (.) S
// dg needs no division by exp(g), and is 0 where that is. Start at delta_backward.
#include "delta.h"

#include "delta_chunk.h"
#include "pool.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

#if defined(STATEWELL_AVX2)
constexpr int BLOCK = 1;  // vectors of key channels at a time: eight of each are held in registers
#else
constexpr int BLOCK = 2;
#endif

constexpr int64_t STATE_FLOATS = 65536;  // the states of a chunk's tile together: a quarter of a megabyte, in L2
constexpr int64_t MOST_ROWS = 64;
constexpr int64_t LINE = 16;  // floats between states, lest a power of two apart they all meet in one set of the cache

// What one pass over state s needs: rows of `wide` floats over key channels, and a number for every value column.
struct Pass {
    int64_t rows, wide;
    const float* S;
    float *dS, *partial;  // partial [rows, LANES]: du before the sum across lanes
    const float *k, *decay, *f;
    float *dk, *dg;
    const float *q_before, *k_before, *do_before, *u_before;
    float *dq_before, *dk_before;
};

template <int RULE, int NB, bool FINISH, bool START>
inline void pass_block(const Pass& x, int64_t i) {
    Vec k[NB], a[NB], dk[NB], dg[NB], qb[NB], kb[NB], dqb[NB], dkb[NB];
    for (int j = 0; j < NB; ++j) {
        const int64_t at = i + j * LANES;
        a[j] = FINISH && fades(RULE) ? load(x.decay + at) : set1(1.0f);
        k[j] = FINISH ? mul(a[j], load(x.k + at)) : zero();
        dk[j] = zero();
        dg[j] = zero();
        qb[j] = START ? load(x.q_before + at) : zero();
        kb[j] = START ? load(x.k_before + at) : zero();
        dqb[j] = START ? load(x.dq_before + at) : zero();
        dkb[j] = zero();
    }
    for (int64_t r = 0; r < x.rows; ++r) {
        const float* S = x.S + r * x.wide + i;
        float *dS = x.dS + r * x.wide + i, *partial = x.partial + r * LANES;
        const Vec f = set1(FINISH ? x.f[r] : 0.0f);
        const Vec d_o = set1(START ? x.do_before[r] : 0.0f), u = set1(START ? x.u_before[r] : 0.0f);
        Vec du = START && i > 0 ? load(partial) : zero();
        for (int j = 0; j < NB; ++j) {
            const Vec s = load(S + j * LANES);
            Vec d = load(dS + j * LANES);
            if (FINISH) {
                d = fnma(f, k[j], fades(RULE) ? mul(a[j], d) : d);
                dk[j] = fma(f, s, dk[j]);
                if (fades(RULE)) dg[j] = fma(d, s, dg[j]);
            }
            if (START) {
                d = fma(qb[j], d_o, d);
                dqb[j] = fma(s, d_o, dqb[j]);
                dkb[j] = fma(d, u, dkb[j]);
                du = fma(d, kb[j], du);
            }
            store(dS + j * LANES, d);
        }
        if (START) store(partial, du);
    }
    for (int j = 0; j < NB; ++j) {
        const int64_t at = i + j * LANES;
        if (FINISH) store(x.dk + at, fnma(a[j], dk[j], load(x.dk + at)));
        if (FINISH && fades(RULE)) store(x.dg + at, add(load(x.dg + at), dg[j]));
        if (START) store(x.dq_before + at, dqb[j]);
        if (START) store(x.dk_before + at, add(load(x.dk_before + at), dkb[j]));
    }
}

template <int RULE, bool FINISH, bool START>
void pass(const Pass& x) {
    int64_t i = 0;
    for (; i + BLOCK * LANES <= x.wide; i += BLOCK * LANES) pass_block<RULE, BLOCK, FINISH, START>(x, i);
    for (; i < x.wide; i += LANES) pass_block<RULE, 1, FINISH, START>(x, i);
}

// The chunk of one head. Arrays over K have `wide` columns, padded with zeros.
struct Chunk {
    int64_t tokens, wide;
    float beta[CHUNK], dbeta[CHUNK];
    const float *errors[CHUNK], *v[CHUNK], *d_o[CHUNK];
    float* dv[CHUNK];
    float *q, *k, *decay, *dq, *dk, *dg;  // [CHUNK, wide]; q scaled
};

// Memory of one tile.
struct Tile {
    int64_t rows;
    float* states;   // [CHUNK + 1, rows, wide], one state `apart` from the next
    int64_t apart;
    float* dS;       // [rows, wide]
    float* u;        // [CHUNK, rows]
    float* du;       // [rows]
    float* partial;  // [rows, LANES]
};

constexpr int TOGETHER = 8;  // rows whose states are carried through a chunk in registers

// `ROWS` rows from r, one vector of key channels from i, from the first state of the chunk to all others.
template <int RULE, int ROWS>
inline void carry(const Chunk& chunk, const Tile& tile, int64_t r, int64_t i) {
    const int64_t wide = chunk.wide;
    float* at = tile.states + r * wide + i;
    Vec s[ROWS];
    for (int j = 0; j < ROWS; ++j) s[j] = load(at + j * wide);
    for (int64_t t = 0; t < chunk.tokens; ++t) {
        at += tile.apart;
        const Vec k = load(chunk.k + t * wide + i), a = fades(RULE) ? load(chunk.decay + t * wide + i) : zero();
        const float* u = tile.u + t * tile.rows + r;
        for (int j = 0; j < ROWS; ++j) {
            s[j] = fma(k, set1(u[j]), fades(RULE) ? mul(a, s[j]) : s[j]);
            store(at + j * wide, s[j]);
        }
    }
}

// The states after every token of the chunk, from the one before it; `kept` is its first value column in [K, V].
template <int RULE>
void make_states(const Chunk& chunk, const Tile& tile, const float* kept, int64_t v0, int64_t K, int64_t V) {
    const int64_t wide = chunk.wide;
    for (int64_t r = 0; r < tile.rows; ++r)
        for (int64_t i = K; i < wide; ++i) tile.states[r * wide + i] = 0.0f;
    transpose(kept, V, tile.states, wide, K, tile.rows);
    for (int64_t t = 0; t < chunk.tokens; ++t) {
        float* us = tile.u + t * tile.rows;
        for (int64_t r = 0; r < tile.rows; r += LANES) {
            const int64_t left = tile.rows - r;
            const Vec u = load_part((corrects(RULE) ? chunk.errors[t] : chunk.v[t]) + v0 + r, left);
            store_part(us + r, corrects(RULE) ? mul(set1(chunk.beta[t]), u) : u, left);
        }
    }
    int64_t r = 0;
    for (; r + TOGETHER <= tile.rows; r += TOGETHER)
        for (int64_t i = 0; i < wide; i += LANES) carry<RULE, TOGETHER>(chunk, tile, r, i);
    for (; r < tile.rows; ++r)
        for (int64_t i = 0; i < wide; i += LANES) carry<RULE, 1>(chunk, tile, r, i);
}

// What follows from du of token t: dv, dbeta, and in place of du itself f = beta du.
template <int RULE>
void spread(Chunk& chunk, const Tile& tile, int64_t t, int64_t v0) {
    sum_rows(tile.partial, tile.rows, tile.du);
    Vec dbeta = zero();
    for (int64_t r = 0; r < tile.rows; r += LANES) {
        const int64_t left = tile.rows - r;
        Vec du = load_part(tile.du + r, left);
        if (corrects(RULE)) {
            dbeta = fma(du, load_part(chunk.errors[t] + v0 + r, left), dbeta);
            du = mul(set1(chunk.beta[t]), du);
            store_part(tile.du + r, du, left);
        }
        store_part(chunk.dv[t] + v0 + r, du, left);
    }
    if (corrects(RULE)) chunk.dbeta[t] += sum(dbeta);
}

template <int RULE>
void run_tile(Chunk& chunk, const Tile& tile, int64_t v0) {
    const int64_t last = chunk.tokens, wide = chunk.wide;
    for (int64_t s = last; s >= 0; --s) {
        const int64_t t = s < last ? s : 0, before = s > 0 ? s - 1 : 0;
        const Pass x{tile.rows,
                     wide,
                     tile.states + s * tile.apart,
                     tile.dS,
                     tile.partial,
                     chunk.k + t * wide,
                     chunk.decay + t * wide,
                     tile.du,
                     chunk.dk + t * wide,
                     chunk.dg + t * wide,
                     chunk.q + before * wide,
                     chunk.k + before * wide,
                     chunk.d_o[before] + v0,
                     tile.u + before * tile.rows,
                     chunk.dq + before * wide,
                     chunk.dk + before * wide};
        const bool finish = s < last && corrects(RULE), start = s > 0;
        if (finish && start) pass<RULE, true, true>(x);
        if (!finish && start) pass<RULE, false, true>(x);
        if (finish && !start) pass<RULE, true, false>(x);
        if (start) spread<RULE>(chunk, tile, before, v0);
    }
}

struct BackwardCall {
    const float *q, *k, *v, *g, *beta;
    int64_t q_stride, k_stride, v_stride, g_stride, beta_stride;
    const int64_t* bounds;
    const float *errors, *kept, *d_o, *dfinal;
    float *dq, *dk, *dv, *dg, *dbeta, *dinitial;
    int64_t N, H, HV, K, V;
    float scale;

    int64_t key_head(int64_t h) const { return h / (HV / H); }

    template <int RULE>
    void prepare(Chunk& chunk, int64_t h, int64_t t0) const {
        const int64_t hk = key_head(h), wide = chunk.wide;
        for (int64_t c = 0; c < chunk.tokens; ++c) {
            const int64_t t = t0 + c, head = (t * HV + h) * V;
            chunk.beta[c] = corrects(RULE) ? beta[t * beta_stride + h] : 1.0f;
            chunk.dbeta[c] = 0.0f;
            chunk.errors[c] = corrects(RULE) ? errors + head : nullptr;
            chunk.v[c] = v + t * v_stride + h * V;
            chunk.d_o[c] = d_o + head;
            chunk.dv[c] = dv + head;
            const float *qt = q + t * q_stride + hk * K, *kt = k + t * k_stride + hk * K;
            const float* gate = fades(RULE) ? g + t * g_stride + (RULE == KEY_DECAY ? h * K : h) : nullptr;
            const Vec alpha = RULE == GATED_DELTA ? exp(set1(*gate)) : zero();
            for (int64_t i = 0; i < wide; i += LANES) {
                const int64_t at = c * wide + i;
                store(chunk.q + at, mul(set1(scale), load_part(qt + i, K - i)));
                store(chunk.k + at, load_part(kt + i, K - i));
                if (RULE == GATED_DELTA) store(chunk.decay + at, alpha);
                if (RULE == KEY_DECAY) store(chunk.decay + at, exp(load_part(gate + i, K - i)));
                store(chunk.dq + at, zero());
                store(chunk.dk + at, zero());
                store(chunk.dg + at, zero());
            }
        }
    }

    // The sums of the chunk's tokens, to their place in this part of the outputs.
    template <int RULE>
    void hand_out(const Chunk& chunk, int64_t h, int64_t t0, int64_t part) const {
        const int64_t T = bounds[N], shared = HV / H, place = part * shared + h % shared;
        for (int64_t c = 0; c < chunk.tokens; ++c) {
            const int64_t t = t0 + c, key = ((place * T + t) * H + key_head(h)) * K, value = (part * T + t) * HV + h;
            Vec dg_head = zero();
            for (int64_t i = 0; i < chunk.wide; i += LANES) {
                const int64_t at = c * chunk.wide + i;
                store_part(dq + key + i, mul(set1(scale), load(chunk.dq + at)), K - i);
                store_part(dk + key + i, load(chunk.dk + at), K - i);
                if (RULE == KEY_DECAY) store_part(dg + value * K + i, load(chunk.dg + at), K - i);
                if (RULE == GATED_DELTA) dg_head = add(dg_head, load(chunk.dg + at));
            }
            if (RULE == GATED_DELTA) dg[value] = sum(dg_head);
            if (corrects(RULE)) dbeta[value] = chunk.dbeta[c];
        }
    }

    // Between [K, V] in memory and [V, K] here, for value columns v0 .. v1.
    void read_gradient(float* dS, int64_t matrix, int64_t v0, int64_t v1, int64_t wide) const {
        for (int64_t i = 0; i < (v1 - v0) * wide; ++i) dS[i] = 0.0f;
        if (dfinal != nullptr) transpose(dfinal + matrix + v0, V, dS, wide, K, v1 - v0);
    }

    void write_gradient(const float* dS, int64_t matrix, int64_t v0, int64_t v1, int64_t wide) const {
        if (dinitial != nullptr) transpose(dS, wide, dinitial + matrix + v0, V, v1 - v0, K);
    }

    template <int RULE>
    void run(int64_t n, int64_t h, int64_t v0, int64_t v1, int64_t part) const {
        Chunk chunk;
        chunk.wide = padded(K);
        const int64_t rows = rows_per_tile(chunk.wide, v1 - v0), keys = CHUNK * chunk.wide;
        chunk.q = scratch(6 * keys + ((CHUNK + 1) * rows + v1 - v0) * chunk.wide + (CHUNK + 1) * LINE +
                          (CHUNK + 1 + LANES) * rows);
        chunk.k = chunk.q + keys;
        chunk.decay = chunk.k + keys;
        chunk.dq = chunk.decay + keys;
        chunk.dk = chunk.dq + keys;
        chunk.dg = chunk.dk + keys;
        Tile tile;
        tile.partial = chunk.dg + keys;
        tile.states = tile.partial + rows * LANES;
        tile.apart = rows * chunk.wide + LINE;
        float* dS = tile.states + (CHUNK + 1) * tile.apart;
        tile.u = dS + (v1 - v0) * chunk.wide;
        tile.du = tile.u + CHUNK * rows;

        const int64_t start = bounds[n], T = bounds[n + 1] - start, matrix = (n * HV + h) * K * V;
        read_gradient(dS, matrix, v0, v1, chunk.wide);
        for (int64_t c = (T + CHUNK - 1) / CHUNK - 1; c >= 0; --c) {
            chunk.tokens = T - c * CHUNK < CHUNK ? T - c * CHUNK : CHUNK;
            prepare<RULE>(chunk, h, start + c * CHUNK);
            const float* state = kept + ((start / CHUNK + n + c) * HV + h) * K * V;
            for (int64_t at = v0; at < v1; at += rows) {
                tile.rows = v1 - at < rows ? v1 - at : rows;
                tile.dS = dS + (at - v0) * chunk.wide;
                make_states<RULE>(chunk, tile, state + at, at, K, V);
                run_tile<RULE>(chunk, tile, at);
            }
            hand_out<RULE>(chunk, h, start + c * CHUNK, part);
        }
        write_gradient(dS, matrix, v0, v1, chunk.wide);
    }

    static int64_t rows_per_tile(int64_t wide, int64_t columns) {
        int64_t rows = STATE_FLOATS / (CHUNK * wide) / 8 * 8;
        rows = rows < 8 ? 8 : rows > MOST_ROWS ? MOST_ROWS : rows;
        return rows < columns ? rows : columns;
    }
};

}  // namespace

void delta_backward(int threads, int rule, const float* q, const float* k, const float* v, const float* g,
                    const float* beta, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t g_stride,
                    int64_t beta_stride, const int64_t* bounds, const float* errors, const float* kept,
                    const float* d_o, const float* dfinal, float* dq, float* dk, float* dv, float* dg, float* dbeta,
                    float* dinitial, int64_t parts, int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V,
                    float scale) {
    const BackwardCall call{q,      k,    v,   g,      beta, q_stride, k_stride, v_stride, g_stride, beta_stride, bounds,
                            errors, kept, d_o, dfinal, dq,   dk,       dv,       dg,       dbeta,    dinitial,    N,
                            H,      HV,   K,   V,      scale};
    const int64_t columns = (V + parts - 1) / parts;
    parallel_for(threads, N * HV * parts, [&](int64_t i) {
        const int64_t part = i % parts, h = i / parts % HV, n = i / parts / HV;
        const int64_t v0 = part * columns < V ? part * columns : V, v1 = v0 + columns < V ? v0 + columns : V;
        if (rule == ADDITIVE) call.run<ADDITIVE>(n, h, v0, v1, part);
        if (rule == DELTA) call.run<DELTA>(n, h, v0, v1, part);
        if (rule == GATED_DELTA) call.run<GATED_DELTA>(n, h, v0, v1, part);
        if (rule == KEY_DECAY) call.run<KEY_DECAY>(n, h, v0, v1, part);
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
