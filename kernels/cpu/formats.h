// Number formats: 16-bit floats, and weights of four or eight bits in groups of 32 with one scale each.
//
// A weight is code * scale + low, where low is either stored (Q4_AFFINE) or the same multiple of the scale for all
// (ZERO_POINT below). Weights are kept in blocks of ROWS rows; for each group of a block come the codes, then ROWS
// scales, then ROWS lows where there are any, the last two as IEEE half floats. Codes are in steps of four inputs:
// 64 bytes that hold four inputs of row 0, the same four of row 1, and so on, which is what an instruction that sums
// products of four neighbouring bytes wants. In four bits a step's low half-bytes are inputs 4j to 4j + 3 of the
// group, its high ones inputs 16 + 4j to 16 + 4j + 3.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

constexpr int ROWS = 16;
constexpr int GROUP = 32;
constexpr int STEP = 4;

enum Kind : int { Q4_AFFINE = 0, Q4_CENTRED = 1, Q8_CENTRED = 2 };

template <Kind K> struct Form;
template <> struct Form<Q4_AFFINE> {
    static constexpr int CODES = ROWS * GROUP / 2, ZERO_POINT = 0, BYTES = CODES + 2 * 2 * ROWS;
    static constexpr bool HALF_BYTES = true, LOWS = true;
};
template <> struct Form<Q4_CENTRED> {
    static constexpr int CODES = ROWS * GROUP / 2, ZERO_POINT = 8, BYTES = CODES + 2 * ROWS;
    static constexpr bool HALF_BYTES = true, LOWS = false;
};
template <> struct Form<Q8_CENTRED> {
    static constexpr int CODES = ROWS * GROUP, ZERO_POINT = 128, BYTES = CODES + 2 * ROWS;
    static constexpr bool HALF_BYTES = false, LOWS = false;
};

inline int group_bytes(int kind) {
    return kind == Q4_AFFINE ? Form<Q4_AFFINE>::BYTES : kind == Q4_CENTRED ? Form<Q4_CENTRED>::BYTES : Form<Q8_CENTRED>::BYTES;
}

// Bytes of one group of one row as GGUF stores it: a half scale, a half low (Q4_1 only), the codes.
inline int source_bytes(int kind) { return kind == Q4_AFFINE ? 20 : kind == Q4_CENTRED ? 18 : 34; }

inline float bits_to_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

inline uint32_t float_to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float half_to_float(uint16_t half) {
    uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | fraction << 13);
    if (exponent) return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
    float small = float(fraction) * 0x1p-24f;  // subnormal, or zero
    return sign ? -small : small;
}

// Round to nearest, ties to even. A NaN stays one: its top fraction bit is set.
inline uint16_t float_to_bfloat(float value) {
    uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float bfloat_to_float(uint16_t value) { return bits_to_float(uint32_t(value) << 16); }
