"""Recording rules and alerts as data, over the metric catalogue; ``rule_files`` writes them for Prometheus and Grafana.

Boards read no recorded series, so they show data without these rules. The alerts that compare with the past need them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from telemetry import control_catalog as control
from telemetry.catalog import ATTRIBUTED, CPU, DEVICE, GPU, ITL, TTFT, SensorMetrics

from .energy import model_tokens_per_joule, power
from .promql import ENGINE, PromQl, either

Severity = Literal["warning", "critical"]
Comparison = Literal["<", ">"]

EVERY = PromQl(window="5m")
GPU_SENSOR = f"{ENGINE}, gpu_uuid, scope"
ON_BOARD = 'scope="gpu"'
REQUESTED = 'kind="requested"'
INTERVAL = 30
"""Seconds between evaluations."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus computes and keeps; named level, metric, operation."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """Fires where ``value`` compares so with ``limit`` for ``hold`` seconds; a series that is absent never fires.

    Texts may use ``{{ $labels.x }}``, which Prometheus and Grafana both fill in.
    """

    name: str
    value: str
    comparison: Comparison
    limit: float
    hold: int
    severity: Severity
    summary: str
    description: str

    @property
    def expr(self) -> str:
        return f"{self.value} {self.comparison} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Limits:
    """Where alerts begin, in seconds and watts; ``disagreement``, ``drop``, ``over_cap``, ``held_down`` are shares.

    ``budget`` is what all sensors of a cluster may draw together; None, as long as nobody said, makes no alert.
    """

    ttft_p95: float = 1.0
    itl_p95: float = 0.1
    sample_age: float = 30.0
    disagreement: float = 0.2
    drop: float = 0.2
    flat_power: float = 10.0
    over_cap: float = 0.05
    held_down: float = 0.1
    budget: float | None = None


_IDLE = EVERY.rate(ATTRIBUTED, 'phase="idle"')

POWER = Recording("instance:energyopt_power_watts:rate5m", f"sum by ({ENGINE}) ({power(EVERY)})")
EFFICIENCY = Recording(
    "model:energyopt_tokens_per_joule:ratio_rate5m",
    model_tokens_per_joule(EVERY, "sum by (cluster, job, model)"),
)
IDLE = Recording("instance:energyopt_idle_power_watts:rate5m", f"sum by ({ENGINE}) ({_IDLE})")
RECORDINGS = (POWER, EFFICIENCY, IDLE)


def alerts(limits: Limits | None = None) -> tuple[Alert, ...]:
    """Every alert, with its limits."""
    at = limits or Limits()
    return (*_latency(at), *_sensors(at), *_caps(at), *_budget(at), _regression(at))


def _latency(at: Limits) -> tuple[Alert, ...]:
    where = "{{ $labels.model }} in job {{ $labels.job }}"
    by = "cluster, job, model"
    return (
        Alert(
            "EnergyoptFirstTokenLate",
            EVERY.quantile(0.95, TTFT, by=by),
            ">",
            at.ttft_p95,
            300,
            "warning",
            f"First tokens of {where} come late",
            f"The p95 of the time to first token has been above {at.ttft_p95:g} s for 5 minutes.",
        ),
        Alert(
            "EnergyoptNextTokenLate",
            EVERY.quantile(0.95, ITL, by=by),
            ">",
            at.itl_p95,
            300,
            "warning",
            f"Tokens of {where} come slowly",
            f"The p95 of the time between tokens has been above {at.itl_p95:g} s for 5 minutes.",
        ),
    )


