// Rows of tokens cut into blocks that threads take: sizes come from the shapes alone, never from the threads.
#pragma once

#include <cstdint>

#include "pool.h"

namespace statewell {
namespace STATEWELL_ISA {

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// M rows of `numbers` each: enough in a block to be worth a thread, and at most kMostBlocks blocks.
struct Blocks {
    static constexpr int64_t kNumbers = 16384, kMostBlocks = 64;
    int64_t M, size, count;

    Blocks(int64_t rows, int64_t numbers)
        : M(rows), size(most(most(1, kNumbers / most(1, numbers)), (rows + kMostBlocks - 1) / kMostBlocks)),
          count((rows + size - 1) / size) {}

    // run(block, begin, end) over the rows of every block.
    template <class Run>
    void each(int threads, const Run& run) const {
        auto body = [&](int64_t block) { run(block, block * size, least(M, (block + 1) * size)); };
        parallel_for(threads, count, body);
    }
};

// A row of floats for every block, in this thread's scratch: bodies must not ask for scratch themselves.
struct BlockRows {
    int64_t width, count;
    float* start;

    BlockRows(const Blocks& blocks, int64_t width_, int64_t extra = 0)
        : width(width_), count(blocks.count), start(scratch(width * count + extra)) {}
    float* of(int64_t block) const { return start + block * width; }
    float* extra() const { return start + width * count; }
    void zero() const {
        for (int64_t i = 0; i < width * count; ++i) start[i] = 0.0f;
    }
    // out[d] = the sum over the blocks, in order, of the first n numbers of their rows.
    void total(float* out, int64_t n) const {
        for (int64_t d = 0; d < n; ++d) out[d] = 0.0f;
        for (int64_t block = 0; block < count; ++block)
            for (int64_t d = 0; d < n; ++d) out[d] += of(block)[d];
    }
};

}  // namespace STATEWELL_ISA
}  // namespace statewell
