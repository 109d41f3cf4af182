"""What a body from outside may make an engine do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energyopt.compose.body_policy import NAMES, BodyPolicy, _is_plain
from energyopt.compose.job_planner import PlanMaker
from energyopt.compose.plan import PlanRequest
from energyopt.core.config import Deployment, EngineConfig, KvTransferConfig, PoolConfig
from energyopt.core.errors import ConfigError
from energyopt.core.study import Knob, Space


def deployment(**engine: Any) -> Deployment:
    return Deployment(decode=PoolConfig(engine=EngineConfig.model_validate({"model": "toy", **engine})))


def test_a_text_that_nobody_vouched_for_is_refused() -> None:
    """Whatever field somebody adds: if it can hold a path, an address or a program, it is not let through."""
    texts = {name for name, field in EngineConfig.model_fields.items() if field.annotation in (str, str | None)}
    assert texts >= NAMES | {"model"}, "the names are fields"
    assert not any(_is_plain(EngineConfig.model_fields[name].annotation) for name in texts)

    class Later(EngineConfig):
        """An engine with an option of tomorrow."""

        plugin: str = "none"
        verbose: bool = False

    policy = BodyPolicy(names=("toy",))
    policy.check_deployment(Deployment(decode=PoolConfig.model_construct(engine=Later(model="toy", verbose=True))))
    with pytest.raises(ConfigError, match=r"engine\.plugin = '/tmp/x.so'"):
        policy.check_deployment(
            Deployment.model_construct(decode=PoolConfig.model_construct(engine=Later(model="toy", plugin="/tmp/x.so")))
        )


def test_exchange_between_engines_needs_a_word_of_who_runs_the_service() -> None:
    reaching = deployment(kv_transfer=KvTransferConfig(transport="mooncake", pool="10.0.0.1:50051"))
    knob = Knob(path="decode.engine.kv_transfer.port", values=(0, 1))
    with pytest.raises(ConfigError, match="transfer is not allowed here"):
        BodyPolicy(names=("toy",)).check_deployment(reaching)
    with pytest.raises(ConfigError, match=r"kv_transfer\.port"):
        BodyPolicy(names=("toy",)).check_space(Space(knobs=(knob,)), reaching)
    allowing = BodyPolicy(names=("toy",), transfers=True)
    with pytest.raises(ConfigError, match=r"kv_transfer\.pool"):  # an address still is free text
        allowing.check_deployment(reaching)
    allowing.check_deployment(deployment(kv_transfer=KvTransferConfig(transport="tcp")))
    allowing.check_space(Space(knobs=(knob,)), reaching)


def test_models_lie_below_a_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to("/etc")
    policy = BodyPolicy([tmp_path / "in"])
    policy.check_model(str(tmp_path / "in" / "m.gguf"))
    policy.check_model("smollm2-135m")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    policy.check_model("~/in/m.gguf")
    for outside in ("in/../x", "~", "~/x", "x.gguf", str(tmp_path / "in" / "link" / "x"), "", "\0x"[1:], "/"):
        with pytest.raises(ConfigError):
            policy.check_model(outside)


@pytest.mark.parametrize("change", [{"gpus": ("/etc/x.json",)}, {"model": "config.json"}, {"constants": "/x"}])
def test_a_plan_opens_no_file(change: dict[str, Any]) -> None:
    asked = {"model": "qwen3-32b", "gpus": ("h100",), "devices": 1, "prompt": 9, "output": 9, "slos": ("ttft:p90<1s",)}
    with pytest.raises(ConfigError, match="not files of the host"):
        PlanMaker().make(PlanRequest.model_validate({**asked, **change}))
