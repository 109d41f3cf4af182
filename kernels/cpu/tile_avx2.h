// A tile in 256 bits: a block is two vectors of eight rows.
#pragma once
#include "matrix.h"

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
// One token is bound by memory: both halves as they stream past.
template <Kind K> void both_tile(const uint8_t* block, int groups, const Tokens<1>& x, float (*out)[ROWS]) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int g = 0; g < groups; ++g, block += Form<K>::BYTES) {
        fetch_ahead<K>(block);
        SmallSum low_sums[2], high_sums[2];
        const int8_t* a = x.codes(0, g);
#pragma GCC unroll 8
        for (int j = 0; j < (Form<K>::HALF_BYTES ? 4 : 8); ++j)
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                __m256i both = _mm256_loadu_si256((const __m256i*)(block + 64 * j + 32 * h));
                __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
                __m256i first = _mm256_set1_epi32(word(a + STEP * j));
                low_sums[h].add(low, first);
                if constexpr (Form<K>::HALF_BYTES) low_sums[h].add(high, _mm256_set1_epi32(word(a + GROUP / 2 + STEP * j)));
                else high_sums[h].add(high, first);
            }
        __m256 ascale = _mm256_set1_ps(x.scale(0, g));
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
            __m256i words = low_sums[h].words();
            if constexpr (!Form<K>::HALF_BYTES) words = _mm256_add_epi32(words, _mm256_slli_epi32(high_sums[h].words(), 4));
            __m256 dot = _mm256_cvtepi32_ps(words), scale = halves(block + Form<K>::CODES + 16 * h);
            if constexpr (Form<K>::LOWS) {
                sums[h] = _mm256_fmadd_ps(halves(block + Form<K>::CODES + 2 * ROWS + 16 * h), _mm256_set1_ps(x.sum(0, g)), sums[h]);
                sums[h] = _mm256_fmadd_ps(_mm256_mul_ps(scale, ascale), dot, sums[h]);
            } else {
                __m256 centre = _mm256_set1_ps(-float(Form<K>::ZERO_POINT) * x.sum(0, g));
                sums[h] = _mm256_fmadd_ps(scale, _mm256_fmadd_ps(ascale, dot, centre), sums[h]);
            }
        }
    }
    _mm256_storeu_ps(out[0], sums[0]);
    _mm256_storeu_ps(out[0] + 8, sums[1]);
}

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
                    const int8_t* a = x.codes(t, g) + STEP * j;
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
                    low_sums[t].add(codes, _mm256_set1_epi32(word(x.codes(t, g) + STEP * j)));
#else
                __m256i low = _mm256_and_si256(codes, mask), high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
#pragma GCC unroll 8
                for (int t = 0; t < T; ++t) {
                    __m256i a = _mm256_set1_epi32(word(x.codes(t, g) + STEP * j));
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
            __m256 dot = _mm256_cvtepi32_ps(words), a = _mm256_set1_ps(x.scale(t, g));
            if constexpr (Form<K>::LOWS) {
                __m256 low = halves(block + Form<K>::CODES + 2 * ROWS + 16 * half);
                sums[t] = _mm256_fmadd_ps(low, _mm256_set1_ps(x.sum(t, g)), sums[t]);
                sums[t] = _mm256_fmadd_ps(_mm256_mul_ps(scale, a), dot, sums[t]);
            } else {
                __m256 centre = _mm256_set1_ps(-float(Form<K>::ZERO_POINT) * x.sum(t, g));
                sums[t] = _mm256_fmadd_ps(scale, _mm256_fmadd_ps(a, dot, centre), sums[t]);
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) _mm256_storeu_ps(out[t] + 8 * half, sums[t]);
}

// Adds what one group of eight rows from ``row`` on contributes; ``scales`` are those of the group.
template <Kind K, int T>
inline void add_group(const uint8_t* scales, int row, int g, const Tokens<T>& x, const SmallSum (&dots)[T], float (*out)[ROWS]) {
    __m256 scale = halves(scales + 2 * row), low = scale;
    if constexpr (Form<K>::LOWS) low = halves(scales + 2 * ROWS + 2 * row);
    else low = _mm256_mul_ps(scale, _mm256_set1_ps(-float(Form<K>::ZERO_POINT)));
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
        __m256 dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[t].words()), _mm256_set1_ps(x.scale(t, g)));
        __m256 sum = _mm256_fmadd_ps(low, _mm256_set1_ps(x.sum(t, g)), _mm256_load_ps(out[t] + row));
        _mm256_store_ps(out[t] + row, _mm256_fmadd_ps(scale, dot, sum));
    }
}

// Four bits, several tokens: an activation that was spread over a vector is used for both halves. The sums of a group
// fill the registers, so those of all groups are in ``out``.
template <Kind K, int T> void whole_tile(const uint8_t* block, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int t = 0; t < T; ++t) _mm256_store_ps(out[t], _mm256_setzero_ps()), _mm256_store_ps(out[t] + 8, _mm256_setzero_ps());
    for (int g = 0; g < groups; ++g, block += Form<K>::BYTES) {
        SmallSum first[T], second[T];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            __m256i one = _mm256_loadu_si256((const __m256i*)(block + 64 * j));
            __m256i other = _mm256_loadu_si256((const __m256i*)(block + 64 * j + 32));
            __m256i low = _mm256_and_si256(one, mask), low_other = _mm256_and_si256(other, mask);
            __m256i high = _mm256_and_si256(_mm256_srli_epi16(one, 4), mask);
            __m256i high_other = _mm256_and_si256(_mm256_srli_epi16(other, 4), mask);
#pragma GCC unroll 4
            for (int t = 0; t < T; ++t) {
                __m256i a = _mm256_set1_epi32(word(x.codes(t, g) + STEP * j));
                first[t].add(low, a), second[t].add(low_other, a);
                a = _mm256_set1_epi32(word(x.codes(t, g) + GROUP / 2 + STEP * j));
                first[t].add(high, a), second[t].add(high_other, a);
            }
        }
        add_group<K, T>(block + Form<K>::CODES, 0, g, x, first, out);
        add_group<K, T>(block + Form<K>::CODES, 8, g, x, second, out);
    }
}

template <Kind K, int T> void tile(const uint8_t* block, int groups, const Tokens<T>& x, float (*out)[ROWS]) {
    if constexpr (T == 1) return both_tile<K>(block, groups, x, out);
    if constexpr (T > 1 && Form<K>::HALF_BYTES) return whole_tile<K, T>(block, groups, x, out);
    half_tile<K, T>(block, 0, groups, x, out);
    half_tile<K, T>(block, 1, groups, x, out);
}
