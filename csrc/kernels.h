// The table of kernels of one instruction set. A new kernel adds one line here, one in table.cpp and one in bind.cpp;
// its own header names its signature once, as a function type.
#pragma once

#include "attend.h"
#include "delta.h"
#include "mxfp4.h"
#include "normaliser.h"
#include "parts.h"

namespace statewell {

struct Kernels {
    DeltaForward* delta_forward;
    DeltaBackward* delta_backward;
    DeltaStep* delta_step;
    NormaliserForward* normaliser_forward;
    NormaliserBackward* normaliser_backward;
    AttendOne* attend_one;
    NormForward* norm_forward;
    NormBackward* norm_backward;
    SituForward* situ_forward;
    SituBackward* situ_backward;
    SwigluForward* swiglu_forward;
    SwigluBackward* swiglu_backward;
    GateForward* gate_forward;
    GateBackward* gate_backward;
    ConvForward* conv_forward;
    ConvBackward* conv_backward;
    ConvStep* conv_step;
    DepthForward* depth_forward;
    DepthBackward* depth_backward;
    ExpertOrder* expert_order;
    ExpertSpread* expert_spread;
    ExpertGather* expert_gather;
    ExpertCombine* expert_combine;
    ExpertCombineBackward* expert_combine_backward;
    RouteForward* route_forward;
    RouteBackward* route_backward;
    Mxfp4Products* mxfp4_products;
    Mxfp4Unpack* mxfp4_unpack;
};

// Null where this build has no such instruction set. Asking does not run any of its instructions.
const Kernels* kernels_scalar();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();
const Kernels* kernels_neon();

}  // namespace statewell
