"""Joules of a command: each sensor's own, a sum only if all answered, and words where nothing is known."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from energyopt.compose.kept_run import Keep
from energyopt.compose.measure import Measured, Progress, measure_command
from energyopt.core.clock import Clock
from energyopt.core.errors import ConfigError, SensorUnavailableError
from energyopt.core.footprint import FootprintConfig
from energyopt.core.results import Scope, Source
from energyopt.store.energy_store import open_energy_history
from telemetry.amd.process import AmdProcess
from telemetry.amd.source import AmdGpu
from telemetry.fake import FakeSource
from telemetry.meter import Meter
from telemetry.ports import Sample, SensorId
from telemetry.visible import GpuIdentity

SLEEP = ("sleep", "0.4")


def measured(*devices: dict[str, Any], command: Sequence[str] = SLEEP, **options: Any) -> Measured:
    def opened(kind: str, clock: Clock) -> Meter:
        return Meter([FakeSource(clock, **device) for device in devices], clock, ("found",))

    return measure_command(command, open_meter=opened, **options)


def test_each_device_and_their_sum() -> None:
    cpu = {
        "sensor": SensorId("cpu:0", Scope.CPU_PACKAGE),
        "power": lambda at: 50.0,
        "energy": lambda at: 50.0 * at,
        "source": Source.ESTIMATED,
    }
    found = measured({"tick": 0.1}, cpu)
    assert found.seconds == pytest.approx(0.4, abs=0.3)
    assert {reading.device: reading.source for reading in found.readings} == {
        "GPU-fake": Source.COUNTER,
        "cpu:0": Source.ESTIMATED,
    }
    for reading, watts in zip(found.readings, (300.0, 50.0), strict=True):
        assert abs(reading.joules - watts * found.seconds) <= reading.error
    assert found.total is not None
    assert found.total.label == "counter+estimated"
    assert found.total.joules == pytest.approx(350 * found.seconds, rel=0.25)


def test_a_sensor_that_fails_meanwhile_costs_the_sum_not_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlco2/codecarbon#1316: no counter became 0 kWh for the whole run."""
    monkeypatch.setattr("telemetry.meter.SETTLE", 0.3)
    broken = threading.Event()

    def fault(sample: Sample) -> Sample | None:
        return None if broken.is_set() else sample

    bad = {"sensor": SensorId("GPU-bad", Scope.GPU), "fault": fault}
    found = measured({}, bad, on_tick=lambda progress: broken.set(), command=("sleep", "1.4"))
    assert [reading.device for reading in found.readings] == ["GPU-fake"]
    assert found.total is None
    assert found.document()["total"] is None
    assert any("GPU-bad" in reason for reason in found.reasons)


def test_without_a_meter_the_command_runs_and_nothing_is_made_up() -> None:
    found = measured(command=("sh", "-c", "exit 3"), footprint=FootprintConfig(grid=400.0))
    assert found.ended.exit_code == 3
    assert (found.readings, found.total, found.footprint) == ((), None, None)
    assert found.reasons == ("found",)


def test_the_meter_none_says_so() -> None:
    found = measure_command(["true"], meter_kind="none")
    assert found.total is None
    assert found.reasons == ("Energy is not measured: the meter is set to none.",)


def test_a_meter_that_is_asked_for_and_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> tuple[GpuIdentity, ...]:
        raise SensorUnavailableError("no driver")

    monkeypatch.setattr("energyopt.compose.host_meter.list_gpus", no_driver)
    with pytest.raises(ConfigError, match="expected one of auto"):
        measure_command(["true"], meter_kind="magic")
    with pytest.raises(SensorUnavailableError, match="no driver"):
        measure_command(["true"], meter_kind="nvml")


def test_a_recording_stands_in_for_a_sensor(tmp_path: Path) -> None:
    recording = tmp_path / "r.csv"
    recording.write_text("at,counter,power\n" + "".join(f"{at / 10},{25 * at / 10},25\n" for at in range(200)))
    found = measure_command(["sleep", "0.5"], meter_kind=f"replay:{recording}")
    (reading,) = found.readings
    assert reading.source is Source.COUNTER
    assert reading.joules == pytest.approx(25 * reading.window, abs=reading.error), "however late the sampler was woken"
    assert any("is replayed in its place" in reason for reason in found.reasons)


def test_amd_gpus_are_looked_for_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(process: AmdProcess) -> list[AmdGpu]:
        raise SensorUnavailableError("no library")

    monkeypatch.setattr("energyopt.compose.host_meter.list_amd", no_library)
    with pytest.raises(SensorUnavailableError, match="no library"):
        measure_command(["true"], meter_kind="amdsmi")


def test_progress_of_a_running_command() -> None:
    seen: list[Progress] = []
    found = measured({}, on_tick=seen.append, command=("sleep", "2.3"))
    assert [round(progress.seconds) for progress in seen] == [1, 2]
    assert seen[-1].watts == 300.0
    assert seen[-1].joules == pytest.approx(600.0, rel=0.2)
    assert found.ended.exit_code == 0


def test_every_piece_of_a_run_is_kept(tmp_path: Path) -> None:
    keep = Keep(str(tmp_path / "energy.db"), "my run")
    found = measured({}, keep=keep, command=("sleep", "2.2"))
    (reading,) = found.readings
    history = open_energy_history(keep.db)
    pieces = history.pieces("my run", "GPU-fake", "gpu")
    assert sum(piece.joules for piece in pieces) == pytest.approx(reading.joules, rel=0.5)
    assert all(piece.joules / piece.seconds == pytest.approx(300.0, rel=0.01) for piece in pieces)
    points = history.energy(found.started - timedelta(minutes=2), found.started + timedelta(minutes=2), resolution=1)
    assert sum(point.joules for point in points) >= reading.joules - reading.error
    assert {point.device for point in points} == {"GPU-fake"}


def test_the_document_is_json_in_base_units() -> None:
    config = FootprintConfig(pue=1.5, grid=360.0, price_per_kilowatt_hour=0.36)
    document = json.loads(json.dumps(measured({}, footprint=config).document()))
    assert document["command"] == ["sleep", "0.4"]
    assert (document["exit_code"], document["signal"]) == (0, None)
    (device,) = document["devices"]
    assert device["mean_watts"] == pytest.approx(device["joules"] / device["window"])
    joules = document["total"]["joules"]
    assert document["footprint"]["boundary"] == "gpu+pue"
    assert document["footprint"]["carbon_grams"] == pytest.approx(joules * 1.5 * 1e-4)
    assert document["footprint"]["cost"] == pytest.approx(joules * 1.5 * 1e-7)