def _sensors(at: Limits) -> tuple[Alert, ...]:
    any_sensor, gpu = "on {{ $labels.instance }}", "{{ $labels.gpu_uuid }} on {{ $labels.instance }}"
    return (
        Alert(
            "EnergyoptSensorDown",
            either(EVERY.gauge(GPU.up), EVERY.gauge(CPU.up)),
            "<",
            0.5,
            120,
            "warning",
            f"An energy sensor {any_sensor} does not answer",
            "Its joules are missing from every sum; `energyopt doctor` on the host says why.",
        ),
        Alert(
            "EnergyoptSampleOld",
            either(EVERY.gauge(GPU.age), EVERY.gauge(CPU.age)),
            ">",
            at.sample_age,
            60,
            "warning",
            f"An energy sensor {any_sensor} has not been read lately",
            f"The newest sample is older than {at.sample_age:g} s: the driver hangs or the host is overloaded.",
        ),
        Alert(
            "EnergyoptCounterStuck",
            _flat_counter_power(GPU, GPU_SENSOR),
            ">",
            at.flat_power,
            300,
            "critical",
            f"The energy counter of {gpu} stands still",
            f"It has not moved for 5 minutes while the device reports more than {at.flat_power:g} W.",
        ),
        Alert(
            "EnergyoptCounterDisagrees",
            f"abs({either(EVERY.gauge(GPU.crosscheck), EVERY.gauge(CPU.crosscheck))} - 1)",
            ">",
            at.disagreement,
            600,
            "warning",
            f"Energy and power of a sensor {any_sensor} disagree",
            f"The counter and the integrated power differ by more than {at.disagreement:.0%} for 10 minutes.",
        ),
    )


def _caps(at: Limits) -> tuple[Alert, ...]:
    gpu, by = "{{ $labels.gpu_uuid }} on {{ $labels.instance }}", f"{ENGINE}, gpu_uuid"
    drawn = f"sum by ({by}) ({EVERY.rate(GPU.energy, ON_BOARD)})"
    requested = f"max by ({by}) ({EVERY.gauge(DEVICE.limit, REQUESTED)})"
    heat = EVERY.rate(DEVICE.throttle, 'reason=~"thermal_sw|thermal_hw|hw_slowdown|power_brake"')
    return (
        Alert(
            "EnergyoptCapNotEnforced",
            f"{drawn} / {requested}",
            ">",
            1 + at.over_cap,
            300,
            "critical",
            f"{gpu} draws more than its power limit",
            f"Its mean power has been more than {at.over_cap:.0%} above the requested limit for 5 minutes.",
        ),
        Alert(
            "EnergyoptCapLeaseExpired",
            f"min by ({by}) ({EVERY.gauge(control.LEASE_REMAINING)})",
            "<",
            0.5,
            60,
            "critical",
            f"The lease on the limits of {gpu} is lost",
            "What was found has been put back: the device runs without the cap that its process believes in.",
        ),
        Alert(
            "EnergyoptHeldDownByHeat",
            f"max by ({by}) ({heat})",
            ">",
            at.held_down,
            300,
            "warning",
            f"{gpu} is held down by heat or a power brake",
            f"For more than {at.held_down:.0%} of the last 5 minutes it ran slower than asked, and no cap is why.",
        ),
    )


def _budget(at: Limits) -> tuple[Alert, ...]:
    if at.budget is None:
        return ()
    return (
        Alert(
            "EnergyoptBudgetExceeded",
            f"sum by (cluster) ({power(EVERY)})",
            ">",
            at.budget,
            300,
            "critical",
            "The power budget of {{ $labels.cluster }} is exceeded",
            f"All sensors together have drawn more than {at.budget:g} W for 5 minutes.",
        ),
    )


def _flat_counter_power(sensors: SensorMetrics, labels: str) -> str:
    """Power of the sensors whose counter did not move over the window."""
    flat = f"(sum by ({labels}) ({EVERY.increase(sensors.energy)}) == 0)"
    return f"(max by ({labels}) ({EVERY.gauge(sensors.power)}) and on ({labels}) {flat})"


def _regression(at: Limits) -> Alert:
    return Alert(
        "EnergyoptEfficiencyDropped",
        f"{EFFICIENCY.name} / avg_over_time({EFFICIENCY.name}[7d])",
        "<",
        1 - at.drop,
        1800,
        "warning",
        "{{ $labels.model }} in job {{ $labels.job }} makes fewer tokens per joule",
        f"Tokens per joule have been more than {at.drop:.0%} below their mean of seven days for 30 minutes.",
    )
