"""What must hold after every fault: the promises of the design, read from outside as an operator would."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.load import Load, Tally
from tests.chaos.programs import Program, within

IDLE = ("energyopt_requests_running", "energyopt_requests_waiting", "energyopt_requests_loading")


def metrics(url: str, path: str = "/metrics") -> dict[str, float]:
    """Every sample, summed over its labels."""
    found: dict[str, float] = {}
    text = httpx.get(url + path, timeout=30).text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def nothing_is_wrong(tally: Tally) -> None:
    """No text that differs, no answer that hangs, no error without a sentence."""
    assert tally.wrong == [], tally.wrong[:3]


def it_answers_again(load: Load, program: Program, seconds: float = 60.0) -> Tally:
    """After a fault is over, right texts come and nothing else; what came meanwhile is returned."""
    meanwhile = load.fresh()
    nothing_is_wrong(meanwhile)
    for _ in within(seconds):
        if load.tally.same >= 12:
            break
    after = load.fresh()
    assert after.same >= 12, f"it does not answer: {after}, {program.said[-2000:]}"
    nothing_is_wrong(after)
    return meanwhile


def no_block_is_lost(url: str) -> None:
    """An engine without requests uses no block, and ``/health`` finds its books in order."""
    for _ in within(15.0):
        now = metrics(url)
        if not any(now[name] for name in IDLE) and now["energyopt_kv_cache_usage_ratio"] == 0:
            break
    assert not {name: now[name] for name in IDLE if now[name]}
    assert now["energyopt_kv_cache_usage_ratio"] == 0, "blocks are in use though no request is"
    assert httpx.get(f"{url}/health", timeout=30).status_code == 200


def energy_is_conserved(url: str, sensor: str, watts: float) -> dict[str, float]:
    """Of what the sensor has counted since the start, all is given to somebody but the last half minute.

    Time without a step is booked as idle half a minute later, since a step might still run; ``watts`` is the most
    that the devices can draw.
    """
    now = metrics(url)
    counted, given = now[sensor], now["energyopt_attributed_energy_joules_total"]
    assert 0 <= given <= counted * 1.001 + 1.0, f"{given} J were given away of {counted} J"
    assert counted - given <= watts * 40.0, f"only {given} J of {counted} J were given to anybody"
    return now
