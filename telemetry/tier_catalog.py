"""Metrics of the KV tiers below the device pool, by tier: host, disk, shared."""

from __future__ import annotations

from .metric import Kind, Metric, own


def _tier(name: str, text: str, *labels: str, kind: Kind = "counter") -> Metric:
    return own(f"kv_tier_{name}", kind, text, "model", "tier", *labels)


HITS = _tier("hit_blocks_total", "Blocks that were asked of a tier because it had them.")
LOADS = _tier("loaded_blocks_total", "Blocks that arrived whole from a tier.")
STORES = _tier("stored_blocks_total", "Blocks written to a tier.")
LOAD_BYTES = _tier("loaded_bytes_total", "Bytes read from a tier.")
STORE_BYTES = _tier("stored_bytes_total", "Bytes written to a tier.")
LOAD_SECONDS = _tier("load_seconds_total", "Time spent reading from a tier, off the step loop.")
STORE_SECONDS = _tier("store_seconds_total", "Time spent writing to a tier, off the step loop.")
EVICTIONS = _tier("evicted_blocks_total", "Blocks that this process gave up to make room in a tier.")
FAILURES = _tier("failed_blocks_total", "Blocks that a tier did not give or take, and were computed.", "reason")

SAVED_JOULES = own(
    "kv_hit_saved_joules_total",
    "counter",
    "Energy that computing the tokens of hits would have taken, by the tier they came from (device included).",
    *("model", "tier", "source"),
)
SPENT_JOULES = own(
    "kv_load_joules_total",
    "counter",
    "Energy while loads ran; estimated where a step ran beside them.",
    *("model", "tier", "source"),
)

VLLM_OFFLOAD_BYTES = Metric(
    "vllm:kv_offload_total_bytes_total",
    "counter",
    "Bytes copied between device and host tier.",
    ("model_name", "engine", "transfer_type"),
)
VLLM_OFFLOAD_SECONDS = Metric(
    "vllm:kv_offload_total_time_total",
    "counter",
    "Seconds of copies between device and host tier.",
    ("model_name", "engine", "transfer_type"),
)

TIERS: tuple[Metric, ...] = (
    HITS,
    LOADS,
    STORES,
    LOAD_BYTES,
    STORE_BYTES,
    LOAD_SECONDS,
    STORE_SECONDS,
    EVICTIONS,
    FAILURES,
    SAVED_JOULES,
    SPENT_JOULES,
    VLLM_OFFLOAD_BYTES,
    VLLM_OFFLOAD_SECONDS,
)
