#include "check.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace statewell::test {
namespace {

// RMS of the difference over RMS of the expected, which is taken absolutely where it is all zero; NaN for a NaN.
double relative_rms(const std::vector<float>& made, const std::vector<double>& expected, double factor) {
    double difference = 0.0, size = 0.0;
    for (size_t i = 0; i < made.size(); ++i) {
        const double exact = factor * expected[i % expected.size()], error = static_cast<double>(made[i]) - exact;
        difference += error * error;
        size += exact * exact;
    }
    if (made.empty()) return 0.0;
    return size > 0.0 ? std::sqrt(difference / size) : std::sqrt(difference / static_cast<double>(made.size()));
}

std::string shortly(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", value);
    return text;
}

template <class T>
std::vector<T> copies(const std::vector<T>& once, int64_t times) {
    std::vector<T> all;
    all.reserve(once.size() * static_cast<size_t>(times));
    for (int64_t i = 0; i < times; ++i) all.insert(all.end(), once.begin(), once.end());
    return all;
}

}  // namespace

void Book::fail(const std::string& kernel, const std::string& message) {
    lines_[kernel].red = true;
    failures_.push_back(kernel + ": " + message);
}

void Book::demand(const std::string& kernel, bool holds, const std::string& where, const std::string& claim) {
    ++lines_[kernel].comparisons;
    if (!holds) fail(kernel, where + ": it does not hold that " + claim);
}

void Book::compare(const std::string& kernel, const std::string& name, const std::string& where, const std::string& place,
                   const std::vector<float>& made, const Tensor& expected, int64_t repeats, double factor) {
    Line& line = lines_[kernel];
    ++line.comparisons;
    if (made.size() != expected.doubles.size() * static_cast<size_t>(repeats))
        return fail(kernel, where + " " + name + ": it has another size than the stored one");
    const bool gradient = name.rfind("d_", 0) == 0;
    const double error = relative_rms(made, expected.doubles, factor);
    const double limit = gradient ? limits_.gradient : limits_.operation;
    double& worst = gradient ? line.worst_gradient : line.worst;
    // a NaN stays the worst
    if (!(error <= worst) && worst == worst) worst = error;
    if (!(error <= limit))
        fail(kernel, where + " " + name + ": relative RMS " + shortly(error) + " of " + shortly(limit) + " allowed");
    const auto [first, is_first] = first_.emplace(place + "/" + name, made);
    if (!is_first && std::memcmp(first->second.data(), made.data(), made.size() * sizeof(float)) != 0)
        fail(kernel, where + " " + name + ": other bits than on one thread");
}

int Book::print() const {
    int passed = 0;
    for (const auto& [kernel, line] : lines_) {
        passed += line.red ? 0 : 1;
        std::printf("%-7s %-24s %4d comparisons", line.red ? "FAILED" : "passed", kernel.c_str(), line.comparisons);
        if (line.worst != 0.0) std::printf(", results within %s", shortly(line.worst).c_str());
        if (line.worst_gradient != 0.0) std::printf(", gradients within %s", shortly(line.worst_gradient).c_str());
        std::printf("\n");
    }
    for (const std::string& failure : failures_) std::printf("%s\n", failure.c_str());
    return passed;
}

const Tensor& Run::tensor(const std::string& name) const {
    const auto found = held_.find(name);
    if (found == held_.end()) throw std::runtime_error(place_ + " has no tensor " + name);
    return found->second;
}

int64_t Run::size(const std::string& name, size_t axis) const { return tensor(name).shape.at(axis); }

std::vector<float> Run::floats(const std::string& name, int64_t times) const {
    return has(name) ? copies(tensor(name).floats, times) : std::vector<float>();
}

std::vector<int64_t> Run::integers(const std::string& name, int64_t times) const {
    return copies(tensor(name).integers, times);
}

std::vector<uint8_t> Run::bytes(const std::string& name, int64_t times) const {
    return copies(tensor(name).bytes, times);
}

std::string Run::where() const { return place_ + (threads == 1 ? " on 1 thread" : " on " + std::to_string(threads) + " threads"); }

void Run::compare(const std::string& kernel, const std::string& name, const std::vector<float>& made, int64_t repeats,
                  double factor) {
    book_.compare(kernel, name, where(), place_ + "/" + kernel, made, tensor(name), repeats, factor);
}

void Run::demand(const std::string& kernel, bool holds, const std::string& claim) {
    book_.demand(kernel, holds, where(), claim);
}

std::vector<float> fresh(int64_t count) {
    return std::vector<float>(static_cast<size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

std::vector<int64_t> fresh_integers(int64_t count) {
    return std::vector<int64_t>(static_cast<size_t>(count), std::numeric_limits<int64_t>::min());
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<float> summed(const std::vector<float>& parts, int64_t places) {
    const size_t width = parts.size() / static_cast<size_t>(places);
    std::vector<float> sum(parts.begin(), parts.begin() + static_cast<int64_t>(width));
    for (size_t i = width; i < parts.size(); ++i) sum[i % width] += parts[i];
    return sum;
}

Spread::Spread(const std::vector<float>& packed, int64_t rows, int64_t gap) {
    if (packed.empty()) return;
    const int64_t width = static_cast<int64_t>(packed.size()) / rows;
    step = width + gap;
    numbers = fresh(rows * step - gap);
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < width; ++i)
            numbers[static_cast<size_t>(row * step + i)] = packed[static_cast<size_t>(row * width + i)];
}

}  // namespace statewell::test
