// One token of many rows: the recurrences and the convolution on kept states, and one query over kept tokens.
#include <cmath>

#include "check.h"

namespace statewell::test {
namespace {

// Rows of a kept state: row n of `packed` lies at `rows[n]` of twice as many, and NaN in the others.
struct Held {
    std::vector<int64_t> rows;
    int64_t width;
    std::vector<float> numbers;

    Held(const std::vector<float>& packed, int64_t N) : width(static_cast<int64_t>(packed.size()) / N) {
        numbers = fresh(2 * N * width);
        for (int64_t n = 0; n < N; ++n) {
            rows.push_back(2 * (N - n) - 1);
            for (int64_t i = 0; i < width; ++i)
                numbers[static_cast<size_t>(rows.back() * width + i)] = packed[static_cast<size_t>(n * width + i)];
        }
    }

    // Whether these are the rows of `moved`, in their order, and NaN between them.
    bool holds(const std::vector<float>& moved) const {
        return same(numbers, Held(moved, static_cast<int64_t>(rows.size())).numbers);
    }
};

constexpr int64_t kWorthAStep = 1 << 20, kWorthATail = 1 << 16;  // numbers: WORTH_SHARING in csrc
constexpr char kInPlace[] = "rows in another order and among others, written where they lie, have the same bits";

}  // namespace

// Row by row into other memory; then where the states lie. With z, the normaliser moves on in the same call.
void check_step(Run& run) {
    const int64_t H = run.size("q", 1), HV = run.size("v", 1), K = run.size("q", 2), V = run.size("v", 2);
    const int64_t times = run.repeats(run.size("q", 0) * HV * K * V, kWorthAStep), N = run.size("q", 0) * times;
    const int rule = static_cast<int>(run.whole("rule"));
    const auto spread = [&](const std::string& name) { return Spread(run.floats(name, times), N, run.whole("gap")); };
    const Spread q = spread("q"), k = spread("k"), v = spread("v"), g = spread("g"), beta = spread("beta");
    const std::vector<float> state = run.floats("state", times), z = run.floats("z", times);
    const auto step = [&](const float* from, float* to, const float* z_from, float* z_to, const int64_t* rows, float* o) {
        run.kernels.delta_step(run.threads, rule, q.at(), k.at(), v.at(), g.at(), beta.at(), q.step, k.step, v.step, g.step,
                               beta.step, from, to, z_from, z_to, rows, o, N, H, HV, K, V, run.number("scale"),
                               run.number("eps"));
    };
    std::vector<float> o = fresh(N * HV * V), next = fresh(N * HV * K * V), next_z;
    if (!z.empty()) next_z = fresh(N * HV * K);
    step(state.data(), next.data(), at(z), at(next_z), nullptr, o.data());
    run.compare("delta_step", "o", o, times);
    run.compare("delta_step", "final", next, times);
    if (!z.empty()) run.compare("delta_step", "final_z", next_z, times);

    Held held(state, N), held_z(z, N);
    std::vector<float> again = fresh(N * HV * V);
    step(held.numbers.data(), held.numbers.data(), at(held_z.numbers), at(held_z.numbers), held.rows.data(), again.data());
    run.demand("delta_step", same(o, again) && held.holds(next) && held_z.holds(next_z), kInPlace);
}

void check_conv_step(Run& run) {
    const int64_t D = run.size("weight", 0), W = run.size("weight", 1);
    const int64_t times = run.repeats(run.size("x", 0) * D, kWorthATail), N = run.size("x", 0) * times;
    const Spread x(run.floats("x", times), N, run.whole("gap"));
    const std::vector<float> weight = run.floats("weight");
    std::vector<float> tails = run.floats("tails", times), y = fresh(N * D), again = fresh(N * D);
    Held held(tails, N);
    run.kernels.conv_step(run.threads, x.at(), x.step, weight.data(), tails.data(), nullptr, y.data(), N, D, W);
    run.compare("conv_step", "y", y, times);
    run.compare("conv_step", "final", tails, times);
    run.kernels.conv_step(run.threads, x.at(), x.step, weight.data(), held.numbers.data(), held.rows.data(), again.data(), N,
                          D, W);
    run.demand("conv_step", same(y, again) && held.holds(tails), kInPlace);
}

namespace {

// The kept tokens of a case in pages of their own memory: keys, values and the shared part one after the other, tokens
// `gap` apart, NaN in all that no row reaches. By head, or absorbed: then the keys are the values.
struct Kept {
    Run& run;
    int64_t B, most, tokens, H, Hk, K, P, V, gap;
    std::vector<float> q;
    std::vector<int64_t> table, lengths;
    std::vector<std::vector<float>> pages;
    int64_t k_step, v_step, shared_step, k_at, v_at, shared_at, end;

