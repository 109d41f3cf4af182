"""Padding and choice of graphs, on a graph that is a recording: it runs again on whatever its tensors hold now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.graphs import ROWS, DecodeGraphs, GraphShape, Limits, Replay, StaticInputs
from engine.inputs import StepInputs
from kernels.pages import Pages, Span

CPU = torch.device("cpu")
LIMITS = Limits(rows=40, blocks=50, block_tokens=4)


class Recorder:
    """Satisfies ``Capturer``: keeps the step and repeats it, as a graph would, without looking at new arguments."""

    def __init__(self, fails: bool = False) -> None:
        self.captures = 0
        self._fails = fails

    def capture(self, step: Callable[[], torch.Tensor]) -> Replay:
        self.captures += 1
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        step()
        return step


def decodes(*starts: int, tokens: list[int] | None = None) -> StepInputs:
    """One-row spans at these positions; request ``i`` owns blocks from ``100 i`` on."""
    spans = [Span(i, start, 1, range(100 * i, 100 * i + start // 4 + 1)) for i, start in enumerate(starts)]
    return StepInputs(tokens or list(range(7, 7 + len(starts))), spans, list(range(len(starts))))


def told(tokens: torch.Tensor, positions: torch.Tensor, pages: Pages) -> torch.Tensor:
    """A model whose logits are its inputs: token, position, slot, length and the sum of the table's row."""
    rows = pages.decode_rows
    assert rows is not None
    return torch.stack((tokens, positions, pages.slots, rows.lengths, rows.table.sum(1)), dim=1)


def expected(inputs: StepInputs) -> list[list[int]]:
    return [
        [token, span.start, span.blocks[span.start // 4] * 4 + span.start % 4, span.stop, sum(span.blocks)]
        for token, span in zip(inputs.tokens, inputs.spans, strict=True)
    ]


@given(steps=st.lists(st.lists(st.integers(0, 190), min_size=1, max_size=40), min_size=1, max_size=6))
def test_every_step_sees_its_own_inputs_whatever_came_before(steps: list[list[int]]) -> None:
    recorder = Recorder()
    graphs = DecodeGraphs(told, LIMITS, CPU, recorder)
    for starts in steps:
        inputs = decodes(*starts)
        logits = graphs.logits(inputs)
        assert logits is not None
        assert logits.tolist() == expected(inputs)
    assert recorder.captures == len(graphs.captured) == len({LIMITS.shape_of(decodes(*starts)) for starts in steps})


def test_padding_rows_have_no_place_and_no_length() -> None:
    static, shape = StaticInputs(LIMITS, CPU), GraphShape(8, 16)
    static.fill(decodes(*[60] * 8), shape)
    static.fill(decodes(3, 9, 12), shape)
    tokens, positions, pages = static.views(shape)
    rows = pages.decode_rows
    assert rows is not None
    assert tokens[3:].tolist() == positions[3:].tolist() == rows.lengths[3:].tolist() == [0] * 5
    assert pages.slots[3:].tolist() == [-1] * 5
    assert not rows.table[3:].any()
    assert pages.chunk_rows == ()
    assert rows.table.is_contiguous()


@given(rows=st.integers(1, 256), length=st.integers(1, 5000))
def test_shapes_are_large_enough_few_and_wasteful_within_bounds(rows: int, length: int) -> None:
    limits = Limits(256, 1250, 4)
    shape = limits.shape_of(decodes(*[length - 1] * rows))
    assert shape is not None
    assert shape.rows in ROWS
    assert rows <= shape.rows <= max(rows * 1.6, rows + 3)
    assert -(-length // 4) <= shape.width < max(17, 2 * -(-length // 4) + 1)


@pytest.mark.parametrize(
    "inputs",
    [
        StepInputs([], [], []),
        StepInputs([1, 2], [Span(0, 0, 2, [0])], [1]),
        StepInputs([1, 2, 3], [Span(0, 4, 1, [0, 1]), Span(1, 0, 2, [2])], [0, 2]),
        StepInputs([1], [Span(0, 0, 1, [0])], []),
        decodes(*[1] * 41),
        decodes(4 * 64),
    ],
)
def test_what_has_no_graph_is_left_to_the_plain_loop(inputs: StepInputs) -> None:
    recorder = Recorder()
    assert DecodeGraphs(told, LIMITS, CPU, recorder).logits(inputs) is None
    assert recorder.captures == 0


def test_a_failed_capture_ends_all_of_them_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(fails=True)
    graphs = DecodeGraphs(told, LIMITS, CPU, recorder)
    assert graphs.logits(decodes(1)) is None
    assert graphs.logits(decodes(1, 2)) is None
    assert recorder.captures == 1
    assert caplog.text.count("not permitted when stream is capturing") == 1


def test_views_start_where_vector_loads_may() -> None:
    tokens, positions, pages = StaticInputs(Limits(7, 20, 4), CPU).views(GraphShape(4, 16))
    assert pages.decode_rows is not None
    for view in (tokens, positions, pages.slots, pages.decode_rows.lengths, pages.decode_rows.table):
        assert (view.data_ptr() - tokens.data_ptr()) % 64 == 0
