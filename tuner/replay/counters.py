"""The server's own counts of prompt tokens by source, as its metrics page says them at both edges of a window."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .page import MAX_PAGE_BYTES

_BY_SOURCE = ("vllm:prompt_tokens_by_source_total", "energyopt_prompt_tokens_by_source_total")
_PLAIN = {
    "vllm:prefix_cache_queries_total": "queried",
    "vllm:prefix_cache_hits_total": "local_cache_hit",
    "vllm:external_prefix_cache_hits_total": "external_kv_transfer",
}


def parse_sources(text: str) -> dict[str, float]:
    """Prompt tokens by source. The page's table by source is taken if it has one, else the hit counters."""
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
    return next((table for table in tables.values() if table), plain)


class SourceCounters:
    """Reads the page at ``url`` when told to; a page that is absent gives None."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._snaps: list[dict[str, float] | None] = []

    def snap(self) -> None:
        """Read the page now. Blocks; never raises."""
        self._snaps.append(self._read())

    def risen(self) -> Mapping[str, float] | None:
        """What rose between the first and the last reading; None if either failed or a counter began anew."""
        if len(self._snaps) < 2:
            return None
        first, last = self._snaps[0], self._snaps[-1]
        if first is None or not last or any(last.get(name, 0.0) < value for name, value in first.items()):
            return None
        return {name: value - first.get(name, 0.0) for name, value in last.items()}

    def _read(self) -> dict[str, float] | None:
        try:
            with httpx.Client(timeout=5.0) as client:
                response = client.get(self._url)
            if response.status_code == 200 and len(response.content) <= MAX_PAGE_BYTES:
                return parse_sources(response.text)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None  # no page, or none of ours, which ``risen`` says
        return None
