"""From the counters of guessed tokens to series; an engine that guesses nothing has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family

from . import draft_catalog as catalog
from .families import family


class DraftView(Protocol):
    """What became of guesses since start, as the engine spells it."""

    @property
    def drafts(self) -> int: ...
    @property
    def drafted(self) -> int: ...
    @property
    def accepted(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def by_place(self) -> Mapping[int, int]: ...


def draft_families(model: str, engine: str, counts: DraftView) -> Iterator[Family]:
    """Ours and vLLM's."""
    vllm = (model, engine)
    outcomes = {"accepted": counts.accepted, "rejected": counts.drafted - counts.accepted}
    yield family(catalog.DEPTH, {(model,): counts.depth})
    yield family(catalog.GUESSED, {(model, outcome): count for outcome, count in outcomes.items()})
    yield family(catalog.VLLM_DRAFTS, {vllm: counts.drafts})
    yield family(catalog.VLLM_DRAFTED, {vllm: counts.drafted})
    yield family(catalog.VLLM_ACCEPTED, {vllm: counts.accepted})
    places = sorted(counts.by_place.items())
    yield family(catalog.VLLM_BY_PLACE, {(*vllm, str(place)): count for place, count in places})
