// What csrc/pool.h promises, seen from outside.
#include "pool.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"

namespace statewell::test {
namespace {

constexpr int kThreads = 4;

// Whether each of n indices comes exactly once. The counts are plain, so that a race would be one on them.
bool each_once(int threads, int64_t n) {
    std::vector<int> seen(static_cast<size_t>(n), 0);
    parallel_for(threads, n, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
    for (const int count : seen)
        if (count != 1) return false;
    return true;
}

bool every_index_comes_once() {
    bool right = true;
    for (const int threads : {kThreads, 2, kThreads, 1})
        for (const int64_t n : {0, 1, 3, 1000}) right = right && each_once(threads, n);
    return right;
}

bool a_call_from_inside_stays_on_its_thread() {
    std::vector<int> right(100, 0);
    parallel_for(kThreads, 100, [&](int64_t i) {
        const std::thread::id here = std::this_thread::get_id();
        int on_it = 0;
        parallel_for(kThreads, 10, [&](int64_t) { on_it += std::this_thread::get_id() == here ? 1 : 0; });
        right[static_cast<size_t>(i)] = on_it;
    });
    for (const int on_it : right)
        if (on_it != 10) return false;
    return true;
}

bool simultaneous_callers_all_finish() {
    std::vector<int> right(3, 0);
    std::vector<std::thread> callers;
    for (size_t caller = 0; caller < right.size(); ++caller)
        callers.emplace_back([&right, caller] {
            int fine = 0;
            for (int call = 0; call < 50; ++call) fine += each_once(kThreads, 100) ? 1 : 0;
            right[caller] = fine;
        });
    for (std::thread& caller : callers) caller.join();
    for (const int fine : right)
        if (fine != 50) return false;
    return true;
}

bool scratch_belongs_to_its_thread() {
    std::vector<int> right(200, 0);
    parallel_for(kThreads, 200, [&](int64_t i) {
        float* room = scratch(100 + i);
        for (int64_t j = 0; j < 100 + i; ++j) room[j] = static_cast<float>(i);
        bool kept = reinterpret_cast<uintptr_t>(room) % 64 == 0;
        for (int64_t j = 0; j < 100 + i; ++j) kept = kept && room[j] == static_cast<float>(i);
        right[static_cast<size_t>(i)] = kept ? 1 : 0;
    });
    for (const int kept : right)
        if (kept != 1) return false;
    return true;
}

// The parent's workers are not in the child: without a pool of its own it would wait for ever.
bool a_forked_child_makes_its_own_pool() {
    if (!each_once(kThreads, 1000)) return false;
    std::fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) {
        alarm(30);
        _exit(each_once(kThreads, 1000) && every_index_comes_once() ? 0 : 1);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0 && each_once(kThreads, 1000);
}

double seconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The processor time that all threads but this one take while this one computes for `length` seconds of its own.
double time_of_the_others(double length) {
    const double all = seconds(CLOCK_PROCESS_CPUTIME_ID), own = seconds(CLOCK_THREAD_CPUTIME_ID);
    while (seconds(CLOCK_THREAD_CPUTIME_ID) - own < length) continue;
    return seconds(CLOCK_PROCESS_CPUTIME_ID) - all - (seconds(CLOCK_THREAD_CPUTIME_ID) - own);
}

// A worker that waits by spinning takes as much as this thread, while a processor is free for it.
bool workers_rest_between_calls() {
    each_once(kThreads, 1000);
    time_of_the_others(0.02);  // until the last has gone to sleep
    return time_of_the_others(0.2) < 0.02;
}

}  // namespace

bool check_pool(bool with_fork) {
    bool all = true;
    const auto report = [&](bool holds, const char* claim) {
        std::printf("%-7s pool: %s\n", holds ? "passed" : "FAILED", claim);
        all = all && holds;
    };
    report(every_index_comes_once(), "every index comes once");
    report(a_call_from_inside_stays_on_its_thread(), "a call from inside stays on its thread");
    report(simultaneous_callers_all_finish(), "simultaneous callers all finish");
    report(scratch_belongs_to_its_thread(), "scratch belongs to its thread");
    report(workers_rest_between_calls(), "workers rest between calls");
    if (with_fork) report(a_forked_child_makes_its_own_pool(), "a forked child makes its own pool");
    return all;
}

}  // namespace statewell::test
