// A Llama's weights in packed form, and one step of it: tokens in, logits out, keys and values into the pool.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>

#include "attention.h"
#include "packing.h"

struct Shape {
    int32_t layers, hidden, inner, heads, kv_heads, head_dim, vocab;
    float eps;
};

struct Layer {
    float *input_norm, *mlp_norm;
    Matrix qkv, out, gate_up, down;
};

// One step. Rows are new tokens; ``wanted`` names the rows whose logits are asked for, one output row each, of
// ``stride`` floats.
struct Batch {
    int32_t rows, spans, wanted, stride, entries;    // entries: of ``tables``
    const int32_t *tokens, *positions;               // (rows,)
    const int32_t *span_row, *span_start, *span_count, *span_table;  // (spans,); the last is an offset into ``tables``
    const int32_t* tables;
    const int32_t* wanted_rows;                      // (wanted,)
    float* logits;
};

inline int padded(int width) { return (width + GROUP - 1) / GROUP * GROUP; }

class Model {
public:
    Model(const Shape& shape, const float* frequencies, int threads) : shape_(shape), team_(threads) {
        frequencies_.assign(frequencies, frequencies + shape.head_dim / 2);
        layers_.resize(size_t(shape.layers));
    }

    const Shape shape_;
    Matrix embedding_, head_;
    float* norm_ = nullptr;
    std::vector<Layer> layers_;
    std::vector<float> frequencies_;
    Arena weights_;
    Pool pool_;

    Team& team() { return team_; }

    void step(const Batch& batch, int threads) {
        check(batch);
        reserve(batch.rows);
        auto plan = std::make_shared<const Plan>(plan_step(batch));
        team_.run(threads, [this, plan](Lane& lane) { program(lane, *plan->scratch, *plan); });
    }

private:
    static constexpr int MOST_POSITIONS = 1 << 30;
    static constexpr int FEW = 8;  // rows that one piece of row-wise work takes

    // Which query rows of which span one piece of attention computes; rows count heads of the group within tokens.
    struct Piece {
        int span, head, first, count;
    };

    // Buffers for one step of up to ``rows`` tokens.
    struct Scratch {
        Arena arena;
        int rows = 0, qkv_stride = 0, gate_stride = 0;
        float *hidden, *qkv, *attended, *gate, *turns, *line;
        Activations narrow, wide, deep;
    };

    struct Plan {
        std::shared_ptr<Scratch> scratch;
        Batch batch;
        std::vector<Span> spans;
        std::vector<int> span_of;  // by row
        std::vector<Piece> pieces;
    };

    int group() const { return shape_.heads / shape_.kv_heads; }

    // Every number of a batch is an address in the end, so none is believed.
    void check(const Batch& batch) const {
        if (pool_.block_tokens < 1) throw std::invalid_argument("there is no pool");
        for (int row = 0; row < batch.rows; ++row) require(batch.tokens[row], shape_.vocab, "token");
        if (batch.wanted < 0 || batch.wanted > batch.rows) throw std::invalid_argument("more rows are wanted than there are");
        for (int i = 0; i < batch.wanted; ++i) require(batch.wanted_rows[i], batch.rows, "wanted row");
        if (batch.wanted && batch.stride < head_.rows()) throw std::invalid_argument("the rows of logits are too short");
        int next = 0;
        for (int i = 0; i < batch.spans; ++i, next += batch.span_count[i - 1]) check_span(batch, i, next);
        if (next != batch.rows) throw std::invalid_argument("the spans are not all rows of the batch");
    }

    void check_span(const Batch& batch, int i, int row) const {
        int start = batch.span_start[i], count = batch.span_count[i], table = batch.span_table[i];
        if (batch.span_row[i] != row || count < 1 || count > batch.rows - row)
            throw std::invalid_argument("the spans do not lie end to end");
        if (start < 0 || start > MOST_POSITIONS - count) throw std::invalid_argument("a position is out of range");
        for (int j = 0; j < count; ++j)
            if (batch.positions[row + j] != start + j) throw std::invalid_argument("positions are not those of the span");
        int blocks = (start + count - 1) / pool_.block_tokens + 1;
        if (table < 0 || blocks > batch.entries - table) throw std::invalid_argument("a block table is too short");
        for (int j = 0; j < blocks; ++j) require(batch.tables[table + j], pool_.blocks, "block");
    }

