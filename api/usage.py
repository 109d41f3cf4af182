"""What a call consumed: tokens, and joules where they were measured.

``energy_joules``, ``energy_error_joules`` and ``energy_source`` extend OpenAI's usage. They are absent when any
request of the call was not measured: a sum over some of them would look like a sum over all.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

from energyopt.core.errors import TelemetryError
from energyopt.core.results import Source
from engine.output import Output

from .call import Call
from .services import EnergyLedger

_log = logging.getLogger(__name__)
_BEST_FIRST = [source.value for source in Source]


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of a whole call with the half-width of their interval and all their sources ("counter+estimated")."""

    joules: float
    error: float
    source: str

    @property
    def headers(self) -> dict[str, str]:
        """For replies whose headers are sent after the joules are known."""
        return {
            "x-energy-joules": repr(self.joules),
            "x-energy-error-joules": repr(self.error),
            "x-energy-source": self.source,
        }


class Tally:
    """Counts tokens of one call as its outputs pass. A prompt with several choices counts once."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._completion = [0] * len(call.jobs)
        self._cached: int | None = None

    def add(self, index: int, output: Output) -> None:
        self._completion[index] += len(output.token_ids)
        if output.record is not None:
            self._completion[index] = output.record.output_tokens
            if self._call.jobs[index].first:
                self._cached = (self._cached or 0) + (output.record.cached_tokens or 0)

    def usage(self, energy: Energy | None = None) -> dict[str, object]:
        """OpenAI's usage object so far. Cached tokens are known once a request has ended."""
        prompt = sum(len(job.prompt) for job in self._call.jobs if job.first)
        completion = sum(self._completion)
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
        if self._cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached}
        if energy is not None:
            usage["energy_joules"] = energy.joules
            usage["energy_error_joules"] = energy.error
            usage["energy_source"] = energy.source
        return usage


async def energy_of(ledger: EnergyLedger | None, call: Call) -> Energy | None:
    """The energy of all requests of a finished call, asked for on a thread. None: not measured."""
    if ledger is None:
        return None
    return await asyncio.to_thread(_sum, ledger, [job.request_id for job in call.jobs])


def _sum(ledger: EnergyLedger, request_ids: Sequence[str]) -> Energy | None:
    joules, errors, sources = [], [], set[str]()
    for request_id in request_ids:
        try:
            part = ledger.request_energy(request_id)
        except TelemetryError as error:  # a failing sensor costs the joules, not the reply
            _log.warning("energy of request %s is unknown: %s", request_id, error)
            return None
        if part is None or not (math.isfinite(part.joules) and math.isfinite(part.error)):
            return None
        joules.append(part.joules)
        errors.append(part.error)
        sources.update(part.label.split("+"))
    ordered = sorted(sources, key=lambda name: (_BEST_FIRST.index(name) if name in _BEST_FIRST else 99, name))
    # Errors add up linearly: requests measured by one sensor err together.
    return Energy(math.fsum(joules), math.fsum(errors), "+".join(ordered))
