"""Enumerates deployments on a fleet of one GPU type, screens them analytically and keeps the Pareto front. No I/O.

Two shapes are screened: engines that do both phases, and pools of prefill and decode engines that are rate-matched. The
power is that of the whole budget: engines by their busy share, and devices that no engine holds at idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from energyopt.core.config import ParallelLayout, PowerConfig
from energyopt.core.pareto import pareto_front
from energyopt.core.rate_match import PoolRate, flow_of, match_pools
from energyopt.core.slo import Slo
from energyopt.core.units import Hertz, Watts

from ..layouts import Enumeration, enumerate_layouts
from .constants import Constants
from .hardware import Gpu
from .machine import Machine
from .memory import kv_tokens
from .models import ModelSpec
from .plans import Plan, Pool, Screening
from .pools import Link
from .steady import QUEUEING, Lengths, Steady, aggregated, decode_only, prefill_only

BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CLOCKS = (1.0, 0.85, 0.7, 0.55)
CAPS = (1.0, 0.75, 0.55)
BUDGET = 8192
"""Tokens of one iteration: prompts are computed in chunks beside the decodes."""
MARGIN = 0.05
"""A screened latency must keep its target by this share: the screening is coarser than what verifies it."""
_POOL_CHOICES = 24


class Planner:
    """Plans ``spec`` on ``devices`` GPUs for requests of ``lengths`` under ``slos``."""

    def __init__(
        self,
        spec: ModelSpec,
        gpu: Gpu,
        constants: Constants,
        *,
        devices: int,
        lengths: Lengths,
        slos: Sequence[Slo],
        pools: bool = True,
    ) -> None:
        self.spec, self.gpu, self.constants = spec, gpu, constants
        self.devices, self.lengths, self.slos = devices, lengths, tuple(slos)
        self._pools = pools
        self._removed: Counter[str] = Counter()

    def screen(self) -> Screening:
        """Everything priced, in one pass. No plan at all (nothing fits) gives an empty front and no nearest."""
        layouts = self.layouts()
        self._removed.clear()
        plans = [plan for layout in layouts.layouts for plan in self._aggregated(layout)]
        if self._pools:
            plans += self._disaggregated(layouts.layouts)
        feasible = [plan for plan in plans if plan.feasible]
        front = pareto_front(_thinned(feasible), lambda plan: (plan.user_rate, plan.device_rate, plan.tokens_per_joule))
        nearest = sorted((plan for plan in plans if not plan.feasible), key=lambda plan: plan.worst)[:3]
        ordered = tuple(sorted(front, key=lambda plan: -plan.tokens_per_joule))
        return Screening(layouts, len(plans), len(feasible), ordered, tuple(nearest), dict(self._removed))

    def on(self, gpu: Gpu, constants: Constants) -> Planner:
        """The same question on another device."""
        return Planner(
            self.spec, gpu, constants, devices=self.devices, lengths=self.lengths, slos=self.slos, pools=self._pools
        )

    def reprice(self, plan: Plan) -> Plan:
        """A plan of another planner as this one sees it: the same pools, other figures. Raises ConfigError for a limit
        outside this device's range.
        """
        decode, prefill = plan.decode, plan.prefill
        machine = self.machine(decode.layout, decode.power)
        if prefill is None:
            return self._whole_engines(decode, aggregated(machine, self.lengths, decode.batch, BUDGET), machine.idle)
        steady = decode_only(machine, self.lengths, decode.batch)
        rate = PoolRate(steady.rate / self.lengths.output, decode.layout.devices, steady.watts, machine.idle)
        seconds, other = self._prefill_rate(prefill.layout, prefill.power)
        flow = flow_of(other, prefill.replicas, rate, decode.replicas)
        idle = (self.devices - prefill.devices - decode.devices) * machine.idle
        watts = other.watts(prefill.replicas, flow) + rate.watts(decode.replicas, flow) + idle
        return self._pools_plan(decode, prefill, flow, watts, steady, seconds)

    def layouts(self) -> Enumeration:
        """Valid layouts in which at least one request of full length fits."""
        longest = self.lengths.prompt + self.lengths.output
        fits = {
            "memory: weights and one whole request": lambda layout: kv_tokens(self.spec, self.gpu, layout) >= longest
        }
        domain = int(self.gpu.value("scale_up"))
        return enumerate_layouts(self.spec, self.devices, domain=domain, extra=fits)

    def machine(self, layout: ParallelLayout, power: PowerConfig) -> Machine:
        return Machine(self.spec, self.gpu, layout, self.constants, power)

    def powers(self) -> Iterator[PowerConfig]:
        """Clock locks and caps: different actuators, one at a time."""
        gpu = self.gpu
        yield PowerConfig()
        for share in CLOCKS[1:]:
            clock = share * gpu.value("clock_max")
            if clock >= gpu.value("clock_min"):
                yield PowerConfig(sm_clock=Hertz(round(clock / 1e6) * 1e6))
        for share in CAPS[1:]:
            cap = share * gpu.value("tdp")
            if cap >= gpu.value("cap_min"):
                yield PowerConfig(cap=Watts(round(cap)))

    def _batches(self, layout: ParallelLayout) -> Iterator[int]:
        """Batches whose requests fit into the cache at their mean length."""
        mean = self.lengths.prompt + self.lengths.output / 2
        room = kv_tokens(self.spec, self.gpu, layout) / mean
        for batch in BATCHES:
            if batch > room:
                self._removed["memory: cache of the batch"] += 1
            elif batch >= layout.pp:
                yield batch

    def _aggregated(self, layout: ParallelLayout) -> Iterator[Plan]:
        replicas = self.devices // layout.devices
        for power in self.powers():
            machine = self.machine(layout, power)
            for batch in self._batches(layout):
                steady = aggregated(machine, self.lengths, batch, BUDGET)
                yield self._whole_engines(Pool(layout, power, replicas, batch), steady, machine.idle)

    def _whole_engines(self, pool: Pool, steady: Steady, idle: float) -> Plan:
        watts = pool.devices * steady.watts + (self.devices - pool.devices) * idle
        return self._plan(pool, None, pool.replicas * steady.rate, watts, steady)

    def _disaggregated(self, layouts: Sequence[ParallelLayout]) -> Iterator[Plan]:
        """Pairs of the most frugal prefill pools and of the decode pools that keep the latency per token."""
        prefills = self._prefill_choices(layouts)
        for steady, machine, power, batch in self._decode_choices(layouts):
            layout = machine.layout
            rate = PoolRate(steady.rate / self.lengths.output, layout.devices, steady.watts, machine.idle)
            for seconds, prefill_rate, prefill_layout, prefill_power in prefills:
                match = match_pools(prefill_rate, rate, self.devices)
                if match is not None:
                    decode = Pool(layout, power, match.decode, batch)
                    prefill = Pool(prefill_layout, prefill_power, match.prefill, 1)
                    yield self._pools_plan(decode, prefill, match.flow, match.watts, steady, seconds)

    def _pools_plan(
        self, decode: Pool, prefill: Pool, flow: float, watts: float, steady: Steady, prompt_seconds: float
    ) -> Plan:
        """Screened with the hand-over as part of the wait for the first token, as engines do that pull the cache."""
        travel = self.link.seconds(self.machine(prefill.layout, prefill.power), self.lengths.prompt)
        whole = replace(steady, ttft=QUEUEING * prompt_seconds + travel)
        return self._plan(decode, prefill, flow * self.lengths.output, watts, whole)

    @property
    def link(self) -> Link:
        """How caches travel: over the network between engines, or inside the link domain where no rate is known."""
        return Link(self.gpu.get("network_bandwidth") or self.gpu.value("link_bandwidth"))

    def _prefill_choices(
        self, layouts: Iterable[ParallelLayout]
    ) -> list[tuple[float, PoolRate, ParallelLayout, PowerConfig]]:
        found = []
        for layout in layouts:
            if layout.dp > 1 or layout.dcp > 1 or layout.pp > 1:
                continue
            for power in self.powers():
                seconds, rate = self._prefill_rate(layout, power)
                found.append((seconds, rate, layout, power))
        return sorted(found, key=lambda one: one[1].busy_watts * one[1].devices / one[1].rate)[:_POOL_CHOICES]

    def _prefill_rate(self, layout: ParallelLayout, power: PowerConfig) -> tuple[float, PoolRate]:
        """Seconds of one prompt, and what an engine of a prefill pool does and draws."""
        machine = self.machine(layout, power)
        cost = prefill_only(machine, self.lengths)
        return cost.seconds, PoolRate(1.0 / cost.seconds, layout.devices, cost.watts, machine.idle)

    def _decode_choices(self, layouts: Iterable[ParallelLayout]) -> list[tuple[Steady, Machine, PowerConfig, int]]:
        found = [
            (decode_only(machine, self.lengths, batch), machine, power, batch)
            for layout in layouts
            for power in self.powers()
            for machine in [self.machine(layout, power)]
            for batch in self._batches(layout)
        ]
        per_token = [slo for slo in self.slos if slo.metric.value in ("tpot", "itl", "interactivity")]
        keeps = [one for one in found if all(one[0].violation(slo, self.lengths.output) <= 0 for slo in per_token)]
        ranked = sorted(keeps or found, key=lambda one: one[0].watts * one[1].layout.devices / one[0].rate)
        return ranked[:_POOL_CHOICES]

    def _plan(self, decode: Pool, prefill: Pool | None, rate: float, watts: float, steady: Steady) -> Plan:
        misses = {str(slo): (1 + steady.violation(slo, self.lengths.output)) * (1 + MARGIN) - 1 for slo in self.slos}
        return Plan(
            decode=decode,
            prefill=prefill,
            devices=self.devices,
            rate=rate,
            watts=watts,
            ttft=steady.ttft,
            tpot=steady.iteration,
            violations=misses,
            provisioned=self.gpu.get("provisioned"),
        )


def _thinned(plans: Sequence[Plan]) -> list[Plan]:
    """The best of each cell of a fine grid in speed per user, so that the quadratic front stays quick."""
    cells: dict[tuple[int, bool], Plan] = {}
    for plan in plans:
        for axis, value in ((True, plan.tokens_per_joule), (False, plan.device_rate)):
            cell = (round(plan.user_rate * 2), axis)
            held = cells.get(cell)
            if held is None or value > (held.tokens_per_joule if axis else held.device_rate):
                cells[cell] = plan
    return list({id(plan): plan for plan in cells.values()}.values())
