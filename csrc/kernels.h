// The table of kernels of one instruction set. A new kernel adds one line here, one in table.cpp and one in bind.cpp;
// its own header names its signature once, as a function type.
#pragma once

#include "delta.h"

namespace statewell {

struct Kernels {
    DeltaForward* delta_forward;
};

// Null where this build has no such instruction set. Asking does not run any of its instructions.
const Kernels* kernels_scalar();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_neon();

}  // namespace statewell
