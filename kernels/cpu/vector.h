// Vectors of floats as compilers know them (GCC and Clang vector extensions): one source for every CPU.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "formats.h"

#if defined(__AVX512F__)
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

typedef float vfloat __attribute__((vector_size(W * 4)));
typedef int32_t vint __attribute__((vector_size(W * 4)));
typedef int8_t vbyte __attribute__((vector_size(W)));

inline vfloat fill(float value) { return value - vfloat{}; }

inline vfloat read(const float* from) {
    vfloat value;
    memcpy(&value, from, sizeof value);
    return value;
}

inline void write(float* to, vfloat value) { memcpy(to, &value, sizeof value); }

inline vfloat larger(vfloat a, vfloat b) { return a > b ? a : b; }

inline float largest(vfloat value) {
    float found = value[0];
    for (int i = 1; i < W; ++i) found = value[i] > found ? value[i] : found;
    return found;
}

inline float total(vfloat value) {
    float sum = 0;
    for (int i = 0; i < W; ++i) sum += value[i];
    return sum;
}

// Rounds to the nearest whole number, ties to even, for values below 2^22.
inline vfloat nearest(vfloat value) {
    const vfloat magic = fill(12582912.f);
    return (value + magic) - magic;
}

// e^x for x <= 88, 0 below -87; relative error below 2e-7 (Taylor's series on half a binary order, exact scaling).
inline vfloat exponential(vfloat x) {
    vint tiny = x < fill(-87.f);
    x = tiny ? fill(-87.f) : x;
    vfloat order = nearest(x * 1.44269504f);
    x = (x - order * 0.693359375f) + order * 2.12194440e-4f;
    vfloat sum = fill(1.f / 5040);
    sum = sum * x + 1.f / 720;
    sum = sum * x + 1.f / 120;
    sum = sum * x + 1.f / 24;
    sum = sum * x + 1.f / 6;
    sum = sum * x + 0.5f;
    sum = sum * x + 1.f;
    sum = sum * x + 1.f;
    vint power = (__builtin_convertvector(order, vint) + 127) << 23;
    vfloat scale;
    memcpy(&scale, &power, sizeof scale);
    vfloat result = sum * scale;
    return tiny ? vfloat{} : result;
}

// W pairs of bfloat16, neighbours in memory, as the floats of the first and of the second of each pair.
inline void read_pairs(const uint16_t* from, vfloat& first, vfloat& second) {
    vint pairs, low, high;
    memcpy(&pairs, from, sizeof pairs);
    low = pairs << 16;
    high = pairs & int32_t(0xffff0000);
    memcpy(&first, &low, sizeof low);
    memcpy(&second, &high, sizeof high);
}
