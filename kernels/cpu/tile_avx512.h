// A tile in 512 bits with the instruction that sums four products of bytes (VNNI): a block is one vector.
#pragma once
#include "matrix.h"

#define VARIANT "avx512-vnni"
constexpr int TILE = 8;

inline __m512 halves(const uint8_t* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); }

template <Kind K, int T> void tile(const uint8_t* block, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512 sums[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sums[t] = _mm512_setzero_ps();
    for (int g = 0; g < groups; ++g, block += Form<K>::BYTES) {
        if constexpr (T == 1) fetch_ahead<K>(block);
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
                    const int8_t* a = x.codes(t, g) + STEP * j;
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
                    dots[t] = _mm512_dpbusd_epi32(dots[t], codes, _mm512_set1_epi32(word(x.codes(t, g) + STEP * j)));
            }
        }
        __m512 scale = halves(block + Form<K>::CODES);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            __m512 dot = _mm512_cvtepi32_ps(dots[t]), a = _mm512_set1_ps(x.scale(t, g));
            if constexpr (Form<K>::LOWS) {
                __m512 low = halves(block + Form<K>::CODES + 2 * ROWS);
                sums[t] = _mm512_fmadd_ps(low, _mm512_set1_ps(x.sum(t, g)), sums[t]);
                sums[t] = _mm512_fmadd_ps(_mm512_mul_ps(scale, a), dot, sums[t]);
            } else {
                __m512 centre = _mm512_set1_ps(-float(Form<K>::ZERO_POINT) * x.sum(t, g));
                sums[t] = _mm512_fmadd_ps(scale, _mm512_fmadd_ps(a, dot, centre), sums[t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) _mm512_storeu_ps(out[t], sums[t]);
}
