// Checks every kernel against stored vectors, without Python, on every instruction set that runs here, on one thread and
// on two:
//
//     check_kernels tests/golden/native/kernels.safetensors [--no-fork]
//
// Prints a line per kernel and ends with 0 if all are within their limits, 1 if one is not, 2 if it cannot check.
#include <cstdio>
#include <exception>
#include <map>
#include <stdexcept>
#include <string>

#include "check.h"
#include "instruction_sets.h"

namespace statewell::test {
namespace {

const std::map<std::string, Check*> kChecks = {
    {"delta", check_delta},         {"linear", check_linear}, {"norm", check_norm},     {"situ", check_situ},
    {"swiglu", check_swiglu},       {"gate", check_gate},     {"conv", check_conv},     {"depth", check_depth},
    {"experts", check_experts},     {"route", check_route},   {"step", check_step},     {"conv_step", check_conv_step},
    {"attend", check_attend},       {"products", check_products}, {"unpack", check_unpack},
};

constexpr int kKernels = sizeof(Kernels) / sizeof(void (*)());

void check_family(Check* check, const std::string& family, const std::map<std::string, Case>& cases,
                  const InstructionSet& set, Book& book) {
    for (const auto& [name, held] : cases)
        for (const bool large : {false, true})
            for (const int threads : {1, 2}) {
                const std::string place = std::string(set.name) + " " + family + "/" + name + (large ? " repeated" : "");
                Run run(*set.kernels, threads, large, held, place, book);
                check(run);
            }
}

int check_all(const std::string& path, bool with_fork) {
    Vectors vectors = read_vectors(path);
    const Case limits = vectors.at("limits").at("all");
    Book book({limits.at("operation").doubles.at(0), limits.at("gradient").doubles.at(0)});
    vectors.erase("limits");
    for (const InstructionSet& set : instruction_sets()) {
        std::printf("%s %s\n", set.name, set.runs_here ? "runs here" : "is left out: this processor lacks it");
        if (!set.runs_here) continue;
        for (const auto& [family, cases] : vectors) {
            if (kChecks.count(family) == 0) throw std::runtime_error("nothing here checks the family " + family);
            check_family(kChecks.at(family), family, cases, set, book);
        }
    }
    const int passed = book.print();
    const bool pool = check_pool(with_fork);
    if (!book.failed() && passed != kKernels) {
        std::printf("FAILED  kernels.h has %d kernels, %d were checked: add a check in tests/native\n", kKernels, passed);
        return 1;
    }
    return book.failed() || !pool ? 1 : 0;
}

}  // namespace
}  // namespace statewell::test

int main(int count, char** arguments) {
    const bool with_fork = count < 3 || std::string(arguments[2]) != "--no-fork";
    if (count < 2 || count > 3 || (count == 3 && with_fork)) {
        std::fprintf(stderr, "usage: check_kernels VECTORS.safetensors [--no-fork]\n");
        return 2;
    }
    try {
        return statewell::test::check_all(arguments[1], with_fork);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cannot check: %s\n", error.what());
        return 2;
    }
}
