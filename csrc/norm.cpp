// Norms of rows [M, D]: n = x * rsqrt(share * sum(x^2) + eps), then times a weight [D], then times a gate [M, D]
// through sigmoid or SiLU. fp32 throughout; sums over a row are taken lane by lane. A weight's gradient is summed
// over fixed blocks of rows, then over the blocks in order, so that the number of threads changes no bit.
#include "blocks.h"
#include "curves.h"
#include "parts.h"

namespace statewell {
namespace STATEWELL_ISA {
namespace {

struct Forward {
    const float *x, *weight, *gate;
    float *y, *factor;
    int64_t D;
    float share, eps;
};

struct Backward {
    const float *x, *weight, *gate, *factor, *dy;
    float *dx, *dgate;
    int64_t D;
    float share;
};

enum class Form { plain, weighted, sigmoid_gate, silu_gate };

constexpr bool gated(Form form) { return form == Form::sigmoid_gate || form == Form::silu_gate; }

// The gate's factor and its derivative.
template <Form form>
inline void activate(float gate, float& factor, float& slope) {
    const float s = curves::sigmoid(gate);
    if (form == Form::sigmoid_gate) {
        factor = s;
        slope = s * (1.0f - s);
    } else {
        factor = gate * s;
        slope = s * (1.0f + gate * (1.0f - s));
    }
}

// kD is the width where it is known at compile time, else 0.
template <Form form, int kD>
void forward_rows(const Forward& call, int64_t begin, int64_t end) {
    const int64_t D = kD ? kD : call.D;
    const float* weight = call.weight;
    for (int64_t m = begin; m < end; ++m) {
        const float* x = call.x + m * D;
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (int64_t d = 0; d < D; ++d) squares += x[d] * x[d];
        const float factor = 1.0f / __builtin_sqrtf(squares * call.share + call.eps);
        call.factor[m] = factor;
        float* y = call.y + m * D;
        const float* gate = gated(form) ? call.gate + m * D : nullptr;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) {
            float value = x[d] * factor;
            if (form != Form::plain) value *= weight[d];
            if (gated(form)) {
                float act, slope;
                activate<form>(gate[d], act, slope);
                value *= act;
            }
            y[d] = value;
        }
    }
}

// dy of the normed value goes to dx first, and is corrected by its part along the row in a second pass.
template <Form form, int kD>
void backward_rows(const Backward& call, float* dweight, int64_t begin, int64_t end) {
    const int64_t D = kD ? kD : call.D;
    const float* weight = call.weight;
    for (int64_t m = begin; m < end; ++m) {
        const float* x = call.x + m * D;
        const float* dy = call.dy + m * D;
        const float* gate = gated(form) ? call.gate + m * D : nullptr;
        float* dx = call.dx + m * D;
        float* dgate = gated(form) ? call.dgate + m * D : nullptr;
        const float factor = call.factor[m];
        float along = 0.0f;
#pragma omp simd reduction(+ : along)
        for (int64_t d = 0; d < D; ++d) {
            const float normed = x[d] * factor;
            float dvalue = dy[d];
            if (gated(form)) {
                float act, slope;
                activate<form>(gate[d], act, slope);
                dgate[d] = dvalue * normed * weight[d] * slope;
                dvalue *= act;
            }
            if (form != Form::plain) {
                dweight[d] += dvalue * normed;
                dvalue *= weight[d];
            }
            along += dvalue * normed;
            dx[d] = dvalue;
        }
        const float correction = along * call.share;
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) dx[d] = factor * (dx[d] - x[d] * factor * correction);
    }
}

template <Form form>
void forward_any(const Forward& call, int64_t begin, int64_t end) {
    switch (call.D) {
        case 16: return forward_rows<form, 16>(call, begin, end);
        case 32: return forward_rows<form, 32>(call, begin, end);
        case 64: return forward_rows<form, 64>(call, begin, end);
        case 128: return forward_rows<form, 128>(call, begin, end);
        default: return forward_rows<form, 0>(call, begin, end);
    }
}

template <Form form>
void backward_any(const Backward& call, float* dweight, int64_t begin, int64_t end) {
    switch (call.D) {
        case 16: return backward_rows<form, 16>(call, dweight, begin, end);
        case 32: return backward_rows<form, 32>(call, dweight, begin, end);
        case 64: return backward_rows<form, 64>(call, dweight, begin, end);
        case 128: return backward_rows<form, 128>(call, dweight, begin, end);
        default: return backward_rows<form, 0>(call, dweight, begin, end);
    }
}

Form form_of(const float* weight, const float* gate, bool silu) {
    if (weight == nullptr) return Form::plain;
    if (gate == nullptr) return Form::weighted;
    return silu ? Form::silu_gate : Form::sigmoid_gate;
}

}  // namespace

void norm_forward(int threads, const float* x, const float* weight, const float* gate, float* y, float* factor,
                  int64_t M, int64_t D, float share, float eps, bool silu) {
    const Forward call{x, weight, gate, y, factor, D, share, eps};
    const Form form = form_of(weight, gate, silu);
    Blocks(M, D).each(threads, [&](int64_t, int64_t begin, int64_t end) {
        switch (form) {
            case Form::plain: return forward_any<Form::plain>(call, begin, end);
            case Form::weighted: return forward_any<Form::weighted>(call, begin, end);
            case Form::sigmoid_gate: return forward_any<Form::sigmoid_gate>(call, begin, end);
            case Form::silu_gate: return forward_any<Form::silu_gate>(call, begin, end);
        }
    });
}

void norm_backward(int threads, const float* x, const float* weight, const float* gate, const float* factor,
                   const float* dy, float* dx, float* dweight, float* dgate, int64_t M, int64_t D, float share,
                   bool silu) {
    const Backward call{x, weight, gate, factor, dy, dx, dgate, D, share};
    const Form form = form_of(weight, gate, silu);
    const Blocks blocks(M, D);
    const int64_t width = form == Form::plain ? 0 : D;
    const BlockRows sums(blocks, width);
    sums.zero();
    blocks.each(threads, [&](int64_t block, int64_t begin, int64_t end) {
        float* own = sums.of(block);
        switch (form) {
            case Form::plain: return backward_any<Form::plain>(call, own, begin, end);
            case Form::weighted: return backward_any<Form::weighted>(call, own, begin, end);
            case Form::sigmoid_gate: return backward_any<Form::sigmoid_gate>(call, own, begin, end);
            case Form::silu_gate: return backward_any<Form::silu_gate>(call, own, begin, end);
        }
    });
    sums.total(dweight, width);
}

}  // namespace STATEWELL_ISA
}  // namespace statewell
