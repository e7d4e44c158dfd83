#include "pool.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(STATEWELL_STRICT_SCRATCH)
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes)
#define ASAN_POISON_MEMORY_REGION(start, bytes)
#endif
#endif

namespace statewell {
namespace {

struct Work {
    void (*body)(void*, int64_t) = nullptr;
    void* context = nullptr;
    int64_t n = 0;
};

class Pool {
public:
    // Held by the one call that is using the workers.
    std::mutex turn;

    void run(int threads, const Work& work) {
        while (static_cast<int>(workers_.size()) < threads - 1) {
            const int place = static_cast<int>(workers_.size());
            workers_.emplace_back([this, place, seen = round_] { serve(place, seen); });
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = work;
            next_.store(0, std::memory_order_relaxed);
            helpers_ = threads - 1;
            busy_ = helpers_;
            ++round_;
        }
        wake_.notify_all();
        take(work);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return busy_ == 0; });
    }

private:
    void take(const Work& work) {
        for (int64_t i = next_.fetch_add(1); i < work.n; i = next_.fetch_add(1)) work.body(work.context, i);
    }

    [[noreturn]] void serve(int place, uint64_t seen) {
        for (;;) {
            Work work;
            {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_ != seen; });
                seen = round_;
                if (place >= helpers_) continue;
                work = work_;
            }
            take(work);
            std::lock_guard<std::mutex> lock(mutex_);
            if (--busy_ == 0) done_.notify_one();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::vector<std::thread> workers_;
    std::atomic<int64_t> next_{0};
    Work work_;
    uint64_t round_ = 0;
    int helpers_ = 0, busy_ = 0;
};

std::mutex making;
Pool* pool = nullptr;
pid_t owner = 0;

// The pool of this process. A fork copies the object but none of its threads, so the child makes its own and the
// copy is left alone: destroying it would wait for threads that do not exist. Neither is one ever destroyed at exit.
Pool& current_pool() {
    std::lock_guard<std::mutex> lock(making);
    const pid_t here = getpid();
    if (pool == nullptr || owner != here) {
        pool = new Pool;
        owner = here;
    }
    return *pool;
}

// The OpenMP runtime that torch has loaded, if it has one: its threads are the ones that torch keeps awake for its own
// products, and a second pool beside them would fight for the same cores. Only by name, so that nothing of it is needed
// to build or to load. A forked child must not touch it: it would wait for threads that were not copied.
using OpenMPParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

// Both are looked up when this module is loaded, which is after torch.
const OpenMPParallel openmp = reinterpret_cast<OpenMPParallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
const pid_t loaded_by = getpid();

struct Shared {
    Work work;
    std::atomic<int64_t> next{0};
};

void take_shared(void* shared) {
    Shared& all = *static_cast<Shared*>(shared);
    for (int64_t i = all.next.fetch_add(1); i < all.work.n; i = all.next.fetch_add(1)) all.work.body(all.work.context, i);
}

thread_local bool inside = false;

struct Inside {
    Inside() { inside = true; }
    ~Inside() { inside = false; }
};

struct Buffer {
    float* at = nullptr;
    int64_t size = 0;
    ~Buffer() { std::free(at); }
};
thread_local Buffer buffer;

// For the program that checks the kernels: what is left over is NaN, and what was not asked for may not be touched.
void make_strict([[maybe_unused]] int64_t count) {
#if defined(STATEWELL_STRICT_SCRATCH)
    ASAN_UNPOISON_MEMORY_REGION(buffer.at, static_cast<size_t>(buffer.size) * sizeof(float));
    for (int64_t i = 0; i < count; ++i) buffer.at[i] = __builtin_nanf("");
    ASAN_POISON_MEMORY_REGION(buffer.at + count, static_cast<size_t>(buffer.size - count) * sizeof(float));
#endif
}

}  // namespace

void run_parallel(int threads, int64_t n, void (*body)(void*, int64_t), void* context) {
    if (threads > n) threads = static_cast<int>(n);
    if (threads > 1 && !inside && openmp != nullptr && loaded_by == getpid()) {
        Shared shared;
        shared.work = {body, context, n};
        openmp(take_shared, &shared, static_cast<unsigned>(threads), 0);
        return;
    }
    if (threads > 1 && !inside) {
        Pool& shared = current_pool();
        std::unique_lock<std::mutex> turn(shared.turn, std::try_to_lock);
        if (turn.owns_lock()) {
            Inside mark;
            shared.run(threads, {body, context, n});
            return;
        }
    }
    for (int64_t i = 0; i < n; ++i) body(context, i);
}

float* scratch(int64_t count) {
    if (count > buffer.size) {
        std::free(buffer.at);
        buffer.size = (count + 1023) / 1024 * 1024;
        buffer.at = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(buffer.size) * sizeof(float)));
        if (buffer.at == nullptr) {
            buffer.size = 0;
            throw std::bad_alloc();
        }
    }
    make_strict(count);
    return buffer.at;
}

}  // namespace statewell
