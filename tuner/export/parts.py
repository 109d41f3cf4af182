"""Settings that take more than one word, or whose word depends on others: how ``energyopt serve`` and vLLM spell them.

Each function takes the settings that a command still has to carry, and takes out what it has written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from energyopt.core.config import KvTransferConfig, ParallelLayout, SpeculativeConfig
from energyopt.core.errors import ConfigError

Settings = dict[str, Any]
_TIERS, _PARSERS = "engine.kv.tiers", ("engine.tool_call_parser", "engine.reasoning_parser")
GIBIBYTE = 2**30
PLACES = {"disk": "kv-disk-path", "shared": "kv-shared-url"}


def experts(left: Settings, layout: ParallelLayout) -> list[str]:
    """The switch that both engines have: experts spread over all tensor x data ranks, or not at all.

    Raises ConfigError for another number of ranks.
    """
    count = left.pop("engine.layout.ep", None)
    if count is None:
        return []
    if count != layout.tp * layout.dp:
        raise ConfigError(
            f"engine.layout.ep = {count} cannot be given on a command line: experts spread over all "
            f"{layout.tp * layout.dp} tensor x data ranks, or over none."
        )
    return ["--enable-expert-parallel"]


def speculation(left: Settings) -> list[str]:
    """As JSON, with what differs from the defaults; the method always."""
    part = left.pop("engine.speculative_config", None)
    if part is None:
        return []
    usual = SpeculativeConfig().model_dump()
    told = {name: value for name, value in part.items() if name == "method" or value != usual[name]}
    return ["--speculative-config", json.dumps(told)]


def speculation_vllm(left: Settings, dropped: list[str]) -> list[str]:
    """vLLM has no defaults of its own for these, and a depth that stays."""
    part = left.pop("engine.speculative_config", None)
    if part is None:
        return []
    if part["adaptive"]:
        dropped.append(
            f"A depth of speculation that adapts has no counterpart in vLLM: it stays at "
            f"{part['num_speculative_tokens']} tokens."
        )
    return ["--speculative-config", json.dumps({name: value for name, value in part.items() if name != "adaptive"})]


def parsers(left: Settings) -> list[str]:
    return [word for path in _PARSERS if path in left for word in (_option(path), left.pop(path))]


def parsers_vllm(left: Settings, dropped: list[str]) -> list[str]:
    """vLLM parses nothing unless it is told to, so "none" is its default; it has another switch beside tool calls."""
    words = []
    for path in _PARSERS:
        name = left.pop(path, "none")
        if name != "none":
            words += [_option(path), name]
            words += ["--enable-auto-tool-choice"] if path.endswith("tool_call_parser") else []
    return words


def hand_over(left: Settings) -> list[str]:
    """Raises ConfigError for what has no option: how much a Mooncake pool is lent."""
    part = left.pop("engine.kv_transfer", None)
    if part is None:
        return []
    usual = KvTransferConfig().model_dump()
    if part["pool_bytes"] != usual["pool_bytes"]:
        raise ConfigError(f"engine.kv_transfer.pool_bytes = {part['pool_bytes']} cannot be given on a command line.")
    names = {"lease": "kv-lease-seconds", "failure_policy": "kv-load-failure-policy"}
    words = ["--kv-transfer", part["transport"]]
    for field in ("host", "port", "advertise", "lease", "failure_policy", "pool"):
        if part[field] != usual[field]:
            words += [f"--{names.get(field, f'kv-transfer-{field}')}", str(part[field])]
    if part["peers"] != usual["peers"]:
        words += [word for peer in part["peers"] for word in ("--kv-transfer-peer", peer)]
    return words


def tiers(left: Settings, layout: ParallelLayout) -> list[str]:
    """Sizes in GiB, as the flags take them. Only the host tier is sized per rank; others are told the sum of ranks."""
    words: list[str] = []
    for tier in left.pop(_TIERS, ()):
        kind, per_rank = tier["kind"], tier["bytes_per_rank"]
        if per_rank is not None and kind == "host":
            words += ["--kv-host-gib-per-rank", repr(per_rank / GIBIBYTE)]
        else:
            size = tier["bytes_per_host"] if per_rank is None else per_rank * layout.devices
            words += [f"--kv-{kind}-gib-per-host", repr(size / GIBIBYTE)]
        if tier["path"] is not None:
            words += [f"--{PLACES[kind]}", tier["path"]]
    return words


def _option(path: str) -> str:
    return f"--{path.rpartition('.')[2].replace('_', '-')}"


SERVE_PARTS: Sequence[Callable[[Settings], list[str]]] = (speculation, parsers, hand_over)
VLLM_PARTS: Sequence[Callable[[Settings, list[str]], list[str]]] = (speculation_vllm, parsers_vllm)
