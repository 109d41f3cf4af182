"""The plant in C under the real binding and the plant in Python are one machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energyopt.core.clock import FakeClock
from energyopt.core.errors import ControlError
from energyopt.core.units import Hertz, Watts
from telemetry.control.plant import LOWEST, TOP, Plant, PowerCurve

Run = Callable[[str], Any]
CURVE = PowerCurve()

SCRIPT = """
from energyopt.core.config import PowerConfig
from telemetry.control.journal import Journal
from telemetry.control.limits import Limiter
from telemetry.control.nvml_limits import NvmlLimits
import pynvml
DEVICE = "GPU-00000000-0000-4000-8000-000000000000"
gpu = state.gpus[0]
gpu.requested_mw, gpu.tick_ns, gpu.base_uj, gpu.since_ns = 700_000, 0, 0, state.now_ns
limiter = Limiter(NvmlLimits(), Journal(path.parent / "journal"), clock=clock)
limiter.backend.forbidden = lambda device: None
state.set_load(0, 0.0)
seen, entry = [], None
for load, cap, mhz in %s:
    state.set_load(0, load)
    if entry is not None:
        limiter.put_back(entry)
    power = PowerConfig(cap=cap, sm_clock=mhz and mhz * 1e6)
    entry = limiter.take(DEVICE, power) if cap or mhz else None
    state.elapse(10.0)
    seen.append([gpu.power_mw / 1e3, gpu.clock_sm * 1e6, state.joules(0)])
pynvml.nvmlInit()
counter = pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByUUID(DEVICE)) / 1e3
answer([seen, counter])
"""
STORY = [
    (0.0, None, None),
    (1.0, None, None),
    (1.0, 400.0, None),
    (0.6, None, 1200),
    (0.9, 350.0, 1500),
    (0.2, None, 210),
]


def test_the_c_plant_and_the_python_plant_draw_the_same(in_stub: Run) -> None:
    (seen, counter), clock = in_stub(SCRIPT.replace("%s", repr(STORY))), FakeClock()
    plant, expected = Plant(clock), []
    for load, cap, megahertz in STORY:
        plant.set_load(load)
        plant.set_cap("", Watts(cap or 700.0))
        plant.unlock_clock("", None)
        if megahertz is not None:
            plant.lock_clock("", Hertz(megahertz * 1e6))
        clock.advance(10.0)
        expected.append([plant.power, plant.sm_clock, plant.joules])
    for found, wanted in zip(seen, expected, strict=True):
        assert found == pytest.approx(wanted, rel=1e-5)
    assert counter == pytest.approx(plant.joules, rel=1e-5), "the driver's counter shows what was drawn"
    powers = [power for power, _, _ in seen]
    assert powers[0] == 120.0
    assert powers[1] == 700.0
    assert powers[2] <= 400.0
    assert powers[4] <= 350.0


@given(st.floats(LOWEST, TOP), st.floats(LOWEST, TOP), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_power_rises_with_clock_and_load(clock: float, higher: float, load: float, heavier: float) -> None:
    clock, higher, load, heavier = *sorted((clock, higher)), *sorted((load, heavier))
    assert CURVE.power(Hertz(clock), load) <= CURVE.power(Hertz(higher), load) + 1e-9
    assert CURVE.power(Hertz(clock), load) <= CURVE.power(Hertz(clock), heavier) + 1e-9
    assert CURVE.idle <= CURVE.power(Hertz(higher), heavier) <= 700.0 + 1e-9


@given(st.floats(150.0, 700.0), st.floats(LOWEST, TOP), st.floats(0.0, 1.0))
def test_a_cap_holds_unless_the_lowest_clock_exceeds_it(cap: float, ceiling: float, load: float) -> None:
    clock = CURVE.clock_under(Watts(cap), Hertz(ceiling), load)
    assert LOWEST <= clock <= max(ceiling, LOWEST)
    assert CURVE.power(clock, load) <= cap or clock == LOWEST


def test_energy_is_exact_across_changes() -> None:
    clock = FakeClock()
    plant = Plant(clock)
    total = 0.0
    for load in (0.0, 1.0, 0.5, 0.0):
        plant.set_load(load)
        clock.advance(3.0)
        total += 3.0 * plant.power
    assert plant.joules == pytest.approx(total)
    with pytest.raises(ControlError):
        plant.set_cap("", Watts(100.0))
