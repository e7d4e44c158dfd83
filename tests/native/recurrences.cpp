// The delta family and the normaliser of linear attention: packed segments, states carried in, strong decay.
#include <cmath>
#include <cstring>

#include "check.h"

namespace statewell::test {
namespace {

// What a stored case of a recurrence holds, its tokens lying `gap` floats apart.
struct Recurrence {
    Run& run;
    int rule;
    int64_t N, T, H, HV, K, V, parts;
    float scale;
    std::vector<int64_t> bounds;
    std::vector<float> initial;
    Spread q, k, v, g, beta;

    explicit Recurrence(Run& run_)
        : run(run_), rule(static_cast<int>(run.whole("rule"))), N(run.size("bounds", 0) - 1), T(run.size("q", 0)),
          H(run.size("q", 1)), HV(run.size("v", 1)), K(run.size("q", 2)), V(run.size("v", 2)), parts(run.whole("parts")),
          scale(run.number("scale")), bounds(run.integers("bounds")), initial(run.floats("initial")), q(spread("q")),
          k(spread("k")), v(spread("v")), g(spread("g")), beta(spread("beta")) {}

    Spread spread(const std::string& name) const { return Spread(run.floats(name), T, run.whole("gap")); }
};

struct Forward {
    std::vector<float> o, final, errors, kept;
};

Forward forward(const Recurrence& x, bool keep) {
    Forward made{fresh(x.T * x.HV * x.V), fresh(x.N * x.HV * x.K * x.V), {}, {}};
    if (keep && x.rule != ADDITIVE) made.errors = fresh(x.T * x.HV * x.V);
    if (keep) made.kept = fresh((x.T / CHUNK + x.N) * x.HV * x.K * x.V);
    x.run.kernels.delta_forward(x.run.threads, x.rule, x.q.at(), x.k.at(), x.v.at(), x.g.at(), x.beta.at(), x.q.step,
                                x.k.step, x.v.step, x.g.step, x.beta.step, at(x.initial), x.bounds.data(), at(made.o),
                                at(made.final), at(made.errors), at(made.kept), x.N, x.H, x.HV, x.K, x.V, x.scale);
    return made;
}

// Summed over their parts.
struct Backward {
    std::vector<float> q, k, v, g, beta, initial;
};

Backward backward(const Recurrence& x, const Forward& held, const std::vector<float>& d_o) {
    const int64_t places = x.parts * (x.HV / x.H), tokens = x.parts * x.T * x.HV;
    Backward d{fresh(places * x.T * x.H * x.K), fresh(places * x.T * x.H * x.K), fresh(x.T * x.HV * x.V), {}, {}, {}};
    if (x.rule == GATED_DELTA) d.g = fresh(tokens);
    if (x.rule == KEY_DECAY) d.g = fresh(tokens * x.K);
    if (x.rule != ADDITIVE) d.beta = fresh(tokens);
    if (!x.initial.empty()) d.initial = fresh(x.N * x.HV * x.K * x.V);
    const std::vector<float> dfinal = x.run.floats("dfinal");
    x.run.kernels.delta_backward(x.run.threads, x.rule, x.q.at(), x.k.at(), x.v.at(), x.g.at(), x.beta.at(), x.q.step,
                                 x.k.step, x.v.step, x.g.step, x.beta.step, x.bounds.data(), at(held.errors),
                                 at(held.kept), d_o.data(), at(dfinal), at(d.q), at(d.k), at(d.v), at(d.g), at(d.beta),
                                 at(d.initial), x.parts, x.N, x.H, x.HV, x.K, x.V, x.scale);
    return {summed(d.q, places), summed(d.k, places), d.v, summed(d.g, x.parts), summed(d.beta, x.parts), d.initial};
}

// The last token of every input in turn is NaN: its own output is then NaN, those before keep their bits.
bool nan_stays_in_its_token(const Recurrence& whole, const std::vector<float>& o) {
    const size_t before = o.size() - static_cast<size_t>(whole.HV * whole.V);
    for (Spread Recurrence::*input : {&Recurrence::q, &Recurrence::k, &Recurrence::v, &Recurrence::g, &Recurrence::beta}) {
        Recurrence x = whole;
        std::vector<float>& numbers = (x.*input).numbers;
        if (numbers.empty()) continue;
        for (size_t i = static_cast<size_t>((x.T - 1) * (x.*input).step); i < numbers.size(); ++i) numbers[i] = std::nanf("");
        const std::vector<float> spoiled = forward(x, false).o;
        if (std::memcmp(spoiled.data(), o.data(), before * sizeof(float)) != 0) return false;
        for (size_t i = before; i < o.size(); ++i)
            if (!std::isnan(spoiled[i])) return false;
    }
    return true;
}

}  // namespace

void check_delta(Run& run) {
    if (run.large()) return;
    const Recurrence x(run);
    const Forward made = forward(x, true), alone = forward(x, false);
    run.compare("delta_forward", "o", made.o);
    run.compare("delta_forward", "final", made.final);
    run.demand("delta_forward", same(made.o, alone.o) && same(made.final, alone.final),
               "keeping states for the backward changes no bit");
    run.demand("delta_forward", nan_stays_in_its_token(x, made.o), "a NaN comes out at its token and not before");
    const Backward d = backward(x, made, run.floats("do"));
    run.compare("delta_backward", "d_q", d.q);
    run.compare("delta_backward", "d_k", d.k);
    run.compare("delta_backward", "d_v", d.v);
    if (!d.g.empty()) run.compare("delta_backward", "d_g", d.g);
    if (!d.beta.empty()) run.compare("delta_backward", "d_beta", d.beta);
    if (!d.initial.empty()) run.compare("delta_backward", "d_initial", d.initial);
}

// Normalised linear attention: the additive rule, then the normaliser, and back.
void check_linear(Run& run) {
    if (run.large()) return;
    const Recurrence x(run);
    Forward made = forward(x, true);
    const std::vector<float> z = run.floats("initial_z"), dfinal_z = run.floats("dfinal_z"), d_o = run.floats("do");
    std::vector<float> weight = fresh(x.T * x.HV), final_z = fresh(x.N * x.HV * x.K);
    run.kernels.normaliser_forward(run.threads, x.q.at(), x.k.at(), x.q.step, x.k.step, at(z), x.bounds.data(), at(made.o),
                                   at(weight), at(final_z), x.N, x.H, x.HV, x.K, x.V, x.scale, run.number("eps"));
    run.compare("normaliser_forward", "o", made.o);
    run.compare("normaliser_forward", "final_z", final_z);
    const int64_t places = x.HV / x.H, keys = places * x.T * x.H * x.K;
    std::vector<float> dread = fresh(x.T * x.HV * x.V), dq = fresh(keys), dk = fresh(keys), dz = fresh(x.N * x.HV * x.K);
    run.kernels.normaliser_backward(run.threads, x.q.at(), x.k.at(), x.q.step, x.k.step, at(z), x.bounds.data(),
                                    made.o.data(), weight.data(), d_o.data(), at(dfinal_z), at(dread), at(dq), at(dk),
                                    at(dz), x.N, x.H, x.HV, x.K, x.V, x.scale);
    const Backward d = backward(x, made, dread);
    dq = summed(dq, places);
    dk = summed(dk, places);
    for (size_t i = 0; i < dq.size(); ++i) {
        dq[i] += d.q[i];
        dk[i] += d.k[i];
    }
    run.compare("normaliser_backward", "d_q", dq);
    run.compare("normaliser_backward", "d_k", dk);
    run.compare("normaliser_backward", "d_v", d.v);
    if (!z.empty()) run.compare("normaliser_backward", "d_initial_z", dz);
}

}  // namespace statewell::test
