// Products of quantised weights with quantised activations: y = W x, sums of whole groups in integers.
//
// One tile is a block of ROWS outputs times a few tokens. A group contributes
//     scale * activation scale * (sum of code products) + low * activation sum,
// where the low of a centred format is -ZERO_POINT * scale. This is the arithmetic of llama.cpp's Q4_1 x Q8_1.
#pragma once
#include "activations.h"
#include "team.h"

// A weight matrix of ``rows`` outputs in whole blocks of ROWS, what is beyond ``outputs`` being zeros.
struct Matrix {
    int kind = 0, outputs = 0, width = 0;
    uint8_t* data = nullptr;
    float* bias = nullptr;

    int blocks() const { return (outputs + ROWS - 1) / ROWS; }
    int rows() const { return blocks() * ROWS; }
    int groups() const { return width / GROUP; }
    size_t block_bytes() const { return size_t(groups()) * group_bytes(kind); }
    const uint8_t* block(int index) const { return data + size_t(index) * block_bytes(); }
};

template <int T> struct Tokens {
    const int8_t* codes[T];
    const float* scales[T];
    const float* sums[T];

    Tokens(const Activations& from, int first) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            codes[t] = from.row(first + t);
            scales[t] = from.row_scales(first + t);
            sums[t] = from.row_sums(first + t);
        }
    }
};

inline int32_t word(const int8_t* at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define VARIANT "avx512-vnni"
constexpr int TILE = 8;

inline __m512 halves(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); }

template <Kind K, int T> void tile(const uint8_t* block, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512 sums[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t] = _mm512_setzero_ps();
    for (int g = 0; g < groups; ++g, block += Form<K>::BYTES) {
        __m512i dots[T];
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) dots[t] = _mm512_setzero_si512();
        if constexpr (Form<K>::HALF_BYTES) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                __m512i both = _mm512_loadu_si512(block + 64 * j);
                __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    const int8_t* a = x.codes[t] + g * GROUP + STEP * j;
                    dots[t] = _mm512_dpbusd_epi32(dots[t], low, _mm512_set1_epi32(word(a)));
                    dots[t] = _mm512_dpbusd_epi32(dots[t], high, _mm512_set1_epi32(word(a + GROUP / 2)));
                }
            }
        } else {
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {
                __m512i codes = _mm512_loadu_si512(block + 64 * j);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                    dots[t] = _mm512_dpbusd_epi32(dots[t], codes, _mm512_set1_epi32(word(x.codes[t] + g * GROUP + STEP * j)));
            }
        }
        __m512 scale = halves(block + Form<K>::CODES);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            __m512 dot = _mm512_cvtepi32_ps(dots[t]), a = _mm512_set1_ps(x.scales[t][g]);
            if constexpr (Form<K>::LOWS) {
                __m512 low = halves(block + Form<K>::CODES + 2 * ROWS);
                sums[t] = _mm512_fmadd_ps(low, _mm512_set1_ps(x.sums[t][g]), sums[t]);
                sums[t] = _mm512_fmadd_ps(_mm512_mul_ps(scale, a), dot, sums[t]);
            } else {
                __m512 centre = _mm512_set1_ps(-float(Form<K>::ZERO_POINT) * x.sums[t][g]);
                sums[t] = _mm512_fmadd_ps(scale, _mm512_fmadd_ps(a, dot, centre), sums[t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(out[t], sums[t]);
}

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#if defined(__AVXVNNI__)
#define VARIANT "avx2-vnni"
#else
#define VARIANT "avx2"
#endif
constexpr int TILE = 4;

inline __m256 halves(const uint8_t* at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at)); }

// Sums of codes from 0 to 15 times activations. Without the instruction that sums four products, two steps of it sum
// pairs in 16 bits: a group's 16 products of at most 15 * 127 fit.
struct SmallSum {
    __m256i value = _mm256_setzero_si256();
    void add(__m256i codes, __m256i a) {
#if defined(__AVXVNNI__)
        value = _mm256_dpbusd_avx_epi32(value, codes, a);
#else
        value = _mm256_add_epi16(value, _mm256_maddubs_epi16(codes, a));
        asm("" : "+x"(value));  // in this order: a compiler that gathers all products first runs out of registers
#endif
    }
    __m256i words() const {
#if defined(__AVXVNNI__)
        return value;
#else
        return _mm256_madd_epi16(value, _mm256_set1_epi16(1));
#endif
    }
};

