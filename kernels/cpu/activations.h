// Activations in eight bits: 32 at a time share a scale, the largest of them becoming 127 or -127.
#pragma once
#include <cmath>

#include "arena.h"
#include "vector.h"

// A group of four neighbouring rows, side by side: one address serves all that a tile multiplies at once. A sum is the
// scale times the sum of the group's codes: what a weight's low, or zero point, is multiplied by.
constexpr int QUAD = 4;
struct Quad {
    int8_t codes[QUAD][GROUP];
    float scales[QUAD];
    float sums[QUAD];
};

// Rows of ``width`` codes, whole groups: (rows / QUAD, groups) quads.
struct Activations {
    Quad* quads = nullptr;
    int width = 0;

    int groups() const { return width / GROUP; }
    Quad* quad(int index) const { return quads + size_t(index) * groups(); }

    static Activations make(Arena& arena, size_t rows, int width) {
        return {arena.take<Quad>((rows + QUAD - 1) / QUAD * size_t(width / GROUP)), width};
    }
};

// Whole numbers from -127 to 127 as bytes.
inline void narrow(const vint (&code)[GROUP / W], int8_t* to) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    __m256i low = _mm256_packs_epi32((__m256i)code[0], (__m256i)code[1]), high = _mm256_packs_epi32((__m256i)code[2], (__m256i)code[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packing works on halves of vectors
    _mm256_storeu_si256((__m256i*)to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order));
#else
    for (int i = 0; i < GROUP / W; ++i) {
        vbyte bytes = __builtin_convertvector(code[i], vbyte);
        memcpy(to + W * i, &bytes, sizeof bytes);
    }
#endif
}

// ``value`` (count) becomes row ``index``; what is left of its last group counts as zero.
inline void quantize_row(const Activations& to, int index, const float* value, int count) {
    Quad* quads = to.quad(index / QUAD);
    int lane = index % QUAD;
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
        vint sum{}, code[GROUP / W];
        for (int i = 0; i < GROUP / W; ++i) {
            code[i] = __builtin_convertvector(nearest(read(from + W * i) * inverse), vint);
            sum += code[i];
        }
        narrow(code, quads[group].codes[lane]);
        int32_t all = 0;
        for (int i = 0; i < W; ++i) all += sum[i];
        quads[group].scales[lane] = peak / 127.f;
        quads[group].sums[lane] = peak / 127.f * float(all);
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
