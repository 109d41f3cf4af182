"""Doubles of what the service is handed, for tests of everything that speaks HTTP to it.

For an engine that works use ``EngineFront`` over ``engine.fake.FakeRunner``; ``ScriptedEngine`` is for what a working
engine hardly ever does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace

from energyopt.core.errors import ConfigError, SensorError
from energyopt.core.units import Bytes, Joules
from engine.batch import CacheShape
from engine.output import Output
from engine.ports import EngineStats
from engine.request import SamplingParams
from telemetry.attribution_report import AttributionReport, TenantEnergy


class ScriptedEngine:
    """A ServingEngine that plays the same events for every request: outputs are yielded, exceptions raised.

    ``asked`` keeps what every request asked for, ``aborted`` the ids that were aborted, ``resets`` the tiers that were
    reset.
    """

    def __init__(self, script: Sequence[Output | Exception], *, max_model_len: int = 128, alive: bool = True) -> None:
        self.asked: list[tuple[list[int], SamplingParams, str | None]] = []
        self.aborted: list[str] = []
        self.resets: list[str | None] = []
        self._script = tuple(script)
        self._max_model_len = max_model_len
        self._alive = alive

    @property
    def cache(self) -> CacheShape:
        return CacheShape(num_blocks=8, block_tokens=16, bytes_per_block=Bytes(1))

    @property
    def max_model_len(self) -> int:
        return self._max_model_len

    @property
    def alive(self) -> bool:
        return self._alive

    async def generate(
        self, prompt: Sequence[int], params: SamplingParams, *, request_id: str, session: str | None = None
    ) -> AsyncIterator[Output]:
        self.asked.append((list(prompt), params, session))
        for event in self._script:
            if isinstance(event, Exception):
                raise event
            yield replace(event, request_id=request_id)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def reset_prefix_cache(self, tier: str | None = None) -> int:
        if tier not in (None, "device"):
            raise ConfigError(f"There is no KV tier {tier!r}: here is device only.")
        self.resets.append(tier)
        return 3

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None:
        self._alive = False


class FakeChat:
    """A ChatRenderer with a fixed template; ``seen`` keeps the arguments of every call."""

    def __init__(self) -> None:
        self.seen: list[
            tuple[list[Mapping[str, object]], Sequence[Mapping[str, object]] | None, dict[str, object]]
        ] = []

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: object,
    ) -> str:
        self.seen.append((list(messages), tools, kwargs))
        turns = [f"<|start|>{message['role']}\n{message.get('content')}<|end|>" for message in messages]
        return "".join(turns) + ("<|start|>assistant\n" if add_generation_prompt else "")


@dataclass(frozen=True, slots=True)
class FakeEnergy:
    """One request's energy."""

    joules: float
    error: float
    label: str


class FakeLedger:
    """An EnergyLedger that gives its entries in turn, over and over.

    None is an unmeasured request and ``SensorError`` a failed sensor; ``seen`` keeps the ids asked for and ``noted``
    the tenant and session of every request.
    """

    def __init__(self, *entries: FakeEnergy | SensorError | None) -> None:
        self.seen: list[str] = []
        self.noted: dict[str, tuple[str | None, str | None]] = {}
        self._entries = entries

    def note(self, request_id: str, *, tenant: str | None = None, session: str | None = None) -> None:
        self.noted[request_id] = (tenant, session)

    def attribution(self, tenant: str | None = None) -> AttributionReport:
        """An empty account whose only entry is the tenant that was asked for."""
        names = [] if tenant is None else [tenant]
        return AttributionReport(
            total=None,
            overhead=None,
            tenants=tuple(
                TenantEnergy(tenant=name, prefill=Joules(1.0), decode=Joules(2.0), idle=Joules(0.0)) for name in names
            ),
            sessions=(),
            tiers={},
            methods={},
            idle_policy="separate",
            sources=(),
            fit=None,
        )

    def request_energy(self, request_id: str) -> FakeEnergy | None:
        entry = self._entries[len(self.seen) % len(self._entries)]
        self.seen.append(request_id)
        if isinstance(entry, SensorError):
            raise entry
        return entry


class FakeMetrics:
    """A MetricsPage that says which ``Accept`` header it was given."""

    def render(self, accept: str) -> tuple[bytes, str]:
        return f"# accept {accept}\n".encode(), "text/plain; version=0.0.4; charset=utf-8"
