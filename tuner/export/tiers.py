"""The KV tiers of a configuration as words of a command line. Sizes are written in GiB, as the flags take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

GIBIBYTE = 2**30
PLACES = {"disk": "kv-disk-path", "shared": "kv-shared-url"}


def tier_words(tiers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Flags of ``energyopt serve`` for the tiers of a dumped ``KvConfig``; nothing without tiers."""
    words: list[str] = []
    for tier in tiers:
        for scope in ("host", "rank"):
            size = tier[f"bytes_per_{scope}"]
            if size is not None:
                words += [f"--kv-{tier['kind']}-gib-per-{scope}", repr(size / GIBIBYTE)]
        if tier["path"] is not None:
            words += [f"--{PLACES[tier['kind']]}", tier["path"]]
    return words
