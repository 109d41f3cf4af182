// What Python calls: plain functions over plain data. No exception leaves them; ``native_error`` tells the last one.
#include <exception>
#include <string>

#include "rates.h"
#include "model.h"

namespace {

thread_local std::string last_error;

template <typename Work> int guarded(Work work) {
    try {
        work();
        return 0;
    } catch (const std::bad_alloc&) {
        last_error = "out of memory";
        return 1;
    } catch (const std::exception& error) {
        last_error = error.what();
        return 2;
    }
}

// The matrix called ``part`` of layer ``index``; the embedding and the head have no layer.
Matrix& matrix_of(Model& model, int part, int index) {
    if (part == 0) return model.embedding_;
    if (part == 1) return model.head_;
    Layer& layer = model.layers_[size_t(index)];
    return part == 2 ? layer.qkv : part == 3 ? layer.out : part == 4 ? layer.gate_up : layer.down;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int native_version() { return 2; }

const char* native_variant() { return VARIANT; }

const char* native_error() { return last_error.c_str(); }

Model* native_open(const Shape* shape, const float* frequencies, int threads) {
    Model* model = nullptr;
    guarded([&] { model = new Model(*shape, frequencies, threads); });
    return model;
}

void native_close(Model* model) { delete model; }

// A matrix of ``outputs`` rows of ``width`` inputs, whole groups; ``native_pack`` fills it. ``bias`` may be null.
int native_matrix(Model* model, int part, int layer, int kind, int outputs, int width, const float* bias) {
    return guarded([&] {
        Matrix& matrix = matrix_of(*model, part, layer);
        matrix.kind = kind, matrix.outputs = outputs, matrix.width = width;
        matrix.data = model->weights_.take<uint8_t>(size_t(matrix.blocks()) * matrix.block_bytes());
        matrix.bias = nullptr;
        if (bias) {
            matrix.bias = model->weights_.take<float>(size_t(matrix.rows()));
            memcpy(matrix.bias, bias, size_t(outputs) * sizeof(float));
        }
    });
}

// Fills rows ``first`` to ``first + rows`` from GGUF's bytes. Different rows of whole blocks may be packed at once.
void native_pack(Model* model, int part, int layer, int first, int rows, const uint8_t* source) {
    pack_rows(matrix_of(*model, part, layer), first, rows, source);
}

// The head is the embedding's own memory.
void native_tie(Model* model) { model->head_ = model->embedding_; }

// ``which``: 0 before attention, 1 before the feed-forward part, 2 before the head.
int native_norm(Model* model, int which, int layer, const float* weight) {
    return guarded([&] {
        size_t count = size_t(model->shape_.hidden);
        float* kept = model->weights_.take<float>(count);
        memcpy(kept, weight, count * sizeof(float));
        if (which == 2) model->norm_ = kept;
        else (which == 0 ? model->layers_[size_t(layer)].input_norm : model->layers_[size_t(layer)].mlp_norm) = kept;
    });
}

// Elements (of two bytes) of one block of one head of one layer.
int64_t native_block_size(int head_dim, int block_tokens) {
    Pool pool;
    pool.head_dim = head_dim, pool.block_tokens = block_tokens;
    return int64_t(pool.block_size());
}

// ``data`` is the caller's and outlives the model or the next call; it begins as zeros.
void native_pool(Model* model, uint16_t* data, int blocks, int block_tokens) {
    model->pool_ = {data, blocks, model->shape_.kv_heads, model->shape_.head_dim, block_tokens};
}

int native_step(Model* model, const Batch* batch, int threads) {
    return guarded([&] { model->step(*batch, threads); });
}

// y (tokens, stride) = matrix times x (tokens, width), for tests and measurements; stride is at least whole blocks.
int native_multiply(Model* model, int part, int layer, const float* x, int tokens, float* y, int stride, int threads) {
    return guarded([&] {
        Matrix matrix = matrix_of(*model, part, layer);
        Arena arena;
        Activations narrow = Activations::make(arena, size_t(tokens), matrix.width);
        for (int row = 0; row < tokens; ++row) quantize_row(narrow, row, x + size_t(row) * matrix.width, matrix.width);
        Result to{y, size_t(stride), false};
        model->team().run(threads, [matrix, narrow, tokens, to](Lane& lane) { multiply(lane, matrix, narrow, tokens, to); });
    });
}

int native_read_rate(size_t bytes, int threads, double seconds, double* rate) {
    return guarded([&] { *rate = read_rate(bytes, threads, seconds); });
}

int native_product_rate(int threads, double seconds, double* rate) {
    return guarded([&] { *rate = product_rate(threads, seconds); });
}
}
#pragma GCC visibility pop
