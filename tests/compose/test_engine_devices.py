"""Joules and limits are those of the devices an engine uses: not of its neighbours, and not of another host."""

from __future__ import annotations

from pathlib import Path

import pytest

from energyopt.compose import engine_devices
from energyopt.compose.engine_devices import find_used, identities, largest, on_this_host, used_devices
from energyopt.compose.evaluators import check_choice, make_evaluator, powered
from energyopt.compose.free_memory import FreeMemory, amd_memory
from energyopt.compose.results import open_session
from energyopt.core.clock import FakeClock
from energyopt.core.config import Deployment, EngineConfig, ParallelLayout, PoolConfig, PowerConfig
from energyopt.core.errors import ConfigError, SensorUnavailableError
from energyopt.core.study import Knob, Space
from energyopt.core.units import Watts
from telemetry.detect import Detection
from tuner.evaluators.choice import EvaluatorChoice
from tuner.fake_study import toy_spec

ELSEWHERE = EvaluatorChoice(kind="endpoint", url="http://203.0.113.9:8000")
"""An address that is reserved for documentation: no host has it."""
CAPS = Space(knobs=(Knob(path="decode.power.cap", values=(100.0, None)),))


def deployment(tp: int = 1, **engine: str) -> Deployment:
    config = EngineConfig.model_validate({"model": "m", "layout": ParallelLayout(tp=tp), **engine})
    return Deployment(decode=PoolConfig(engine=config))


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host of eight GPUs, as far as it is asked."""
    monkeypatch.setattr(engine_devices, "_has_gpus", lambda: True)
    monkeypatch.setattr(engine_devices, "machine_gpus", lambda named: tuple(f"GPU-{n}" for n in range(8)))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://localhost:8000/v1", "http://[::1]:8000", "http://0.0.0.0"]
)
def test_a_server_here_is_told_from_one_elsewhere(url: str) -> None:
    assert on_this_host(url)
    assert not on_this_host(ELSEWHERE.url or "")
    assert not on_this_host("http://no-such-host.invalid:8000")
    assert not on_this_host("")


def test_another_hosts_joules_are_absent_not_ours() -> None:
    found = find_used(ELSEWHERE, deployment(), "auto", FakeClock())
    assert found.sources == ()
    assert "is on another host" in found.reasons[0]
    assert "energy_url" in found.reasons[0]


def test_another_hosts_power_is_not_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"decode\.power\.cap cannot be set: .* is on another host"):
        check_choice(ELSEWHERE, deployment(), CAPS)
    capped = Deployment(decode=PoolConfig(engine=EngineConfig(model="m"), power=PowerConfig(cap=Watts(200.0))))
    with pytest.raises(ConfigError, match=r"baseline\.power cannot be set"):
        check_choice(ELSEWHERE, capped, Space(knobs=()))
    check_choice(ELSEWHERE, deployment(), Space(knobs=()))
    check_choice(EvaluatorChoice(kind="endpoint", url="http://localhost:1"), deployment(), CAPS)
    session = open_session(f"sqlite:///{tmp_path / 'db'}", tmp_path / "out")
    facts = {"evaluator": ELSEWHERE.model_dump_json()}
    study = session.store.create_study(toy_spec(space=CAPS), facts)
    with pytest.raises(ConfigError, match="is on another host"):
        make_evaluator(session, study, ())
    with powered(study).applied(PowerConfig(cap=Watts(1.0))):
        pass  # nothing of this host is touched


@pytest.mark.usefixtures("gpus")
def test_a_launched_engine_has_a_gpu_a_rank_and_no_cpu() -> None:
    vllm = EvaluatorChoice(kind="vllm")
    assert used_devices(vllm, deployment(tp=2)) == ("cuda:0", "cuda:1")
    named = EvaluatorChoice(kind="vllm", devices=("GPU-c", "GPU-a", "GPU-b"))
    assert used_devices(named, deployment(tp=2)) == ("GPU-c", "GPU-a")
    assert used_devices(vllm, deployment(device="cpu")) == ("cpu:0",)
    assert used_devices(EvaluatorChoice(kind="vllm", environment=("VLLM_TARGET_DEVICE=cpu",)), deployment()) == (
        "cpu:0",
    )


@pytest.mark.usefixtures("gpus")
def test_a_running_server_has_the_gpus_that_the_study_names_else_all() -> None:
    here = {"kind": "endpoint", "url": "http://127.0.0.1:1"}
    every = EvaluatorChoice.model_validate(here)
    assert len(used_devices(every, deployment())) == 8
    named = EvaluatorChoice.model_validate({**here, "devices": ("GPU-3", "GPU-4")})
    assert used_devices(named, deployment()) == ("GPU-3", "GPU-4")


@pytest.mark.usefixtures("gpus")
def test_limits_are_of_the_same_devices_by_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def detect(kind: str, devices: tuple[str, ...], clock: FakeClock, *, environment: dict[str, str]) -> Detection:
        seen["environment"] = environment["CUDA_VISIBLE_DEVICES"]
        return Detection((), (), names=dict(zip(devices, ("GPU-x", "GPU-y"), strict=False)))

    monkeypatch.setattr(engine_devices, "detect", detect)
    choice = EvaluatorChoice(kind="vllm", environment=("CUDA_VISIBLE_DEVICES=5,6",))
    assert identities(choice, deployment(tp=2), FakeClock()) == ("GPU-x", "GPU-y")
    assert seen == {"environment": "5,6"}
    with pytest.raises(SensorUnavailableError, match="cuda:2 cannot be told apart"):
        identities(choice, deployment(tp=4), FakeClock())


def test_limits_cover_the_largest_layout_of_the_space() -> None:
    knobs = (
        Knob(path="decode.engine.max_num_seqs", values=(32, 64)),
        Knob(path="decode.engine.layout", values=("tp1", "tp4-pp2", "tp2"), when={"decode.engine.max_num_seqs": (64,)}),
    )
    assert largest(toy_spec(space=Space(knobs=knobs))).devices == 8
    assert largest(toy_spec()).devices == 1


def test_free_memory_is_of_the_host_and_of_each_gpu_that_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def devices() -> tuple[str, ...]:
        asked.append(1)
        return ("GPU-a", "GPU-b", "cpu:0")

    told = {"GPU-a": 5, "GPU-b": None}
    monkeypatch.setattr("energyopt.compose.free_memory.nvidia_memory", told.get)
    free = FreeMemory(devices)
    assert {place: bytes_ for place, bytes_ in free().items() if place != "host"} == {"GPU-a": 5}
    assert free().keys() == {"host", "GPU-a"}
    assert len(asked) == 1
    for name, value in (("total", 100), ("used", 30)):
        (tmp_path / f"mem_info_vram_{name}").write_text(f"{value}\n", encoding="ascii")
    assert amd_memory(tmp_path) == 70
    assert amd_memory(tmp_path / "absent") is None