    explicit Kept(Run& run_)
        : run(run_), B(run.size("pages", 0)), most(run.size("pages", 1)), tokens(run.size("k", 1)), H(run.size("q", 1)),
          Hk(run.size("k", 2)), K(run.size("k", 3)), P(run.has("shared") ? run.size("shared", 2) : 0),
          V(run.has("v") ? run.size("v", 3) : K), gap(run.whole("gap")), q(run.floats("q")), table(run.integers("pages")),
          lengths(run.integers("lengths")), k_step(Hk * K + gap), v_step(run.has("v") ? Hk * V + gap : k_step),
          shared_step(P + gap), k_at(3), v_at(run.has("v") ? k_at + tokens * k_step : k_at),
          shared_at(v_at + tokens * v_step), end(shared_at + (P > 0 ? tokens * shared_step : 0) - gap) {
        for (int64_t page = 0; page < run.size("k", 0); ++page) pages.push_back(fresh(end));
        for (int64_t b = 0; b < B; ++b)
            for (int64_t t = 0; t < lengths[static_cast<size_t>(b)]; ++t) keep(page_of(b, t), t % tokens);
    }

    int64_t page_of(int64_t b, int64_t t) const { return table[static_cast<size_t>(b * most + t / tokens)]; }

    void keep(int64_t page, int64_t t) {
        copy("k", page, t, Hk * K, k_at + t * k_step);
        if (run.has("v")) copy("v", page, t, Hk * V, v_at + t * v_step);
        if (P > 0) copy("shared", page, t, P, shared_at + t * shared_step);
    }

    void copy(const std::string& name, int64_t page, int64_t t, int64_t width, int64_t to) {
        const std::vector<float>& from = run.tensor(name).floats;
        for (int64_t i = 0; i < width; ++i)
            pages[static_cast<size_t>(page)][static_cast<size_t>(to + i)] =
                from[static_cast<size_t>((page * tokens + t) * width + i)];
    }

    // o of rows first .. first + count - 1; pages past a row's last have no address.
    std::vector<float> attend(int64_t first, int64_t count) const {
        std::vector<int64_t> addresses;
        for (int64_t i = first * most; i < (first + count) * most; ++i) {
            const int64_t page = table[static_cast<size_t>(i)];
            addresses.push_back(page < 0 ? 0 : reinterpret_cast<int64_t>(pages[static_cast<size_t>(page)].data()));
        }
        std::vector<float> o = fresh(count * H * V);
        run.kernels.attend_one(run.threads, q.data() + first * H * (K + P), addresses.data(), addresses.data(),
                               P > 0 ? addresses.data() : nullptr, k_at, v_at, shared_at, lengths.data() + first, o.data(),
                               run.number("scale"), count, most, tokens, H, Hk, K, P, V, k_step, v_step, shared_step);
        return o;
    }
};

}  // namespace

void check_attend(Run& run) {
    if (run.large()) return;
    Kept kept(run);
    const std::vector<float> o = kept.attend(0, kept.B);
    run.compare("attend_one", "o", o);
    std::vector<float> alone;
    for (int64_t b = 0; b < kept.B; ++b) {
        const std::vector<float> row = kept.attend(b, 1);
        alone.insert(alone.end(), row.begin(), row.end());
    }
    run.demand("attend_one", same(o, alone), "a row has the same bits without the others");

    // the last row's last token, seen by the heads of the last key head
    const int64_t last = kept.lengths.back() - 1, place = kept.k_at + last % kept.tokens * kept.k_step;
    kept.pages[static_cast<size_t>(kept.page_of(kept.B - 1, last))][static_cast<size_t>(place + kept.Hk * kept.K - 1)] =
        std::nanf("");
    const std::vector<float> spoiled = kept.attend(0, kept.B);
    bool reaches = true;
    const size_t apart = static_cast<size_t>(kept.H / kept.Hk * kept.V), others = o.size() - apart;
    for (size_t i = 0; i < o.size(); ++i) reaches = reaches && (i < others ? spoiled[i] == o[i] : std::isnan(spoiled[i]));
    run.demand("attend_one", reaches, "a NaN key reaches the heads that read it and no other");
}

}  // namespace statewell::test
