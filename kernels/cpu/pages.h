// The paged KV pool: where a token's keys and values lie.
//
// The pool is (layers, kv_heads, blocks, tiles, 2, TOKENS * head_dim) of bfloat16: all blocks of one head of one layer
// are neighbours, so a context whose blocks were taken in order is read in one run. A block is whole tiles of TOKENS
// tokens. A tile's keys are (head_dim / 2, TOKENS, 2), its values (TOKENS / 2, head_dim, 2): pairs of what is summed
// over lie together, as instructions that sum products of bfloat16 pairs want them; others split pairs by two shifts.
#pragma once
#include "formats.h"

constexpr int TOKENS = 16;

struct Pool {
    uint16_t* data = nullptr;
    int blocks = 0, kv_heads = 0, head_dim = 0, block_tokens = 0;

    size_t tile_size() const { return size_t(2) * TOKENS * head_dim; }
    size_t block_size() const { return tile_size() * size_t((block_tokens + TOKENS - 1) / TOKENS); }

    uint16_t* block(int layer, int head, int index) const {
        return data + ((size_t(layer) * kv_heads + head) * blocks + index) * block_size();
    }
};

// A run of tokens of one request, rows ``row`` to ``row + count`` of the batch at positions from ``start``. ``table``
// names the blocks of the whole context.
struct Span {
    int row, start, count;
    const int32_t* table;

    int stop() const { return start + count; }
};

// The tile of ``position`` and its place in it.
inline uint16_t* tile_of(const Pool& pool, int layer, int head, const int32_t* table, int position, int& lane) {
    int slot = position % pool.block_tokens;
    lane = slot % TOKENS;
    return pool.block(layer, head, table[position / pool.block_tokens]) + size_t(slot / TOKENS) * pool.tile_size();
}

// ``last``: no later token of this step follows. Its odd neighbour is then cleared: values are read in pairs, and
// 0 times what an earlier request left there must be 0.
inline void store_token(const Pool& pool, int layer, int head, const int32_t* table, int position, const float* key, const float* value, bool last) {
    int lane, dim = pool.head_dim;
    uint16_t* keys = tile_of(pool, layer, head, table, position, lane);
    uint16_t* values = keys + TOKENS * dim + size_t(lane / 2) * dim * 2 + lane % 2;
    for (int d = 0; d < dim; ++d) keys[d / 2 * 2 * TOKENS + lane * 2 + d % 2] = float_to_bfloat(key[d]);
    for (int d = 0; d < dim; ++d) values[d * 2] = float_to_bfloat(value[d]);
    if (last && lane % 2 == 0)
        for (int d = 0; d < dim; ++d) values[d * 2 + 1] = 0;
}
