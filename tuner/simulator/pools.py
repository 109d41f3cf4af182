"""A prefill pool and a decode pool by events: the engine's own scheduler on both sides, a link between them.

A prefill engine computes a prompt and its first token; the cache then travels, and the request joins a decode engine
whose cache holds it all. The hand-over delays the second token, as in engines that push when the first is out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from energyopt.core.config import EngineConfig
from energyopt.core.records import FinishReason, RequestRecord, StepRecord
from energyopt.core.units import Seconds
from engine.routing.choose import make_policy

from .machine import Machine
from .replica import Replica, SimRequest
from .routing import Routed
from .work import KV_BYTES


@dataclass(frozen=True, slots=True)
class Link:
    """What a hand-over takes: ``latency`` once, and the bytes of the cache at ``bandwidth`` per device of the
    prefill engine, which all send their share at once.
    """

    bandwidth: float
    latency: float = 1e-3

    def seconds(self, machine: Machine, prompt: int) -> float:
        """Time until the cache of a prompt has arrived."""
        whole = prompt * machine.spec.kv_bytes_per_token(KV_BYTES)
        return self.latency + whole / (self.bandwidth * machine.layout.tp)


class PooledEngines:
    """``prefill`` and ``decode`` engines, each a machine, a configuration and how many.

    The load is open: nothing a decode engine does changes what a prefill engine sees, so the pools run one after the
    other. A request goes to the least loaded engine of a pool.
    """

    def __init__(
        self,
        prefill: tuple[Machine, EngineConfig, int],
        decode: tuple[Machine, EngineConfig, int],
        link: Link,
        *,
        stepping: bool = False,
    ) -> None:
        self._link = link
        self.prefill, self.decode = (
            [Replica(machine, config, stepping=stepping, name=f"{role}{number}") for number in range(count)]
            for role, (machine, config, count) in (("prefill", prefill), ("decode", decode))
        )

    def run(self, requests: Iterable[SimRequest], until: float) -> list[RequestRecord]:
        """Serve requests, in order of arrival, until ``until``; the records of all, in order of their ends.

        What is still underway then is aborted with the tokens it has.
        """
        asked = {request.id: request for request in requests}
        _hand_out(self.prefill, (replace(request, output_tokens=1) for request in asked.values()))
        first = _served(self.prefill, until)
        travelling = [self._sent(asked[name], record) for name, record in first.items() if not record.failed]
        wanting = [request for request in travelling if request.output_tokens > 1]
        _hand_out(self.decode, sorted(wanting, key=lambda request: request.arrival))
        rest = _served(self.decode, until)
        whole = [_joined(record, rest.get(name), asked[name], until) for name, record in first.items()]
        return sorted(whole, key=lambda record: record.end)

    def steps(self) -> list[StepRecord]:
        """Steps of the prefill pool that computed prompts, in order of their ends."""
        return sorted((step for engine in self.prefill for step in engine.steps), key=lambda step: step.end)

    def _sent(self, request: SimRequest, first: RequestRecord) -> SimRequest:
        arrival = first.end + self._link.seconds(self.prefill[0].runner.machine, len(request.prompt))
        return replace(request, arrival=arrival, filled=True)


def _hand_out(engines: Sequence[Replica], requests: Iterable[SimRequest]) -> None:
    router = Routed(make_policy("least-loaded"), engines[0].runner.cache.block_tokens)
    for request in requests:
        engines[router.pick(request, len(engines))].submit(request)


def _served(engines: Sequence[Replica], until: float) -> dict[str, RequestRecord]:
    for engine in engines:
        engine.run(until)
        engine.abort()
    return {record.request_id: record for engine in engines for record in engine.records}


def _joined(first: RequestRecord, rest: RequestRecord | None, request: SimRequest, until: float) -> RequestRecord:
    """A request as its client saw it: the first token of one engine, the others of the other.

    Without ``rest`` it wanted one token, or its cache was still travelling when everything was ended.
    """
    if rest is None and (first.failed or request.output_tokens == 1):
        return first
    if rest is None:
        return replace(first, end=Seconds(max(until, first.end)), finish_reason=FinishReason.ABORT)
    times = (*first.token_times, *rest.token_times[1:])
    return replace(
        rest,
        arrival=first.arrival,
        cached_tokens=first.cached_tokens,
        cached_by_tier=first.cached_by_tier,
        token_times=times,
        output_tokens=len(times),
    )
