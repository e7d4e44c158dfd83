// Linear attention and the delta family: one recurrence, four rules for what happens to the state before a write.
//
// All sums are float32. Tensors are float32 with their last axis and their heads next to each other; `*_stride` is the
// step from one token (in delta_step one row) to the next, in floats. `bounds` [N + 1] are the segments' first tokens.
#pragma once

#include <cstdint>

namespace statewell {

// What a token does to the state S [K, V] before and while it writes.
enum Rule : int {
    ADDITIVE = 0,      // S += k v^T
    DELTA = 1,         // S += beta k (v - S^T k)^T
    GATED_DELTA = 2,   // the same on exp(g) S, one g per head
    KEY_DECAY = 3,     // the same on diag(exp(g)) S, one g per key channel
};

// Tokens between two kept states. A kept state of segment n at its token t lies at bounds[n] / CHUNK + n + t / CHUNK,
// which leaves a gap now and then but needs no sums over segments.
constexpr int64_t CHUNK = 32;

// o [T, HV, V] and final [N, HV, K, V] are written. initial may be null (zeros). For a backward pass, errors
// [T, HV, V] receives v - S'^T k and kept [T / CHUNK + N, HV, K, V] the states at the chunks' starts; both null otherwise.
using DeltaForward = void(int threads, int rule, const float* q, const float* k, const float* v, const float* g,
                          const float* beta, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t g_stride,
                          int64_t beta_stride, const float* initial, const int64_t* bounds, float* o, float* final,
                          float* errors, float* kept, int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V,
                          float scale);

// Gradients of all inputs from those of o and final (null: zero). dq and dk are [parts * HV / H, T, H, K], dg
// [parts, T, HV (, K)] and dbeta [parts, T, HV], to be summed over their first axis: a part is a range of value columns
// run by itself, and value heads that share a key head have a place each. dinitial may be null.
using DeltaBackward = void(int threads, int rule, const float* q, const float* k, const float* v, const float* g,
                           const float* beta, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t g_stride,
                           int64_t beta_stride, const int64_t* bounds, const float* errors, const float* kept,
                           const float* d_o, const float* dfinal, float* dq, float* dk, float* dv, float* dg,
                           float* dbeta, float* dinitial, int64_t parts, int64_t N, int64_t H, int64_t HV, int64_t K,
                           int64_t V, float scale);

// One token of each of N rows. Row n continues state[rows[n]] (rows null: n) and leaves its new state in new_state at
// the same place; the two may be the same memory. z [.., HV, K] and new_z likewise, the normaliser of linear attention,
// whose weight is scale <q, z> + eps; null for the other rules and where o is not divided.
using DeltaStep = void(int threads, int rule, const float* q, const float* k, const float* v, const float* g,
                       const float* beta, int64_t q_stride, int64_t k_stride, int64_t v_stride, int64_t g_stride,
                       int64_t beta_stride, const float* state, float* new_state, const float* z, float* new_z,
                       const int64_t* rows, float* o, int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V,
                       float scale, float eps);

#ifdef STATEWELL_ISA
namespace STATEWELL_ISA {
DeltaForward delta_forward;
DeltaBackward delta_backward;
DeltaStep delta_step;
}  // namespace STATEWELL_ISA
#endif

}  // namespace statewell
