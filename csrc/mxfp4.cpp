// Products with MXFP4 matrices straight from their bytes, so that a decode step reads 4.25 bits a weight.
//
// A vector of 32-bit lanes holds eight inputs a lane: kBlock = 8 LANES inputs. The J-th inputs of all lanes are taken at
// once, so x is laid out the same way first: input 8 l + J of a block at J LANES + l. Scales are multiplied in once a
// block, after the sum of its eight products.
#include "mxfp4.h"

#include "blocks.h"
#include "nibbles.h"

namespace statewell {
namespace STATEWELL_ISA {

namespace {

constexpr int64_t kGroup = 32, kBlock = 8 * LANES;
constexpr int64_t kStrip = 4096, kScales = kStrip / kGroup;  // inputs whose scales are numbers at a time

// The scales of whole groups as numbers; `into` has room for a vector more, left over.
void all_powers(const uint8_t* scale, int64_t groups, float* into) {
    int64_t g = 0;
    for (; g + LANES <= groups; g += LANES) store(into + g, powers(scale + g));
    if (g < groups) {
        uint8_t rest[LANES] = {};
        for (int64_t i = 0; g + i < groups; ++i) rest[i] = scale[g + i];
        store(into + g, powers(rest));
    }
}

int64_t whole_blocks(int64_t in) { return (in + kBlock - 1) / kBlock * kBlock; }

void lay_out(const float* x, int64_t in, float* into) {
    for (int64_t start = 0; start < in; start += kBlock)
        for (int64_t j = 0; j < 8; ++j)
            for (int64_t l = 0; l < LANES; ++l) {
                const int64_t i = start + 8 * l + j;
                into[start + j * LANES + l] = i < in ? x[i] : 0.0f;
            }
}

template <int R, int N>
struct Tile {
    Vec part[R][N], total[R][N];

    template <int J>
    inline void step(const Codes* codes, const float* x, int64_t width) {
        Vec w[R];
        for (int r = 0; r < R; ++r) w[r] = decoded<J>(codes[r]);
        for (int n = 0; n < N; ++n) {
            const Vec token = load(x + n * width + J * LANES);
            for (int r = 0; r < R; ++r)
                part[r][n] = J == 0 ? mul(w[r], token) : fma(w[r], token, part[r][n]);
        }
    }

    inline void block(const Codes* codes, const Vec* scales, const float* x, int64_t width) {
        step<0>(codes, x, width);
        step<1>(codes, x, width);
        step<2>(codes, x, width);
        step<3>(codes, x, width);
        step<4>(codes, x, width);
        step<5>(codes, x, width);
        step<6>(codes, x, width);
        step<7>(codes, x, width);
        for (int r = 0; r < R; ++r)
            for (int n = 0; n < N; ++n) total[r][n] = fma(scales[r], part[r][n], total[r][n]);
    }
};

// R rows of the matrix by N tokens; x is laid out, `width` apart. y[n * out + r].
template <int R, int N>
void product_tile(const float* x, int64_t width, const uint8_t* packed, const uint8_t* scale, float* y, int64_t out,
                  int64_t in) {
    Tile<R, N> tile;
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) tile.total[r][n] = zero();
    float scales[R][kScales + LANES];
    for (int64_t strip = 0; strip < in; strip += kStrip) {
        const int64_t inputs = least(kStrip, in - strip);
        for (int r = 0; r < R; ++r) all_powers(scale + (r * in + strip) / kGroup, inputs / kGroup, scales[r]);
        for (int64_t b = 0; b < inputs; b += kBlock) {
            Codes codes[R];
            Vec spread[R];
            const int64_t lanes = (inputs - b) / 8;
            for (int r = 0; r < R; ++r) {
                const uint8_t* bytes = packed + (r * in + strip + b) / 2;
                __builtin_prefetch(bytes + R * in / 2);  // the next tile's: a row is too short for the processor to guess
                codes[r] = lanes >= LANES ? load_codes(bytes) : load_codes_part(bytes, lanes);
                spread[r] = spread_scales(scales[r] + b / kGroup);
            }
            tile.block(codes, spread, x + strip + b, width);
        }
    }
    for (int r = 0; r < R; ++r)
        for (int n = 0; n < N; ++n) y[n * out + r] = sum(tile.total[r][n]);
}

template <int R>
void product_rows(const float* x, int64_t width, const uint8_t* packed, const uint8_t* scale, float* y, int64_t n,
                  int64_t out, int64_t in) {
    while (n >= kTokens) {
        product_tile<R, kTokens>(x, width, packed, scale, y, out, in);
        x += kTokens * width, y += kTokens * out, n -= kTokens;
    }
    if (kTokens > 2 && n >= 2) {
        product_tile<R, 2>(x, width, packed, scale, y, out, in);
        x += 2 * width, y += 2 * out, n -= 2;
    }
    if (n == 1) product_tile<R, 1>(x, width, packed, scale, y, out, in);
}

// The low halves of bytes and the high ones are two vectors each, woven by the compiler.
void unpack_group(const uint8_t* bytes, float scale, float* into) {
    for (int64_t i = 0; i < kGroup / 2; ++i) {
        into[2 * i] = kFp4[bytes[i] & 15] * scale;
        into[2 * i + 1] = kFp4[bytes[i] >> 4] * scale;
    }
}

}  // namespace

void mxfp4_products(int threads, const float* x, const uint8_t* const* packed, const uint8_t* const* scale,
                    float* const* y, int64_t count, int64_t n, int64_t out, int64_t in) {
    const int64_t width = whole_blocks(in);
    float* tokens = scratch(n * width);
    for (int64_t i = 0; i < n; ++i) lay_out(x + i * in, in, tokens + i * width);
    const Blocks rows(out, in);
    auto body = [&](int64_t task) {
        const int64_t matrix = task / rows.count, first = task % rows.count * rows.size;
        const uint8_t *bytes = packed[matrix], *scales = scale[matrix];
        const int64_t end = least(out, first + rows.size);
        int64_t r = first;
        for (; r + kRows <= end; r += kRows)
            product_rows<kRows>(tokens, width, bytes + r * in / 2, scales + r * in / kGroup, y[matrix] + r, n, out, in);
        for (; r < end; ++r)
            product_rows<1>(tokens, width, bytes + r * in / 2, scales + r * in / kGroup, y[matrix] + r, n, out, in);
    };
    parallel_for(threads, count * rows.count, body);
}

void mxfp4_unpack(int threads, const uint8_t* packed, const uint8_t* scale, float* w, int64_t out, int64_t in) {
    Blocks(out, in).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        float scales[kScales + LANES];
        const int64_t last = end * in / kGroup;
        for (int64_t g = begin * in / kGroup; g < last; g += kScales) {
            const int64_t groups = least(kScales, last - g);
            all_powers(scale + g, groups, scales);
            for (int64_t i = 0; i < groups; ++i) unpack_group(packed + (g + i) * kGroup / 2, scales[i], w + (g + i) * kGroup);
        }
    });
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
