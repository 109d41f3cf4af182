"""Limits and meters are those of every GPU that is used: a cap on the first of several would change nothing of most."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from energyopt.compose import doctor, meters, pools, service, worker_bench
from energyopt.compose.pools import PoolsRequest, run_pools
from energyopt.compose.service import ServeRequest, run_service
from energyopt.core.config import EngineConfig, ParallelLayout, PowerConfig
from energyopt.core.errors import ControlError
from energyopt.core.units import Watts
from telemetry.control.limits import Capability
from telemetry.detect import Detection

TWO = ParallelLayout(tp=2)


@pytest.fixture(autouse=True)
def five_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of five GPUs, as far as torch is asked, on which whoever is asked for limits says for which devices."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    monkeypatch.setattr(meters, "device_identity", lambda device: f"GPU-{device.index}")

    def name_them(devices: Sequence[str]) -> None:
        raise ControlError(" ".join(devices))

    for module in (service, pools):
        monkeypatch.setattr(module, "power_controller", name_them)
        monkeypatch.setattr(module, "put_back_left", tuple)


def serving(layout: ParallelLayout) -> ServeRequest:
    engine = EngineConfig(model="m", device="cuda", layout=layout)
    return ServeRequest(engine=engine, port=0, power=PowerConfig(cap=Watts(250.0)))


@pytest.mark.parametrize(
    ("layout", "devices"),
    [
        (ParallelLayout(), "GPU-0"),
        (TWO, "GPU-0 GPU-1"),
        (ParallelLayout(pp=2, dp=2), "GPU-0 GPU-1 GPU-2 GPU-3"),
    ],
)
def test_a_cap_holds_for_every_rank_of_an_engine(layout: ParallelLayout, devices: str) -> None:
    with pytest.raises(ControlError, match=f"^{devices}$"):
        run_service(serving(layout), lambda line: None)


@pytest.mark.parametrize(
    ("prefill", "decode", "devices"),
    [
        (1, 1, "GPU-0 GPU-1 GPU-2"),
        (1, 3, "GPU-0 GPU-1 GPU-2 GPU-3 GPU-4"),
        (2, 2, "GPU-0 GPU-1"),
    ],
    ids=["some", "all", "too few, so the engines share those of the largest"],
)
def test_a_cap_holds_for_every_engine_of_the_pools(prefill: int, decode: int, devices: str) -> None:
    request = PoolsRequest(serve=serving(ParallelLayout()), prefill=prefill, decode=decode, prefill_layout=TWO)
    with pytest.raises(ControlError, match=f"^{devices}$"):
        run_pools(request, lambda line: None)


def test_what_speaks_of_a_machine_speaks_of_all_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    everyone, asked = tuple(f"GPU-{n}" for n in range(5)), list[Sequence[str]]()

    def capability(devices: Sequence[str]) -> Capability:
        asked.append(devices)
        return Capability(True, "")

    def sensors(kind: str, devices: Sequence[str], clock: object) -> Detection:
        asked.append(devices)
        return Detection((), ())

    monkeypatch.setattr(doctor, "cap_capability", capability)
    monkeypatch.setattr(doctor, "find_meter", sensors)
    monkeypatch.setattr(worker_bench, "hardware_name", lambda device: "five GPUs")
    doctor._caps()
    doctor._meter()
    assert asked == [everyone, everyone]
    assert worker_bench.worker_facts("w", device="auto", kinds=()).devices == everyone
