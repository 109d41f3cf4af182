// From GGUF's rows of quantised groups to blocks of ROWS rows, and from those back to floats.
#pragma once
#include "product.h"

// Code ``input`` (0 to 31) of a group as GGUF stores it: Q4 keeps inputs i and i + 16 in one byte, Q8 signed bytes.
inline int source_code(int kind, const uint8_t* group, int input) {
    if (kind == Q8_CENTRED) return int(int8_t(group[2 + input])) + 128;
    uint8_t both = group[(kind == Q4_AFFINE ? 4 : 2) + input % 16];
    return input < 16 ? both & 15 : both >> 4;
}

inline void pack_group(int kind, const uint8_t* source, uint8_t* block, int row) {
    int codes = kind == Q8_CENTRED ? Form<Q8_CENTRED>::CODES : Form<Q4_AFFINE>::CODES;
    for (int input = 0; input < GROUP; ++input) {
        int code = source_code(kind, source, input);
        if (kind == Q8_CENTRED)
            block[64 * (input / STEP) + STEP * row + input % STEP] = uint8_t(code);
        else
            block[64 * (input % 16 / STEP) + STEP * row + input % STEP] |= uint8_t(input < 16 ? code : code << 4);
    }
    memcpy(block + codes + 2 * row, source, 2);
    if (kind == Q4_AFFINE) memcpy(block + codes + 2 * ROWS + 2 * row, source + 2, 2);
}

// Rows ``first`` to ``first + rows`` of the matrix, whose memory is still zeros, from rows of the source's bytes.
inline void pack_rows(const Matrix& matrix, int first, int rows, const uint8_t* source) {
    size_t row_bytes = size_t(matrix.groups()) * source_bytes(matrix.kind);
    for (int i = 0; i < rows; ++i) {
        int row = first + i;
        uint8_t* block = matrix.data + size_t(row / ROWS) * matrix.block_bytes();
        const uint8_t* from = source + size_t(i) * row_bytes;
        for (int g = 0; g < matrix.groups(); ++g)
            pack_group(matrix.kind, from + size_t(g) * source_bytes(matrix.kind), block + size_t(g) * group_bytes(matrix.kind), row % ROWS);
    }
}

// The first ``count`` weights of a row as floats.
inline void unpack_row(const Matrix& matrix, int row, float* to, int count) {
    const uint8_t* block = matrix.block(row / ROWS);
    int lane = row % ROWS, bytes = group_bytes(matrix.kind);
    bool wide = matrix.kind == Q8_CENTRED;
    int codes = wide ? Form<Q8_CENTRED>::CODES : Form<Q4_AFFINE>::CODES;
    for (int i = 0; i < count; ++i) {
        int input = i % GROUP;
        const uint8_t* at = block + size_t(i / GROUP) * bytes;
        uint16_t halves[2] = {0, 0};
        memcpy(halves, at + codes + 2 * lane, 2);
        if (matrix.kind == Q4_AFFINE) memcpy(halves + 1, at + codes + 2 * ROWS + 2 * lane, 2);
        int step = wide ? input / STEP : input % 16 / STEP, code = at[64 * step + STEP * lane + input % STEP];
        if (!wide) code = input < 16 ? code & 15 : code >> 4;
        int zero = wide ? Form<Q8_CENTRED>::ZERO_POINT : matrix.kind == Q4_CENTRED ? Form<Q4_CENTRED>::ZERO_POINT : 0;
        to[i] = half_to_float(halves[0]) * float(code - zero) + half_to_float(halves[1]);
    }
}