    static void require(int value, int limit, const char* what) {
        if (value < 0 || value >= limit)
            throw std::invalid_argument(std::string(what) + " " + std::to_string(value) + " is not below " + std::to_string(limit));
    }

    void reserve(int rows) {
        if (scratch_ && scratch_->rows >= rows) return;
        auto fresh = std::make_shared<Scratch>();
        size_t most = size_t(rows) + rows / 4, query = size_t(shape_.heads) * shape_.head_dim;
        fresh->rows = int(most);
        fresh->qkv_stride = layers_[0].qkv.rows(), fresh->gate_stride = layers_[0].gate_up.rows();
        int hidden = padded(shape_.hidden), inner = padded(shape_.inner);
        fresh->hidden = fresh->arena.take<float>(most * size_t(stride()));
        fresh->line = fresh->arena.take<float>(most * size_t(longest()));
        fresh->qkv = fresh->arena.take<float>(most * size_t(fresh->qkv_stride));
        fresh->attended = fresh->arena.take<float>(most * query);
        fresh->gate = fresh->arena.take<float>(most * size_t(fresh->gate_stride));
        fresh->turns = fresh->arena.take<float>(most * size_t(shape_.head_dim));
        fresh->narrow = Activations::make(fresh->arena, most, hidden);
        fresh->wide = Activations::make(fresh->arena, most, padded(int(query)));
        fresh->deep = Activations::make(fresh->arena, most, inner);
        scratch_ = std::move(fresh);
    }

    Plan plan_step(const Batch& batch) const {
        Plan plan{scratch_, batch, {}, std::vector<int>(size_t(batch.rows)), {}};
        for (int i = 0; i < batch.spans; ++i) {
            Span span{batch.span_row[i], batch.span_start[i], batch.span_count[i], batch.tables + batch.span_table[i]};
            for (int row = span.row; row < span.row + span.count; ++row) plan.span_of[size_t(row)] = i;
            for (int head = 0; head < shape_.kv_heads; ++head)
                for (int first = 0, all = span.count * group(); first < all; first += QUERIES)
                    plan.pieces.push_back({i, head, first, all - first < QUERIES ? all - first : QUERIES});
            plan.spans.push_back(span);
        }
        return plan;
    }

    // Work on single rows, a few at a time.
    template <typename Work> void each_row(Lane& lane, int rows, Work work) {
        lane.phase((rows + FEW - 1) / FEW, [&](int piece) {
            for (int row = piece * FEW; row < rows && row < (piece + 1) * FEW; ++row) work(row);
        });
    }

    int stride() const { return padded(shape_.hidden); }

    int longest() const { return padded(shape_.hidden > shape_.inner ? shape_.hidden : shape_.inner); }

    void program(Lane& lane, Scratch& s, const Plan& plan) {
        int rows = plan.batch.rows;
        each_row(lane, rows, [&](int row) { begin_row(s, plan, row); });
        for (int index = 0; index < shape_.layers; ++index) {
            const Layer& layer = layers_[size_t(index)];
            each_row(lane, rows, [&](int row) { normalized(s, row, s.hidden + size_t(row) * stride(), layer.input_norm); });
            multiply(lane, layer.qkv, s.narrow, rows, {s.qkv, size_t(s.qkv_stride), false});
            each_row(lane, rows, [&](int row) { rotate_and_store(s, plan, index, row); });
            attention(lane, s, plan, index);
            each_row(lane, rows, [&](int row) {
                int query = shape_.heads * shape_.head_dim;
                quantize_row(s.wide, row, s.attended + size_t(row) * query, query);
            });
            multiply(lane, layer.out, s.wide, rows, {s.hidden, size_t(stride()), true});
            each_row(lane, rows, [&](int row) { normalized(s, row, s.hidden + size_t(row) * stride(), layer.mlp_norm); });
            multiply(lane, layer.gate_up, s.narrow, rows, {s.gate, size_t(s.gate_stride), false});
            each_row(lane, rows, [&](int row) { gated(s, row); });
            multiply(lane, layer.down, s.deep, rows, {s.hidden, size_t(stride()), true});
        }
        int wanted = plan.batch.wanted;
        each_row(lane, wanted, [&](int row) {
            normalized(s, row, s.hidden + size_t(plan.batch.wanted_rows[row]) * stride(), norm_);
        });
        if (wanted) multiply(lane, head_, s.narrow, wanted, {plan.batch.logits, size_t(plan.batch.stride), false});
    }

