// The normaliser of linear attention: z, the sum of all keys so far, and the weight that each query gives to it.
//
// Conventions as in delta.h. initial may be null (zeros).
#pragma once

#include <cstdint>

namespace statewell {

// weight [T, HV] = scale <q, z> + eps with z after the token's own key, by which the reads o [T, HV, V] are divided where
// they lie; final [N, HV, K].
using NormaliserForward = void(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                               const float* initial, const int64_t* bounds, float* o, float* weight, float* final,
                               int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V, float scale, float eps);

// From d_o [T, HV, V], the gradient of the divided reads o, and dfinal [N, HV, K] (null: zero): dread [T, HV, V], that of
// the reads before; dq and dk [HV / H, T, H, K], to be summed over their first axis; dinitial [N, HV, K].
using NormaliserBackward = void(int threads, const float* q, const float* k, int64_t q_stride, int64_t k_stride,
                                const float* initial, const int64_t* bounds, const float* o, const float* weight,
                                const float* d_o, const float* dfinal, float* dread, float* dq, float* dk,
                                float* dinitial, int64_t N, int64_t H, int64_t HV, int64_t K, int64_t V, float scale);

#ifdef STATEWELL_ISA
namespace STATEWELL_ISA {
NormaliserForward normaliser_forward;
NormaliserBackward normaliser_backward;
}  // namespace STATEWELL_ISA
#endif

}  // namespace statewell
