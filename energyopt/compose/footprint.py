"""Carbon and cost as every verb offers them: read once, applied to whatever the verb measures."""

from __future__ import annotations

from collections.abc import Iterable

from energyopt.core.footprint import FootprintConfig
from energyopt.core.results import Scope
from telemetry.footprint import Rates


def footprint_rates(config: FootprintConfig, scopes: Iterable[Scope]) -> Rates | None:
    """The rates of ``config``; None if it asks for nothing. Raises ConfigError for a file that is no series."""
    return None if config.empty else Rates(config, scopes)
