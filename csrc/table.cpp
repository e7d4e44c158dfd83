// Compiled once per instruction set: hands the set's functions to the binding.
#include "kernels.h"

#define STATEWELL_JOIN(a, b) a##b
#define STATEWELL_NAME(isa) STATEWELL_JOIN(kernels_, isa)

namespace statewell {

const Kernels* STATEWELL_NAME(STATEWELL_ISA)() {
    static Kernels table;  // constant pointers, written the same by whoever comes first
    table.delta_forward = STATEWELL_ISA::delta_forward;
    return &table;
}

}  // namespace statewell
