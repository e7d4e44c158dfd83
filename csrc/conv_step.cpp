// One token of the short convolution for many rows, each row's tail moved on where it lies. Products and sums must not
// be fused, see parts.h: the build compiles this file with -ffp-contract=off, and the order is that of conv.cpp.
#include "parts.h"
#include "pool.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

template <int W>
void run_row(const float* x, const float* weight, float* tail, float* y, int64_t D) {
#pragma omp simd
    for (int64_t d = 0; d < D; ++d) {
        const float* tap = weight + d * W;
        const float newest = x[d];
        float sum = newest * tap[W - 1];
        for (int lag = 1; lag < W; ++lag) sum += tail[(W - 1 - lag) * D + d] * tap[W - 1 - lag];
        for (int kept = 0; kept + 2 < W; ++kept) tail[kept * D + d] = tail[(kept + 1) * D + d];
        tail[(W - 2) * D + d] = newest;
        y[d] = sum;
    }
}

void run_any(const float* x, const float* weight, float* tail, float* y, int64_t D, int64_t W) {
    switch (W) {
        case 2: return run_row<2>(x, weight, tail, y, D);
        case 3: return run_row<3>(x, weight, tail, y, D);
        default: return run_row<4>(x, weight, tail, y, D);
    }
}

constexpr int64_t WORTH_SHARING = 65536;  // channels, below which waking a thread costs more than it saves

}  // namespace

void conv_step(int threads, const float* x, int64_t x_stride, const float* weight, float* tails, const int64_t* rows,
               float* y, int64_t N, int64_t D, int64_t W) {
    if (N * D < WORTH_SHARING) threads = 1;
    parallel_for(threads, N, [&](int64_t n) {
        const int64_t row = rows == nullptr ? n : rows[n];
        run_any(x + n * x_stride, weight, tails + row * (W - 1) * D, y + n * D, D, W);
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
