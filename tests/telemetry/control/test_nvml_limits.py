"""Limits through the real nvidia-ml-py over the stub driver, and holders that are killed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

Run = Callable[[str], Any]
UUID = "GPU-00000000-0000-4000-8000-000000000000"
SETUP = f"""
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from telemetry.control.journal import Journal
from telemetry.control.limits import Limiter
from telemetry.control.nvml_limits import NvmlLimits
backend = NvmlLimits()
backend.forbidden = lambda device: None
limiter = Limiter(backend, Journal(path.parent / "journal"), clock=clock)
DEVICE = "{UUID}"
gpu = state.gpus[0]
"""


def script(body: str) -> str:
    return SETUP + textwrap.dedent(body)


def test_cap_and_clock_reach_the_driver_and_come_back(in_stub: Run) -> None:
    found = in_stub(
        script("""
        entry = limiter.take(DEVICE, PowerConfig(cap=400, sm_clock=1.2e9))
        inside = [gpu.requested_mw, gpu.clock_low, gpu.clock_high]
        limiter.put_back(entry)
        answer([inside, gpu.requested_mw, gpu.clock_high])
        """)
    )
    assert found == [[400_000, 0, 1200], 500_000, 0]


def test_limits_are_read_in_watts(in_stub: Run) -> None:
    found = in_stub(
        script(f"""
        limits = backend.limits("{UUID}")
        bounds = [limits.low, limits.high, limits.max_clock, limits.default, limits.persistent]
        answer([limits.requested, limits.enforced, *bounds])
        """)
    )
    assert found == [500.0, 500.0, 200.0, 700.0, 1.98e9, 650.0, True]


def test_a_refusal_of_the_driver_is_not_success(in_stub: Run) -> None:
    """nvidia-ml-py's second setter returns success where the driver said NO_PERMISSION."""
    found = in_stub(
        script("""
        gpu.fail("set_limit", 4)
        try:
            words = limiter.take(DEVICE, PowerConfig(cap=400)) and None
        except ControlError as error:
            words = str(error)
        answer([words, gpu.requested_mw, len(Journal(path.parent / "journal").entries())])
        """)
    )
    words, requested, entries = found
    assert "Insufficient Permissions" in words
    assert requested == 500_000
    assert entries == 0


def test_a_lower_limiter_is_noticed(in_stub: Run) -> None:
    found = in_stub(
        script("""
        gpu.enforced_cap_mw = 350_000
        try:
            words = limiter.take(DEVICE, PowerConfig(cap=400)) and None
        except ControlError as error:
            words = str(error)
        answer([words, gpu.requested_mw])
        """)
    )
    assert "enforces 350 W" in found[0]
    assert found[1] == 500_000


def test_permission_is_told_without_trying(in_stub: Run) -> None:
    found = in_stub(
        script(f"""
        import telemetry.control.nvml_limits as module
        module.os = type("NotRoot", (), {{"geteuid": staticmethod(lambda: 1000)}})
        module._capabilities = lambda: 0
        limiter = Limiter(NvmlLimits(), Journal(path.parent / "journal"))
        answer([*limiter.can_cap("{UUID}"), gpu.count("set_limit")])
        """)
    )
    allowed, reason, sets = found
    assert not allowed
    assert f"sudo nvidia-smi -i {UUID} -pl" in reason
    assert sets == 0


def test_without_persistence_the_driver_is_kept_in_use_while_a_limit_holds(in_stub: Run) -> None:
    """dbkinghorn/nv-gpu-powerlimit-setup#1: a limit is forgotten when the last user of the GPU leaves."""
    found = in_stub(
        script("""
        import pynvml
        def others_see_it_open():
            try:
                pynvml.nvmlDeviceGetCount()
                return True
            except pynvml.NVMLError:
                return False
        seen = []
        for persistence in (0, 1):
            gpu.persistence = persistence
            entry = limiter.take(DEVICE, PowerConfig(cap=400))
            seen.append(others_see_it_open())
            limiter.put_back(entry)
            seen.append(others_see_it_open())
        answer(seen)
        """)
    )
    assert found == [True, False, False, False]


def test_a_driver_that_lost_its_state_is_told_from_one_that_did_not(in_stub: Run) -> None:
    found = in_stub(
        script("""
        module = path.parent / "module"
        module.mkdir()
        backend = NvmlLimits(module)
        lives = [backend.life(DEVICE)]
        state.elapse(10.0)
        lives.append(backend.life(DEVICE))
        gpu.base_uj, gpu.since_ns = 0, state.now_ns  # reset without an unload
        lives.append(backend.life(DEVICE))
        (path.parent / "another").mkdir()
        (path.parent / "another").rename(module)  # loaded anew
        lives.append(backend.life(DEVICE))
        gpu.fail("handle", 999)
        lives.append(backend.life(DEVICE))
        answer([one.ended_before(two) for one, two in zip(lives, lives[1:])])
        """)
    )
    assert found == [False, True, True, False]
