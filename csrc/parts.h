// The small pieces between the large products: convolution, norms, gates, SiTU, depth attention, expert rows.
// All tensors are fp32 and contiguous, rows of tokens [M, D]; outputs are written whole. Sums over tokens are taken
// in fixed blocks of rows and then over the blocks in order, so that the number of threads changes no bit.
#pragma once

#include <cstdint>

namespace statewell {

// n = x * factor, factor [M] = rsqrt(share * sum(x^2) + eps); y = n, n * weight, or n * weight * activation(gate).
// weight [D] and gate [M, D] may be null (a gate needs a weight); the activation is SiLU or the sigmoid.
using NormForward = void(int threads, const float* x, const float* weight, const float* gate, float* y, float* factor,
                         int64_t M, int64_t D, float share, float eps, bool silu);
using NormBackward = void(int threads, const float* x, const float* weight, const float* gate, const float* factor,
                          const float* dy, float* dx, float* dweight, float* dgate, int64_t M, int64_t D, float share,
                          bool silu);

// out = beta * tanh(gate / beta) * sigmoid(gate) * linear, linear = linear_beta * tanh(up / linear_beta);
// linear_beta 0 leaves `up` as it is.
using SituForward = void(int threads, const float* gate, const float* up, float* out, int64_t count, float beta,
                         float linear_beta);
using SituBackward = void(int threads, const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                          int64_t count, float beta, float linear_beta);

// out = silu(gate) * up.
using SwigluForward = void(int threads, const float* gate, const float* up, float* out, int64_t count);
using SwigluBackward = void(int threads, const float* gate, const float* up, const float* dout, float* dgate, float* dup,
                            int64_t count);

// Log retention g of z [M, HV, K] with A_log [HV] and dt_bias [HV, K] (K = 1: one per head): strictly between
// lower_bound < 0 and 0, or by softplus where lower_bound is 0.
using GateForward = void(int threads, const float* z, const float* A_log, const float* dt_bias, float* g, int64_t M,
                         int64_t HV, int64_t K, float lower_bound);
using GateBackward = void(int threads, const float* z, const float* A_log, const float* dt_bias, const float* g,
                          const float* dg, float* dz, float* dA_log, float* ddt_bias, int64_t M, int64_t HV, int64_t K,
                          float lower_bound);

// Segment n is x[bounds[n] : bounds[n + 1]] of x [T, D] after history [N, W-1, D]. weight [D, W], tap W-1 meets the
// current token; W in 2 to 4. Products and sums are separate and in one order, so that a token's result depends on
// neither its place nor what follows, to the bit; later tokens with a zero dy leave every gradient as it is.
using ConvForward = void(int threads, const float* x, const float* weight, const float* history, float* y,
                         const int64_t* bounds, int64_t N, int64_t D, int64_t W);
using ConvBackward = void(int threads, const float* x, const float* weight, const float* history, const float* dy,
                          float* dx, float* dweight, float* dhistory, const int64_t* bounds, int64_t N, int64_t D,
                          int64_t W);
// One token of each of N rows: row n continues tails[rows[n]] (rows null: n), [.., W-1, D], which moves on in place.
using ConvStep = void(int threads, const float* x, int64_t x_stride, const float* weight, float* tails,
                      const int64_t* rows, float* y, int64_t N, int64_t D, int64_t W);

// mixed = sum_s a_s v_s with a = softmax_s(r_s d_s), r_s = rsqrt(mean(v_s^2) + eps), d_s = <v_s, query>.
// sources, dsources: S pointers to [M, D]. r, d, a: [M, S], kept for the backward.
using DepthForward = void(int threads, const float* const* sources, const float* query, float* mixed, float* r, float* d,
                          float* a, int64_t S, int64_t M, int64_t D, float eps);
using DepthBackward = void(int threads, const float* const* sources, const float* query, const float* r, const float* d,
                           const float* a, const float* dmixed, float* const* dsources, float* dquery, int64_t S,
                           int64_t M, int64_t D);

// The choices index [M*k] sorted by expert, equal ones in the order of the tokens: order [M*k] names the choice in
// each sorted row, place [M*k] the sorted row of each choice, counts [E] the rows of each expert.
using ExpertOrder = void(const int64_t* index, int64_t* order, int64_t* place, int64_t* counts, int64_t choices,
                         int64_t E);
// rows[i] = x[order[i] / k]; its gradient sums the k copies of a token in the order of its choices.
using ExpertSpread = void(int threads, const float* x, const int64_t* order, float* rows, int64_t M, int64_t k,
                          int64_t D);
using ExpertGather = void(int threads, const float* drows, const int64_t* place, float* dx, int64_t M, int64_t k,
                          int64_t D);
// mixed[m] = sum_c weight[m, c] * rows[place[m, c]].
using ExpertCombine = void(int threads, const float* rows, const float* weight, const int64_t* place, float* mixed,
                           int64_t M, int64_t k, int64_t D);
using ExpertCombineBackward = void(int threads, const float* rows, const float* weight, const int64_t* place,
                                   const float* dmixed, float* drows, float* dweight, int64_t M, int64_t k, int64_t D);

// The k best of sigmoid(logits [M, E]) + bias [E], ties to the lowest; weight [M, k] from the scores alone, divided
// by (their sum + 1e-20) when `divide`, times scaling; score [M, k] is kept for the backward.
using RouteForward = void(int threads, const float* logits, const float* bias, int64_t* index, float* weight,
                          float* score, int64_t M, int64_t E, int64_t k, float scaling, bool divide);
using RouteBackward = void(int threads, const int64_t* index, const float* score, const float* dweight, float* dlogits,
                           int64_t M, int64_t E, int64_t k, float scaling, bool divide);

#if defined(STATEWELL_ISA)
namespace STATEWELL_ISA {
NormForward norm_forward;
NormBackward norm_backward;
SituForward situ_forward;
SituBackward situ_backward;
SwigluForward swiglu_forward;
SwigluBackward swiglu_backward;
GateForward gate_forward;
GateBackward gate_backward;
ConvForward conv_forward;
ConvBackward conv_backward;
ConvStep conv_step;
DepthForward depth_forward;
DepthBackward depth_backward;
ExpertOrder expert_order;
ExpertSpread expert_spread;
ExpertGather expert_gather;
ExpertCombine expert_combine;
ExpertCombineBackward expert_combine_backward;
RouteForward route_forward;
RouteBackward route_backward;
}  // namespace STATEWELL_ISA
#endif

}  // namespace statewell
