"""The launch command of a configuration for SGLang, as far as SGLang has the settings; the rest is named.

Names are those of its ``server_args`` in mid-2026. Its step budget is a chunk of prefill, its batch limit the number of
running requests; a host tier is its hierarchical cache, sized per rank.
"""

from __future__ import annotations

from typing import Any

from energyopt.core.config import Deployment, PoolConfig

from .command import LaunchCommand, single_pool
from .names import plain, published
from .settings import at, differing

PROGRAM = ("python", "-m", "sglang.launch_server")
_GIGABYTE = 10**9

_ALWAYS = {
    "engine.max_num_seqs": "max-running-requests",
    "engine.max_num_batched_tokens": "chunked-prefill-size",
    "engine.max_num_queued_reqs": "max-queued-requests",
    "engine.seed": "random-seed",
    "engine.kv.block_tokens": "page-size",
}
_WHERE_SET = {
    "engine.served_model_name": "served-model-name",
    "engine.dtype": "dtype",
    "engine.device": "device",
    "engine.max_model_len": "context-length",
    "engine.layout.tp": "tp-size",
    "engine.layout.pp": "pp-size",
    "engine.layout.dp": "dp-size",
    "engine.layout.ep": "ep-size",
}
_PARSERS = {"engine.tool_call_parser": "tool-call-parser", "engine.reasoning_parser": "reasoning-parser"}
_INSTEAD = {
    "power.cap": "set it with nvidia-smi -pl",
    "power.sm_clock": "lock it with nvidia-smi -lgc",
    "engine.layout.dcp": "leave it out",
    "engine.threads": "bind the process with taskset",
    "engine.kernels": "choose with --attention-backend",
    "engine.quantization": "serve a checkpoint that is quantized",
    "engine.kv.memory_bytes": "give a share of memory, --mem-fraction-static",
    "engine.kv.retention_interval": "leave it out",
    "engine.speculative_config": "choose with --speculative-algorithm",
    "engine.kv_transfer": "choose with --disaggregation-transfer-backend",
}


def sglang_command(deployment: Deployment) -> LaunchCommand:
    """``sglang.launch_server`` with the same settings. Raises ConfigError for two pools or several replicas."""
    pool = single_pool(deployment, "SGLang")
    left, dumped = differing(pool), pool.model_dump()
    words = [word for path, name in _ALWAYS.items() for word in (f"--{name}", str(at(dumped, path)))]
    for path in _ALWAYS:
        left.pop(path, None)
    words += [word for path, name in _WHERE_SET.items() if path in left for word in (f"--{name}", str(left.pop(path)))]
    for path, name in _PARSERS.items():
        told = left.pop(path, "none")  # it parses nothing unless it is told to
        words += [] if told == "none" else [f"--{name}", told]
    words += _switches(left)
    dropped: list[str] = []
    words += _tiers(pool, left, dropped)
    dropped = [*(_without(path, value) for path, value in left.items()), *dropped]
    model, note = published(plain(pool.engine.model))
    return LaunchCommand((*PROGRAM, "--model-path", model, *words), tuple(dropped), () if note is None else (note,))


def _switches(left: dict[str, Any]) -> list[str]:
    words = ["--disable-cuda-graph"] if left.pop("engine.enforce_eager", False) else []
    return words + (["--disable-radix-cache"] if left.pop("engine.kv.prefix_caching", True) is False else [])


def _tiers(pool: PoolConfig, left: dict[str, Any], dropped: list[str]) -> list[str]:
    left.pop("engine.kv.tiers", None)
    words: list[str] = []
    for tier in pool.engine.kv.tiers:
        if tier.kind == "host":
            per_rank = tier.size(pool.engine.layout) / pool.engine.layout.devices
            words += ["--enable-hierarchical-cache", "--hicache-size", str(max(1, round(per_rank / _GIGABYTE)))]
        else:
            dropped.append(f"The {tier.kind} tier is a storage backend in SGLang: --hicache-storage-backend.")
    return words


def _without(path: str, value: Any) -> str:
    instead = _INSTEAD.get(path)
    return f"{path} = {value!r} has no counterpart in SGLang{'' if instead is None else f': {instead}'}."
