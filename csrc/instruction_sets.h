// The instruction sets of this build, and which of them this processor has.
#pragma once

#include <vector>

#include "kernels.h"

namespace statewell {

struct InstructionSet {
    const char* name;
    const Kernels* kernels;
    bool runs_here;
};

// Fastest first; a build lists what it was compiled for.
const std::vector<InstructionSet>& instruction_sets();

}  // namespace statewell
