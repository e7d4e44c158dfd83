// Attention of one query per row over all kept keys and values, for decoding; absorbed latent attention is the case
// of one key head whose keys are also the values.
#pragma once

#include <cstdint>

namespace statewell {

// o [B, H, V] = softmax over the row's tokens of scale * (<q[:K], k> + <q[K:], shared>), times v.
// q [B, H, K+P] packed; lengths [B], each at least 1. k holds Hk x K floats per token and v Hk x V, with H % Hk == 0;
// shared, P per token, is read by every head, P may be 0. Each is kept in pages of `page_tokens` tokens: addresses
// [B, pages], the tokens of a page `step` floats apart from `at` floats on. page_tokens is a multiple of 64, or a row
// has one page. One softmax pass, the tokens read once; a row is cut into parts by its own length alone and these are
// merged in order, so that neither threads nor other rows change a bit. Sums in fp32.
using AttendOne = void(int threads, const float* q, const int64_t* k_pages, const int64_t* v_pages,
                       const int64_t* shared_pages, int64_t k_at, int64_t v_at, int64_t shared_at,
                       const int64_t* lengths, float* o, float scale, int64_t B, int64_t pages, int64_t page_tokens,
                       int64_t H, int64_t Hk, int64_t K, int64_t P, int64_t V, int64_t k_step, int64_t v_step,
                       int64_t shared_step);

#if defined(STATEWELL_ISA)
namespace STATEWELL_ISA {
AttendOne attend_one;
}
#endif

}  // namespace statewell
