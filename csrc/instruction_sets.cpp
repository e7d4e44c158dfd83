#include "instruction_sets.h"

namespace statewell {

const std::vector<InstructionSet>& instruction_sets() {
    static const std::vector<InstructionSet> sets = [] {
        std::vector<InstructionSet> all;
#if defined(STATEWELL_X86)
        const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
        all.push_back({"avx512", kernels_avx512(), avx512});
        all.push_back({"avx2", kernels_avx2(), avx2});
#elif defined(STATEWELL_ARM)
        all.push_back({"neon", kernels_neon(), true});
#endif
        all.push_back({"scalar", kernels_scalar(), true});
        return all;
    }();
    return sets;
}

}  // namespace statewell
