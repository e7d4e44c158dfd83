// Matrices in MXFP4: products against those of the unpacked numbers, and every byte under every scale.
#include <cmath>
#include <cstring>

#include "check.h"

namespace statewell::test {
namespace {

// Bytes at an odd address, where a vector may not be loaded as if it were aligned.
struct Bytes {
    std::vector<uint8_t> numbers;

    explicit Bytes(const std::vector<uint8_t>& packed) : numbers(1, 0) {
        numbers.insert(numbers.end(), packed.begin(), packed.end());
    }
    const uint8_t* at() const { return numbers.data() + 1; }
};

struct Matrices {
    Run& run;
    int64_t count, out, in;
    Bytes packed, scale;

    explicit Matrices(Run& run_)
        : run(run_), count(run.size("packed", 0)), out(run.size("packed", 1)), in(2 * run.size("packed", 2)),
          packed(run.bytes("packed")), scale(run.bytes("scale")) {}

    // x [n, in] times each: [count, n, out].
    std::vector<float> products(const float* x, int64_t n) const {
        std::vector<float> y = fresh(count * n * out);
        std::vector<const uint8_t*> bytes, scales;
        std::vector<float*> into;
        for (int64_t i = 0; i < count; ++i) {
            bytes.push_back(packed.at() + i * out * in / 2);
            scales.push_back(scale.at() + i * out * in / 32);
            into.push_back(y.data() + i * n * out);
        }
        run.kernels.mxfp4_products(run.threads, x, bytes.data(), scales.data(), into.data(), count, n, out, in);
        return y;
    }
};

bool same_number(float a, float b) { return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof a) == 0; }

// What the format says of half a byte, under a scale.
float meant(int code, int scale) {
    const float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float number = scale == 255 ? std::nanf("") : std::ldexp(magnitudes[code & 7], scale - 127);
    return code < 8 ? number : -number;
}

// A row for every scale: all 256 bytes in 16 groups.
bool unpacks_everything(Run& run) {
    std::vector<uint8_t> bytes, scales;
    for (int scale = 0; scale < 256; ++scale) {
        for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<uint8_t>(byte));
        scales.insert(scales.end(), 16, static_cast<uint8_t>(scale));
    }
    const Bytes packed(bytes), scale(scales);
    std::vector<float> w = fresh(256 * 512);
    run.kernels.mxfp4_unpack(run.threads, packed.at(), scale.at(), w.data(), 256, 512);
    for (size_t i = 0; i < w.size(); ++i) {
        const int byte = bytes[i / 2], code = i % 2 == 0 ? byte & 15 : byte >> 4;
        if (!same_number(w[i], meant(code, static_cast<int>(i / 512)))) return false;
    }
    return true;
}

}  // namespace

void check_products(Run& run) {
    if (run.large()) return;
    Matrices w(run);
    const int64_t n = run.size("x", 0);
    const std::vector<float> x = run.floats("x"), y = w.products(x.data(), n);
    run.compare("mxfp4_products", "y", y);

    bool alike = true;
    for (int64_t token = 0; token < n; ++token) {
        const std::vector<float> alone = w.products(x.data() + token * w.in, 1);
        for (int64_t i = 0; i < w.count; ++i)
            alike = alike && std::memcmp(alone.data() + i * w.out, y.data() + (i * n + token) * w.out,
                                         static_cast<size_t>(w.out) * sizeof(float)) == 0;
    }
    run.demand("mxfp4_products", alike, "a token has the same bits beside any others");

    w.scale.numbers.back() = 255;  // the last row of the last matrix
    const std::vector<float> spoiled = w.products(x.data(), n);
    bool reaches = true;
    for (size_t i = 0; i < y.size(); ++i) {
        const bool read = i >= y.size() - static_cast<size_t>(n * w.out) && (i + 1) % static_cast<size_t>(w.out) == 0;
        reaches = reaches && (read ? std::isnan(spoiled[i]) : spoiled[i] == y[i]);
    }
    run.demand("mxfp4_products", reaches, "a scale that is NaN reaches its row and no other");
}

void check_unpack(Run& run) {
    const int64_t in = 2 * run.size("packed", 1), times = run.repeats(run.size("packed", 0) * in);
    const int64_t out = run.size("packed", 0) * times;
    const Bytes packed(run.bytes("packed", times)), scale(run.bytes("scale", times));
    std::vector<float> w = fresh(out * in);
    run.kernels.mxfp4_unpack(run.threads, packed.at(), scale.at(), w.data(), out, in);
    run.compare("mxfp4_unpack", "w", w, times);
    run.demand("mxfp4_unpack", unpacks_everything(run), "every byte under every scale is the number it stands for");
}

}  // namespace statewell::test
