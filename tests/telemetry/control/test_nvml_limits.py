"""Limits through the real nvidia-ml-py over the stub driver, and holders that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[[str], Any]
UUID = "GPU-00000000-0000-4000-8000-000000000000"
SETUP = f"""
from energyopt.core.config import PowerConfig
from energyopt.core.errors import ControlError
from telemetry.control.journal import Journal
from telemetry.control.limits import PowerLimiter
from telemetry.control.nvml_limits import NvmlLimits
backend = NvmlLimits()
backend.forbidden = lambda device: None
limiter = PowerLimiter(backend, ["{UUID}"], Journal(path.parent / "journal"), clock=clock)
gpu = state.gpus[0]
"""


def script(body: str) -> str:
    return SETUP + textwrap.dedent(body)


def test_cap_and_clock_reach_the_driver_and_come_back(in_stub: Run) -> None:
    found = in_stub(
        script("""
        with limiter.applied(PowerConfig(cap=400, sm_clock=1.2e9)):
            inside = [gpu.requested_mw, gpu.clock_low, gpu.clock_high]
        answer([inside, gpu.requested_mw, gpu.clock_high])
        """)
    )
    assert found == [[400_000, 0, 1200], 500_000, 0]


def test_limits_are_read_in_watts(in_stub: Run) -> None:
    found = in_stub(
        script(f"""
        limits = backend.limits("{UUID}")
        answer([limits.requested, limits.enforced, limits.low, limits.high, limits.max_clock])
        """)
    )
    assert found == [500.0, 500.0, 200.0, 700.0, 1.98e9]


def test_a_refusal_of_the_driver_is_not_success(in_stub: Run) -> None:
    """nvidia-ml-py's second setter returns success where the driver said NO_PERMISSION."""
    found = in_stub(
        script("""
        gpu.fail("set_limit", 4)
        try:
            with limiter.applied(PowerConfig(cap=400)):
                words = None
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
            with limiter.applied(PowerConfig(cap=400)):
                words = None
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
        limiter = PowerLimiter(NvmlLimits(), ["{UUID}"], Journal(path.parent / "journal"))
        answer([*limiter.can_cap("{UUID}"), gpu.count("set_limit")])
        """)
    )
    allowed, reason, sets = found
    assert not allowed
    assert f"sudo nvidia-smi -i {UUID} -pl" in reason
    assert sets == 0


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_holder_leaves_no_cap_behind(
    in_stub: Run, stub_environment: dict[str, str], state_path: Path, ending: signal.Signals
) -> None:
    assert in_stub("answer(state.gpus[0].requested_mw)") == 500_000
    body = script("""
        with limiter.applied(PowerConfig(cap=300)):
            print("held", flush=True)
            signal.pause()
    """)
    prelude = f"""
import nvmlstub, signal
from pathlib import Path
from energyopt.core.clock import MonotonicClock
path, clock = Path({str(state_path)!r}), MonotonicClock()
state = nvmlstub.attach(path)
"""
    environment = {**stub_environment, "NVMLSTUB_STATE": str(state_path)}
    with subprocess.Popen(
        [sys.executable, "-c", prelude + body], env=environment, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert in_stub("answer(state.gpus[0].requested_mw)") == 300_000
        assert in_stub(script("answer([*limiter.recover()])")) == [], "a living holder is left alone"
        os.kill(holder.pid, ending)
        holder.wait(10)
    if ending is signal.SIGKILL:
        assert in_stub("answer(state.gpus[0].requested_mw)") == 300_000
    else:
        assert holder.returncode == 128 + signal.SIGTERM
        assert in_stub("answer(state.gpus[0].requested_mw)") == 500_000
    in_stub(script("answer([*limiter.recover()])"))
    assert in_stub("answer(state.gpus[0].requested_mw)") == 500_000


KILL_POINTS = ("claim", "claimed", "set", "restored", "released")


@pytest.mark.parametrize("point", KILL_POINTS)
def test_killed_at_any_point_of_the_protocol_the_found_limit_is_back_at_the_next_start(
    stub_environment: dict[str, str], state_path: Path, in_stub: Run, point: str
) -> None:
    in_stub("answer(1)")
    body = script(f"""
        import telemetry.control.limits as limits
        journal = limiter._journal

        def die_before(owner, name, at):
            original = getattr(owner, name)
            def wrapped(*args):
                if "{point}" == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)
            setattr(owner, name, wrapped)

        die_before(journal, "claim", "claim")
        die_before(backend, "set_cap", "claimed")
        die_before(journal, "release", "restored")
        with limiter.applied(PowerConfig(cap=300)):
            if "{point}" == "set":
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    prelude = f"""
import nvmlstub, os, signal
from pathlib import Path
from energyopt.core.clock import MonotonicClock
path, clock = Path({str(state_path)!r}), MonotonicClock()
state = nvmlstub.attach(path)
"""
    environment = {**stub_environment, "NVMLSTUB_STATE": str(state_path)}
    done = subprocess.run([sys.executable, "-c", prelude + body], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    in_stub(script("answer([*limiter.recover()])"))
    found = in_stub(script("answer([gpu.requested_mw, len(limiter._journal.entries())])"))
    assert found == [500_000, 0]
