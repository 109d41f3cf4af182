"""What a scrape tells of leases and decisions."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from energyopt.core.clock import FakeClock
from energyopt.core.config import PowerConfig
from energyopt.core.slo import Slo
from energyopt.core.units import Seconds, Watts
from telemetry.control.client import HelperGoneError
from telemetry.control.fake import FakeChannel
from telemetry.control.governor import Governor, Reason, Rules
from telemetry.control.leased import HeldLease, LeasedPower
from telemetry.control.loop import Actuator, GovernorLoop
from telemetry.control.metrics import ControlCollector
from telemetry.control.window import LatencyWindow

CAP = PowerConfig(cap=Watts(300.0))
SLO = Slo.parse("itl:p90<50ms")


def page(lease: HeldLease, loop: GovernorLoop | None = None) -> str:
    registry = CollectorRegistry()
    registry.register(ControlCollector(lease, loop))
    return generate_latest(registry).decode()


def test_a_fixed_cap_and_its_lease() -> None:
    power = LeasedPower(("GPU-1",), lambda: FakeChannel(("GPU-1",)), lifetime=Seconds(100.0), clock=FakeClock())
    with power.held(CAP) as lease:
        text = page(lease)
    assert 'energyopt_gpu_power_cap_watts{gpu_uuid="GPU-1"} 300.0' in text
    assert 'energyopt_gpu_power_lease_remaining_seconds{gpu_uuid="GPU-1"} 100.0' in text
    assert 'energyopt_gpu_power_limit_foreign{gpu_uuid="GPU-1"} 1.0' in text
    assert "sm_clock_ceiling" not in text
    assert "governor" not in text


class Broken(FakeChannel):
    def call(self, request: object) -> dict[str, object]:
        if self.calls:
            raise HelperGoneError("gone")
        return dict(super().call(request))  # type: ignore[arg-type]


def test_a_lost_lease_shows_no_cap_and_no_time() -> None:
    power = LeasedPower(("GPU-1",), Broken, lifetime=Seconds(100.0), clock=FakeClock())
    with power.held(CAP) as lease:
        lease.renew()
        text = page(lease)
    assert "energyopt_gpu_power_cap_watts{" not in text
    assert 'energyopt_gpu_power_lease_remaining_seconds{gpu_uuid="GPU-1"} 0.0' in text


def test_decisions_are_counted_by_reason_from_the_start() -> None:
    clock = FakeClock()
    window = LatencyWindow((SLO,), Seconds(10.0))
    power = LeasedPower(("GPU-1",), FakeChannel, lifetime=Seconds(100.0), clock=clock)
    with power.held(CAP) as lease:
        rules = Rules(200.0, 300.0, settle=Seconds(10.0), grain=5.0)
        loop = GovernorLoop(Governor(rules), window, lease, Actuator("cap", 200.0, 300.0, 5.0), clock)
        first = page(lease, loop)
        loop.turn()
        loop.turn()
        text = page(lease, loop)
    for reason in Reason:
        assert f'energyopt_governor_decisions_total{{reason="{reason.value}"}} 0.0' in first
    assert 'energyopt_governor_decisions_total{reason="few_samples"} 2.0' in text
    assert "energyopt_governor_refused_changes_total 0.0" in text
    assert "\nenergyopt_governor_slo_margin_ratio" not in text, "nothing was measured"
