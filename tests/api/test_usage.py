"""Joules travel with every reply that was measured, and are absent from every other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api.fake import FakeEnergy, FakeLedger
from energyopt.core.errors import SensorError

COUNTED = FakeEnergy(2.5, 0.25, "counter")
ESTIMATED = FakeEnergy(1.5, 0.5, "estimated")


async def usage_of(in_process: Any, ledger: FakeLedger | None, **body: Any) -> tuple[dict[str, Any], str | None]:
    async with in_process(energy=ledger) as http:
        reply = await http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 4, **body})
    assert reply.status_code == 200
    if body.get("stream"):
        chunk = json.loads(reply.text.split("\n\n")[-3].removeprefix("data: "))
        return chunk["usage"], None
    if ledger is not None:
        assert ledger.seen[0].startswith(reply.json()["id"])
    return reply.json()["usage"], reply.headers.get("x-energy-joules")


STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("body", [{}, STREAMED])
async def test_a_measured_request(in_process: Any, body: dict[str, Any]) -> None:
    usage, header = await usage_of(in_process, FakeLedger(COUNTED), **body)
    assert (usage["energy_joules"], usage["energy_error_joules"], usage["energy_source"]) == (2.5, 0.25, "counter")
    assert header == (None if body else "2.5")


async def test_headers_say_source_and_error_too(in_process: Any) -> None:
    async with in_process(energy=FakeLedger(ESTIMATED)) as http:
        reply = await http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 1})
    sent = {name: value for name, value in reply.headers.items() if name.startswith("x-energy")}
    assert sent == {"x-energy-joules": "1.5", "x-energy-error-joules": "0.5", "x-energy-source": "estimated"}


@pytest.mark.parametrize("body", [{}, STREAMED])
async def test_several_requests_are_summed_and_their_sources_named(in_process: Any, body: dict[str, Any]) -> None:
    ledger = FakeLedger(ESTIMATED, COUNTED, FakeEnergy(1.0, 0.25, "integrated+estimated"))
    usage, _ = await usage_of(in_process, ledger, n=3, **body)
    assert usage["energy_joules"] == 5.0
    assert usage["energy_error_joules"] == 1.0
    assert usage["energy_source"] == "counter+integrated+estimated"
    assert len(set(ledger.seen)) == 3


@pytest.mark.parametrize("body", [{}, STREAMED])
@pytest.mark.parametrize(
    "ledger",
    [
        None,
        FakeLedger(None),
        FakeLedger(SensorError("the sensor is gone")),
        FakeLedger(COUNTED, None),
        FakeLedger(FakeEnergy(float("nan"), 0.1, "counter"), COUNTED),
        FakeLedger(FakeEnergy(1.0, float("inf"), "counter"), COUNTED),
    ],
    ids=["no meter", "unmeasured", "sensor failed", "one of two unmeasured", "nan", "boundless error"],
)
async def test_what_was_not_measured_whole_is_absent(
    in_process: Any, ledger: FakeLedger | None, body: dict[str, Any]
) -> None:
    usage, header = await usage_of(in_process, ledger, n=2, **body)
    assert not [name for name in usage if name.startswith("energy")]
    assert header is None
    assert usage["completion_tokens"] == 8


async def test_cached_tokens_are_told(in_process: Any) -> None:
    prompts = ["x" * 40, "y" * 40]
    async with in_process() as http:
        cold = await http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 1})
        warm = await http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 1, "n": 2})
    assert cold.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert warm.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 64}
    assert warm.json()["usage"]["prompt_tokens"] == 80
