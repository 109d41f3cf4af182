"""One canonical form: frozen, strict about keys at every depth, and named alike in every process."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from energyopt.core.config import (
    Deployment,
    EngineConfig,
    KvConfig,
    ParallelLayout,
    PoolConfig,
    PowerConfig,
    TierConfig,
    parse_config,
)
from energyopt.core.errors import ConfigError
from energyopt.core.study import Knob
from energyopt.core.units import Bytes

FULL: dict[str, Any] = {
    "decode": {
        "engine": {
            "model": "m",
            "kv": {"tiers": [{"kind": "host", "bytes_per_host": 1024}]},
            "layout": {"tp": 2, "pp": 3, "dp": 2, "dcp": 2},
        },
        "power": {"cap": 300},
        "replicas": 2,
    },
    "prefill": {"engine": {"model": "m"}},
}


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """``FULL`` with ``value`` put at ``path``."""

    def put(node: Any, rest: tuple[str | int, ...]) -> Any:
        if not rest:
            return value
        if isinstance(node, list):
            return [put(child, rest[1:]) if index == rest[0] else child for index, child in enumerate(node)]
        return {**node, rest[0]: put(node.get(rest[0]), rest[1:])}

    result: dict[str, Any] = put(FULL, path)
    return result


def test_plain_data_becomes_a_deployment() -> None:
    deployment = parse_config(Deployment, FULL)
    assert deployment.decode.engine.kv.tiers == (TierConfig(kind="host", bytes_per_host=Bytes(1024)),)
    assert deployment.decode.engine.layout.devices == 12  # dcp costs none
    assert deployment.decode.devices == 24
    assert deployment.devices == 25
    assert parse_config(Deployment, {"decode": FULL["prefill"]}).devices == 1


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (("colour",), "decode, prefill"),
        (("decode", "colour"), "engine, power, replicas"),
        (("prefill", "colour"), "engine, power, replicas"),
        (("decode", "power", "colour"), "cap, sm_clock"),
        (("decode", "engine", "layout", "colour"), "dcp, dp, ep, pp, tp"),
        (
            ("decode", "engine", "kv", "colour"),
            "block_tokens, match_tokens, memory_bytes, prefix_caching, retention_interval, tier_admit_after, "
            "tier_eviction, tier_load, tier_store, tiers",
        ),
        (("decode", "engine", "kv", "tiers", 0, "colour"), "bytes_per_host, bytes_per_rank, kind, path"),
    ],
)
def test_an_unknown_key_is_refused_at_every_depth(path: tuple[str | int, ...], allowed: str) -> None:
    where = ".".join(str(part) for part in path)
    with pytest.raises(ConfigError) as caught:
        parse_config(Deployment, changed(path, 1))
    assert caught.value.message == f"Unknown key {where!r}: allowed are {allowed}."


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("decode", "replicas"), 0, "decode.replicas = 0 is not allowed: input should be greater than or equal to 1."),
        (
            ("decode", "engine", "device"),
            "tpu",
            "decode.engine.device = 'tpu' is not allowed: input should be 'auto', 'cpu' or 'cuda'.",
        ),
        (
            ("decode", "power", "cap"),
            math.inf,
            "decode.power.cap = inf is not allowed: input should be a finite number.",
        ),
        (("decode", "power", "cap"), 0, "decode.power.cap = 0 is not allowed: input should be greater than 0."),
        (("decode", "engine"), {}, "The key 'decode.engine.model' is missing."),
        (
            ("decode", "engine", "kv"),
            {"retention_interval": 17},
            "decode.engine.kv = {'retention_interval': 17} is not allowed: "
            "retention_interval 17 is not a multiple of block_tokens 16.",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_named(path: tuple[str | int, ...], value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(Deployment, changed(path, value))
    assert caught.value.message == message


def test_a_rule_over_several_keys_needs_no_key() -> None:
    with pytest.raises(ConfigError, match=r"^max_num_batched_tokens 4 is below max_num_seqs 8: .*\.$"):
        parse_config(EngineConfig, {"model": "m", "max_num_seqs": 8, "max_num_batched_tokens": 4})


def test_a_huge_value_is_not_repeated_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(EngineConfig, {"model": ["x" * 1000] * 1000})
    assert len(caught.value.message) < 300
    assert caught.value.message.startswith("model = ['xxx")


@pytest.mark.parametrize("interval", [None, 0, 16, 48])
def test_intervals_of_whole_blocks(interval: int | None) -> None:
    assert KvConfig(retention_interval=interval).retention_interval == interval


def test_frozen() -> None:
    engine = EngineConfig(model="m")
    with pytest.raises(ValidationError, match="frozen"):
        engine.seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        engine.kv.block_tokens = 32  # type: ignore[misc]
    assert len({engine, EngineConfig(model="m"), EngineConfig(model="n")}) == 2


LAYOUTS = st.builds(ParallelLayout, tp=st.integers(1, 8), pp=st.integers(1, 8), dp=st.integers(1, 8))
POWERS = st.builds(PowerConfig, cap=st.none() | st.floats(1, 1e3), sm_clock=st.none() | st.floats(1e8, 3e9))
DEPLOYMENTS = st.builds(
    lambda model, layout, power: Deployment(
        decode=PoolConfig(engine=EngineConfig(model=model, layout=layout), power=power)
    ),
    st.text(),
    LAYOUTS,
    POWERS,
)


@given(DEPLOYMENTS, DEPLOYMENTS)
def test_digests_name_the_content(one: Deployment, other: Deployment) -> None:
    again = Deployment.model_validate_json(one.model_dump_json())
    assert again == one
    assert again.digest() == one.digest()
    assert (one == other) == (one.digest() == other.digest())


def test_digests_do_not_depend_on_how_it_was_written() -> None:
    default = EngineConfig(model="m")
    spelled = parse_config(EngineConfig, {"kv": {"block_tokens": 16}, "seed": 0, "model": "m"})
    assert spelled.digest() == default.digest()
    assert PowerConfig(cap=300).digest() == PowerConfig(cap=300.0).digest()
    assert Knob(path="p", values=(1,)).digest() != Knob(path="p", values=(True,)).digest()


def test_digests_are_equal_in_every_process() -> None:
    script = (
        "import sys; from energyopt.core.config import Deployment;"
        "print(Deployment.model_validate_json(sys.argv[1]).digest())"
    )
    deployment = parse_config(Deployment, FULL)
    digests = {
        subprocess.run(
            [sys.executable, "-c", script, deployment.model_dump_json()],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {deployment.digest()}


@pytest.mark.parametrize(
    ("kv", "message"),
    [
        ({"tiers": [{"kind": "host"}]}, "either bytes_per_host or bytes_per_rank"),
        ({"tiers": [{"kind": "host", "bytes_per_host": 1, "bytes_per_rank": 1}]}, "either bytes_per_host or"),
        ({"tiers": [{"kind": "shared", "bytes_per_host": 1}]}, "needs path"),
        ({"tiers": [{"kind": "host", "bytes_per_host": 1, "path": "/x"}]}, "'/x' has no use"),
        ({"tiers": [{"kind": "disk", "bytes_per_host": 1}, {"kind": "host", "bytes_per_host": 1}]}, "comes first"),
        ({"tiers": [{"kind": "host", "bytes_per_host": 1}] * 2}, "one at most, not host, host"),
        ({"tiers": [{"kind": "host", "bytes_per_host": 1}], "prefix_caching": False}, "need prefix_caching"),
    ],
)
def test_tiers_that_make_no_sense_are_refused(kv: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(KvConfig, kv)


def test_a_size_per_rank_grows_with_the_ranks_and_a_size_per_host_does_not() -> None:
    layout = ParallelLayout(tp=2, dp=2)
    assert TierConfig(kind="host", bytes_per_host=Bytes(100)).size(layout) == 100
    assert TierConfig(kind="host", bytes_per_rank=Bytes(100)).size(layout) == 400
