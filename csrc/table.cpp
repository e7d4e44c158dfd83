// Compiled once per instruction set: hands the set's functions to the binding.
#include "kernels.h"

#define STATEWELL_JOIN(a, b) a##b
#define STATEWELL_NAME(isa) STATEWELL_JOIN(kernels_, isa)

namespace statewell {

const Kernels* STATEWELL_NAME(STATEWELL_ISA)() {
    static Kernels table;  // constant pointers, written the same by whoever comes first
    table.delta_forward = STATEWELL_ISA::delta_forward;
    table.delta_backward = STATEWELL_ISA::delta_backward;
    table.delta_step = STATEWELL_ISA::delta_step;
    table.normaliser_forward = STATEWELL_ISA::normaliser_forward;
    table.normaliser_backward = STATEWELL_ISA::normaliser_backward;
    table.attend_one = STATEWELL_ISA::attend_one;
    table.norm_forward = STATEWELL_ISA::norm_forward;
    table.norm_backward = STATEWELL_ISA::norm_backward;
    table.situ_forward = STATEWELL_ISA::situ_forward;
    table.situ_backward = STATEWELL_ISA::situ_backward;
    table.swiglu_forward = STATEWELL_ISA::swiglu_forward;
    table.swiglu_backward = STATEWELL_ISA::swiglu_backward;
    table.gate_forward = STATEWELL_ISA::gate_forward;
    table.gate_backward = STATEWELL_ISA::gate_backward;
    table.conv_forward = STATEWELL_ISA::conv_forward;
    table.conv_backward = STATEWELL_ISA::conv_backward;
    table.conv_step = STATEWELL_ISA::conv_step;
    table.depth_forward = STATEWELL_ISA::depth_forward;
    table.depth_backward = STATEWELL_ISA::depth_backward;
    table.expert_order = STATEWELL_ISA::expert_order;
    table.expert_spread = STATEWELL_ISA::expert_spread;
    table.expert_gather = STATEWELL_ISA::expert_gather;
    table.expert_combine = STATEWELL_ISA::expert_combine;
    table.expert_combine_backward = STATEWELL_ISA::expert_combine_backward;
    table.route_forward = STATEWELL_ISA::route_forward;
    table.route_backward = STATEWELL_ISA::route_backward;
    table.mxfp4_products = STATEWELL_ISA::mxfp4_products;
    table.mxfp4_unpack = STATEWELL_ISA::mxfp4_unpack;
    return &table;
}

}  // namespace statewell
