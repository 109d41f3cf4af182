"""Points of energy as JSON straight from rows: what a month of minutes is answered by, without an object for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from .energy_rows import MICROSECONDS, NANOJOULES, SOURCE_BITS


def points_json(
    rows: Iterable[Sequence[Any]], sensors: Mapping[int, tuple[str, str, str]], resolution: int
) -> list[str]:
    """Each row of ``EnergyHistory`` as the JSON object that its EnergyPoint is.

    Numbers that are not finite are texts, as everywhere in the service's answers.
    """
    heads = {number: _head(*names) for number, names in sensors.items()}
    sources = {bits: _sources(bits) for bits in range(1 << len(SOURCE_BITS))}
    middle = f'Z","resolution":{resolution},"joules":'
    found: list[str] = []
    before, moment = -1, ""
    for sensor, begins, nanojoules, covered_us, low, high, doubt, edge, bits in rows:
        if begins != before:  # rows come in order of time: the sensors of one moment follow each other
            before, moment = begins, datetime.fromtimestamp(begins, UTC).isoformat()[:19]
        joules, covered, error = nanojoules / NANOJOULES, covered_us / MICROSECONDS, doubt + edge
        watts: object = joules / covered if covered > 0 else "null"
        check = error + low + high
        if check - check != 0.0:
            error, low, high = (to_json(one, inf_nan_mode="strings").decode() for one in (error, low, high))
        found.append(
            f'{heads[sensor]}{moment}{middle}{joules},"error":{error},"covered":{covered},"watts":{watts},'
            f'"watts_min":{low},"watts_max":{high},"sources":{sources[bits]}}}'
        )
    return found


def _sources(bits: int) -> str:
    return to_json([source for source, bit in SOURCE_BITS.items() if bits & bit]).decode()


def _head(host: str, device: str, scope: str) -> str:
    names = to_json({"host": host, "device": device, "scope": scope}).decode()
    return f'{names[:-1]},"at":"'
