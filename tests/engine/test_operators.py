from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from energyopt.core.errors import ConfigError
from engine import operators
from engine.model.layers.latent import LatentSpec
from engine.model.spec import DecoderSpec, HeadsSpec
from engine.operators import choose_ops, demand_of, describe, measured_choices, table_path
from kernels.choices import NOTHING, Plan
from kernels.demand import Demand
from kernels.dispatch import FUSED, REFERENCE
from kernels.platform import arch_named
from kernels.table import Device, Entry, Table, write_table

CPU, GPU = torch.device("cpu"), torch.device("cuda")
HERE = Device(device="NVIDIA H200", architecture="sm_90", driver="580", triton="3.9.0")
ENTRY = Entry(
    op="paged_decode", heads=32, kv_heads=8, width=128, dtype="bfloat16", rows=64, length=8192,
    plan=Plan(16, 64, 4, 3, 4).as_dict(), seconds=1e-4, default_seconds=2e-4, tried=2, failed=0,
)  # fmt: skip


def table(**changes: object) -> Table:
    plain = Table(measured=HERE, objective="energy", date="2026-11-30", complete=True, entries=(ENTRY,))
    return plain.model_copy(update=changes)


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user with data, on a machine with an H200."""
    monkeypatch.setattr(operators, "describe", lambda device: HERE)
    monkeypatch.setattr(operators, "arch_of", lambda device: arch_named("sm_90"))
    return {"XDG_DATA_HOME": str(tmp_path)}


def test_takes_what_was_named_or_says_what_can_run() -> None:
    assert choose_ops("auto", CPU) is FUSED
    assert choose_ops("torch", CPU) is FUSED
    assert choose_ops("reference", CPU) is REFERENCE
    with pytest.raises(ConfigError, match=r"'best' is unknown; here can run: auto, torch, reference\."):
        choose_ops("best", CPU)
    with pytest.raises(ConfigError, match="kernels = 'triton' cannot run on cpu: "):
        choose_ops("triton", CPU)


def test_finds_the_table_of_this_device(environ: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert measured_choices(GPU, environ) is NOTHING
    write_table(table_path(HERE, environ), table())
    with caplog.at_level(logging.INFO):
        choices = measured_choices(GPU, environ)
    assert choices.find("paged_decode", ENTRY.problem.shape, 60, 8000) == Plan(16, 64, 4, 3, 4)
    assert "1 kernel launches as measured on 2026-11-30" in caplog.text
    assert "did not end" not in caplog.text
    write_table(table_path(HERE, environ), table(complete=False))
    with caplog.at_level(logging.INFO):
        assert len(measured_choices(GPU, environ)) == 1
    assert "the search did not end, `energyopt kernels tune` goes on with it" in caplog.text
    assert measured_choices(CPU, environ) is NOTHING


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"measured": HERE.model_copy(update={"device": "NVIDIA A100"})}, "measured with device 'NVIDIA A100'"),
        ({"entries": (ENTRY.model_copy(update={"plan": Plan(1, 2, 3, 4, 5).as_dict()}),)}, "not one of those"),
        ({"entries": (ENTRY.model_copy(update={"dtype": "load"}),)}, "no number format"),
        ({"entries": (ENTRY.model_copy(update={"kv_heads": 0}),)}, "not one of those"),
    ],
)
def test_leaves_a_table_out_that_is_of_no_use_and_says_why(
    changes: dict[str, object], says: str, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write_table(table_path(HERE, environ), table(**changes))
    assert measured_choices(GPU, environ) is NOTHING
    assert says in caplog.text
    assert "energyopt kernels tune" in caplog.text


def test_a_table_that_is_garbage_and_a_user_without_a_home(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    path = table_path(HERE, environ)
    path.parent.mkdir(parents=True)
    path.write_text("{]")
    assert measured_choices(GPU, environ) is NOTHING
    assert "is no table of kernels" in caplog.text
    assert measured_choices(GPU, {}) is NOTHING
    assert "HOME is not set" in caplog.text


def test_a_strange_name_of_a_device_stays_inside_the_folder(environ: dict[str, str]) -> None:
    path = table_path(HERE.model_copy(update={"device": "../../etc/A 100"}), environ)
    assert path.parent == Path(environ["XDG_DATA_HOME"]) / "energyopt" / "kernels"
    assert "/" not in path.name
    assert not path.name.startswith(".")


def test_describes_this_machine() -> None:
    assert describe(CPU, "none").model_dump() == {
        "device": "cpu", "architecture": "interpreter", "driver": "none", "triton": describe(CPU).triton,
    }  # fmt: skip


def test_without_triton_there_is_nothing_to_look_up(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "triton_release", lambda: None)
    write_table(table_path(HERE, environ), table())
    assert measured_choices(GPU, environ) is NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentModel(DecoderSpec):
    attention: LatentSpec


def test_what_a_model_asks_is_known_before_its_weights() -> None:
    common: dict[str, Any] = {"name": "tiny", "layers": 1, "hidden": 64, "vocab": 9, "context": 9, "eps": 1e-5}
    asked = demand_of(HeadsSpec(**common, heads=10, kv_heads=4, head_dim=64), torch.float16)
    assert asked == Demand(torch.float16, 10, 4, 64)
    latent = LatentSpec(64, 16, 128, 64, 128, 512, None, 0.1)
    asked = demand_of(LatentModel(**common, attention=latent), torch.bfloat16)
    assert asked == Demand(torch.bfloat16, 16, 0, 576, 512)
    assert demand_of(DecoderSpec(**common), torch.float16) == Demand(torch.float16)
