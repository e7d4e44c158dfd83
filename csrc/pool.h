// Threads for every kernel: those torch has awake already, else one pool made at the first call and parked between calls.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace statewell {

// Runs body(context, i) for every i in [0, n) on up to `threads` threads, the caller among them; returns when all ran.
// Which thread takes which i is not fixed, so a body may only write what belongs to its own i.
// Called from inside a body, or while another thread is inside, it runs everything on the caller.
void run_parallel(int threads, int64_t n, void (*body)(void*, int64_t), void* context);

// At least `count` floats, 64-byte aligned, that belong to this thread until it asks again. Contents: left over.
float* scratch(int64_t count);

template <class F>
inline void parallel_for(int threads, int64_t n, F&& fn) {
    using Body = std::remove_reference_t<F>;
    auto body = [](void* context, int64_t i) { (*static_cast<Body*>(context))(i); };
    run_parallel(threads, n, body, const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
}

}  // namespace statewell
