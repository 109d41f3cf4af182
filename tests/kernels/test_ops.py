"""One suite for every implementation of the port between models and operators, against the plain one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.demand import Demand
from kernels.dispatch import (
    FUSED,
    REFERENCE,
    KernelUnavailableError,
    available,
    select_ops,
)
from kernels.ops import PLAIN, ExpertWeights, Ops, Style
from kernels.pages import Pages, Span, plan_pages, table_width
from kernels.sequences import sequences
from kernels.triton_ops import triton_ops

Draw = Callable[..., torch.Tensor]
CPU = torch.device("cpu")
TRITON = triton_ops()
EACH = pytest.mark.parametrize("ops", [FUSED, TRITON], ids=lambda ops: ops.name)
SINKS = torch.tensor([0.5, -1.0, 3.0, 0.0])
STYLES = {
    "plain": PLAIN,
    "scaled": Style(scale=0.3),
    "window": Style(window=7),
    "sinks": Style(sinks=SINKS),
    "window and sinks": Style(0.2, 5, SINKS),
}


def near(out: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=2e-5)


def mixed(block_tokens: int = 4) -> tuple[Pages, int]:
    """Decodes and chunks in turn, fresh ones and continued ones, blocks in no order; and how many blocks there are."""
    shape = [(9, 1), (0, 5), (3, 6), (20, 1), (0, 1), (11, 2)]
    spans, row, free = [], 0, [int(b) for b in torch.randperm(40, generator=torch.Generator().manual_seed(1))]
    for start, count in shape:
        width = -(-(start + count) // block_tokens)
        spans.append(Span(row, start, count, free[:width]))
        row, free = row + count, free[width:]
    return plan_pages(spans, block_tokens, CPU), 40


def angles(draw: Draw, rows: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    turn = draw(rows, 1, pairs)
    return torch.cat([turn.cos()] * 2, -1), torch.cat([-turn.sin(), turn.sin()], -1)


@EACH
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_attention_over_a_mixed_batch(ops: Ops, style: Style, draw: Draw) -> None:
    pages, blocks = mixed()
    pool, query = draw(blocks, 4, 2, 2, 16), draw(len(pages.slots), 4, 16)
    near(ops.attention(query, pool, pages, style), REFERENCE.attention(query, pool, pages, style))


@EACH
def test_attention_of_decodes_alone_and_of_one_fresh_prompt(ops: Ops, draw: Draw) -> None:
    for shape in ([(30, 1), (4, 1)], [(0, 9)]):
        rows = sum(count for _, count in shape)
        spans = [Span(i, *shape[i], range(i * 10, i * 10 + 10)) for i in range(len(shape))]
        pages, pool, query = plan_pages(spans, 4, CPU), draw(20, 4, 2, 1, 16), draw(rows, 4, 16)
        for style in (PLAIN, STYLES["window and sinks"]):
            near(ops.attention(query, pool, pages, style), REFERENCE.attention(query, pool, pages, style))


@EACH
def test_latent_attention(ops: Ops, draw: Draw) -> None:
    pages, blocks = mixed()
    pool, query = draw(blocks, 4, 1, 48), draw(len(pages.slots), 3, 48)
    near(
        ops.latent_attention(query, pool, pages, 32, 0.2),
        REFERENCE.latent_attention(query, pool, pages, 32, 0.2),
    )


@EACH
@pytest.mark.parametrize("pairs", [8, 4])
def test_turning_and_storing(ops: Ops, pairs: int, draw: Draw) -> None:
    pages, blocks = mixed()
    rows, twin = len(pages.slots), REFERENCE
    joint = draw(rows, 8, 16)
    query, key, value = joint[:, :4], joint[:, 4:6], joint[:, 6:]
    cos, sin = angles(draw, rows, pairs)
    pool = draw(blocks, 4, 2, 2, 16)
    expected_pool = pool.clone()
    out = ops.rope_store(query, key, value, cos, sin, pool, pages)
    near(out, twin.rope_store(query, key, value, cos, sin, expected_pool, pages))
    near(pool, expected_pool)
    if pairs == 8:
        near(ops.rope(query, cos, sin), twin.rope(query, cos, sin))


@EACH
def test_turning_and_storing_of_latent_keys(ops: Ops, draw: Draw) -> None:
    pages, blocks = mixed()
    rows = len(pages.slots)
    query, key, (cos, sin) = draw(rows, 3, 48), draw(rows, 1, 48), angles(draw, rows, 8)
    pool = draw(blocks, 4, 1, 48)
    expected_pool = pool.clone()
    out = ops.rope_store(query, key, None, cos, sin, pool, pages, 32)
    near(out, REFERENCE.rope_store(query, key, None, cos, sin, expected_pool, pages, 32))
    near(pool, expected_pool)


@EACH
def test_storing_rows_of_any_shape(ops: Ops, draw: Draw) -> None:
    pages, blocks = mixed()
    pool, kv = draw(blocks, 4, 2, 3, 8), draw(len(pages.slots), 2, 3, 8)
    expected = pool.clone()
    ops.store_kv(pool, kv, pages)
    REFERENCE.store_kv(expected, kv, pages)
    assert torch.equal(pool, expected)


@EACH
def test_norms_of_a_sum(ops: Ops, draw: Draw) -> None:
    x, residual, weight = draw(5, 48), draw(5, 48), draw(48)
    expected, expected_total = REFERENCE.add_rms_norm(x, residual, weight, 1e-5)
    out, total = ops.add_rms_norm(x, residual.clone(), weight, 1e-5)
    near(out, expected)
    near(total, expected_total)
    near(ops.rms_norm(x, weight, 1e-5), REFERENCE.rms_norm(x, weight, 1e-5))
    near(ops.swiglu(x), REFERENCE.swiglu(x))


@EACH
@pytest.mark.parametrize("biased", [False, True])
def test_experts(ops: Ops, biased: bool, draw: Draw) -> None:
    up, down = draw(6, 32, 2 * 24).transpose(1, 2), draw(6, 32, 24)  # as some checkpoints have them
    biases = (draw(6, 48), draw(6, 32)) if biased else (None, None)
    x = draw(7, 32)
    gates, ids = ops.route(draw(7, 6), 3)
    out = ops.make_experts(ExpertWeights(up, down, ops.swiglu, *biases), torch.float32, CPU)(x, gates, ids)
    plain = ExpertWeights(up, down, REFERENCE.swiglu, *biases)
    near(out, REFERENCE.make_experts(plain, torch.float32, CPU)(x, gates, ids))


def test_what_experts_say_is_added_up_in_float32(draw: Draw) -> None:
    """Eight results of one size: each sum in bfloat16 would lose its last bits anew."""
    up, down, x = draw(8, 8, 16), draw(8, 16, 4), draw(3, 16)
    ids = torch.arange(8).int().expand(3, 8)
    weights = ExpertWeights(up.bfloat16(), down.bfloat16(), REFERENCE.swiglu)
    exact = ExpertWeights(up.bfloat16().float(), down.bfloat16().float(), REFERENCE.swiglu)
    gates = torch.full((3, 8), 0.125)
    out = REFERENCE.make_experts(weights, torch.bfloat16, CPU)(x.bfloat16(), gates, ids)
    expected = REFERENCE.make_experts(exact, torch.float32, CPU)(x.bfloat16().float(), gates, ids)
    assert out.dtype == torch.bfloat16
    assert ((out.float() - expected).norm() / expected.norm()) < 5e-3


@EACH
@pytest.mark.parametrize(("rows", "block"), [([1, 1], 0), ([1, 18], 16), ([3, 2], 24)])
def test_the_delta_rule(ops: Ops, rows: list[int], block: int, draw: Draw) -> None:
    count = sum(rows)
    q, k = draw(count, 1, 16), torch.nn.functional.normalize(draw(count, 1, 16), dim=-1)
    v = draw(16, 2, count).permute(2, 1, 0) if block else draw(count, 2, 16)  # columns apart where chunks run
    decay, beta, states = -draw(count, 2).abs(), draw(count, 2).sigmoid(), draw(4, 2, 16, 16)
    batch, expected_states = sequences(rows, [2, 0], [5, 0], block), states.clone()
    out, marks = ops.delta(q, k, v, decay, beta, states, batch, 0.25)
    expected, expected_marks = REFERENCE.delta(q, k, v, decay, beta, expected_states, batch, 0.25)
    near(out, expected)
    near(states, expected_states)
    near(marks, expected_marks)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 2, 9])), min_size=1, max_size=6),
    window=st.integers(0, 50),
    sunk=st.booleans(),
)
def test_torch_attention_of_any_batch(sizes: list[tuple[int, int]], window: int, sunk: bool) -> None:
    generator = torch.Generator().manual_seed(len(sizes))
    spans, row = [], 0
    for index, (start, count) in enumerate(sizes):
        spans.append(Span(row, start, count, range(index * 20, index * 20 + 20)))
        row += count
    pages = plan_pages(spans, 3, CPU)
    pool = torch.randn(120, 3, 2, 2, 8, generator=generator)
    query, style = torch.randn(row, 4, 8, generator=generator), Style(None, window, SINKS if sunk else None)
    near(FUSED.attention(query, pool, pages, style), REFERENCE.attention(query, pool, pages, style))


@given(blocks=st.integers(1, 1 << 20))
def test_tables_are_wide_enough_and_of_few_widths(blocks: int) -> None:
    width = table_width(blocks)
    assert blocks <= width < max(17, 2 * blocks)
    assert width & (width - 1) == 0


def test_selection_is_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select_ops("auto") is FUSED
    assert select_ops("torch") is FUSED
    assert select_ops("reference") is REFERENCE
    assert select_ops("triton").name == "triton"
    with pytest.raises(KernelUnavailableError, match="'other' is unknown; here can run: auto, triton, torch, refer"):
        select_ops("other")
    assert available() == {"triton": None, "torch": None, "reference": None}
    monkeypatch.setattr("triton.knobs.runtime.interpret", False)
    with pytest.raises(KernelUnavailableError, match=r"'triton' cannot run on cpu: .*interpreter.*: auto, torch, ref"):
        select_ops("triton")
    assert select_ops("auto") is FUSED
    with monkeypatch.context() as older:
        older.setattr("triton.__version__", "3.4.1+rocm6")
        assert available()["triton"] == "triton 3.4.1+rocm6 is too old: it must be 3.5 or newer"
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    uneven = Demand(torch.float16, 10, 4, 64)
    with pytest.raises(KernelUnavailableError, match=r"cannot run on cpu: 10 query heads .*: auto, torch, reference\."):
        select_ops("triton", CPU, demand=uneven)
    assert available(CPU, uneven)["torch"] is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "not installed" in str(available()["triton"])
    assert select_ops("auto", torch.device("cuda")) is FUSED
