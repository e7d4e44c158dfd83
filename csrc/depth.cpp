// Attention residuals over S sources read in place: two passes over a token's sources, both near the core.
// fp32 throughout; the query's gradient is summed as parts.h says.
#include "parts.h"

#include "blocks.h"
#include "curves.h"

namespace statewell {
namespace STATEWELL_ISA {

namespace {

// Loops stand in functions of their own, see parts.cpp.

struct Scores {
    float squares, product;
};

Scores scores(const float* v, const float* query, int64_t D) {
    float squares = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : squares, product)
    for (int64_t d = 0; d < D; ++d) {
        squares += v[d] * v[d];
        product += v[d] * query[d];
    }
    return {squares, product};
}

float dot(const float* a, const float* b, int64_t D) {
    float product = 0.0f;
#pragma omp simd reduction(+ : product)
    for (int64_t d = 0; d < D; ++d) product += a[d] * b[d];
    return product;
}

void scale(const float* v, float share, float* out, int64_t D) {
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) out[d] = share * v[d];
}

void add_scaled(const float* v, float share, float* out, int64_t D) {
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) out[d] += share * v[d];
}

// A source's gradient: its share of the mix, and its score's through the norm and through the product.
struct Parts {
    float share, along_value, along_query;
};

void source_gradient(const float* dmixed, const float* v, const float* query, Parts by, float* dv, float* dquery,
                     int64_t D) {
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) {
        dv[d] = by.share * dmixed[d] + by.along_value * v[d] + by.along_query * query[d];
        dquery[d] += by.along_query * v[d];
    }
}

}  // namespace

void depth_forward(int threads, const float* const* sources, const float* query, float* mixed_rows, float* r_rows,
                   float* d_rows, float* a_rows, int64_t S, int64_t M, int64_t D, float eps) {
    Blocks(M, S * D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
            float *r = r_rows + m * S, *along = d_rows + m * S, *a = a_rows + m * S;
            float largest = -__builtin_inff();
            for (int64_t s = 0; s < S; ++s) {
                const Scores of = scores(sources[s] + m * D, query, D);
                r[s] = 1.0f / __builtin_sqrtf(of.squares / static_cast<float>(D) + eps);
                along[s] = of.product;
                a[s] = r[s] * of.product;
                largest = a[s] > largest ? a[s] : largest;
            }
            float sum = 0.0f;
            for (int64_t s = 0; s < S; ++s) sum += a[s] = curves::exp(a[s] - largest);
            for (int64_t s = 0; s < S; ++s) {
                a[s] /= sum;
                (s == 0 ? scale : add_scaled)(sources[s] + m * D, a[s], mixed_rows + m * D, D);
            }
        }
    });
}

void depth_backward(int threads, const float* const* sources, const float* query, const float* r_rows,
                    const float* d_rows, const float* a_rows, const float* dmixed_rows, float* const* dsources,
                    float* dquery_sum, int64_t S, int64_t M, int64_t D) {
    const Blocks blocks(M, S * D);
    const BlockRows sums(blocks, D + S);  // the query's gradient, then one token's gradients of the shares
    sums.zero();
    blocks.each(threads, [&](int64_t block, int64_t begin, int64_t end) {
        float *dquery = sums.of(block), *da = dquery + D;
        for (int64_t m = begin; m < end; ++m) {
            const float *r = r_rows + m * S, *along = d_rows + m * S, *a = a_rows + m * S;
            const float* dmixed = dmixed_rows + m * D;
            float mean = 0.0f;
            for (int64_t s = 0; s < S; ++s) {
                da[s] = dot(dmixed, sources[s] + m * D, D);
                mean += a[s] * da[s];
            }
            for (int64_t s = 0; s < S; ++s) {
                const float dlogit = a[s] * (da[s] - mean);
                const float along_value = -dlogit * along[s] * r[s] * r[s] * r[s] / static_cast<float>(D);
                const Parts by{a[s], along_value, dlogit * r[s]};
                source_gradient(dmixed, sources[s] + m * D, query, by, dsources[s] + m * D, dquery, D);
            }
        }
    });
    sums.total(dquery_sum, D);
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
