// The normaliser of linear attention: z, the sum of all keys so far, and the weight that each query gives to it.
//
// Conventions as in delta.h. initial may be null (zeros).
#pragma once

#include <cstdint>

namespace statewell {

// weight [T, HV] = scale <q, z> with z after the token's own key, and final [N, HV, K].
using NormaliserForward = void(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                               const float* initial, const int64_t* bounds, float* weight, float* final, int64_t N,
                               int64_t H, int64_t HV, int64_t K, float scale);

// dq and dk [HV / H, T, H, K], to be summed over their first axis, and dinitial [N, HV, K], from dweight [T, HV] and
// dfinal [N, HV, K] (null: zero).
using NormaliserBackward = void(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                                const float* initial, const int64_t* bounds, const float* dweight, const float* dfinal,
                                float* dq, float* dk, float* dinitial, int64_t N, int64_t H, int64_t HV, int64_t K,
                                float scale);

#ifdef STATEWELL_ISA
namespace STATEWELL_ISA {
NormaliserForward normaliser_forward;
NormaliserBackward normaliser_backward;
}  // namespace STATEWELL_ISA
#endif

}  // namespace statewell
