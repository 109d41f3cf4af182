"""Time and power of one iteration: a roofline with overheads, an activity model of watts, a clock that both obey.

Time: projections, experts and attention follow one another, each at a smooth maximum of its memory and its compute
time; sampling, the handling of routed tokens, collectives and fixed costs are added. Power: ``idle + busy floor +
J/byte * bytes/s + J/FLOP * FLOP/s + link``. A cap
lowers the clock until the draw fits; a clock lock sets it outright. They are different actuators: the cap binds only
where the draw would exceed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from energyopt.core.config import ParallelLayout, PowerConfig
from energyopt.core.errors import ConfigError

from .constants import Constants
from .hardware import Gpu
from .models import ModelSpec
from .work import StepShape, Work, WorkModel

_Draw = Callable[[float], tuple[float, float]]


class StepCost(NamedTuple):
    """One iteration on one rank: how long, how many watts, at which share of the highest clock."""

    seconds: float
    watts: float
    clock: float


MISS = 1e-4
"""By how much the watts under a cap may miss what the cap leaves: a simulation asks for very many steps."""


class Machine:
    """One engine (``layout``) of ``spec`` on ``gpu`` under ``power``; ``cost`` prices a batch.

    ``miss`` is how near, relative, the search for the clock under a cap comes. Who takes differences of costs needs one
    far below the differences; and ten times that much is what a cap may take off the watts unnoticed. Raises
    ConfigError for a cap or clock outside the device's range.
    """

    def __init__(
        self,
        spec: ModelSpec,
        gpu: Gpu,
        layout: ParallelLayout,
        constants: Constants,
        power: PowerConfig | None = None,
        *,
        miss: float = MISS,
    ) -> None:
        self.spec, self.gpu, self.layout, self.constants = spec, gpu, layout, constants
        self._miss = miss
        self.prices: dict[tuple[int, int], StepCost] = {}
        """Kept prices of decode steps, for whoever simulates many engines of one kind (see ``RooflineRunner``)."""
        has = gpu.facts.__contains__
        self.work = WorkModel(spec, layout, fp8=has("flops_fp8"), fp4=has("flops_fp4"))
        time, watts = constants.time, constants.power
        self._memory = gpu.value("memory_bandwidth") * time.memory
        self._kv = gpu.value("memory_bandwidth") * time.attention
        self._wide = gpu.peak("bf16") * time.compute
        self._narrow = gpu.peak("fp8") * time.compute
        self._link = gpu.value("link_bandwidth") * time.link
        self._launch = time.step + time.layer * spec.layers
        self._routing = time.moe_layer * spec.moe_layers
        self._lowest = gpu.value("clock_min") / gpu.value("clock_max")
        self.idle, self._limit = gpu.value("idle"), gpu.value("tdp")
        self._busy = watts.busy * self._limit
        self._flop8 = watts.flop * watts.fp8
        power = power or PowerConfig()
        self._cap = power.cap if power.cap is not None else self._limit
        self._lock = self._locked(power)
        if not gpu.value("cap_min") <= self._cap <= self._limit:
            raise ConfigError(
                f"A cap of {self._cap:g} W is not allowed on {gpu.name}: "
                f"it takes {gpu.value('cap_min'):g} to {self._limit:g} W."
            )

    def _locked(self, power: PowerConfig) -> float:
        """The clock lock as a share of the highest clock; 1 without a lock."""
        if power.sm_clock is None:
            return 1.0
        low, high = self.gpu.value("clock_min"), self.gpu.value("clock_max")
        if not low <= power.sm_clock <= high:
            raise ConfigError(
                f"A clock of {power.sm_clock / 1e6:g} MHz is not allowed on {self.gpu.name}: "
                f"it takes {low / 1e6:g} to {high / 1e6:g} MHz."
            )
        return power.sm_clock / high

    def cost(self, shape: StepShape) -> StepCost:
        """Seconds, watts and clock of one iteration."""
        load = self.load(self.work.of(shape), shape.sequences)
        return self.settle(load)

    def load(self, work: Work, sequences: float) -> Load:
        """The iteration at the highest clock, split into what the clock moves and what it does not."""
        time, watts = self.constants.time, self.constants.power
        compute = work.linear_wide / self._wide + work.linear_narrow / self._narrow
        linear, linear_share = _overlap(work.linear_bytes / self._memory, compute, time.blend)
        compute = work.expert_wide / (self._wide * time.expert) + work.expert_narrow / (self._narrow * time.expert_fp8)
        expert, expert_share = _overlap(work.expert_bytes / self._memory, compute, time.blend)
        compute = work.attention_flops / self._wide
        attention, pair_share = _overlap(work.attention_bytes / self._kv, compute, time.blend)
        moved = time.sampling * work.logits + time.routing * work.routed_bytes
        waiting = self._launch + time.sequence * sequences + time.collective * work.collectives
        share = linear * linear_share + expert * expert_share + attention * pair_share
        roofline, link = linear + expert + attention + moved / self._memory, work.link_bytes / self._link
        bytes_moved = work.linear_bytes + work.expert_bytes + work.attention_bytes + moved
        return Load(
            compute=share,
            memory=roofline - share,
            other=link,
            host=waiting + self._routing,
            stall=waiting + link,
            byte_joules=watts.byte * bytes_moved,
            flop_joules=watts.flop * (work.linear_wide + work.expert_wide + work.attention_flops)
            + self._flop8 * (work.linear_narrow + work.expert_narrow),
            link_joules=watts.link_byte * work.link_bytes,
        )

    def settle(self, load: Load) -> StepCost:
        """Time and power once lock and cap have had their say."""
        clock, at = self.constants.clock, self._draw(load)
        seconds, watts = at(self._lock)
        limit = clock.settle * self._cap
        wanted = watts / (1.0 + (watts / limit) ** clock.sharpness) ** (1.0 / clock.sharpness)
        if wanted > (1.0 - 10.0 * self._miss) * watts:
            return StepCost(seconds, watts, self._lock)
        return self._under(at, watts, wanted)

    def _under(self, at: _Draw, watts: float, wanted: float) -> StepCost:
        """The clock at which the draw, ``watts`` at the lock, is ``wanted``: regula falsi, as watts rise with the
        clock.
        """
        low, high = self._lowest, self._lock
        seconds, lowest = at(low)
        if lowest >= wanted:
            return StepCost(seconds, lowest, low)
        below, above, risen = lowest - wanted, watts - wanted, None
        for _ in range(20):
            share = high - above * (high - low) / (above - below)
            seconds, watts = at(share)
            miss = watts - wanted
            if abs(miss) < self._miss * wanted:
                break
            # An end that stays twice is weighed down (Illinois), or it would stay for ever.
            if miss > 0:
                high, above, below = share, miss, below * (0.5 if risen is False else 1.0)
            else:
                low, below, above = share, miss, above * (0.5 if risen is True else 1.0)
            risen = miss < 0
        return StepCost(seconds, watts, share)

    def _draw(self, load: Load) -> _Draw:
        """Seconds and watts of a load at a share of the highest clock, without a cap.

        A cap asks half a dozen times for each step, so what the clock leaves alone is worked out once.
        """
        clock, idle = self.constants.clock, self.idle
        whole, flop, link, by_bytes = load.seconds, load.flop_joules, load.link_joules, load.byte_joules
        moved = load.compute + clock.memory_share * (load.memory + load.other) + clock.host_share * load.host
        floor = self._busy * (1.0 - load.stall / whole)
        on_die, off_die, v_min, knee = clock.on_die, 1.0 - clock.on_die, clock.v_min, clock.knee

        def at(f: float) -> tuple[float, float]:
            seconds = whole + (1.0 / f - 1.0) * moved
            volts = voltage(f, v_min, knee) ** 2
            dynamic = by_bytes * (off_die + on_die * volts) + flop * volts + link
            return seconds, idle + floor * volts * f + dynamic / seconds

        return at


class Load(NamedTuple):
    """An iteration at the highest clock: seconds by what bounds them, joules by what causes them.

    ``stall`` is the part in which the device waits: for the host's launches and for its peers.
    """

    compute: float
    memory: float
    other: float
    host: float
    stall: float
    byte_joules: float
    flop_joules: float
    link_joules: float

    @property
    def seconds(self) -> float:
        return self.compute + self.memory + self.other + self.host


def _overlap(memory: float, compute: float, blend: float) -> tuple[float, float]:
    """The smooth maximum of two times and the share of it that compute bounds."""
    if not compute:
        return memory, 0.0
    a, b = memory**blend, compute**blend
    return (a + b) ** (1.0 / blend), b / (a + b)


def voltage(f: float, v_min: float, knee: float) -> float:
    """Supply voltage over its maximum at the share ``f`` of the highest clock: flat to the knee, then linear."""
    return v_min if f <= knee else v_min + (1.0 - v_min) * (f - knee) / (1.0 - knee)
