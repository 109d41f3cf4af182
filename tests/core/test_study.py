"""A study's specification: sizes, digests, and which states end it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.study import (
    Budget,
    Knob,
    MeasurePlan,
    Origin,
    Space,
    StudySpec,
    StudyState,
    TrialOutcome,
    TrialState,
    Value,
)
from energyopt.core.workload import Session, Turn, Workload

WORKLOAD = Workload(
    name="w", seed=1, sessions=(Session(id="s", turns=(Turn(text="x", output_tokens=1),)),), concurrency=1
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KNOBS = st.builds(
    Knob, path=st.text(), values=st.lists(VALUES, min_size=1, max_size=4).map(tuple), ordinal=st.booleans()
)


def spec(*knobs: Knob) -> StudySpec:
    return StudySpec(
        name="s",
        baseline=Deployment(decode=PoolConfig(engine=EngineConfig(model="m"))),
        space=Space(knobs=knobs),
        workload=WORKLOAD,
        verify_workload=WORKLOAD,
        slos=("ttft:p90<500ms",),
        budget=Budget(trials=3),
    )


def test_the_size_of_a_space_is_the_product() -> None:
    knobs = (Knob(path="a", values=(1, 2, 3)), Knob(path="b", values=(None, True)))
    assert Space(knobs=knobs).size == 6
    assert Space(knobs=()).size == 1


@given(st.lists(KNOBS, max_size=3))
def test_specifications_round_trip_with_the_types_of_their_values(knobs: list[Knob]) -> None:
    made = spec(*knobs)
    again = StudySpec.model_validate_json(made.model_dump_json())
    assert again == made
    assert repr(again) == repr(made)  # 1, 1.0 and True are equal; their repr is not
    assert again.digest() == made.digest()


def test_another_space_has_another_digest() -> None:
    space = Space(knobs=(Knob(path="a", values=(1, 2)),))
    for other in (
        Space(knobs=(Knob(path="a", values=(2, 1)),)),
        Space(knobs=(Knob(path="b", values=(1, 2)),)),
        Space(knobs=(Knob(path="a", values=(1, 2), ordinal=False),)),
        Space(knobs=()),
    ):
        assert other.digest() != space.digest()


@pytest.mark.parametrize("values", [(), (math.inf,), (math.nan,), ([1],)])
def test_values_a_knob_cannot_take(values: tuple[Value, ...]) -> None:
    with pytest.raises(ValidationError):
        Knob(path="a", values=values)


def test_budgets_and_plans_have_bounds() -> None:
    for kind, field, value in (
        (Budget, "trials", 0),
        (Budget, "seconds", 0),
        (Budget, "verify_pairs", -1),
        (MeasurePlan, "warmup", -1),
        (MeasurePlan, "window", 0),
        (MeasurePlan, "timeout", 0),
    ):
        with pytest.raises(ValidationError):
            kind.model_validate({"trials": 1, field: value} if kind is Budget else {field: value})
    assert Budget(trials=1).seconds is None


def test_states_that_end_a_study() -> None:
    assert {state.value for state in StudyState if state.terminal} == {
        *("succeeded", "no_feasible", "failed", "cancelled")
    }


def test_origins_that_verify() -> None:
    assert [origin.value for origin in Origin if origin.verifies] == ["verify_winner", "verify_baseline"]


def test_words_that_are_stored_do_not_change() -> None:
    assert [state.value for state in TrialState] == ["queued", "running", "done", "cancelled"]
    assert [outcome.value for outcome in TrialOutcome] == [
        *("feasible", "infeasible", "oom", "launch_failed", "crashed", "timeout", "failed")
    ]
