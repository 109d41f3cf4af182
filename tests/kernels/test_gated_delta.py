from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

pytest.importorskip("triton", reason="the kernels need triton")

from kernels.gated_delta import recurrent_gated_delta
from kernels.gated_delta_chunk import chunk_gated_delta
from kernels.sequences import Sequences, sequences
from kernels.twins import gated_delta as plain

Draw = Callable[..., torch.Tensor]
Near = Callable[[torch.Tensor, torch.Tensor], None]
Form = Callable[..., tuple[torch.Tensor, torch.Tensor]]
RECURRENT: Form = recurrent_gated_delta
CHUNK: Form = chunk_gated_delta
TWIN: Form = plain.gated_delta
FORMS = pytest.mark.parametrize("form", [RECURRENT, CHUNK], ids=["recurrent", "chunk"])
VECTOR = pytest.mark.parametrize("vector", [False, True], ids=["gated", "kda"])


def arguments(
    draw: Draw, dtype: torch.dtype, rows: int, heads: tuple[int, int], widths: tuple[int, int], vector: bool
) -> list[Any]:  # fmt: skip
    """q, k, v, decay, beta, states: keys of length 1 and decays from none to nearly all, as models have them."""
    q, k = draw(rows, heads[0], widths[0], dtype=dtype), functional.normalize(draw(rows, heads[0], widths[0]), dim=-1)
    decay = -3 * functional.softplus(draw(rows, heads[1], *([widths[0]] if vector else [])))
    states = draw(4, heads[1], *widths)
    return [
        q, k.to(dtype), draw(rows, heads[1], widths[1], dtype=dtype), decay,
        draw(rows, heads[1]).sigmoid().to(dtype), states,
    ]  # fmt: skip


def assert_like_the_twin(
    form: Form, inputs: list[Any], batch: Sequences, near: Near
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    expected_states, states = inputs[5].clone(), inputs[5].clone()
    expected, expected_marks = TWIN(*inputs[:5], expected_states, batch, 0.1)
    out, marks = form(*inputs[:5], states, batch, 0.1)
    near(out, expected)
    assert marks.shape == expected_marks.shape
    if len(marks):
        near(marks, expected_marks)
    near(states, expected_states)
    return marks, states


@FORMS
@VECTOR
@pytest.mark.parametrize(
    ("heads", "widths", "dtype"),
    [
        ((1, 2), (64, 40), torch.float32),
        ((1, 2), (64, 40), torch.float16),
        ((1, 1), (80, 96), torch.float32),
    ],
)
def test_equals_the_twin(
    heads: tuple[int, int], widths: tuple[int, int], dtype: torch.dtype, vector: bool, form: Form,
    draw: Draw, assert_near: Near,
) -> None:  # fmt: skip
    inputs = arguments(draw, dtype, 24, heads, widths, vector)
    batch = sequences([1, 18, 5], [2, 0, 3], [0, 30, 31], 16)
    marks, _ = assert_like_the_twin(form, inputs, batch, assert_near)
    assert len(marks) == 0 + 2 + 1


@FORMS
@VECTOR
def test_repeated_keys_and_no_decay_keep_their_digits(vector: bool, form: Form, draw: Draw, assert_near: Near) -> None:
    inputs = arguments(draw, torch.float32, 18, (1, 1), (64, 32), vector)
    inputs[1][:] = inputs[1][0].clone()
    inputs[3][:] = 0.0
    inputs[4][:] = 1.0
    assert_like_the_twin(form, inputs, sequences([18], [0], [0]), assert_near)


@FORMS
@VECTOR
def test_decay_to_nothing_does_not_overflow(vector: bool, form: Form, draw: Draw, assert_near: Near) -> None:
    inputs = arguments(draw, torch.float32, 18, (1, 1), (64, 32), vector)
    inputs[3][::3] = -60.0
    assert_like_the_twin(form, inputs, sequences([18], [0], [0]), assert_near)


@FORMS
def test_a_boundary_state_continues_as_if_nothing_had_happened(form: Form, draw: Draw, assert_near: Near) -> None:
    inputs = arguments(draw, torch.float32, 36, (1, 1), (64, 32), False)
    marks, states = assert_like_the_twin(form, inputs, sequences([36], [1], [0], 16), assert_near)
    resumed = torch.zeros_like(inputs[5])
    resumed[2] = marks[1]
    out = form(*(x[32:] for x in inputs[:5]), resumed, sequences([4], [2], [32], 16), 0.1)[0]
    whole = form(*inputs[:5], inputs[5].clone(), sequences([36], [1], [0], 16), 0.1)[0]
    assert_near(out, whole[32:])
    assert_near(resumed[2], states[1])


def test_other_slots_stay_untouched(draw: Draw) -> None:
    inputs = arguments(draw, torch.float32, 3, (1, 1), (64, 64), False)
    states = inputs[5].clone()
    RECURRENT(*inputs[:5], states, sequences([3], [2], [0]), 0.1)
    assert torch.equal(states[[0, 1, 3]], inputs[5][[0, 1, 3]])


def test_refuses_what_does_not_fit(draw: Draw) -> None:
    inputs = arguments(draw, torch.float32, 3, (1, 1), (64, 64), False)
    with pytest.raises(ValueError, match="Blocks of 24 tokens"):
        CHUNK(*inputs, sequences([3], [0], [0], 24), 0.1)
    with pytest.raises(ValueError, match=r"States \(4, 1, 64, 63\) do not fit"):
        RECURRENT(*inputs[:5], inputs[5][..., :63], sequences([3], [0], [0]), 0.1)
