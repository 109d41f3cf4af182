"""Every form parses as what it claims to be and carries the whole configuration, or says what it leaves out."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import Any

import pytest
import yaml

from energyopt.core.config import (
    Deployment,
    EngineConfig,
    KvConfig,
    ParallelLayout,
    PoolConfig,
    PowerConfig,
    TierConfig,
)
from energyopt.core.errors import ConfigError
from energyopt.core.units import Bytes, Watts
from tuner.export.forms import FORMS, render
from tuner.export.sglang import sglang_command


def pool(tp: int = 1, replicas: int = 1, ep: int = 1, **engine: Any) -> PoolConfig:
    layout = ParallelLayout(tp=tp, ep=ep)
    return PoolConfig(engine=EngineConfig(model="org/model", layout=layout, **engine), replicas=replicas)


ONE = Deployment(decode=pool(tp=4, replicas=3, max_num_seqs=96))
TWO = Deployment(decode=pool(tp=4, replicas=2), prefill=pool(tp=2, replicas=5))


def documents(form: str, deployment: Deployment) -> list[Any]:
    text, media = render(form, deployment)
    assert media == "application/yaml"
    assert "&" not in text.replace("&&", "")
    return list(yaml.safe_load_all(text))


def test_kubernetes_counts_devices_and_is_ready_when_it_answers() -> None:
    workload, service = documents("kubernetes", ONE)
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert workload["spec"]["replicas"] == 3
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert container["args"][0] == "org/model"
    assert container["args"][container["args"].index("--max-num-seqs") + 1] == "96"
    assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "4"
    assert container["readinessProbe"]["httpGet"]["port"] == container["ports"][0]["containerPort"]
    assert service["spec"]["selector"] == workload["spec"]["template"]["metadata"]["labels"]


def test_compose_reserves_every_device() -> None:
    (document,) = documents("compose", ONE)
    service = document["services"]["energyopt"]
    (devices,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (devices["count"], service["deploy"]["replicas"]) == (4, 3)
    assert service["ports"] == ["8000"]  # three replicas cannot share one port of the host


@pytest.mark.parametrize("form", ["dynamo", "llm-d"])
def test_two_pools_keep_their_ratio_and_their_devices(form: str) -> None:
    (document,) = documents(form, TWO)
    if form == "dynamo":
        services = document["spec"]["services"]
        prefill, decode = services["VllmPrefillWorker"], services["VllmDecodeWorker"]
        words = prefill["extraPodSpec"]["mainContainer"]["args"]
        assert words[words.index("--disaggregation-mode") + 1] == "prefill"
        others = decode["extraPodSpec"]["mainContainer"]["args"]
        assert others[others.index("--disaggregation-mode") + 1] == "decode"
        assert prefill["resources"]["limits"]["gpu"] == "2"
        assert decode["resources"]["limits"]["gpu"] == "4"
    else:
        prefill, decode = document["prefill"], document["decode"]
        words = prefill["containers"][0]["args"]
        assert (prefill["parallelism"]["tensor"], decode["parallelism"]["tensor"]) == (2, 4)
    assert "--kv-transfer-config" in words
    assert (prefill["replicas"], decode["replicas"]) == (5, 2)


@pytest.mark.parametrize("form", ["vllm", "sglang", "compose", "kubernetes"])
def test_a_form_that_cannot_express_two_pools_says_which_can(form: str) -> None:
    with pytest.raises(ConfigError, match="energyopt, systemd, dynamo, llm-d can"):
        render(form, TWO)


def test_an_unknown_form_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="allowed are energyopt, vllm"):
        render("nomad", ONE)


def test_what_is_left_out_stands_above_as_a_comment() -> None:
    capped = Deployment(decode=PoolConfig(engine=EngineConfig(model="m"), power=PowerConfig(cap=Watts(300.0))))
    for form in ("vllm", "sglang", "compose", "kubernetes", "dynamo", "llm-d"):
        assert render(form, capped)[0].startswith("# "), form
    assert "--power-cap 300W" in render("energyopt", capped)[0]


def test_spread_experts_are_one_flag() -> None:
    text, _ = render("kubernetes", Deployment(decode=pool(tp=8, ep=8)))
    assert "--enable-expert-parallel" in text


@pytest.mark.parametrize("model", ["a b; rm -rf /", 'quo"te', "50%done", "$HOME", "- x", "line\nbreak: true", "#no"])
def test_a_hostile_name_stays_one_word(model: str) -> None:
    deployment = Deployment(decode=PoolConfig(engine=EngineConfig(model=model)))
    if model[0] == "-":
        for form in FORMS:
            with pytest.raises(ConfigError, match="looks like an option"):
                render(form, deployment)
        return
    (workload, _) = documents("kubernetes", deployment)
    assert workload["spec"]["template"]["spec"]["containers"][0]["args"][0] == model
    unit, _ = render("systemd", deployment)
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert "%" not in command.replace("%%", "")
    assert "$" not in command.replace("$$", "")
    if "\n" not in model:
        assert model.replace("%", "%%").replace("$", "$$") in shlex.split(command.partition(" ")[2])


def test_sglang_has_its_own_names() -> None:
    kv = KvConfig(tiers=(TierConfig(kind="host", bytes_per_rank=Bytes(32 * 10**9)),), block_tokens=64)
    engine = EngineConfig(model="m", max_num_seqs=48, max_num_batched_tokens=4096, kv=kv, layout=ParallelLayout(tp=2))
    words = sglang_command(Deployment(decode=PoolConfig(engine=engine))).argv
    named = dict(pairwise(words))
    assert (named["--max-running-requests"], named["--chunked-prefill-size"]) == ("48", "4096")
    assert (named["--tp-size"], named["--page-size"], named["--hicache-size"]) == ("2", "64", "32")
    plain = sglang_command(
        Deployment(decode=PoolConfig(engine=EngineConfig(model="m", kv=KvConfig(prefix_caching=False))))
    )
    assert "--disable-radix-cache" in plain.argv


def test_a_local_model_is_named_as_one() -> None:
    local = Deployment(decode=PoolConfig(engine=EngineConfig(model="/models/mine")))
    for form in FORMS:
        text = render(form, local)[0]
        assert "/models/mine" in text
        assert ("path of the machine" in text or "must lie where" in text) == (form != "energyopt"), form
    assert "hf://HuggingFaceTB/SmolLM2-135M-Instruct" in render("llm-d", smol())[0]


def smol() -> Deployment:
    return Deployment(decode=PoolConfig(engine=EngineConfig(model="smollm2-135m")))


def test_every_form_renders_the_default() -> None:
    for form in FORMS:
        text, _ = render(form, Deployment(decode=PoolConfig(engine=EngineConfig(model="m"))))
        assert text.endswith("\n")
