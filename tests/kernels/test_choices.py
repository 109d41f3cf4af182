from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernels.choices import NOTHING, Choices, Plan, Problem, Shape

SHAPE = Shape(32, 8, 128, "bfloat16")
OTHER = Shape(32, 8, 64, "bfloat16")


def plan(number: int) -> Plan:
    return Plan(16, 64, 4, number, 1)


def test_the_measured_bucket_is_taken_whole() -> None:
    choices = Choices({Problem("op", SHAPE, 8, 1024): plan(1), Problem("op", SHAPE, 64, 1024): plan(2)})
    assert choices.find("op", SHAPE, 5, 700) == plan(1)
    assert choices.find("op", SHAPE, 8, 1024) == plan(1)
    assert choices.find("op", SHAPE, 33, 1000) == plan(2)
    assert len(choices) == 2


def test_what_was_not_measured_takes_the_nearest_of_its_shape_or_nothing() -> None:
    choices = Choices({Problem("op", SHAPE, 1, 1024): plan(1), Problem("op", SHAPE, 64, 8192): plan(2)})
    assert choices.find("op", SHAPE, 2, 2048) == plan(1)
    assert choices.find("op", SHAPE, 512, 65536) == plan(2)
    assert choices.find("op", OTHER, 1, 1024) is None
    assert choices.find("another", SHAPE, 1, 1024) is None
    assert NOTHING.find("op", SHAPE, 1, 1) is None


@given(rows=st.integers(1, 5000), length=st.integers(1, 1 << 20))
def test_one_answer_for_a_bucket_and_the_same_each_time(rows: int, length: int) -> None:
    choices = Choices({Problem("op", SHAPE, 1 << i, 1 << j): plan(10 * i + j) for i in range(0, 9, 3) for j in (8, 13)})
    again = Choices({Problem("op", SHAPE, 1 << i, 1 << j): plan(10 * i + j) for i in range(6, -1, -3) for j in (13, 8)})
    found = choices.find("op", SHAPE, rows, length)
    assert found == choices.find("op", SHAPE, rows, length)
    assert found == again.find("op", SHAPE, rows, length)
    assert found == choices.find("op", SHAPE, 1 << (rows - 1).bit_length(), 1 << (length - 1).bit_length())
