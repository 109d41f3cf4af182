// Attention of a few query rows over one key/value head of a paged context, by running maxima (online softmax).
//
// Query rows that read the same keys, be it heads of one group or tokens of one chunk, are computed together, so that
// a key is fetched and widened once for all of them.
#pragma once
#include <cmath>

#include "pages.h"
#include "vector.h"

constexpr int QUERIES = W == 16 ? 8 : 4;
constexpr int MOST_HEAD_DIM = 512;
constexpr int CHUNK = 8 * TOKENS;
constexpr int VECTORS = TOKENS / W;

// One query row: it sees ``visible`` keys from the first position on. ``out`` (head_dim) is written.
struct Query {
    const float* q;
    float* out;
    int visible;
};

template <int R> struct Attention {
    const Pool& pool;
    const Query* rows;
    float peak[R], mass[R];
    alignas(64) float weights[R][CHUNK];
#if defined(__AVX512BF16__)
    alignas(64) uint32_t queries[R][MOST_HEAD_DIM / 2];  // pairs of bfloat16
#else
    alignas(64) float queries[R][MOST_HEAD_DIM];
#endif

    Attention(const Pool& where, const Query* of) : pool(where), rows(of) {
        float scale = 1.f / std::sqrt(float(pool.head_dim));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            peak[r] = -INFINITY, mass[r] = 0;
            for (int d = 0; d < pool.head_dim; ++d) {
                rows[r].out[d] = 0;
#if defined(__AVX512BF16__)
                uint32_t narrow = float_to_bfloat(rows[r].q[d] * scale);
                queries[r][d / 2] = d % 2 ? queries[r][d / 2] | narrow << 16 : narrow;
#else
                queries[r][d] = rows[r].q[d] * scale;
#endif
            }
        }
    }

    // The part of a context that one tile holds; lanes beyond ``count`` are empty.
    struct Part {
        const uint16_t* keys;
        int first, count;
    };

    void run(int layer, int head, const int32_t* table) {
        int stop = 0, next = 0;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) stop = rows[r].visible > stop ? rows[r].visible : stop;
        while (next < stop) {
            Part parts[CHUNK / TOKENS];
            int tiles = 0;
            for (; tiles < CHUNK / TOKENS && next < stop; ++tiles) {
                int slot = next % pool.block_tokens, left = pool.block_tokens - slot, lane;
                parts[tiles] = {tile_of(pool, layer, head, table, next, lane), next, left < TOKENS ? left : TOKENS};
                next += parts[tiles].count;
            }
            for (int i = 0; i < tiles; ++i) score(parts[i].keys, i * TOKENS);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) soften(r, parts, tiles);
            for (int i = 0; i < tiles; ++i) {
                int left = stop - parts[i].first, here = left < parts[i].count ? left : parts[i].count;
                blend(parts[i].keys + TOKENS * pool.head_dim, i * TOKENS, (here + 1) / 2);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            for (int d = 0; d < pool.head_dim; ++d) rows[r].out[d] /= mass[r];
    }

    // Products of every row with the keys of one tile.
    void score(const uint16_t* keys, int at) {
        vfloat sums[R][VECTORS] = {};
        for (int pair = 0; pair < pool.head_dim / 2; ++pair, keys += 2 * TOKENS) {
#if defined(__AVX512BF16__)
            __m512bh both = (__m512bh)_mm512_loadu_si512(keys);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                sums[r][0] = (vfloat)_mm512_dpbf16_ps((__m512)sums[r][0], both, (__m512bh)_mm512_set1_epi32(int(queries[r][pair])));
#else
            vfloat even[VECTORS], odd[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) read_pairs(keys + 2 * W * v, even[v], odd[v]);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                vfloat first = fill(queries[r][2 * pair]), second = fill(queries[r][2 * pair + 1]);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) sums[r][v] += even[v] * first;
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) sums[r][v] += odd[v] * second;
            }
#endif
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) write(&weights[r][at + W * v], sums[r][v]);
    }

    // Scores become weights; what row ``r`` does not see gets none. Sums so far are scaled to the new maximum.
    void soften(int r, const Part* parts, int tiles) {
        float* w = weights[r];
        int count = tiles * TOKENS;
        if (rows[r].visible <= parts[0].first) {
            for (int i = 0; i < count; ++i) w[i] = 0;
            return;
        }
        for (int i = 0; i < tiles; ++i) {
            int ahead = rows[r].visible - parts[i].first, seen = ahead < parts[i].count ? ahead : parts[i].count;
            for (int lane = seen > 0 ? seen : 0; lane < TOKENS; ++lane) w[i * TOKENS + lane] = -INFINITY;
        }
        vfloat most = fill(peak[r]);
        for (int i = 0; i < count; i += W) most = larger(most, read(w + i));
        float now = largest(most), shrink = peak[r] == now ? 1.f : std::exp(peak[r] - now);
        vfloat sum{};
        for (int i = 0; i < count; i += W) {
            vfloat p = exponential(read(w + i) - now);
            write(w + i, p);
            sum += p;
        }
        if (shrink != 1.f) {
            mass[r] *= shrink;
            for (int d = 0; d < pool.head_dim; ++d) rows[r].out[d] *= shrink;
        }
        mass[r] += total(sum);
        peak[r] = now;
    }

    // Adds the weighted values of ``pairs`` pairs of tokens of one tile.
    void blend(const uint16_t* values, int at, int pairs) {
        int dim = pool.head_dim;
#if defined(__AVX512BF16__)
        __m512bh p[R][TOKENS / 2];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            for (int i = 0; i < pairs; ++i) {
                uint32_t both = float_to_bfloat(weights[r][at + 2 * i]) | uint32_t(float_to_bfloat(weights[r][at + 2 * i + 1])) << 16;
                p[r][i] = (__m512bh)_mm512_set1_epi32(int(both));
            }
#endif
        for (int d = 0; d < dim; d += TOKENS) {
            vfloat sums[R][VECTORS];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) sums[r][v] = read(rows[r].out + d + W * v);
            for (int i = 0; i < pairs; ++i) {
                const uint16_t* from = values + (size_t(i) * dim + d) * 2;
#if defined(__AVX512BF16__)
                __m512bh both = (__m512bh)_mm512_loadu_si512(from);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) sums[r][0] = (vfloat)_mm512_dpbf16_ps((__m512)sums[r][0], both, p[r][i]);
#else
                vfloat even[VECTORS], odd[VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) read_pairs(from + 2 * W * v, even[v], odd[v]);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    vfloat first = fill(weights[r][at + 2 * i]), second = fill(weights[r][at + 2 * i + 1]);
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; ++v) sums[r][v] += even[v] * first;
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; ++v) sums[r][v] += odd[v] * second;
                }
#endif
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) write(rows[r].out + d + W * v, sums[r][v]);
        }
    }
};

template <int R> void attend_rows(const Pool& pool, int layer, int head, const int32_t* table, const Query* rows, int count) {
    if constexpr (R > 0) {
        if (count == R) return Attention<R>(pool, rows).run(layer, head, table);
        attend_rows<R - 1>(pool, layer, head, table, rows, count);
    }
}

// ``count`` rows, at most QUERIES.
inline void attend(const Pool& pool, int layer, int head, const int32_t* table, const Query* rows, int count) {
    attend_rows<QUERIES>(pool, layer, head, table, rows, count);
}
