// The rearranging around routed experts: choosing, sorting by expert, spreading rows and summing them back.
// The products themselves are not here. fp32 throughout; a token's sums run over its choices in their order.
#include "parts.h"

#include <cfloat>

#include "blocks.h"
#include "curves.h"

namespace statewell {
namespace STATEWELL_ISA {

void expert_order(const int64_t* index, int64_t* order, int64_t* place, int64_t* counts, int64_t choices, int64_t E) {
    for (int64_t e = 0; e < E; ++e) counts[e] = 0;
    for (int64_t i = 0; i < choices; ++i) ++counts[index[i]];
    // counts become the row after each expert's last, and count down to its first
    for (int64_t e = 1; e < E; ++e) counts[e] += counts[e - 1];
    for (int64_t i = choices - 1; i >= 0; --i) {
        place[i] = --counts[index[i]];
        order[place[i]] = i;
    }
    for (int64_t e = 0; e < E; ++e) counts[e] = (e + 1 < E ? counts[e + 1] : choices) - counts[e];
}

namespace {

void copy(const float* from, float* to, int64_t n) { __builtin_memcpy(to, from, static_cast<size_t>(n) * sizeof(float)); }

}  // namespace

void expert_spread(int threads, const float* x, const int64_t* order, float* rows, int64_t M, int64_t k,
                   int64_t D) {
    Blocks(M * k, D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const float* token = x + order[i] / k * D;
            copy(token, rows + i * D, D);
        }
    });
}

void expert_gather(int threads, const float* drows, const int64_t* place, float* dx, int64_t M, int64_t k,
                            int64_t D) {
    Blocks(M, k * D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
            float* sum = dx + m * D;
            const float* first = drows + place[m * k] * D;
            copy(first, sum, D);
            for (int64_t c = 1; c < k; ++c) {
                const float* row = drows + place[m * k + c] * D;
#pragma omp simd
                for (int64_t d = 0; d < D; ++d) sum[d] += row[d];
            }
        }
    });
}

void expert_combine(int threads, const float* rows, const float* weight, const int64_t* place, float* mixed, int64_t M,
                    int64_t k, int64_t D) {
    Blocks(M, k * D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m) {
            float* sum = mixed + m * D;
            for (int64_t c = 0; c < k; ++c) {
                const float* row = rows + place[m * k + c] * D;
                const float share = weight[m * k + c];
                if (c == 0) {
#pragma omp simd
                    for (int64_t d = 0; d < D; ++d) sum[d] = share * row[d];
                } else {
#pragma omp simd
                    for (int64_t d = 0; d < D; ++d) sum[d] += share * row[d];
                }
            }
        }
    });
}

void expert_combine_backward(int threads, const float* rows, const float* weight, const int64_t* place, const float* dmixed,
                             float* drows, float* dweight, int64_t M, int64_t k, int64_t D) {
    Blocks(M, k * D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin * k; i < end * k; ++i) {
            const float *row = rows + place[i] * D, *grad = dmixed + i / k * D;
            float* drow = drows + place[i] * D;
            const float share = weight[i];
            float product = 0.0f;
#pragma omp simd reduction(+ : product)
            for (int64_t d = 0; d < D; ++d) {
                drow[d] = share * grad[d];
                product += grad[d] * row[d];
            }
            dweight[i] = product;
        }
    });
}

namespace {

// The first of the largest, NaN being larger than all; as torch's argmax.
int64_t first_largest(const float* values, int64_t E) {
    int64_t best = 0;
    for (int64_t e = 1; e < E; ++e)
        if (values[e] > values[best] || (values[e] != values[e] && values[best] == values[best])) best = e;
    return best;
}

float sum_of(const float* score, int64_t k) {
    float sum = 0.0f;
    for (int64_t c = 0; c < k; ++c) sum += score[c];
    return sum + 1e-20f;
}

}  // namespace

void route_forward(int threads, const float* logits_rows, const float* bias, int64_t* index_rows, float* weight_rows,
                   float* score_rows, int64_t M, int64_t E, int64_t k, float scaling, bool divide) {
    const Blocks blocks(M, E * (k + 1));
    const BlockRows room(blocks, 2 * E);
    blocks.each(threads, [&](int64_t block, int64_t begin, int64_t end) {
        float *plain = room.of(block), *biased = plain + E;
        for (int64_t m = begin; m < end; ++m) {
            const float* logits = logits_rows + m * E;
#pragma omp simd
            for (int64_t e = 0; e < E; ++e) {
                plain[e] = curves::sigmoid(logits[e]);
                const float sum = plain[e] + bias[e];
                // finite, so that an expert with bias -inf still differs from one already chosen
                biased[e] = sum < -FLT_MAX ? -FLT_MAX : sum;
            }
            int64_t* index = index_rows + m * k;
            float *score = score_rows + m * k, *weight = weight_rows + m * k;
            for (int64_t c = 0; c < k; ++c) {
                index[c] = first_largest(biased, E);
                biased[index[c]] = -__builtin_inff();
                score[c] = plain[index[c]];
            }
            const float sum = divide ? sum_of(score, k) : 1.0f;
            for (int64_t c = 0; c < k; ++c) weight[c] = score[c] / sum * scaling;
        }
    });
}

void route_backward(int threads, const int64_t* index, const float* score_rows, const float* dweight_rows,
                    float* dlogits, int64_t M, int64_t E, int64_t k, float scaling, bool divide) {
    Blocks(M, E).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        for (int64_t i = begin * E; i < end * E; ++i) dlogits[i] = 0.0f;
        for (int64_t m = begin; m < end; ++m) {
            const float *score = score_rows + m * k, *dweight = dweight_rows + m * k;
            const float sum = divide ? sum_of(score, k) : 1.0f;
            float shared = 0.0f;
            for (int64_t c = 0; divide && c < k; ++c) shared += dweight[c] * (score[c] / sum);
            for (int64_t c = 0; c < k; ++c) {
                const float dscore = scaling * (dweight[c] - shared) / sum;
                dlogits[m * E + index[m * k + c]] = dscore * score[c] * (1.0f - score[c]);
            }
        }
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
