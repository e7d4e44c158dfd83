// Attention of one query per row over all kept keys and values, for decoding; absorbed latent attention is the case
// of one key head whose keys are also the values.
#pragma once

#include <cstdint>

namespace statewell {

// o [B, H, V] = softmax over the S tokens of scale * (<q[:K], k> + <q[K:], shared>), times v.
// q [B, H, K+P] packed. k [B, S, Hk, K] and v [B, S, Hk, V] with H % Hk == 0, heads packed; shared [B, S, P] is read
// by every head, P may be 0. Steps between rows and between tokens are in floats. One softmax pass, the tokens read
// once; parts of the tokens are cut by S alone and merged in order, so that threads change no bit. Sums in fp32.
using AttendOne = void(int threads, const float* q, const float* k, const float* v, const float* shared, float* o,
                       float scale, int64_t B, int64_t S, int64_t H, int64_t Hk, int64_t K, int64_t P, int64_t V,
                       int64_t k_row, int64_t k_step, int64_t v_row, int64_t v_step, int64_t shared_row,
                       int64_t shared_step);

#if defined(STATEWELL_ISA)
namespace STATEWELL_ISA {
AttendOne attend_one;
}
#endif

}  // namespace statewell
