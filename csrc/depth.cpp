// Attention residuals over S sources read in place: two passes over a token's sources, both near the core.
// fp32 throughout; the query's gradient is summed as parts.h says.
#include "parts.h"

#include "blocks.h"

namespace statewell {
namespace STATEWELL_ISA {

void depth_forward(int threads, const float* const* sources, const float* query, float* mixed_rows, float* r_rows,
                   float* d_rows, float* a_rows, int64_t S, int64_t M, int64_t D, float eps) {
    Blocks(M, S * D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
            float *r = r_rows + m * S, *along = d_rows + m * S, *a = a_rows + m * S;
            float largest = -__builtin_inff();
            for (int64_t s = 0; s < S; ++s) {
                const float* v = sources[s] + m * D;
                float squares = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : squares, product)
                for (int64_t d = 0; d < D; ++d) {
                    squares += v[d] * v[d];
                    product += v[d] * query[d];
                }
                r[s] = 1.0f / __builtin_sqrtf(squares / static_cast<float>(D) + eps);
                along[s] = product;
                a[s] = r[s] * product;
                largest = a[s] > largest ? a[s] : largest;
            }
            float sum = 0.0f;
            for (int64_t s = 0; s < S; ++s) sum += a[s] = __builtin_expf(a[s] - largest);
            float* mixed = mixed_rows + m * D;
            for (int64_t s = 0; s < S; ++s) {
                const float* v = sources[s] + m * D;
                const float share = a[s] /= sum;
                if (s == 0) {
#pragma omp simd
                    for (int64_t d = 0; d < D; ++d) mixed[d] = share * v[d];
                } else {
#pragma omp simd
                    for (int64_t d = 0; d < D; ++d) mixed[d] += share * v[d];
                }
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
                const float* v = sources[s] + m * D;
                float product = 0.0f;
#pragma omp simd reduction(+ : product)
                for (int64_t d = 0; d < D; ++d) product += dmixed[d] * v[d];
                da[s] = product;
                mean += a[s] * product;
            }
            for (int64_t s = 0; s < S; ++s) {
                const float* v = sources[s] + m * D;
                float* dv = dsources[s] + m * D;
                const float dlogit = a[s] * (da[s] - mean);
                const float share = a[s], along_query = dlogit * r[s];
                // through the norm
                const float along_value = -dlogit * along[s] * r[s] * r[s] * r[s] / static_cast<float>(D);
#pragma omp simd
                for (int64_t d = 0; d < D; ++d) {
                    dv[d] = share * dmixed[d] + along_value * v[d] + along_query * query[d];
                    dquery[d] += along_query * v[d];
                }
            }
        }
    });
    sums.total(dquery_sum, D);
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
