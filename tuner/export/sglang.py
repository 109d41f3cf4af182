"""The launch command of a configuration for SGLang, as far as SGLang has the settings.

Names are those of its ``server_args`` in mid-2026. Its step budget is a chunk of prefill, its batch limit the number of
running requests; a host tier is its hierarchical cache, sized per rank.
"""

from __future__ import annotations

from energyopt.core.config import Deployment, EngineConfig
from energyopt.core.errors import ConfigError

from .command import LaunchCommand

PROGRAM = ("python", "-m", "sglang.launch_server")
_GIGABYTE = 10**9


def sglang_command(deployment: Deployment) -> LaunchCommand:
    """``sglang.launch_server`` with the same settings. Raises ConfigError for two pools or several replicas."""
    if deployment.prefill is not None or deployment.decode.replicas != 1:
        raise ConfigError("One SGLang command starts one engine: no prefill pool, and replicas = 1.")
    engine, power = deployment.decode.engine, deployment.decode.power
    dropped: list[str] = []
    if power.cap is not None:
        dropped.append(f"power-cap {power.cap:g} W has no counterpart in SGLang: set it with nvidia-smi -pl.")
    if power.sm_clock is not None:
        dropped.append(f"sm-clock {power.sm_clock / 1e6:.0f} MHz has no counterpart in SGLang: nvidia-smi -lgc.")
    words = [*_sizes(engine, dropped), *_cache(engine, dropped)]
    return LaunchCommand((*PROGRAM, "--model-path", engine.model, *words), tuple(dropped))


def _sizes(engine: EngineConfig, dropped: list[str]) -> list[str]:
    layout = engine.layout
    flags: dict[str, object] = {
        "served-model-name": engine.served_model_name,
        "dtype": None if engine.dtype == "auto" else engine.dtype,
        "context-length": engine.max_model_len,
        "max-running-requests": engine.max_num_seqs,
        "chunked-prefill-size": engine.max_num_batched_tokens,
        "max-queued-requests": engine.max_num_queued_reqs,
        "random-seed": engine.seed,
        "tp-size": layout.tp if layout.tp > 1 else None,
        "pp-size": layout.pp if layout.pp > 1 else None,
        "dp-size": layout.dp if layout.dp > 1 else None,
        "ep-size": layout.ep if layout.ep > 1 else None,
    }
    if layout.dcp > 1:
        dropped.append(f"decode context parallelism of {layout.dcp} has no counterpart in SGLang: leave it out.")
    if engine.threads is not None:
        dropped.append(f"threads {engine.threads} has no counterpart in SGLang: bind the process with taskset.")
    return [word for name, value in flags.items() if value is not None for word in (f"--{name}", str(value))]


def _cache(engine: EngineConfig, dropped: list[str]) -> list[str]:
    kv = engine.kv
    words = ["--page-size", str(kv.block_tokens)]
    if not kv.prefix_caching:
        words.append("--disable-radix-cache")
    if kv.memory_bytes is not None:
        dropped.append("The size of the KV pool is a share of memory in SGLang: --mem-fraction-static.")
    for tier in kv.tiers:
        if tier.kind == "host":
            per_rank = tier.size(engine.layout) / engine.layout.devices
            words += ["--enable-hierarchical-cache", "--hicache-size", str(max(1, round(per_rank / _GIGABYTE)))]
        else:
            dropped.append(f"The {tier.kind} tier is a storage backend in SGLang: --hicache-storage-backend.")
    return words
