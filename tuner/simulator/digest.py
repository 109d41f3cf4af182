"""What is kept of a very large number of requests: counts and latencies, not the requests."""

from __future__ import annotations

import math
import struct
from array import array

import numpy as np
from numpy.typing import NDArray

from energyopt.core.records import RequestRecord
from energyopt.core.results import LatencySummary
from energyopt.core.units import Seconds

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class Digest:
    """Takes records one by one. Gaps between tokens are kept as 32-bit floats: seven digits, four bytes a token."""

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.output_tokens = 0
        self._samples = {name: array("d") for name in ("ttft", "tpot", "e2e")}
        self._gaps = array("f")

    def add(self, record: RequestRecord) -> None:
        self.requests += 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens
        if record.ttft is not None:
            self._samples["ttft"].append(record.ttft)
        if record.tpot is not None:
            self._samples["tpot"].append(record.tpot)
        self._samples["e2e"].append(record.e2e)
        count = len(record.token_times)
        if count > 1:
            times = np.frombuffer(struct.pack(f"{count}d", *record.token_times))  # a third of what ``np.array`` takes
            self._gaps.frombytes((times[1:] - times[:-1]).astype(np.float32).tobytes())

    def latencies(self) -> dict[str, LatencySummary]:
        """Summaries of ttft, itl, tpot and e2e in seconds; a metric without samples is absent."""
        samples = {**self._samples, "itl": self._gaps}
        return {name: _summary(np.asarray(values)) for name, values in samples.items() if len(values)}


def _summary(values: NDArray[np.floating]) -> LatencySummary:
    """Nearest ranks as everywhere in the project, found by selection instead of a sort."""
    count = len(values)
    ranks = {name: max(0, math.ceil(q * count - 1e-9) - 1) for name, q in _QUANTILES.items()}
    placed = np.partition(values, sorted(set(ranks.values())))
    mean = Seconds(float(values.mean(dtype=np.float64)))
    found = {name: Seconds(float(placed[rank])) for name, rank in ranks.items()}
    return LatencySummary(
        samples=count, mean=mean, p50=found["p50"], p90=found["p90"], p95=found["p95"], p99=found["p99"]
    )
