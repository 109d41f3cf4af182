// Products of quantised weights with quantised activations: y = W x, sums of whole groups in integers.
//
// One tile is a block of ROWS outputs times a few tokens. A group contributes
//     scale * activation scale * (sum of code products) + low * activation sum,
// where the low of a centred format is -ZERO_POINT * scale. This is the arithmetic of llama.cpp's Q4_1 x Q8_1.
#pragma once
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include "tile_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "tile_avx2.h"
#else
#include "tile_portable.h"
#endif
#include "team.h"

// Where results go: ``row_stride`` floats from token to token; added to what is there, or written.
struct Result {
    float* at;
    size_t row_stride;
    bool add;
};

template <Kind K, int T> void block_tokens(const Matrix& matrix, int block, const Activations& x, int first, const Result& to) {
    alignas(64) float sums[T][ROWS];
    tile<K, T>(matrix.block(block), matrix.groups(), Tokens<T>(x, first), sums);
    const float* bias = matrix.bias ? matrix.bias + size_t(block) * ROWS : nullptr;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        float* y = to.at + size_t(first + t) * to.row_stride + size_t(block) * ROWS;
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; r += W) {  // as vectors: one by one this was a fifth of a prompt's time
            vfloat sum = read(sums[t] + r);
            if (bias) sum += read(bias + r);
            if (to.add) sum += read(y + r);
            write(y + r, sum);
        }
    }
}

template <Kind K, int T> void rest(const Matrix& matrix, int block, const Activations& x, int first, int count, const Result& to) {
    if constexpr (T > 0) {
        if (count == T) return block_tokens<K, T>(matrix, block, x, first, to);
        rest<K, T - 1>(matrix, block, x, first, count, to);
    }
}

template <Kind K> void block_panel(const Matrix& matrix, int block, const Activations& x, int first, int last, const Result& to) {
    int token = first;
    for (; token + TILE <= last; token += TILE) block_tokens<K, TILE>(matrix, block, x, token, to);
    rest<K, TILE - 1>(matrix, block, x, token, last - token, to);
}

inline void multiply_block(const Matrix& matrix, int block, const Activations& x, int first, int last, const Result& to) {
    if (matrix.kind == Q4_AFFINE) return block_panel<Q4_AFFINE>(matrix, block, x, first, last, to);
    if (matrix.kind == Q4_CENTRED) return block_panel<Q4_CENTRED>(matrix, block, x, first, last, to);
    block_panel<Q8_CENTRED>(matrix, block, x, first, last, to);
}

// All outputs for ``tokens`` rows of ``x``. A piece of work is some blocks times a panel of tokens whose activations
// stay in the second-level cache while each block stays in the first.
inline void multiply(Lane& lane, const Matrix& matrix, const Activations& x, int tokens, Result to) {
    constexpr int PANEL = 64;
    int panels = (tokens + PANEL - 1) / PANEL;
    int wanted = (8 * lane.threads() + panels - 1) / panels;  // pieces a panel, so that threads end together
    int each = (matrix.blocks() + wanted - 1) / wanted, pieces = (matrix.blocks() + each - 1) / each;
    lane.phase(pieces * panels, [&](int piece) {
        int panel = piece / pieces, first = panel * PANEL, last = first + PANEL < tokens ? first + PANEL : tokens;
        int start = piece % pieces * each, stop = start + each < matrix.blocks() ? start + each : matrix.blocks();
        for (int block = start; block < stop; ++block) multiply_block(matrix, block, x, first, last, to);
    });
}
