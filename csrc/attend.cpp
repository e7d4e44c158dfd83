// One query over a cache, see attend.h. A thread takes a part of the tokens for all heads, so that every kept number
// comes from memory once; 64 tokens at a time are scored, then weighed, while they are still in the near caches.
#include "attend.h"

#include <vector>

#include "blocks.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

constexpr int64_t kTile = 64;    // tokens scored at once
constexpr int64_t kParts = 32;   // at most, of a row
constexpr int kTokens = 4;       // in one product

// Where the tokens of one kept tensor lie: token t of row b is `at` floats into page t / page_tokens of that row.
struct Pages {
    const int64_t* addresses;  // [B, count]
    int64_t count, page_tokens, at, step;

    const float* token(int64_t b, int64_t t) const {
        const float* page = reinterpret_cast<const float*>(addresses[b * count + t / page_tokens]);
        return page + at + t % page_tokens * step;
    }
};

struct Part {
    int64_t row, first, last;  // tokens first .. last - 1
};

struct Cache {
    const float* q;
    Pages k, v, shared;
    float scale;
    int64_t H, Hk, K, P, V;

    int64_t group() const { return H / Hk; }
};

// What a part of the tokens leaves, per head: the largest score, the sum of the weights, the weighted values.
struct Heads {
    float* start;
    int64_t V;

    float& largest(int64_t h) const { return start[h * (V + 2)]; }
    float& sum(int64_t h) const { return start[h * (V + 2) + 1]; }
    float* o(int64_t h) const { return start + h * (V + 2) + 2; }
};

// out[h][i] += <q_h, k_i> for `heads` queries, `step` floats apart, and kTokens keys.
template <int heads>
void dots(const float* q, int64_t step, const float* const* k, int64_t n, float (*out)[kTokens]) {
    Vec sums[heads][kTokens];
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < kTokens; ++i) sums[h][i] = zero();
    int64_t d = 0;
    for (; d + LANES <= n; d += LANES)
        for (int h = 0; h < heads; ++h) {
            const Vec x = load(q + h * step + d);
            for (int i = 0; i < kTokens; ++i) sums[h][i] = fma(x, load(k[i] + d), sums[h][i]);
        }
    if (d < n)
        for (int h = 0; h < heads; ++h) {
            const Vec x = load_part(q + h * step + d, n - d);
            for (int i = 0; i < kTokens; ++i) sums[h][i] = fma(x, load_part(k[i] + d, n - d), sums[h][i]);
        }
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < kTokens; ++i) out[h][i] += sum(sums[h][i]);
}

// o_h += sum_i weight_h[i] * v_i; the heads' results lie `o_step` floats apart, their weights kTile.
template <int heads>
void weigh(float* o, int64_t o_step, const float* weight, const float* const* v, int64_t n) {
    Vec share[heads][kTokens];
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < kTokens; ++i) share[h][i] = set1(weight[h * kTile + i]);
    int64_t d = 0;
    for (; d + LANES <= n; d += LANES) {
        Vec x[kTokens];
        for (int i = 0; i < kTokens; ++i) x[i] = load(v[i] + d);
        for (int h = 0; h < heads; ++h) {
            Vec sum = load(o + h * o_step + d);
            for (int i = 0; i < kTokens; ++i) sum = fma(share[h][i], x[i], sum);
            store(o + h * o_step + d, sum);
        }
    }
    if (d < n)
        for (int h = 0; h < heads; ++h) {
            Vec sum = load_part(o + h * o_step + d, n - d);
            for (int i = 0; i < kTokens; ++i) sum = fma(share[h][i], load_part(v[i] + d, n - d), sum);
            store_part(o + h * o_step + d, sum, n - d);
        }
}

// The rows of kTokens tokens from the t-th after `base`; past the last one the last again, to which no weight is given.
void rows_of(const float* base, int64_t step, int64_t t, int64_t count, const float** rows) {
    for (int i = 0; i < kTokens; ++i) rows[i] = base + least(t + i, count - 1) * step;
}

// scores[h][i] of heads h .. h + heads - 1, which share a key head, for tokens t .. t + kTokens - 1.
template <int heads>
void score(const Cache& c, const float* q, const float* const* k, const float* const* shared, float* scores) {
    float made[heads][kTokens] = {};
    dots<heads>(q, c.K + c.P, k, c.K, made);
    if (c.P > 0) dots<heads>(q + c.K, c.K + c.P, shared, c.P, made);
    for (int h = 0; h < heads; ++h)
        for (int i = 0; i < kTokens; ++i) scores[h * kTile + i] = made[h][i] * c.scale;
}

// A tile's `count` tokens from `begin` on lie in one page.
void score_tile(const Cache& c, int64_t b, int64_t begin, int64_t count, float* scores) {
    const float* q = c.q + b * c.H * (c.K + c.P);
    const float* first = c.k.token(b, begin);
    const float* first_shared = c.P > 0 ? c.shared.token(b, begin) : nullptr;
    const float *k[kTokens], *shared[kTokens];
    for (int64_t t = 0; t < count; t += kTokens) {
        if (c.P > 0) rows_of(first_shared, c.shared.step, t, count, shared);
        for (int64_t kept = 0; kept < c.Hk; ++kept) {
            rows_of(first + kept * c.K, c.k.step, t, count, k);
            int64_t h = kept * c.group();
            const int64_t last = h + c.group();
            for (; h + 2 <= last; h += 2) score<2>(c, q + h * (c.K + c.P), k, shared, scores + h * kTile + t);
            if (h < last) score<1>(c, q + h * (c.K + c.P), k, shared, scores + h * kTile + t);
        }
    }
}

