"""The server's own counts, as its metrics page says them at both edges of a window: prompt tokens by source, joules."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .page import MAX_PAGE_BYTES
from .pools import Account

_BY_SOURCE = ("vllm:prompt_tokens_by_source_total", "energyopt_prompt_tokens_by_source_total")
_PLAIN = {
    "vllm:prefix_cache_queries_total": "queried",
    "vllm:prefix_cache_hits_total": "local_cache_hit",
    "vllm:external_prefix_cache_hits_total": "external_kv_transfer",
}


_ACCOUNT = "energyopt_attributed_energy_joules_total"
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Counts:
    """One reading of the page: prompt tokens by source, and attributed joules by the engine's role and phase."""

    sources: dict[str, float] = field(default_factory=dict)
    joules: dict[tuple[str, str], float] = field(default_factory=dict)


def parse_counts(text: str) -> Counts:
    """Both tables. Of sources the page's own table is taken if it has one, else the hit counters."""
    joules: dict[tuple[str, str], float] = {}
    tables: dict[str, dict[str, float]] = {name: {} for name in _BY_SOURCE}
    plain: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in tables:
                table, source = tables[sample.name], sample.labels.get("source", "")
                table[source] = table.get(source, 0.0) + float(sample.value)
            elif sample.name in _PLAIN:
                name = _PLAIN[sample.name]
                plain[name] = plain.get(name, 0.0) + float(sample.value)
            elif sample.name == _ACCOUNT:
                key = sample.labels.get("role", ""), sample.labels.get("phase", "")
                joules[key] = joules.get(key, 0.0) + float(sample.value)
    return Counts(next((table for table in tables.values() if table), plain), joules)


class ServerCounters:
    """Reads the page at ``url`` when told to; a page that is absent gives None."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._snaps: list[Counts | None] = []

    def snap(self) -> None:
        """Read the page now. Blocks; never raises."""
        self._snaps.append(self._read())

    @property
    def sources(self) -> Mapping[str, float] | None:
        """Prompt tokens by source between the first and the last reading; None where they are not known."""
        edges = self._edges()
        return None if edges is None else _risen(edges[0].sources, edges[1].sources)

    @property
    def joules(self) -> Account | None:
        """Joules by role and phase between the first and the last reading; None where they are not known.

        The server accounts for a moment once its sensors have said what it cost, so edges are late by that much.
        """
        edges = self._edges()
        return None if edges is None else _risen(edges[0].joules, edges[1].joules)

    def _edges(self) -> tuple[Counts, Counts] | None:
        if len(self._snaps) < 2 or self._snaps[0] is None or self._snaps[-1] is None:
            return None
        return self._snaps[0], self._snaps[-1]

    def _read(self) -> Counts | None:
        try:
            with httpx.Client(timeout=5.0) as client:
                response = client.get(self._url)
            if response.status_code == 200 and len(response.content) <= MAX_PAGE_BYTES:
                return parse_counts(response.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None  # no page, or none of ours, which the figures say
        return None


def _risen(first: Mapping[Key, float], last: Mapping[Key, float]) -> dict[Key, float] | None:
    """None if there is nothing, or if a counter began anew."""
    if not last or any(last.get(name, 0.0) < value for name, value in first.items()):
        return None
    return {name: value - first.get(name, 0.0) for name, value in last.items()}
