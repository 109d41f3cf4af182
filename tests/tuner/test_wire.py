"""The lines between a trial's process and its parent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from energyopt.core.errors import (
    ConfigError,
    CrashError,
    EngineDeadError,
    EngineError,
    LaunchError,
    ModelFormatError,
    OutOfMemoryError,
    SensorUnavailableError,
    TrialError,
    TrialTimeoutError,
)
from energyopt.core.results import LatencySummary, RunResult
from energyopt.core.units import Seconds, Tokens
from tuner.wire import Failure, Line, Stage


def dead_of(cause: BaseException) -> EngineDeadError:
    error = EngineDeadError("The engine died.")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "back"),
    [
        (OutOfMemoryError("x"), "oom", OutOfMemoryError),
        (MemoryError(), "oom", OutOfMemoryError),
        (dead_of(OutOfMemoryError("x")), "oom", OutOfMemoryError),
        (dead_of(EngineError("x")), "crashed", CrashError),
        (EngineDeadError("x"), "crashed", CrashError),
        (CrashError("x"), "crashed", CrashError),
        (LaunchError("x"), "launch_failed", LaunchError),
        (ConfigError("x"), "launch_failed", LaunchError),
        (ModelFormatError("x"), "launch_failed", LaunchError),
        (TrialTimeoutError("x"), "timeout", TrialTimeoutError),
        (SensorUnavailableError("x"), "failed", TrialError),
        (EngineError("x"), "failed", TrialError),
    ],
)
def test_an_error_says_what_became_of_the_configuration(
    error: BaseException, kind: str, back: type[TrialError]
) -> None:
    failure = Failure.of(error)
    assert failure is not None
    assert failure.kind == kind
    line = Line.parse(Line(error=failure).encode())
    assert line is not None
    assert line.error is not None
    again = line.error.error()
    assert type(again) is back
    assert str(again) == (str(error) or "MemoryError")


def test_a_fault_of_the_program_says_nothing_about_the_configuration() -> None:
    assert Failure.of(KeyError("x")) is None


def test_a_long_message_is_cut() -> None:
    failure = Failure.of(LaunchError("x" * 10**6))
    assert failure is not None
    assert len(failure.message) == 10_000


def test_a_result_arrives_as_it_was_sent() -> None:
    s = Seconds
    endless = LatencySummary(samples=1, mean=s(math.inf), p50=s(0.1), p90=s(1), p95=s(1), p99=s(math.inf))
    result = RunResult(
        window=s(1.5),
        requests=1,
        failed_requests=1,
        prompt_tokens=Tokens(3),
        cached_tokens=Tokens(1),
        output_tokens=Tokens(2),
        latencies={"e2e": endless},
        power_reasons=("no_meter: none",),
    )
    encoded = Line(result=result).encode()
    assert encoded.count(b"\n") == 1
    line = Line.parse(encoded)
    assert line is not None
    assert line.result == result


def test_a_line_says_one_thing() -> None:
    stage, failure = Stage(stage="warming", fraction=0.5), Failure(kind="oom", message="x")
    for wrong in ({}, {"progress": stage, "error": failure}):
        with pytest.raises(ValidationError, match="exactly one"):
            Line.model_validate(wrong)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode)))
def test_foreign_bytes_are_not_ours(line: bytes) -> None:
    assert Line.parse(line) is None


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"3", b'{"result": {}}', b'{"progress": {"stage": "x", "fraction": 2}}', b'{"error": null}'],
)
def test_lines_that_look_like_ours_are_not(line: bytes) -> None:
    assert Line.parse(line) is None
