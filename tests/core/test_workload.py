"""A workload counts the work it asks for."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from energyopt.core.units import Seconds
from energyopt.core.workload import Session, Turn, Workload


def test_output_tokens_of_all_turns() -> None:
    sessions = tuple(
        Session(id=str(n), turns=(Turn(text="a", output_tokens=n), Turn(text="b", output_tokens=1))) for n in (2, 3)
    )
    assert Workload(name="w", seed=1, sessions=sessions, concurrency=2).output_tokens == 7


def test_nothing_to_do_is_no_workload() -> None:
    with pytest.raises(ValidationError):
        Workload(name="w", seed=1, sessions=(), concurrency=1)
    with pytest.raises(ValidationError):
        Session(id="s", turns=())
    with pytest.raises(ValidationError):
        Turn(text="a", output_tokens=0)
    with pytest.raises(ValidationError):
        Turn(text="a", output_tokens=1, think_time=Seconds(-1.0))
