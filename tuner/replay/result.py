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

    ``cached_tokens`` as the replies' usage said (None where it does not); ``expected_tokens`` what a cache without
    limits would have found;
    ``sources`` what the server's own counters rose by (None without them).
    """

    prompt_tokens: int
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
        run, window = self.run, self.run.window
        known = self.tokens_known
        return {
            "requests_per_s": run.requests / window,
            "output_tok_s": run.output_tokens / window if known else None,
            "input_tok_s": run.prompt_tokens / window if known else None,
            "total_tok_s": (run.output_tokens + run.prompt_tokens) / window if known else None,
            "output_tok_s_device": run.output_tokens / window / self.subject.devices if known else None,
            "total_tok_s_device": (run.output_tokens + run.prompt_tokens) / window / self.subject.devices
            if known
            else None,
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
        run = self.run
        known = self.tokens_known
        uncached = 0 if run.cached_tokens is None else run.prompt_tokens - run.cached_tokens
        work = {
            "request": run.requests - run.failed_requests,
            "output_token": run.output_tokens if known else 0,
            "input_token": run.prompt_tokens if known else 0,
            "uncached_input_token": uncached if known else 0,
            "total_token": run.prompt_tokens + run.output_tokens if known else 0,
        }
        joules = run.joules
        return {name: None if joules is None or not count else joules / count for name, count in work.items()}

    @property
    def pool_joules(self) -> dict[str, float | None]:
        """Joules of each pool over its own work; None without two pools or without that work."""
        run, known, pools = self.run, self.tokens_known, self.pools
        uncached = None if run.cached_tokens is None else run.prompt_tokens - run.cached_tokens
        prefill = decode = None
        if pools is not None and known:
            prefill, decode = pools.prefill, pools.decode
        work = {
            "prefill_input_token": (prefill, run.prompt_tokens),
            "prefill_uncached_input_token": (prefill, uncached),
            "decode_output_token": (decode, run.output_tokens),
        }
        return {name: None if joules is None or not count else joules / count for name, (joules, count) in work.items()}

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


def _inverse(value: float) -> float | None:
    return 1 / value if value > 0 else None
