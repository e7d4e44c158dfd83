// The router and the rows of experts.
#include "check.h"

namespace statewell::test {
namespace {

// Rows of D floats between the order of the choices and that of the experts.
std::vector<float> by_expert(const std::vector<float>& by_choice, const std::vector<int64_t>& place, int64_t D) {
    std::vector<float> rows(by_choice.size());
    for (size_t i = 0; i < by_choice.size(); ++i) {
        const int64_t choice = static_cast<int64_t>(i) / D, d = static_cast<int64_t>(i) % D;
        rows[static_cast<size_t>(place[static_cast<size_t>(choice)] * D + d)] = by_choice[i];
    }
    return rows;
}

std::vector<float> by_choice(const std::vector<float>& rows, const std::vector<int64_t>& order, int64_t D) {
    return by_expert(rows, order, D);
}

// The sorted order of the choices as it is defined, found the slow way.
bool sorted_by_expert(const std::vector<int64_t>& index, const std::vector<int64_t>& order,
                      const std::vector<int64_t>& place, const std::vector<int64_t>& counts) {
    size_t row = 0;
    for (size_t expert = 0; expert < counts.size(); ++expert) {
        const size_t first = row;
        for (size_t i = 0; i < index.size(); ++i) {
            if (index[i] != static_cast<int64_t>(expert)) continue;
            if (row >= order.size() || order[row] != static_cast<int64_t>(i) || place[i] != static_cast<int64_t>(row)) return false;
            ++row;
        }
        if (counts[expert] != static_cast<int64_t>(row - first)) return false;
    }
    return row == index.size();
}

}  // namespace

void check_experts(Run& run) {
    const int64_t k = run.size("index", 1), D = run.size("x", 1), E = run.whole("experts");
    const int64_t times = run.repeats(run.size("x", 0) * D), M = run.size("x", 0) * times;
    const std::vector<float> x = run.floats("x", times), weight = run.floats("weight", times), dmixed = run.floats("dmixed", times);
    const std::vector<int64_t> index = run.integers("index", times);
    std::vector<int64_t> order = fresh_integers(M * k), place = fresh_integers(M * k), counts = fresh_integers(E);
    run.kernels.expert_order(index.data(), order.data(), place.data(), counts.data(), M * k, E);
    const bool sorted = sorted_by_expert(index, order, place, counts);
    run.demand("expert_order", sorted, "choices are sorted by expert, equal ones by token");
    if (!sorted) return;  // the others read by these places

    std::vector<float> rows = fresh(M * k * D), mixed = fresh(M * D), drows = fresh(M * k * D), dweight = fresh(M * k);
    run.kernels.expert_spread(run.threads, x.data(), order.data(), rows.data(), M, k, D);
    run.compare("expert_spread", "rows", by_choice(rows, order, D), times);

    const std::vector<float> made = by_expert(run.floats("made", times), place, D);
    run.kernels.expert_combine(run.threads, made.data(), weight.data(), place.data(), mixed.data(), M, k, D);
    run.compare("expert_combine", "mixed", mixed, times);
    run.kernels.expert_combine_backward(run.threads, made.data(), weight.data(), place.data(), dmixed.data(), drows.data(),
                                        dweight.data(), M, k, D);
    run.compare("expert_combine_backward", "d_made", by_choice(drows, order, D), times);
    run.compare("expert_combine_backward", "d_weight", dweight, times);

    std::vector<float> dx = fresh(M * D);
    run.kernels.expert_gather(run.threads, made.data(), place.data(), dx.data(), M, k, D);
    run.compare("expert_gather", "d_x", dx, times);
}

void check_route(Run& run) {
    const int64_t E = run.size("logits", 1), k = run.size("index", 1);
    const int64_t times = run.repeats(run.size("logits", 0) * E), M = run.size("logits", 0) * times;
    const std::vector<float> logits = run.floats("logits", times), bias = run.floats("bias"), dweight = run.floats("dweight", times);
    const float scaling = run.number("scaling");
    const bool divide = run.whole("divide") != 0;
    std::vector<int64_t> index = fresh_integers(M * k);
    std::vector<float> weight = fresh(M * k), score = fresh(M * k), dlogits = fresh(M * E);
    run.kernels.route_forward(run.threads, logits.data(), bias.data(), index.data(), weight.data(), score.data(), M, E, k,
                              scaling, divide);
    const bool right = index == run.integers("index", times);
    run.demand("route_forward", right, "the stored experts are chosen");
    if (!right) return;  // the backward writes by these
    run.compare("route_forward", "weight", weight, times);
    run.kernels.route_backward(run.threads, index.data(), score.data(), dweight.data(), dlogits.data(), M, E, k, scaling,
                               divide);
    run.compare("route_backward", "d_logits", dlogits, times);
}

}  // namespace statewell::test
