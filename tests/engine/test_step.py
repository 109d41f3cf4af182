"""The step loop and the record of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from energyopt.core.errors import EngineError
from energyopt.core.records import FinishReason, RequestRecord
from energyopt.core.units import Seconds
from engine.request import Request, SamplingParams
from engine.step import request_record

if TYPE_CHECKING:
    from tests.engine.conftest import Rig


def test_without_requests_there_is_no_step(make_rig: type[Rig]) -> None:
    rig = make_rig()
    assert not rig.step()
    assert rig.records == []
    assert rig.runner.steps == 0


def test_each_step_is_one_record_of_the_runners_times_and_devices(make_rig: type[Rig]) -> None:
    rig = make_rig()
    rig.add([1, 2, 3], max_tokens=3)
    rig.drain()
    assert rig.scheduler.counters.steps == len(rig.records) == rig.runner.steps == 3
    assert rig.scheduler.counters.step_seconds == pytest.approx(0.03)
    assert all(record.devices == ("fake-0",) for record in rig.records)
    assert all(record.end - record.start == pytest.approx(0.01) for record in rig.records)
    assert sum(record.computed_tokens for record in rig.records) == 3 + 2


def test_the_record_of_a_request() -> None:
    request = Request("r", (1, 2, 3), SamplingParams(), Seconds(1.0), "s")
    with pytest.raises(EngineError, match="'r' has not ended"):
        request_record(request, Seconds(2.0))
    request.output, request.token_times = [7, 8], [Seconds(1.5), Seconds(1.75)]
    request.cached_tokens, request.cached_by_tier = 2, {"device": 2}
    request.finish_reason = FinishReason.ABORT
    assert request_record(request, Seconds(2.0)) == RequestRecord(
        request_id="r",
        arrival=Seconds(1.0),
        end=Seconds(2.0),
        prompt_tokens=3,
        cached_tokens=2,
        output_tokens=2,
        finish_reason=FinishReason.ABORT,
        token_times=(Seconds(1.5), Seconds(1.75)),
        session="s",
        cached_by_tier={"device": 2},
    )
