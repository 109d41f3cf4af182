"""What a step's time is made of, fitted from the steps themselves: the weights by which its energy is divided.

The time of a step is taken as a sum of non-negative terms (``TERMS``), fitted by recursive non-negative least squares
on relative errors. Memory is a few small matrices. Within a step, seconds count as equal in power: which term runs at
how many watts is not resolved, because a sensor's tick is longer than a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from energyopt.core.records import Phase, StepRecord, StepShare

from .weigh import COMPUTED, ComputeWeight, FitReport, Part, Weigh

TIERS = ("host", "disk", "shared")
"""Cache tiers that tokens are loaded from; a hit in the device's own pool moves nothing."""
TERMS = (
    "step",
    "prefill_token",
    "decode_token",
    "prefill_context",
    "decode_context",
    *(f"loaded_{tier}" for tier in TIERS),
)
"""Seconds per: step; computed token by phase; token attended to by one; token loaded from a tier."""
_STEP, _PREFILL, _DECODE, _PREFILL_CONTEXT, _DECODE_CONTEXT, _LOADED = range(6)

MEMORY_STEPS = 2000.0
"""Steps of a kind (with prefill, without) after which an observation's weight has fallen to 1/e."""
REFIT_EVERY = 32
MIN_STEPS = 100
"""Steps without prefill, and a third of that with, before a fit is used."""
TRUSTED_ERROR = 0.3
"""Largest mean error of predictions, as a share of the time predicted, at which the fit is used."""
CALM_ERROR = 0.4
"""A fit in use is given up above this only: a label that flickers helps nobody."""

Vector = npt.NDArray[np.float64]


class CostModel:
    """Non-negative least squares with forgetting, one step at a time. Not thread-safe; see FittedWeight.

    Steps with and without prefill forget apart, so that a long stretch of pure decoding does not unlearn what a
    prompt token costs. Errors are relative to each step's time; an outlier that was slow therefore weighs little.
    """

    def __init__(self, memory: float = MEMORY_STEPS) -> None:
        self._keep = math.exp(-1 / memory)
        size = len(TERMS)
        self._squares = np.zeros((2, size, size))
        self._products = np.zeros((2, size))
        self._missed = self._measured = 0.0
        self._since_fit = 0
        self.counts = [0, 0]
        self.coefficients: tuple[float, ...] = (0.0,) * size

    @property
    def error(self) -> float | None:
        """See FitReport."""
        return self._missed / self._measured if self._measured > 0 else None

    def observe(self, step: StepRecord) -> bool:
        """Take in a step; True if the coefficients were fitted anew. A step without work or time is not one."""
        seconds = float(step.end - step.start)
        if not step.shares or not seconds > 0 or not math.isfinite(seconds):
            return False
        row = np.array(features(step.shares))
        kind = int(row[_PREFILL] > 0)
        if any(self.coefficients):
            self._missed = self._keep * self._missed + abs(float(row @ self.coefficients) - seconds)
            self._measured = self._keep * self._measured + seconds
        row /= seconds
        self._squares[kind] = self._keep * self._squares[kind] + np.outer(row, row)
        self._products[kind] = self._keep * self._products[kind] + row
        self.counts[kind] += 1
        self._since_fit += 1
        if self._since_fit < REFIT_EVERY:
            return False
        self._since_fit = 0
        self.coefficients = solve(self._squares.sum(0), self._products.sum(0))
        return True


