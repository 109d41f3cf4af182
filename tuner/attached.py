"""Whether a result that was measured elsewhere can be believed: it must not contradict itself."""

from __future__ import annotations

import math

from energyopt.core.errors import ConfigError
from energyopt.core.results import RunResult, total_energy
from energyopt.core.slo import Slo
from energyopt.core.study import StudySpec

_STATES = ("met", "violated", "unknown")
_CLOSE = 1e-9


def check_result(spec: StudySpec, result: RunResult) -> None:
    """Joules are the sum of readings with source and error, and every SLO of the study has one verdict.

    Raises ConfigError with what does not hold.
    """
    _check_energy(result)
    _check_counts(result)
    wanted, given = {str(Slo.parse(slo)) for slo in spec.slos}, [verdict.slo for verdict in result.verdicts]
    if set(given) != wanted or len(set(given)) < len(given):
        raise ConfigError(
            f"verdicts are of {', '.join(given) or 'nothing'}: one each is needed of {', '.join(wanted)}."
        )
    for verdict in result.verdicts:
        kept = verdict.violation is not None and verdict.violation <= 0
        if verdict.state == "met" and not kept:
            raise ConfigError(f"The verdict on {verdict.slo} is met, with a violation of {verdict.violation}.")


def _check_energy(result: RunResult) -> None:
    total = total_energy(result.readings)
    if result.power_valid and (total is None or result.energy is None):
        raise ConfigError(
            "power_valid needs readings, each with joules, error, scope and source, and their sum as energy."
        )
    if (total is None) != (result.energy is None):
        raise ConfigError("energy is the sum of readings: there are both or neither.")
    if total is None or result.energy is None:
        return
    far = not math.isclose(total.joules, result.energy.joules, rel_tol=_CLOSE, abs_tol=_CLOSE)
    if far or set(total.sources) != set(result.energy.sources):
        raise ConfigError(
            f"energy is {result.energy.joules:g} J, and its readings sum to {total.joules:g} J "
            f"({', '.join(total.sources)})."
        )
    if not all(math.isfinite(reading.joules) for reading in result.readings):
        raise ConfigError("joules of a reading must be finite.")
    if not any(reading.error > 0 for reading in result.readings) and not result.simulated:
        raise ConfigError("A measured joule has an error: the readings state none.")


def _check_counts(result: RunResult) -> None:
    if result.failed_requests > result.requests:
        raise ConfigError(
            f"{result.failed_requests} of {result.requests} requests failed: that is more than there were."
        )
    if result.cached_tokens is not None and result.cached_tokens > (result.prompt_tokens or 0):
        raise ConfigError(f"{result.cached_tokens} of {result.prompt_tokens} prompt tokens were cached: too many.")