    void normalized(Scratch& s, int row, const float* from, const float* weight) {
        float* line = s.line + size_t(row) * longest();
        normalize_row(line, from, weight, shape_.hidden, shape_.eps);
        quantize_row(s.narrow, row, line, shape_.hidden);
    }

    void gated(Scratch& s, int row) {
        float* line = s.line + size_t(row) * longest();
        const float* gate = s.gate + size_t(row) * s.gate_stride;
        gate_row(line, gate, gate + shape_.inner, shape_.inner);
        quantize_row(s.deep, row, line, shape_.inner);
    }

    // The token's embedding, and the sines of its position.
    void begin_row(Scratch& s, const Plan& plan, int row) {
        float* hidden = s.hidden + size_t(row) * stride();
        for (int i = 0; i < stride(); ++i) hidden[i] = 0;
        unpack_row(embedding_, plan.batch.tokens[row], hidden, shape_.hidden);
        float* turns = s.turns + size_t(row) * shape_.head_dim;
        for (int pair = 0; pair < shape_.head_dim / 2; ++pair) {
            float angle = float(plan.batch.positions[row]) * frequencies_[size_t(pair)];
            turns[pair] = std::cos(angle), turns[shape_.head_dim / 2 + pair] = std::sin(angle);
        }
    }

    void rotate_and_store(Scratch& s, const Plan& plan, int layer, int row) {
        int dim = shape_.head_dim, half = dim / 2, rotated = shape_.heads + shape_.kv_heads;
        float* qkv = s.qkv + size_t(row) * s.qkv_stride;
        const float *cosine = s.turns + size_t(row) * dim, *sine = cosine + half;
        for (int head = 0; head < rotated; ++head) {
            float *first = qkv + head * dim, *second = first + half;
            for (int i = 0; i < half; ++i) {
                float a = first[i], b = second[i];
                first[i] = a * cosine[i] - b * sine[i];
                second[i] = b * cosine[i] + a * sine[i];
            }
        }
        const Span& span = plan.spans[size_t(plan.span_of[size_t(row)])];
        int position = plan.batch.positions[row];
        for (int head = 0; head < shape_.kv_heads; ++head) {
            const float* key = qkv + (shape_.heads + head) * dim;
            store_token(pool_, layer, head, span.table, position, key, key + shape_.kv_heads * dim, position + 1 == span.stop());
        }
    }

    void attention(Lane& lane, Scratch& s, const Plan& plan, int layer) {
        int count = int(plan.pieces.size()), each = count > 64 * lane.threads() ? 8 : 1;
        lane.phase((count + each - 1) / each, [&](int number) {
            for (int i = number * each; i < count && i < (number + 1) * each; ++i) attend_piece(s, plan, layer, plan.pieces[size_t(i)]);
        });
    }

    void attend_piece(Scratch& s, const Plan& plan, int layer, const Piece& piece) {
        const Span& span = plan.spans[size_t(piece.span)];
        int dim = shape_.head_dim;
        Query queries[QUERIES];
        for (int i = 0; i < piece.count; ++i) {
            int token = (piece.first + i) / group(), head = piece.head * group() + (piece.first + i) % group();
            size_t row = size_t(span.row + token);
            queries[i] = {s.qkv + row * s.qkv_stride + head * dim, s.attended + (row * shape_.heads + head) * dim, span.start + token + 1};
        }
        attend(pool_, layer, piece.head, span.table, queries, piece.count);
    }

    std::shared_ptr<Scratch> scratch_;
    Team team_;  // last: its threads end before anything that they read
};