class FittedWeight:
    """Weight by fitted seconds; by ``fallback`` until the fit is trustworthy. Thread-safe.

    A request's own terms are its own. What the step costs in any case (reading the weights, launching) is shared
    equally by its requests: each alone would have caused all of it, and equal parts are then the Shapley value.
    """

    def __init__(self, model: CostModel | None = None, fallback: Weigh | None = None) -> None:
        self._model = model or CostModel()
        self._fallback = fallback or ComputeWeight()
        self._used: tuple[float, ...] | None = None

    @property
    def method(self) -> str:
        return self._fallback.method if self._used is None else "fitted_cost"

    def observe(self, step: StepRecord) -> None:
        """Learn from a step. One thread at a time, as a ledger does."""
        if self._model.observe(step):
            self._used = self._model.coefficients if self._trusted() else None

    def report(self) -> FitReport:
        """What was fitted so far."""
        decode, prefill = self._model.counts
        seconds = dict(zip(TERMS, self._model.coefficients, strict=True))
        return FitReport(self._used is not None, decode + prefill, prefill, self._model.error, seconds)

    def __call__(self, shares: Sequence[StepShare]) -> list[Part]:
        used = self._used  # one fit for the whole step, whatever another thread learns meanwhile
        if used is None:
            return self._fallback(shares)
        return fitted_parts(used, shares)

    def _trusted(self) -> bool:
        decode, prefill = self._model.counts
        error, coefficients = self._model.error, self._model.coefficients
        if error is None or decode < MIN_STEPS or prefill < MIN_STEPS / 3:
            return False
        if not coefficients[_PREFILL] + coefficients[_PREFILL_CONTEXT] > 0:
            return False  # a prompt that costs nothing was not told apart from the step
        return error <= (TRUSTED_ERROR if self._used is None else CALM_ERROR)


def features(shares: Sequence[StepShare]) -> list[float]:
    """How often each of TERMS occurs in a step."""
    row = [0.0] * len(TERMS)
    row[_STEP] = 1.0
    tokens, attended = [0, 0], [0.0, 0.0]
    for share in shares:
        prefill, computed = share.phase is Phase.PREFILL, share.computed_tokens
        tokens[prefill] += computed
        attended[prefill] += computed * (share.context_tokens + computed / 2)
        if share.cached_tokens:  # rare: only in the step that admits a request
            for position, tier in enumerate(TIERS):
                row[_LOADED + position] += share.cached_tokens.get(tier, 0)
    row[_DECODE], row[_PREFILL] = tokens
    row[_DECODE_CONTEXT], row[_PREFILL_CONTEXT] = attended
    return row


def fitted_parts(coefficients: Sequence[float], shares: Sequence[StepShare]) -> list[Part]:
    """Each share's own terms and its equal part of the step's; tokens loaded from a tier are parts of their own."""
    common = coefficients[_STEP] / len(shares) if shares else 0.0
    rates = (
        (coefficients[_DECODE], coefficients[_DECODE_CONTEXT]),
        (coefficients[_PREFILL], coefficients[_PREFILL_CONTEXT]),
    )
    parts: list[Part] = []
    for index, share in enumerate(shares):
        computed = share.computed_tokens
        per_token, per_context = rates[share.phase is Phase.PREFILL]
        own = computed * (per_token + per_context * (share.context_tokens + computed / 2))
        parts.append(Part(index, COMPUTED, common + own))
        if share.cached_tokens:
            for tier, tokens in share.cached_tokens.items():
                if tokens and tier in TIERS:
                    parts.append(Part(index, tier, tokens * coefficients[_LOADED + TIERS.index(tier)]))
    return parts


def solve(squares: Vector, products: Vector) -> tuple[float, ...]:
    """The x >= 0 that minimises x'Sx - 2p'x for a positive semidefinite S; terms that never occurred are 0.

    S is scaled to a unit diagonal and factored by its eigenvectors, since terms may be collinear.
    """
    seen = np.flatnonzero(np.diag(squares) > 0)
    result = np.zeros(len(products))
    if not len(seen):
        return tuple(result.tolist())
    scale = np.sqrt(np.diag(squares)[seen])
    values, vectors = np.linalg.eigh(squares[np.ix_(seen, seen)] / np.outer(scale, scale))
    kept = values > 1e-10 * values[-1]
    roots = np.sqrt(values[kept])
    factor = roots[:, None] * vectors[:, kept].T
    target = vectors[:, kept].T @ (products[seen] / scale) / roots
    solution, _ = nnls(factor, target)
    result[seen] = solution / scale
    return tuple(result.tolist())
