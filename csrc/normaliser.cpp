// The normaliser of linear attention, one head of one segment after the other; nothing is kept between the passes.
#include "normaliser.h"

#include "pool.h"
#include "simd.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

// z, or its gradient, between memory and a padded row here.
void read_row(float* z, const float* from, int64_t K) {
    for (int64_t i = 0; i < K; i += LANES) store(z + i, from == nullptr ? zero() : load_part(from + i, K - i));
}

void write_row(float* to, const float* z, int64_t K) {
    for (int64_t i = 0; i < K; i += LANES) store_part(to + i, load(z + i), K - i);
}

// o divided by weight, in place.
void divide(float* o, float weight, int64_t V) {
    const Vec w = set1(weight);
    for (int64_t i = 0; i < V; i += LANES) store_part(o + i, div(load_part(o + i, V - i), w), V - i);
}

// dread = d_o / weight; returns the weight's own gradient, -<d_o, o> / weight.
float divide_backward(float* dread, const float* d_o, const float* o, float weight, int64_t V) {
    const Vec w = set1(weight);
    Vec total = zero();
    for (int64_t i = 0; i < V; i += LANES) {
        const Vec d = div(load_part(d_o + i, V - i), w);
        store_part(dread + i, d, V - i);
        total = fma(d, load_part(o + i, V - i), total);
    }
    return -sum(total);
}

}  // namespace

void normaliser_forward(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                        const float* initial, const int64_t* bounds, float* o, float* weight, float* final, int64_t N,
                        int64_t H, int64_t HV, int64_t K, int64_t V, float scale, float eps) {
    parallel_for(threads, N * HV, [&](int64_t task) {
        const int64_t n = task / HV, h = task % HV, key = h / (HV / H) * K;
        float* z = scratch(padded(K));
        read_row(z, initial == nullptr ? nullptr : initial + task * K, K);
        for (int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
            const float *qt = q + t * q_stride + key, *kt = k + t * k_stride + key;
            Vec total = zero();
            for (int64_t i = 0; i < K; i += LANES) {
                const Vec zi = add(load(z + i), load_part(kt + i, K - i));
                store(z + i, zi);
                total = fma(zi, load_part(qt + i, K - i), total);
            }
            weight[t * HV + h] = scale * sum(total) + eps;
            divide(o + (t * HV + h) * V, weight[t * HV + h], V);
        }
        write_row(final + task * K, z, K);
    });
}

void normaliser_backward(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                         const float* initial, const int64_t* bounds, const float* o, const float* weight,
                         const float* d_o, const float* dfinal, float* dread, float* dq, float* dk, float* dinitial,
                         int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V, float scale) {
    const int64_t shared = HV / H, T = bounds[N];
    parallel_for(threads, N * HV, [&](int64_t task) {
        const int64_t n = task / HV, h = task % HV, key = h / shared * K, start = bounds[n], stop = bounds[n + 1];
        const int64_t place = h % shared * T * H * K + key;
        float* z = scratch(padded(K) + stop - start);
        float* dweight = z + padded(K);
        read_row(z, initial == nullptr ? nullptr : initial + task * K, K);
        for (int64_t t = start; t < stop; ++t) {
            const int64_t head = t * HV + h;
            dweight[t - start] = scale * divide_backward(dread + head * V, d_o + head * V, o + head * V, weight[head], V);
            const Vec dw = set1(dweight[t - start]);
            for (int64_t i = 0; i < K; i += LANES) {
                const Vec zi = add(load(z + i), load_part(k + t * k_stride + key + i, K - i));
                store(z + i, zi);
                store_part(dq + place + t * H * K + i, mul(dw, zi), K - i);
            }
        }
        // from here on z is its own gradient, which every earlier key shares
        read_row(z, dfinal == nullptr ? nullptr : dfinal + task * K, K);
        for (int64_t t = stop - 1; t >= start; --t) {
            const Vec dw = set1(dweight[t - start]);
            for (int64_t i = 0; i < K; i += LANES) {
                const Vec dz = fma(dw, load_part(q + t * q_stride + key + i, K - i), load(z + i));
                store(z + i, dz);
                store_part(dk + place + t * H * K + i, dz, K - i);
            }
        }
        write_row(dinitial + task * K, z, K);
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
