// The only file that knows Python. Addresses come as integers, checked by kernels/ops.py before they get here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "instruction_sets.h"

namespace nb = nanobind;

namespace statewell {
namespace {

// What Python passes for a C++ argument: an address for a pointer, the value itself otherwise.
template <class T>
using Passed = std::conditional_t<std::is_pointer_v<T>, uintptr_t, T>;

template <class T>
T received(Passed<T> value) {
    if constexpr (std::is_pointer_v<T>)
        return reinterpret_cast<T>(value);
    else
        return value;
}

// A Python function (place of the instruction set, *arguments of the kernel) that runs without the interpreter's lock.
template <class... A>
auto entry(void (*Kernels::*kernel)(A...)) {
    return [kernel](int set, Passed<A>... arguments) {
        const InstructionSet& chosen = instruction_sets().at(static_cast<size_t>(set));
        if (!chosen.runs_here) throw nb::value_error("this processor lacks the instruction set that was asked for");
        nb::gil_scoped_release unlocked;
        (chosen.kernels->*kernel)(received<A>(arguments)...);
    };
}

NB_MODULE(_native, module) {
    module.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const InstructionSet& set : instruction_sets()) names.emplace_back(set.name);
        return names;
    });
    module.def("runs_here", [](int set) { return instruction_sets().at(static_cast<size_t>(set)).runs_here; });
    module.attr("CHUNK") = CHUNK;
    module.def("delta_forward", entry(&Kernels::delta_forward));
    module.def("delta_backward", entry(&Kernels::delta_backward));
    module.def("delta_step", entry(&Kernels::delta_step));
    module.def("normaliser_forward", entry(&Kernels::normaliser_forward));
    module.def("normaliser_backward", entry(&Kernels::normaliser_backward));
    module.def("attend_one", entry(&Kernels::attend_one));
    module.def("norm_forward", entry(&Kernels::norm_forward));
    module.def("norm_backward", entry(&Kernels::norm_backward));
    module.def("situ_forward", entry(&Kernels::situ_forward));
    module.def("situ_backward", entry(&Kernels::situ_backward));
    module.def("swiglu_forward", entry(&Kernels::swiglu_forward));
    module.def("swiglu_backward", entry(&Kernels::swiglu_backward));
    module.def("gate_forward", entry(&Kernels::gate_forward));
    module.def("gate_backward", entry(&Kernels::gate_backward));
    module.def("conv_forward", entry(&Kernels::conv_forward));
    module.def("conv_backward", entry(&Kernels::conv_backward));
    module.def("conv_step", entry(&Kernels::conv_step));
    module.def("depth_forward", entry(&Kernels::depth_forward));
    module.def("depth_backward", entry(&Kernels::depth_backward));
    module.def("expert_order", entry(&Kernels::expert_order));
    module.def("expert_spread", entry(&Kernels::expert_spread));
    module.def("expert_gather", entry(&Kernels::expert_gather));
    module.def("expert_combine", entry(&Kernels::expert_combine));
    module.def("expert_combine_backward", entry(&Kernels::expert_combine_backward));
    module.def("route_forward", entry(&Kernels::route_forward));
    module.def("route_backward", entry(&Kernels::route_backward));
    module.def("mxfp4_products", entry(&Kernels::mxfp4_products));
    module.def("mxfp4_unpack", entry(&Kernels::mxfp4_unpack));
}

}  // namespace
}  // namespace statewell
