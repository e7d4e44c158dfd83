// What a check of a family of kernels gets: one stored case, one instruction set, a number of threads; and the book in
// which it writes how far each kernel was off.
//
// Fresh outputs are NaN and exactly as large as the kernel may write, so that a place it leaves out is seen in the
// comparison and one outside by the sanitizer.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels.h"
#include "vectors.h"

namespace statewell::test {

// The largest relative RMS allowed, of results and of gradients (tensors named d_*).
struct Limits {
    double operation, gradient;
};

// All that was found, by kernel.
class Book {
public:
    explicit Book(Limits limits) : limits_(limits) {}

    // `made` are `repeats` copies of the stored tensor `expected`, each `factor` times it; `where` names the run. The
    // first run of a `place`, on one thread, keeps its bits for those on more.
    void compare(const std::string& kernel, const std::string& name, const std::string& where, const std::string& place,
                 const std::vector<float>& made, const Tensor& expected, int64_t repeats, double factor);
    void demand(const std::string& kernel, bool holds, const std::string& where, const std::string& claim);

    // Prints a line per kernel and what failed; the number of kernels that were checked and passed.
    int print() const;
    bool failed() const { return !failures_.empty(); }

private:
    struct Line {
        int comparisons = 0;
        double worst = 0.0, worst_gradient = 0.0;
        bool red = false;
    };

    void fail(const std::string& kernel, const std::string& message);

    Limits limits_;
    std::map<std::string, Line> lines_;
    std::map<std::string, std::vector<float>> first_;
    std::vector<std::string> failures_;
};

// One case on one instruction set and a number of threads.
class Run {
public:
    const Kernels& kernels;
    const int threads;

    // large: the rows of the case are to be repeated until they are worth several threads.
    Run(const Kernels& kernels_, int threads_, bool large, const Case& held, std::string place, Book& book)
        : kernels(kernels_), threads(threads_), large_(large), held_(held), place_(std::move(place)), book_(book) {}

    // How often to repeat rows that are `numbers` floats together; `worth` of them are worth several threads.
    int64_t repeats(int64_t numbers, int64_t worth = 20000) const { return large_ ? worth / numbers + 1 : 1; }
    bool large() const { return large_; }

    bool has(const std::string& name) const { return held_.count(name) > 0; }
    const Tensor& tensor(const std::string& name) const;
    int64_t size(const std::string& name, size_t axis) const;
    int64_t whole(const std::string& name) const { return tensor(name).integers.at(0); }
    float number(const std::string& name) const { return static_cast<float>(tensor(name).doubles.at(0)); }
    // `times` copies, one after the other; none where the case has no such tensor.
    std::vector<float> floats(const std::string& name, int64_t times = 1) const;
    std::vector<int64_t> integers(const std::string& name, int64_t times = 1) const;
    std::vector<uint8_t> bytes(const std::string& name, int64_t times = 1) const;

    void compare(const std::string& kernel, const std::string& name, const std::vector<float>& made, int64_t repeats = 1,
                 double factor = 1.0);
    void demand(const std::string& kernel, bool holds, const std::string& claim);

private:
    std::string where() const;

    bool large_;
    const Case& held_;
    std::string place_;
    Book& book_;
};

// Memory for a kernel to write.
std::vector<float> fresh(int64_t count);
std::vector<int64_t> fresh_integers(int64_t count);

// Null where there is nothing, as kernels expect it.
template <class T>
T* at(std::vector<T>& numbers) {
    return numbers.empty() ? nullptr : numbers.data();
}
template <class T>
const T* at(const std::vector<T>& numbers) {
    return numbers.empty() ? nullptr : numbers.data();
}

// The same bits in both, NaN or not.
bool same(const std::vector<float>& a, const std::vector<float>& b);

// The sum over the first of `places` equal parts.
std::vector<float> summed(const std::vector<float>& parts, int64_t places);

// Rows with a gap of NaN after each but the last: tokens in a wider tensor.
struct Spread {
    std::vector<float> numbers;
    int64_t step = 0;

    Spread(const std::vector<float>& packed, int64_t rows, int64_t gap);
    const float* at() const { return numbers.empty() ? nullptr : numbers.data(); }
};

// The checks, by the family of the stored cases.
using Check = void(Run&);
Check check_delta, check_linear;
Check check_norm, check_situ, check_swiglu, check_gate, check_conv, check_depth;
Check check_experts, check_route;
Check check_step, check_conv_step, check_attend;
Check check_products, check_unpack;

// The worker pool: every index once, nested and simultaneous calls, a forked child, rest between calls. False and a
// sentence for each that fails.
bool check_pool(bool with_fork);

}  // namespace statewell::test
