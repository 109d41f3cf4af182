// A quantised matrix, and the activations of a few tokens that it is multiplied by: what every variant's tile works on.
#pragma once
#include "activations.h"

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

// The activations of ``T`` tokens from ``first`` on, which is a multiple of QUAD where T is more than one.
template <int T> struct Tokens {
    const Quad* quads[(T + QUAD - 1) / QUAD];
    int lane;

    Tokens(const Activations& from, int first) : lane(T == 1 ? first % QUAD : 0) {
        for (int q = 0; q < (T + QUAD - 1) / QUAD; ++q) quads[q] = from.quad(first / QUAD + q);
    }

    const int8_t* codes(int t, int group) const { return quads[t / QUAD][group].codes[lane + t % QUAD]; }
    float scale(int t, int group) const { return quads[t / QUAD][group].scales[lane + t % QUAD]; }
    float sum(int t, int group) const { return quads[t / QUAD][group].sums[lane + t % QUAD]; }
};

inline int32_t word(const int8_t* at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

// Asks for what is used about six groups later. One token alone waits for memory, and the CPU's own foresight reached
// two thirds of what this reaches (9.0 and 12.4 GB/s on one core of a busy Zen 3).
template <Kind K> void fetch_ahead(const uint8_t* group) {
    constexpr int AHEAD = 2048;
    for (int line = 0; line < Form<K>::BYTES; line += 64) __builtin_prefetch(group + AHEAD + line);
}
