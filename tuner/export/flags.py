"""Which command-line flag carries which field of a deployment, here and in vLLM.

One table, so that a flag has one name. vLLM's names are those of its ``arg_utils`` (0.32). Settings that take more than
one word are in ``parts``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from energyopt.core.study import Value
from energyopt.core.units import Hertz, megahertz


def _plain(value: Value) -> str:
    return str(value)


def _watts(value: Value) -> str:
    return f"{float(value or 0):.10g}W"


def _clock(value: Value) -> str:
    return f"{megahertz(Hertz(float(value or 0)))}MHz"


@dataclass(frozen=True, slots=True)
class Flag:
    """One field. ``path`` is relative to a PoolConfig; ``vllm`` says whether vLLM has the flag too.

    A switch is written ``--name`` or ``--no-name``, where it has ``both`` forms. ``none`` is how the flag spells None
    where None is a choice and not the absence of one. ``instead`` says how to get the effect where vLLM lacks the flag.
    """

    path: str
    name: str
    vllm: bool = True
    text: Callable[[Value], str] = _plain
    instead: str = ""
    none: str | None = None
    both: bool = True

    def unset(self, value: Value) -> bool:
        """Whether the value leaves the flag out."""
        return value is None and self.none is None

    def argv(self, value: Value) -> list[str]:
        if value is None and self.none is not None:
            return [f"--{self.name}", self.none]
        if value is False and not self.both:
            return []
        if isinstance(value, bool):
            return [f"--{'' if value else 'no-'}{self.name}"]
        return [f"--{self.name}", self.text(value)]


_CONNECTOR = "configure a connector with --kv-transfer-config"

FLAGS = (
    Flag("engine.served_model_name", "served-model-name"),
    Flag("engine.dtype", "dtype"),
    Flag("engine.device", "device", vllm=False, instead="install vLLM's build for the device"),
    Flag("engine.seed", "seed"),
    Flag("engine.threads", "threads", vllm=False, instead="set VLLM_CPU_OMP_THREADS_BIND"),
    Flag("engine.kernels", "kernels", vllm=False, instead="choose with --attention-backend"),
    Flag("engine.quantization", "quantization", vllm=False, instead="serve a checkpoint that is quantized"),
    Flag("engine.enforce_eager", "enforce-eager", both=False),
    Flag("engine.max_model_len", "max-model-len"),
    Flag("engine.max_num_seqs", "max-num-seqs"),
    Flag("engine.max_num_batched_tokens", "max-num-batched-tokens"),
    Flag("engine.max_num_queued_reqs", "max-num-queued-reqs"),
    Flag("engine.idle_sleep", "idle-sleep", vllm=False, instead="start it with --enable-sleep-mode and ask for /sleep"),
    Flag("engine.kv.block_tokens", "block-size"),
    Flag("engine.kv.prefix_caching", "enable-prefix-caching"),
    Flag("engine.kv.memory_bytes", "kv-cache-memory-bytes"),
    Flag("engine.kv.retention_interval", "prefix-cache-retention-interval", none="dense"),
    Flag("engine.kv.match_tokens", "prefix-match-unit"),
    Flag("engine.kv.tier_eviction", "kv-tier-eviction", vllm=False, instead=_CONNECTOR),
    Flag("engine.kv.tier_admit_after", "kv-tier-admit-after", vllm=False, instead=_CONNECTOR),
    Flag("engine.kv.tier_store", "kv-tier-store", vllm=False, instead=_CONNECTOR),
    Flag("engine.kv.tier_load", "kv-tier-load", vllm=False, instead=_CONNECTOR),
    Flag("engine.layout.tp", "tensor-parallel-size"),
    Flag("engine.layout.pp", "pipeline-parallel-size"),
    Flag("engine.layout.dp", "data-parallel-size"),
    Flag("engine.layout.dcp", "decode-context-parallel-size"),
    Flag("power.cap", "power-cap", vllm=False, text=_watts, instead="set it with nvidia-smi -pl or amd-smi set"),
    Flag("power.sm_clock", "sm-clock", vllm=False, text=_clock, instead="lock it with nvidia-smi -lgc"),
)

INSTEAD = {
    "engine.kv.tiers": f"The KV tiers have no counterpart in vLLM: {_CONNECTOR}.",
    "engine.kv_transfer": f"The hand-over of blocks has another form in vLLM: {_CONNECTOR}.",
}
"""Parts that vLLM has no flag for, and what to do there."""
