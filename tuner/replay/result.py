"""What a benchmark says, in the form in which it is stored, printed and compared."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pydantic import Field

from energyopt.core.results import LatencySummary, Result, RunResult

from .pools import PoolEnergy
from .samples import Slice


class Subject(Result):
    """What was measured and how it was asked. ``mode`` is such as ``closed loop, 8 sessions``."""

    endpoint: str
    model: str
    workload: str
    mode: str
    seed: int
    scenario: str | None = None
    devices: int = 1


class Client(Result):
    """How the load generator itself fared; lags are 99th percentiles."""

    send_lag: float
    loop_lag: float
    cpu: float


class Prefixes(Result):
    """Cache hits three ways, over the requests that ended in the window.

    ``prompt_tokens`` is None where a reply does not tell its own. ``cached_tokens`` as the replies' usage said (None
    where it does not); ``expected_tokens`` what a cache without limits would have found; ``sources`` what the server's
    own counters rose by (None without them).
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    expected_tokens: int | None
    sources: Mapping[str, float] | None = None

    @property
    def hit_rate(self) -> float | None:
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    @property
    def ideal_rate(self) -> float | None:
        """What a cache without limits would have reached; None where the trace does not tell."""
        if self.expected_tokens is None or not self.prompt_tokens:
            return None
        return self.expected_tokens / self.prompt_tokens


class BenchResult(Result):
    """One benchmark. ``valid`` is False where the run says nothing about the server, with ``reasons`` (code: words).

    ``per_request`` has summaries of latencies with one sample a request: ``itl`` is the decode time over the tokens
    after those of the first chunk, ``e2e_per_token`` the whole time over all tokens. Token figures are None unless
    ``tokens_known``. ``notes`` explain figures; they do not doubt the run. ``pools`` has the joules of a prefill and a
    decode pool apart, ``phases`` those of prefill and decode as the server accounts for them; None where unknown.
    """

    id: str
    created: datetime
    subject: Subject
    run: RunResult
    valid: bool
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tokens_known: bool
    goodput: float | None = None
    good_share: float | None = None
    per_request: Mapping[str, LatencySummary] = Field(default_factory=dict)
    prefixes: Prefixes
    client: Client
    oddities: Mapping[str, int] = Field(default_factory=dict)
    errors: Mapping[str, int] = Field(default_factory=dict)
    left: int = 0
    cut_sessions: int = 0
    skipped_idle: float = 0.0
    samples: Mapping[str, tuple[float, ...]] = Field(default_factory=dict)
    slices: tuple[Slice, ...] = ()
    pools: PoolEnergy | None = None
    phases: Mapping[str, float] | None = None

    @property
    def rates(self) -> dict[str, float | None]:
        """Per second of the window, over all devices; input includes cached tokens."""
        window, devices, work = self.run.window, self.subject.devices, self._work
        output, total = _over(work["output_token"], window), _over(work["total_token"], window)
        return {
            "requests_per_s": self.run.requests / window,
            "output_tok_s": output,
            "input_tok_s": _over(work["input_token"], window),
            "total_tok_s": total,
            "output_tok_s_device": _over(output, devices),
            "total_tok_s_device": _over(total, devices),
        }

    @property
    def _work(self) -> dict[str, int | None]:
        """What was done in the window, of each kind; None is unknown."""
        run, known = self.run, self.tokens_known
        asked = run.prompt_tokens if known else None
        return {
            "request": run.requests - run.failed_requests,
            "output_token": run.output_tokens if known else None,
            "input_token": asked,
            "uncached_input_token": run.uncached_tokens if known else None,
            "total_token": None if asked is None else asked + run.output_tokens,
        }

    @property
    def interactivity(self) -> dict[str, float | None]:
        """Tokens per second and user: the slow tail at p90, where 9 of 10 users are faster."""
        itl, whole = self.per_request.get("itl"), self.per_request.get("e2e_per_token")
        return {
            "p50": None if itl is None else _inverse(itl.p50),
            "p90": None if itl is None else _inverse(itl.p90),
            "e2e_p50": None if whole is None else _inverse(whole.p50),
            "e2e_p90": None if whole is None else _inverse(whole.p90),
        }

    @property
    def joules_per(self) -> dict[str, float | None]:
        """All joules of the window over each kind of work; None without valid power or without that work."""
        joules = self.run.joules
        return {name: _over(joules, count) for name, count in self._work.items()}

    @property
    def pool_joules(self) -> dict[str, float | None]:
        """Joules of each pool over its own work; None without two pools or without that work."""
        work = self._work
        prefill = None if self.pools is None else self.pools.prefill.joules
        decode = None if self.pools is None else self.pools.decode.joules
        return {
            "prefill_input_token": _over(prefill, work["input_token"]),
            "prefill_uncached_input_token": _over(prefill, work["uncached_input_token"]),
            "decode_output_token": _over(decode, work["output_token"]),
        }

    def document(self) -> dict[str, object]:
        """Everything, with the ratios, as one JSON-ready object."""
        return {
            **self.model_dump(mode="json", exclude={"samples"}),
            "rates": self.rates,
            "interactivity": self.interactivity,
            "joules_per": self.joules_per,
            "pool_joules_per": self.pool_joules,
            "tokens_per_joule": self.run.tokens_per_joule if self.tokens_known else None,
            "hit_rate": self.prefixes.hit_rate,
            "ideal_hit_rate": self.prefixes.ideal_rate,
        }


def _over(amount: float | None, count: float | None) -> float | None:
    """None where either is unknown, or there is nothing to divide by."""
    return None if amount is None or not count else amount / count


def _inverse(value: float) -> float | None:
    return 1 / value if value > 0 else None