// A half of a block: the eight rows that one vector holds.
template <Kind K, int T> void half_tile(const uint8_t* block, int half, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256 sums[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t] = _mm256_setzero_ps();
    for (int g = 0; g < groups; ++g, block += Form<K>::BYTES) {
        SmallSum low_sums[T], high_sums[T];
        const uint8_t* at = block + 32 * half;
        if constexpr (Form<K>::HALF_BYTES) {
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                __m256i both = _mm256_loadu_si256((const __m256i*)(at + 64 * j));
                __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    const int8_t* a = x.codes[t] + g * GROUP + STEP * j;
                    low_sums[t].add(low, _mm256_set1_epi32(word(a)));
                    low_sums[t].add(high, _mm256_set1_epi32(word(a + GROUP / 2)));
                }
            }
        } else {
#pragma GCC unroll 8
            for (int j = 0; j < 8; ++j) {  // a code from 0 to 255 is 16 times its high half-byte plus its low one
                __m256i codes = _mm256_loadu_si256((const __m256i*)(at + 64 * j));
#if defined(__AVXVNNI__)
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t)
                    low_sums[t].add(codes, _mm256_set1_epi32(word(x.codes[t] + g * GROUP + STEP * j)));
#else
                __m256i low = _mm256_and_si256(codes, mask), high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    __m256i a = _mm256_set1_epi32(word(x.codes[t] + g * GROUP + STEP * j));
                    low_sums[t].add(low, a);
                    high_sums[t].add(high, a);
                }
#endif
            }
        }
        __m256 scale = halves(block + Form<K>::CODES + 16 * half);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            __m256i words = low_sums[t].words();
#if !defined(__AVXVNNI__)
            if constexpr (!Form<K>::HALF_BYTES)
                words = _mm256_add_epi32(words, _mm256_slli_epi32(high_sums[t].words(), 4));
#endif
            __m256 dot = _mm256_cvtepi32_ps(words), a = _mm256_set1_ps(x.scales[t][g]);
            if constexpr (Form<K>::LOWS) {
                __m256 low = halves(block + Form<K>::CODES + 2 * ROWS + 16 * half);
                sums[t] = _mm256_fmadd_ps(low, _mm256_set1_ps(x.sums[t][g]), sums[t]);
                sums[t] = _mm256_fmadd_ps(_mm256_mul_ps(scale, a), dot, sums[t]);
            } else {
                __m256 centre = _mm256_set1_ps(-float(Form<K>::ZERO_POINT) * x.sums[t][g]);
                sums[t] = _mm256_fmadd_ps(scale, _mm256_fmadd_ps(a, dot, centre), sums[t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) _mm256_storeu_ps(out[t] + 8 * half, sums[t]);
}

template <Kind K, int T> void tile(const uint8_t* block, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
    half_tile<K, T>(block, 0, groups, x, out);
    half_tile<K, T>(block, 1, groups, x, out);
}

#else
#define VARIANT "portable"
constexpr int TILE = 4;

// Plain loops over the rows of a block, which compilers turn into whatever vectors there are.
template <Kind K, int T> void tile(const uint8_t* block, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
        for (int r = 0; r < ROWS; ++r) out[t][r] = 0;
    for (int g = 0; g < groups; ++g, block += Form<K>::BYTES) {
        int16_t codes[GROUP][ROWS];
        for (int i = 0; i < GROUP; ++i) {
            int step = Form<K>::HALF_BYTES ? i % 16 / STEP : i / STEP, shift = Form<K>::HALF_BYTES && i >= 16 ? 4 : 0;
            for (int r = 0; r < ROWS; ++r) {
                int code = block[64 * step + STEP * r + i % STEP] >> shift;
                codes[i][r] = int16_t(Form<K>::HALF_BYTES ? code & 15 : code);
            }
        }
        float scale[ROWS], low[ROWS];
        for (int r = 0; r < ROWS; ++r) {
            uint16_t half[2] = {0, 0};
            memcpy(half, block + Form<K>::CODES + 2 * r, 2);
            if (Form<K>::LOWS) memcpy(half + 1, block + Form<K>::CODES + 2 * ROWS + 2 * r, 2);
            scale[r] = half_to_float(half[0]);
            low[r] = Form<K>::LOWS ? half_to_float(half[1]) : -float(Form<K>::ZERO_POINT) * scale[r];
        }
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            int32_t dots[ROWS] = {};
            for (int i = 0; i < GROUP; ++i)
                for (int r = 0; r < ROWS; ++r) dots[r] += int32_t(codes[i][r]) * x.codes[t][g * GROUP + i];
            float a = x.scales[t][g], sum = x.sums[t][g];
            for (int r = 0; r < ROWS; ++r) out[t][r] += scale[r] * a * float(dots[r]) + low[r] * sum;
        }
    }
}
#endif

// Where results go: ``row_stride`` floats from token to token; added to what is there, or written.
struct Result {
    float* at;
    size_t row_stride;
    bool add;
};

template <Kind K, int T> void block_tokens(const Matrix& matrix, int block, const Activations& x, int first, const Result& to) {
    alignas(64) float sums[T][ROWS];
    tile<K, T>(matrix.block(block), matrix.groups(), Tokens<T>(x, first), sums);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
        float* y = to.at + size_t(first + t) * to.row_stride + size_t(block) * ROWS;
        const float* bias = matrix.bias ? matrix.bias + size_t(block) * ROWS : nullptr;
        for (int r = 0; r < ROWS; ++r) y[r] = sums[t][r] + (bias ? bias[r] : 0) + (to.add ? y[r] : 0);
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
