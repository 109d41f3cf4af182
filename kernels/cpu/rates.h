// What this machine can do at best, measured: bytes read per second, and integer operations per second of our product.
#pragma once
#include <chrono>

#include "product.h"

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Bytes per second read from ``bytes`` of memory by ``threads`` threads: the best pass within ``seconds``. The memory
// holds noise, since a hypervisor merges equal pages and those are then read from a cache.
inline double read_rate(size_t bytes, int threads, double seconds) {
    Arena arena;
    size_t words = bytes / 8;
    uint64_t* data = arena.take<uint64_t>(words);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < words; ++i) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        data[i] = state;
    }
    constexpr size_t PIECE = size_t(1) << 15;
    auto sink = std::make_shared<std::atomic<uint64_t>>(0);
    Team team(threads);
    double best = 0, start = now();
    while (now() - start < seconds) {
        double begin = now();
        team.run(threads, [=](Lane& lane) {
            lane.phase(int(words / PIECE), [&](int piece) {
                const uint64_t* at = data + size_t(piece) * PIECE;
                uint64_t sums[8] = {};
                for (size_t i = 0; i < PIECE; i += 8)
                    for (int j = 0; j < 8; ++j) sums[j] += at[i + size_t(j)];
                for (uint64_t sum : sums) sink->fetch_add(sum, std::memory_order_relaxed);
            });
        });
        double rate = double(words / PIECE * PIECE * 8) / (now() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}

// Operations (two a product) per second of 64 tokens times a matrix of four bits that stays in the cache.
inline double product_rate(int threads, double seconds) {
    constexpr int WIDTH = 512, OUTPUTS = 512, TOKENS_AT_ONCE = 64;
    Arena arena;
    Matrix matrix;
    matrix.kind = Q4_AFFINE, matrix.outputs = OUTPUTS, matrix.width = WIDTH;
    matrix.data = arena.take<uint8_t>(size_t(matrix.blocks()) * matrix.block_bytes());
    Activations x = Activations::make(arena, size_t(TOKENS_AT_ONCE) * threads, WIDTH);
    float* y = arena.take<float>(size_t(TOKENS_AT_ONCE) * threads * OUTPUTS);
    Team team(threads);
    double best = 0, start = now();
    while (now() - start < seconds) {
        double begin = now();
        team.run(threads, [=](Lane& lane) {
            for (int i = 0; i < 10; ++i) multiply(lane, matrix, x, TOKENS_AT_ONCE * threads, {y, size_t(OUTPUTS), false});
        });
        double rate = 10. * 2 * TOKENS_AT_ONCE * threads * WIDTH * OUTPUTS / (now() - begin);
        best = rate > best ? rate : best;
    }
    return best;
}
