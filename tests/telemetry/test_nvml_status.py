"""Facts of an NVIDIA GPU beside its energy, through the real binding over the stub driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from energyopt.core.clock import FakeClock
from energyopt.core.errors import SensorUnavailableError
from telemetry.nvml_status import NvmlStatus

Run = Callable[[str], Any]
UUID = "GPU-00000000-0000-4000-8000-000000000000"
LOOK = f"""
from dataclasses import asdict
from telemetry.nvml_status import NvmlStatus

def look(device="{UUID}"):
    seen = NvmlStatus(clock, device).read()
    return {{
        "power": {{f"{{scope}}/{{kind}}": watts for (scope, kind), watts in seen.power.items()}},
        "limits": dict(seen.limits),
        "clocks": dict(seen.clocks),
        "temperature": dict(seen.temperature),
        "utilization": dict(seen.utilization),
        "throttled": None if seen.throttled is None else sorted(seen.throttled),
        "throttle_time": {{str(key): value for key, value in seen.throttle_time.items()}},
        "at": seen.at,
    }}
"""


def looking(script: str) -> str:
    return LOOK + "\n".join(line.strip() for line in script.strip().splitlines())


def test_every_fact_in_base_units(in_stub: Run) -> None:
    found = in_stub(
        looking("""
        state.gpus[0].reasons = 0x4 | 0x20 | 0x1
        state.gpus[0].throttled_ns[0] = 1_500_000_000
        answer(look())
        """)
    )
    assert found["power"] == {"gpu/instant": 300.0, "gpu/average": 290.0, "memory/average": 42.0}
    assert found["limits"] == {"requested": 500.0, "enforced": 500.0, "default": 650.0, "min": 200.0, "max": 700.0}
    assert found["clocks"] == {"sm": 1.41e9, "memory": 2.619e9}
    assert found["temperature"] == {"gpu": 54.0, "memory": 61.0}
    assert found["utilization"] == {"compute": 0.9, "memory": 0.4}
    assert found["throttled"] == ["power_cap", "thermal_sw"]
    assert found["throttle_time"]["power_cap"] == 1.5
    assert set(found["throttle_time"]) == {"power_cap", "sync_boost", "thermal_sw", "thermal_hw", "power_brake"}
    assert found["at"] == 1000.0


def test_a_limit_held_down_by_another_limiter_shows_in_enforced(in_stub: Run) -> None:
    found = in_stub(looking("state.gpus[0].enforced_cap_mw = 350_000\nanswer(look())"))
    assert (found["limits"]["requested"], found["limits"]["enforced"]) == (500.0, 350.0)


@pytest.mark.parametrize(
    ("call", "lost"),
    [
        ("fields", ("power", "throttle_time")),
        ("limits", ("limits",)),
        ("clocks", ("clocks",)),
        ("temperature", ()),
        ("utilization", ("utilization",)),
        ("reasons", ("throttled",)),
    ],
)
def test_a_fact_that_is_not_supported_is_absent_and_the_others_stay(
    in_stub: Run, call: str, lost: tuple[str, ...]
) -> None:
    """slurm-job-exporter#53, nviwatch#28: one unsupported field took everything down; never 0 for unknown."""
    found = in_stub(looking(f"state.gpus[0].fail('{call}', 3)\nanswer(look())"))
    facts = ("power", "limits", "clocks", "utilization", "throttle_time", "throttled")
    assert {fact for fact in facts if not found[fact] and found[fact] != []} == set(lost)
    assert found["temperature"] == ({"memory": 61.0} if call == "temperature" else found["temperature"])


def test_a_superchip_tells_module_and_gpu_apart(in_stub: Run) -> None:
    """k8s-test-infra#676: module and GPU scopes are different numbers."""
    found = in_stub(looking("state.gpus[0].c2c, state.gpus[0].module_mw = 1, 640_000\nanswer(look())"))
    assert found["power"]["module/instant"] == 640.0
    assert found["power"]["gpu/instant"] == 300.0


def test_a_scope_that_reads_zero_is_unknown(in_stub: Run) -> None:
    """Zeus: a memory power of 0 means that the board does not meter it."""
    found = in_stub(looking("state.gpus[0].memory_mw = 0\nanswer(look())"))
    assert "memory/average" not in found["power"]


def test_who_it_is(in_stub: Run) -> None:
    found = in_stub("""
        from telemetry.nvml_status import NvmlStatus
        state = nvmlstub.create(path, 2)
        state.gpus[1].mig_uuid, state.gpus[1].mig_count = b"MIG-1", 3
        one, split = (NvmlStatus(clock, gpu.uuid.decode()).info for gpu in state.gpus[:2])
        parent = NvmlStatus(clock, "MIG-1-2").info
        answer([one.model, one.index, one.pci, one.driver, one.partitions, split.partitions, parent.device])
    """)
    second = "GPU-00000001-0000-4000-8000-000000000000"
    assert found == ["Stub H100", 0, "00000000:01:00.0", "580.00.01", None, 3, second]


def test_a_lost_driver_is_an_error_and_is_opened_again(in_stub: Run) -> None:
    found = in_stub(f"""
        from energyopt.core.errors import SensorError
        from telemetry.nvml_status import NvmlStatus
        source = NvmlStatus(clock, "{UUID}")
        state.gpus[0].fail("fields", 999)
        try:
            source.read()
            words = None
        except SensorError as error:
            words = str(error)
        state.gpus[0].fail("fields", 0)
        answer([words, source.read().temperature["gpu"]])
    """)
    assert "999" in found[0]
    assert found[1] == 54.0


def test_a_gpu_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(SensorUnavailableError, match="could not be read"):
        NvmlStatus(FakeClock(), "GPU-none")
