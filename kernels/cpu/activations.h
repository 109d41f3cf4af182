// Activations in eight bits: 32 at a time share a scale, the largest of them becoming 127 or -127.
#pragma once
#include <cmath>

#include "arena.h"
#include "vector.h"

// Rows of ``width`` codes, whole groups. ``scales`` and ``sums`` have one entry a group; a sum is the scale times the
// sum of the group's codes: what a weight's low, or zero point, is multiplied by.
struct Activations {
    int8_t* codes = nullptr;
    float* scales = nullptr;
    float* sums = nullptr;
    int width = 0;

    int groups() const { return width / GROUP; }
    const int8_t* row(int index) const { return codes + size_t(index) * width; }
    const float* row_scales(int index) const { return scales + size_t(index) * groups(); }
    const float* row_sums(int index) const { return sums + size_t(index) * groups(); }

    static Activations make(Arena& arena, size_t rows, int width) {
        size_t groups = rows * size_t(width / GROUP);
        return {arena.take<int8_t>(rows * size_t(width)), arena.take<float>(groups), arena.take<float>(groups), width};
    }
};

// ``value`` (count) becomes row ``index``; what is left of its last group counts as zero.
inline void quantize_row(const Activations& to, int index, const float* value, int count) {
    int8_t* codes = to.codes + size_t(index) * to.width;
    float* scales = to.scales + size_t(index) * to.groups();
    float* sums = to.sums + size_t(index) * to.groups();
    for (int group = 0; group < to.groups(); ++group) {
        float padded[GROUP];
        const float* from = value + group * GROUP;
        int here = count - group * GROUP;
        if (here < GROUP) {
            memset(padded, 0, sizeof padded);
            if (here > 0) memcpy(padded, from, size_t(here) * sizeof(float));
            from = padded;
        }
        vfloat most{};
        for (int i = 0; i < GROUP; i += W) {
            vfloat x = read(from + i);
            most = larger(most, x < 0 ? -x : x);
        }
        float peak = largest(most), inverse = peak > 0 ? 127.f / peak : 0.f;
        int32_t sum = 0;
        for (int i = 0; i < GROUP; i += W) {
            vint code = __builtin_convertvector(nearest(read(from + i) * inverse), vint);
            for (int lane = 0; lane < W; ++lane) {
                codes[group * GROUP + i + lane] = int8_t(code[lane]);
                sum += code[lane];
            }
        }
        scales[group] = peak / 127.f;
        sums[group] = scales[group] * float(sum);
    }
}

// y = x / rms(x) * weight. ``x`` and ``y`` may be the same.
inline void normalize_row(float* y, const float* x, const float* weight, int count, float eps) {
    float squares = 0;
    int i = 0;
    vfloat sum{};
    for (; i + W <= count; i += W) sum += read(x + i) * read(x + i);
    squares = total(sum);
    for (; i < count; ++i) squares += x[i] * x[i];
    float scale = 1.f / std::sqrt(squares / float(count) + eps);
    for (i = 0; i < count; ++i) y[i] = x[i] * scale * weight[i];
}

// y = silu(gate) * up
inline void gate_row(float* y, const float* gate, const float* up, int count) {
    int i = 0;
    for (; i + W <= count; i += W) {
        vfloat g = read(gate + i);
        write(y + i, g / (1.f + exponential(larger(-g, fill(-88.f)) > fill(88.f) ? fill(88.f) : -g)) * read(up + i));
    }
    for (; i < count; ++i) y[i] = gate[i] / (1.f + std::exp(-gate[i])) * up[i];
}