// Scores become weights below the largest so far, and what was summed before is brought down to it.
void soften(const Heads& heads, int64_t h, float* scores, int64_t count) {
    for (int64_t i = count; i < kTile; ++i) scores[i] = -__builtin_inff();
    float largest = heads.largest(h);
    for (int64_t i = 0; i < count; ++i) largest = scores[i] > largest ? scores[i] : largest;
    Vec total = zero();
    for (int64_t i = 0; i < kTile; i += LANES) {
        const Vec weight = exp(sub(load(scores + i), set1(largest)));
        store(scores + i, weight);
        total = add(total, weight);
    }
    if (largest != heads.largest(h)) {
        float factor[LANES];
        store(factor, exp(set1(heads.largest(h) - largest)));
        heads.largest(h) = largest;
        heads.sum(h) *= factor[0];
        float* o = heads.o(h);
        for (int64_t d = 0; d < heads.V; ++d) o[d] *= factor[0];
    }
    heads.sum(h) += sum(total);
}

void weigh_tile(const Cache& c, int64_t b, int64_t begin, int64_t count, const float* weights, const Heads& heads) {
    const float* first = c.v.token(b, begin);
    const float* v[kTokens];
    for (int64_t t = 0; t < count; t += kTokens)
        for (int64_t kept = 0; kept < c.Hk; ++kept) {
            rows_of(first + kept * c.V, c.v.step, t, count, v);
            int64_t h = kept * c.group();
            const int64_t last = h + c.group();
            for (; h + 2 <= last; h += 2) weigh<2>(heads.o(h), c.V + 2, weights + h * kTile + t, v, c.V);
            if (h < last) weigh<1>(heads.o(h), c.V + 2, weights + h * kTile + t, v, c.V);
        }
}

void merge(const Heads* parts, int64_t count, int64_t h, float* o) {
    const int64_t V = parts[0].V;
    float largest = -__builtin_inff(), total = 0.0f;
    for (int64_t i = 0; i < count; ++i) largest = parts[i].largest(h) > largest ? parts[i].largest(h) : largest;
    for (int64_t d = 0; d < V; ++d) o[d] = 0.0f;
    for (int64_t i = 0; i < count; ++i) {
        float factor[LANES];
        store(factor, exp(set1(parts[i].largest(h) - largest)));
        total += factor[0] * parts[i].sum(h);
        for (int64_t d = 0; d < V; ++d) o[d] += factor[0] * parts[i].o(h)[d];
    }
    for (int64_t d = 0; d < V; ++d) o[d] /= total;
}

}  // namespace

void attend_one(int threads, const float* q, const int64_t* k_pages, const int64_t* v_pages, const int64_t* shared_pages,
                int64_t k_at, int64_t v_at, int64_t shared_at, const int64_t* lengths, float* o, float scale, int64_t B,
                int64_t pages, int64_t page_tokens, int64_t H, int64_t Hk, int64_t K, int64_t P, int64_t V,
                int64_t k_step, int64_t v_step, int64_t shared_step) {
    const Cache cache{q,
                      {k_pages, pages, page_tokens, k_at, k_step},
                      {v_pages, pages, page_tokens, v_at, v_step},
                      {shared_pages, pages, page_tokens, shared_at, shared_step},
                      scale,
                      H,
                      Hk,
                      K,
                      P,
                      V};
    // A row's parts follow from its own length, so that its neighbours change no bit.
    std::vector<Part> parts;
    std::vector<int64_t> starts;
    for (int64_t b = 0; b < B; ++b) {
        starts.push_back(static_cast<int64_t>(parts.size()));
        const int64_t tiles = (lengths[b] + kTile - 1) / kTile;
        const int64_t size = most(4, (tiles + kParts - 1) / kParts) * kTile;
        for (int64_t t = 0; t < lengths[b]; t += size) parts.push_back({b, t, least(lengths[b], t + size)});
    }
    starts.push_back(static_cast<int64_t>(parts.size()));
    const int64_t width = H * (V + 2), room = width + H * kTile;
    float* start = scratch(static_cast<int64_t>(parts.size()) * room);
    auto part = [&](int64_t item) {
        const Part& of = parts[static_cast<size_t>(item)];
        const Heads heads{start + item * room, V};
        float* scores = heads.start + width;
        for (int64_t i = 0; i < width; ++i) heads.start[i] = 0.0f;
        for (int64_t h = 0; h < H; ++h) heads.largest(h) = -__builtin_inff();
        for (int64_t t = of.first; t < of.last; t += kTile) {
            const int64_t count = least(of.last - t, kTile);
            score_tile(cache, of.row, t, count, scores);
            for (int64_t h = 0; h < H; ++h) soften(heads, h, scores + h * kTile, count);
            weigh_tile(cache, of.row, t, count, scores, heads);
        }
    };
    parallel_for(threads, static_cast<int64_t>(parts.size()), part);
    Heads of[kParts];
    for (int64_t b = 0; b < B; ++b) {
        const int64_t first = starts[static_cast<size_t>(b)], count = starts[static_cast<size_t>(b) + 1] - first;
        for (int64_t i = 0; i < count; ++i) of[i] = Heads{start + (first + i) * room, V};
        for (int64_t h = 0; h < H; ++h) merge(of, count, h, o + (b * H + h) * V);
    }
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
