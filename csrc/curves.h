// exp, sigmoid, tanh and softplus of one float, written without branches or calls so that a loop over them
// vectorises on every instruction set (`exp` in simd.h is the same for a vector in hand). Errors stay below 3.5 ulp; NaN
// stays NaN, infinities saturate, and the ends of the range underflow or overflow as IEEE does.
#pragma once

#include <cstdint>
#include <cstring>

namespace statewell {
namespace STATEWELL_ISA {
namespace curves {

static inline float from_bits(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

static inline std::uint32_t to_bits(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// adding 1.5 * 2^23 leaves the nearest whole number in the low bits
constexpr float kRound = 12582912.0f;
constexpr float kPerLn2 = 1.44269504f;  // 1 / ln 2
// ln 2 in two parts: 355/512 has 9 bits, so that its product with an exponent is exact
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;

// 2^power for power in [-126, 127]
static inline float power_of_two(std::uint32_t power) { return from_bits((power + 127u) << 23); }

// e^r - 1 for |r| <= ln(2)/2: Taylor to r^7, the next term is below 6e-9
static inline float exp_minus_one_near_zero(float r) {
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    return p * (r * r) + r;
}

static inline float exp(float x) {
    x = x < -104.0f ? -104.0f : x;  // below half the least denormal
    x = x > 89.0f ? 89.0f : x;      // over the largest float
    const float shifted = x * kPerLn2 + kRound;
    const float n = shifted - kRound;
    const float r = (x - n * kLn2High) - n * kLn2Low;
    const std::int32_t power = static_cast<std::int32_t>(to_bits(shifted) - to_bits(kRound));
    // two steps, since 2^power alone may be neither normal nor finite
    const std::int32_t half = power >> 1;
    const float first = power_of_two(static_cast<std::uint32_t>(half));
    const float second = power_of_two(static_cast<std::uint32_t>(power - half));
    return (exp_minus_one_near_zero(r) + 1.0f) * first * second;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }

// e^2x - 1 over e^2x + 1, from e^2x - 1 so that small x keep their digits
static inline float tanh(float x) {
    float twice = 2.0f * x;
    twice = twice < -20.0f ? -20.0f : twice;  // tanh(10) rounds to 1
    twice = twice > 20.0f ? 20.0f : twice;
    const float shifted = twice * kPerLn2 + kRound;
    const float n = shifted - kRound;
    const float r = (twice - n * kLn2High) - n * kLn2Low;
    const float scale = power_of_two(to_bits(shifted) - to_bits(kRound));
    const float less = exp_minus_one_near_zero(r) * scale + (scale - 1.0f);
    return less / (less + 2.0f);
}

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), the second by the odd series of log1p(e) = 2 atanh(e / (2 + e))
static inline float softplus(float x) {
    const float e = exp(x < 0.0f ? x : -x);
    const float s = e / (2.0f + e);  // at most 1/3
    const float s2 = s * s;
    float p = 1.0f / 15;
    p = p * s2 + 1.0f / 13;
    p = p * s2 + 1.0f / 11;
    p = p * s2 + 1.0f / 9;
    p = p * s2 + 1.0f / 7;
    p = p * s2 + 1.0f / 5;
    p = p * s2 + 1.0f / 3;
    p = p * s2 + 1.0f;
    return (x > 0.0f ? x : 0.0f) + 2.0f * (s * p);
}

}  // namespace curves
}  // namespace STATEWELL_ISA
}  // namespace statewell
