// Norms, activations, gates, convolution and attention residuals. Rows are repeated until several threads share them:
// results repeat, gradients of what the rows share are as many times as large.
#include "check.h"

namespace statewell::test {

void check_norm(Run& run) {
    const int64_t D = run.size("x", 1), times = run.repeats(run.size("x", 0) * D), M = run.size("x", 0) * times;
    const std::vector<float> x = run.floats("x", times), weight = run.floats("weight"), gate = run.floats("gate", times);
    const std::vector<float> dy = run.floats("dy", times);
    const float share = run.number("share");
    const bool silu = run.whole("silu") != 0;
    std::vector<float> y = fresh(M * D), factor = fresh(M);
    run.kernels.norm_forward(run.threads, x.data(), at(weight), at(gate), y.data(), factor.data(), M, D, share,
                             run.number("eps"), silu);
    run.compare("norm_forward", "y", y, times);
    std::vector<float> dx = fresh(M * D), dweight, dgate;
    if (!weight.empty()) dweight = fresh(D);
    if (!gate.empty()) dgate = fresh(M * D);
    run.kernels.norm_backward(run.threads, x.data(), at(weight), at(gate), factor.data(), dy.data(), dx.data(), at(dweight),
                              at(dgate), M, D, share, silu);
    run.compare("norm_backward", "d_x", dx, times);
    if (!weight.empty()) run.compare("norm_backward", "d_weight", dweight, 1, static_cast<double>(times));
    if (!gate.empty()) run.compare("norm_backward", "d_gate", dgate, times);
}

namespace {

// A product of two inputs, number by number.
template <class Forward, class Backward>
void check_pair(Run& run, const std::string& kernel, const Forward& forward, const Backward& backward) {
    const int64_t times = run.repeats(run.size("gate", 0)), count = run.size("gate", 0) * times;
    const std::vector<float> gate = run.floats("gate", times), up = run.floats("up", times), d = run.floats("dout", times);
    std::vector<float> out = fresh(count), dgate = fresh(count), dup = fresh(count);
    forward(gate.data(), up.data(), out.data(), count);
    run.compare(kernel + "_forward", "out", out, times);
    backward(gate.data(), up.data(), d.data(), dgate.data(), dup.data(), count);
    run.compare(kernel + "_backward", "d_gate", dgate, times);
    run.compare(kernel + "_backward", "d_up", dup, times);
}

}  // namespace

void check_situ(Run& run) {
    const float beta = run.number("beta"), linear_beta = run.number("linear_beta");
    check_pair(
        run, "situ",
        [&](const float* gate, const float* up, float* out, int64_t count) {
            run.kernels.situ_forward(run.threads, gate, up, out, count, beta, linear_beta);
        },
        [&](const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t count) {
            run.kernels.situ_backward(run.threads, gate, up, dout, dgate, dup, count, beta, linear_beta);
        });
}

void check_swiglu(Run& run) {
    check_pair(
        run, "swiglu",
        [&](const float* gate, const float* up, float* out, int64_t count) {
            run.kernels.swiglu_forward(run.threads, gate, up, out, count);
        },
        [&](const float* gate, const float* up, const float* dout, float* dgate, float* dup, int64_t count) {
            run.kernels.swiglu_backward(run.threads, gate, up, dout, dgate, dup, count);
        });
}

void check_gate(Run& run) {
    const int64_t HV = run.size("z", 1), K = run.size("z", 2), width = HV * K;
    const int64_t times = run.repeats(run.size("z", 0) * width), M = run.size("z", 0) * times;
    const std::vector<float> z = run.floats("z", times), A_log = run.floats("A_log"), dt_bias = run.floats("dt_bias");
    const std::vector<float> dg = run.floats("dg", times);
    const float low = run.number("lower_bound");
    std::vector<float> g = fresh(M * width), dz = fresh(M * width), dA_log = fresh(HV), ddt_bias = fresh(width);
    run.kernels.gate_forward(run.threads, z.data(), A_log.data(), dt_bias.data(), g.data(), M, HV, K, low);
    run.compare("gate_forward", "g", g, times);
    run.kernels.gate_backward(run.threads, z.data(), A_log.data(), dt_bias.data(), g.data(), dg.data(), dz.data(),
                              dA_log.data(), ddt_bias.data(), M, HV, K, low);
    run.compare("gate_backward", "d_z", dz, times);
    run.compare("gate_backward", "d_A_log", dA_log, 1, static_cast<double>(times));
    run.compare("gate_backward", "d_dt_bias", ddt_bias, 1, static_cast<double>(times));
}

void check_conv(Run& run) {
    const int64_t D = run.size("weight", 0), W = run.size("weight", 1), length = run.size("x", 0);
    const int64_t times = run.repeats(length * D), T = length * times, N = run.size("history", 0) * times;
    const std::vector<float> x = run.floats("x", times), weight = run.floats("weight"), dy = run.floats("dy", times);
    const std::vector<float> history = run.floats("history", times);
    const std::vector<int64_t> once = run.integers("bounds");
    std::vector<int64_t> bounds{0};
    for (int64_t i = 0; i < times; ++i)
        for (size_t n = 1; n < once.size(); ++n) bounds.push_back(once[n] + i * length);
    std::vector<float> y = fresh(T * D), dx = fresh(T * D), dweight = fresh(D * W), dhistory = fresh(N * (W - 1) * D);
    run.kernels.conv_forward(run.threads, x.data(), weight.data(), history.data(), y.data(), bounds.data(), N, D, W);
    run.compare("conv_forward", "y", y, times);
    run.kernels.conv_backward(run.threads, x.data(), weight.data(), history.data(), dy.data(), dx.data(), dweight.data(),
                              dhistory.data(), bounds.data(), N, D, W);
    run.compare("conv_backward", "d_x", dx, times);
    run.compare("conv_backward", "d_weight", dweight, 1, static_cast<double>(times));
    run.compare("conv_backward", "d_history", dhistory, times);
}

void check_depth(Run& run) {
    const int64_t S = run.whole("sources"), D = run.size("query", 0), rows = run.size("source_0", 0);
    const int64_t times = run.repeats(S * rows * D), M = rows * times;
    std::vector<std::vector<float>> sources, dsources;
    std::vector<const float*> from;
    std::vector<float*> to;
    for (int64_t s = 0; s < S; ++s) {
        sources.push_back(run.floats("source_" + std::to_string(s), times));
        dsources.push_back(fresh(M * D));
        from.push_back(sources.back().data());
        to.push_back(dsources.back().data());
    }
    const std::vector<float> query = run.floats("query"), dmixed = run.floats("dmixed", times);
    std::vector<float> mixed = fresh(M * D), r = fresh(M * S), d = fresh(M * S), a = fresh(M * S), dquery = fresh(D);
    run.kernels.depth_forward(run.threads, from.data(), query.data(), mixed.data(), r.data(), d.data(), a.data(), S, M, D,
                              run.number("eps"));
    run.compare("depth_forward", "mixed", mixed, times);
    run.kernels.depth_backward(run.threads, from.data(), query.data(), r.data(), d.data(), a.data(), dmixed.data(),
                               to.data(), dquery.data(), S, M, D);
    run.compare("depth_backward", "d_query", dquery, 1, static_cast<double>(times));
    for (int64_t s = 0; s < S; ++s)
        run.compare("depth_backward", "d_source_" + std::to_string(s), dsources[static_cast<size_t>(s)], times);
}

}  // namespace statewell::test
