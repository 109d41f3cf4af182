// A tile in plain loops over the rows of a block, which compilers turn into whatever vectors there are.
#pragma once
#include "matrix.h"

#define VARIANT "portable"
constexpr int TILE = 4;

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
                for (int r = 0; r < ROWS; ++r) dots[r] += int32_t(codes[i][r]) * x.codes(t, g)[i];
            float a = x.scale(t, g), sum = x.sum(t, g);
            for (int r = 0; r < ROWS; ++r) out[t][r] += scale[r] * a * float(dots[r]) + low[r] * sum;
        }
    }
}
