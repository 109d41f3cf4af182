"""Enumerates deployments on a fleet of one GPU type, screens them analytically and keeps the Pareto front. No I/O.

Two shapes are screened: engines that do both phases, and pools of prefill and decode engines that are rate-matched. The
power is that of the whole budget: engines by their busy share, and devices that no engine holds at idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from energyopt.core.config import ParallelLayout, PowerConfig
from energyopt.core.pareto import pareto_front
from energyopt.core.slo import Slo
from energyopt.core.units import Hertz, Watts

from ..layouts import Enumeration, enumerate_layouts
from ..rate_match import PoolRate, match_pools
from .constants import Constants
from .hardware import Gpu
from .machine import Machine
from .memory import kv_tokens
from .models import ModelSpec
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


@dataclass(frozen=True, slots=True)
class Pool:
    """``replicas`` equal engines; ``batch`` is per attention replica, 1 in a prefill pool."""

    layout: ParallelLayout
    power: PowerConfig
    replicas: int
    batch: int

    @property
    def devices(self) -> int:
        return self.replicas * self.layout.devices


@dataclass(frozen=True, slots=True)
class Plan:
    """One screened deployment. Rates are tokens per second of the whole fleet, watts of the whole budget.

    ``violations`` are relative, by SLO; all at most 0 (with the margin) make it feasible.
    """

    decode: Pool
    prefill: Pool | None
    devices: int
    rate: float
    watts: float
    ttft: float
    tpot: float
    violations: Mapping[str, float]
    provisioned: float | None

    @property
    def user_rate(self) -> float:
        return 1.0 / self.tpot

    @property
    def device_rate(self) -> float:
        """Per GPU of the budget: idle ones count."""
        return self.rate / self.devices

    @property
    def tokens_per_joule(self) -> float:
        return self.rate / self.watts

    @property
    def rate_per_megawatt(self) -> float | None:
        """Tokens per second per provisioned megawatt; None where nobody published what a GPU takes all in."""
        return None if self.provisioned is None else self.rate / (self.devices * self.provisioned) * 1e6

    @property
    def worst(self) -> float:
        return max(self.violations.values(), default=-1.0)

    @property
    def feasible(self) -> bool:
        return self.worst <= 0.0


@dataclass(frozen=True, slots=True)
class Screening:
    """All that was priced: the Pareto front of what keeps the SLOs, the nearest misses, and what rules removed."""

    layouts: Enumeration
    priced: int
    feasible: int
    front: tuple[Plan, ...]
    nearest: tuple[Plan, ...]
    removed: Mapping[str, int]

    @property
    def best(self) -> Plan | None:
        """Most tokens per joule among the feasible."""
        return max(self.front, key=lambda plan: plan.tokens_per_joule, default=None)


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
                used = replicas * layout.devices
                watts = used * steady.watts + (self.devices - used) * machine.idle
                pool = Pool(layout, power, replicas, batch)
                yield self._plan(pool, None, replicas * steady.rate, watts, steady)

    def _disaggregated(self, layouts: Sequence[ParallelLayout]) -> Iterator[Plan]:
        """Pairs of the most frugal prefill pools and of the decode pools that keep the latency per token."""
        prefills = self._prefill_choices(layouts)
        for steady, machine, power, batch in self._decode_choices(layouts):
            layout = machine.layout
            rate = PoolRate(steady.rate / self.lengths.output, layout.devices, steady.watts, machine.idle)
            for prompt_time, prefill_rate, prefill_layout, prefill_power in prefills:
                match = match_pools(prefill_rate, rate, self.devices)
                if match is None:
                    continue
                wait = QUEUEING * prompt_time + self.link.seconds(
                    self.machine(prefill_layout, prefill_power), self.lengths.prompt
                )
                whole = Steady(steady.iteration, steady.longest, steady.rate, steady.watts, wait, steady.clock)
                decode = Pool(layout, power, match.decode, batch)
                prefill = Pool(prefill_layout, prefill_power, match.prefill, 1)
                yield self._plan(decode, prefill, match.flow * self.lengths.output, match.watts, whole)

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
                machine = self.machine(layout, power)
                cost = prefill_only(machine, self.lengths)
                rate = PoolRate(1.0 / cost.seconds, layout.devices, cost.watts, machine.idle)
                found.append((cost.seconds, rate, layout, power))
        return sorted(found, key=lambda one: one[1].busy_watts * one[1].devices / one[1].rate)[:_POOL_CHOICES]

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
