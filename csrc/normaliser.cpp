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

}  // namespace

void normaliser_forward(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                        const float* initial, const int64_t* bounds, float* weight, float* final, int64_t N, int64_t H,
                        int64_t HV, int64_t K, float scale) {
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
            weight[t * HV + h] = scale * sum(total);
        }
        write_row(final + task * K, z, K);
    });
}

void normaliser_backward(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                         const float* initial, const int64_t* bounds, const float* dweight, const float* dfinal,
                         float* dq, float* dk, float* dinitial, int64_t N, int64_t H, int64_t HV, int64_t K,
                         float scale) {
    const int64_t shared = HV / H, T = bounds[N];
    parallel_for(threads, N * HV, [&](int64_t task) {
        const int64_t n = task / HV, h = task % HV, key = h / shared * K;
        const int64_t place = h % shared * T * H * K + key;
        float* z = scratch(padded(K));
        read_row(z, initial == nullptr ? nullptr : initial + task * K, K);
        for (int64_t t = bounds[n]; t < bounds[n + 1]; ++t) {
            const Vec dw = set1(scale * dweight[t * HV + h]);
            for (int64_t i = 0; i < K; i += LANES) {
                const Vec zi = add(load(z + i), load_part(k + t * k_stride + key + i, K - i));
                store(z + i, zi);
                store_part(dq + place + t * H * K + i, mul(dw, zi), K - i);
            }
        }
        // from here on z is its own gradient, which every earlier key shares
        read_row(z, dfinal == nullptr ? nullptr : dfinal + task * K, K);
        for (int64_t t = bounds[n + 1] - 1; t >= bounds[n]; --t) {
            const Vec dw = set1(scale * dweight[t * HV + h]);
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
