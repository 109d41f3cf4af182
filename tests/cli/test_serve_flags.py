"""Every launch command that the tuner writes is one that ``serve`` takes, and it starts the same engines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import typer
from typer.core import TyperOption

from energyopt.cli.engine_options import engine_config
from energyopt.cli.power_options import power_asked
from energyopt.cli.serve import serve
from energyopt.cli.transfer_options import pool_layouts
from energyopt.core.config import Deployment, EngineConfig, PoolConfig
from energyopt.core.errors import ConfigError
from tuner.export.command import serve_command, vllm_command
from tuner.export.sglang import sglang_command

NOT_THE_ENGINE = {
    *("host", "port", "api_key", "api_keys", "meter", "idle_energy", "reservation", "pue", "grid_intensity"),
    *("electricity_price", "currency", "slo", "rebalance"),
}
"""Options of the service around the engines: a configuration has no such setting."""

VALUES: Mapping[str, str] = {
    "kv_cache_memory_bytes": "2GiB",
    "prefix_cache_retention_interval": "dense",
    "prefix_match_unit": "8",
    "speculative_config": json.dumps({"method": "ngram", "num_speculative_tokens": 2, "adaptive": False}),
    "power_cap": "300W",
    "sm_clock": "1.2GHz",
    "kv_transfer_pool": "mooncake://h:50051",
    "kv_shared_url": "mooncake://h:50051",
    "kv_disk_path": "/cache",
    "idle_sleep": "7.5",
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
    **dict.fromkeys(("prefill_tp", "prefill_pp", "decode_tp", "decode_pp"), "2"),
}
"""For options whose type alone does not tell a value that is allowed."""

TOGETHER: Mapping[str, list[str]] = {
    "enable_expert_parallel": ["--tensor-parallel-size", "2"],
    "kv_disk_path": ["--kv-disk-gib-per-host", "2"],
    "kv_shared_gib_per_host": ["--kv-shared-url", "mooncake://h:50051"],
    "kv_shared_url": ["--kv-shared-gib-per-host", "2"],
    "kv_transfer_pool": ["--kv-transfer", "mooncake"],
    "prefill": ["--decode", "3"],
    "decode": ["--prefill", "3"],
    **{key: ["--prefill", "3", "--decode", "2"] for key in ("prefill_tp", "prefill_pp", "decode_tp", "decode_pp")},
    **{
        name: ["--kv-transfer", "tcp"]
        for name in ("kv_transfer_host", "kv_transfer_port", "kv_transfer_advertise", "kv_transfer_peer")
    },
    **{name: ["--kv-transfer", "shm"] for name in ("kv_lease_seconds", "kv_load_failure_policy")},
}
"""What an option needs beside it."""
PAIRED = ("kv_shared_gib_per_host", "kv_shared_url", "kv_transfer_pool", "prefill", "decode")
"""Options of which neither goes without the other."""


def serve_options() -> Iterator[TyperOption]:
    app = typer.Typer(add_completion=False)
    app.command()(serve)
    for parameter in typer.main.get_command(app).params:
        if isinstance(parameter, TyperOption) and parameter.name not in NOT_THE_ENGINE:
            yield parameter


OPTIONS = {str(option.name): option for option in serve_options()}
TYPES = get_type_hints(serve)


def parse(words: list[str]) -> Deployment:
    """What ``energyopt serve`` with these words runs, by its own parser."""
    app = typer.Typer(add_completion=False)
    app.command()(serve)
    params = typer.main.get_command(app).make_context("serve", list(words)).params
    power = power_asked(params["power_cap"], params["sm_clock"])
    engine = engine_config(params)
    own = pool_layouts(params, engine)
    pool = {"engine": {**engine.model_dump(), "model": params["model"]}, "power": power.limits}
    pools = {
        name: {
            **pool,
            "engine": {**engine.model_dump(), "layout": own.get(f"{name}_layout", engine.layout).model_dump()},
            "replicas": params[name],
        }
        for name in ("prefill", "decode")
    }
    if not params["prefill"]:
        return Deployment.model_validate({"decode": pool})
    return Deployment.model_validate(pools)


def other_value(option: TyperOption) -> list[str]:
    """The words that give an option another value than its default; what its type alone does not tell is in VALUES."""
    name, flag = str(option.name), option.opts[0]
    if option.is_flag:
        return [option.secondary_opts[0] if option.default else flag]
    if name in VALUES:
        return [flag, VALUES[name]]
    kinds = _kinds(TYPES[name])
    choices = [word for kind in kinds for word in get_args(kind) if get_origin(kind) is Literal]
    if choices:
        return [flag, next(word for word in choices if word != option.default)]
    if int in kinds or float in kinds:
        start = option.default if isinstance(option.default, int | float) else 0
        return [flag, str(start + 1)]
    return [flag, "other"]


def beside(name: str) -> list[str]:
    return ["toy", *TOGETHER.get(name, [])]


def _kinds(kind: object) -> list[object]:
    if get_origin(kind) not in (Union, UnionType):
        return [kind]
    return [one for part in get_args(kind) for one in _kinds(part)]


@pytest.mark.parametrize("name", OPTIONS)
def test_what_an_option_of_serve_sets_a_command_says_again(name: str) -> None:
    """So a new option without its row in the tables of the exports fails here."""
    wanted = parse([*beside(name), *other_value(OPTIONS[name])])
    assert wanted != parse(["toy"] if name in PAIRED else beside(name)), "the option changes nothing"
    assert parse(list(serve_command(wanted).argv[2:])) == wanted


def test_a_command_without_options_is_the_default() -> None:
    assert serve_command(parse(["toy"])).argv == ("energyopt", "serve", "toy")


def test_sizes_per_rank_that_serve_does_not_take_become_the_hosts() -> None:
    tiers = [{"kind": "host", "bytes_per_rank": 2**30}, {"kind": "disk", "bytes_per_rank": 2**31, "path": "/d"}]
    engine = EngineConfig.model_validate({"model": "toy", "layout": {"tp": 4}, "kv": {"tiers": tiers}})
    read = parse(list(serve_command(Deployment(decode=PoolConfig(engine=engine))).argv[2:])).decode.engine
    assert [tier.bytes_per_host for tier in read.kv.tiers] == [None, 4 * 2**31]
    assert [tier.size(read.layout) for tier in read.kv.tiers] == [tier.size(engine.layout) for tier in engine.kv.tiers]


@pytest.mark.parametrize("name", OPTIONS)
def test_another_engines_command_carries_a_setting_or_names_it(name: str) -> None:
    plain, changed = parse(["toy"]), parse([*beside(name), *other_value(OPTIONS[name])])
    if changed.prefill is not None:
        return  # refused as a whole, with the reason
    for make in (vllm_command, sglang_command):
        assert make(plain).argv != make(changed).argv or make(plain).remarks != make(changed).remarks


def test_what_no_command_can_carry_is_refused_by_name() -> None:
    def refused(**fields: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            serve_command(Deployment.model_validate(fields))
        return str(caught.value)

    engine: dict[str, Any] = {"model": "toy"}
    assert "energyopt router" in refused(decode={"engine": engine, "replicas": 2})
    other = {"engine": {**engine, "max_num_seqs": 2}}
    assert "other engines or limits" in refused(decode={"engine": engine}, prefill=other)
    part = {"transport": "mooncake", "pool": "mooncake://h:1", "pool_bytes": 5}
    assert "pool_bytes" in refused(decode={"engine": {**engine, "kv_transfer": part}})
    assert "layout.ep = 2" in refused(decode={"engine": {**engine, "layout": {"tp": 4, "ep": 2}}})
    assert "looks like an option" in refused(decode={"engine": {"model": "--power-cap"}})
