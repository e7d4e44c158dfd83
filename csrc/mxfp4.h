// Matrices in MXFP4: packed [out, in/2], the first of two inputs in a byte's low half, and scale [out, in/32], e for
// 2^(e - 127) and 255 for NaN; in % 32 == 0. Nothing has to be aligned. Products and sums are fp32.
#pragma once

#include <cstdint>

namespace statewell {

// y [n, out] = x [n, in] W^T for `count` matrices at once, given by arrays of their addresses: threads meet once for all.
// A token's sums run in one order, whatever n and the number of threads.
using Mxfp4Products = void(int threads, const float* x, const uint8_t* const* packed, const uint8_t* const* scale,
                           float* const* y, int64_t count, int64_t n, int64_t out, int64_t in);
// w [out, in], exact wherever fp32 reaches.
using Mxfp4Unpack = void(int threads, const uint8_t* packed, const uint8_t* scale, float* w, int64_t out, int64_t in);

#if defined(STATEWELL_ISA)
namespace STATEWELL_ISA {
Mxfp4Products mxfp4_products;
Mxfp4Unpack mxfp4_unpack;
}  // namespace STATEWELL_ISA
#endif

}  // namespace statewell
